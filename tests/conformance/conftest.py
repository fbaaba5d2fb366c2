"""Devices for tests of every one of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgeinfer.backends.base import Device, device_kinds
from tests.golden.golden_devices import COUNTING, opened


@pytest.fixture(params=tuple(device_kinds()))
def key(request: pytest.FixtureRequest) -> str:
    """The name of each device."""
    name: str = request.param
    return name


@pytest.fixture
def device(key: str) -> Iterator[Device]:
    """The device of that name."""
    found = opened(key)
    yield found
    found.close()


@pytest.fixture(params=[key for key in device_kinds() if key not in COUNTING])
def computing(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Each device that computes; parametrize it indirectly for some of them."""
    found = opened(request.param)
    yield found
    found.close()
