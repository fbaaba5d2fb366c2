"""Recorded machines below a folder of the test's own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.scheduling.machine.topology.recorded import lay_out

Recorded = Callable[..., Path]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """recorded("machine", "limits", ...): the root of a machine, with limits laid over it."""
    return lambda *names: lay_out(tmp_path, *names)
