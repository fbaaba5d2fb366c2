"""Every registry: keys are names of files, entries are of one kind, and an unknown key lists those there are."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from edgeinfer.app.bench.peers import PEERS
from edgeinfer.app.cli import COMMANDS
from edgeinfer.app.doctor import CHECKS
from edgeinfer.backends.base import DEVICES
from edgeinfer.engine.speculation.drafters import DRAFTERS
from edgeinfer.errors import UnknownKey
from edgeinfer.graph.ops import OPS
from edgeinfer.models.architectures import ARCHITECTURES
from edgeinfer.models.elsewhere import PROGRAMS
from edgeinfer.models.quants import FORMATS
from edgeinfer.models.sources import SOURCES
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from edgeinfer.registry import Registry

ALL = {
    registry._package: registry
    for registry in (
        *(ARCHITECTURES, CHECKS, COMMANDS, DEVICES, DRAFTERS, FORMATS),
        *(OPS, PEERS, PROGRAMS, SOURCES, TOOL_FORMATS),
    )
}


@pytest.fixture(params=ALL)
def registry(request: pytest.FixtureRequest) -> Registry[object]:
    return ALL[request.param]


def test_each_file_exports_an_entry_or_is_said_to_be_none(registry: Registry[object]) -> None:
    package = importlib.import_module(registry._package)
    names = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert set(registry.keys()) == names - set(registry._skip)
    assert set(registry._skip) <= names  # no name of a file that is gone
    entries = registry.entries()
    assert list(entries) == sorted(names - set(registry._skip))
    assert all(registry.get(key) is entry and key in registry for key, entry in entries.items())


def test_each_file_is_described(registry: Registry[object]) -> None:
    for key in registry.keys():  # noqa: SIM118 (a registry is no dict)
        assert (importlib.import_module(f"{registry._package}.{key}").__doc__ or "").strip(), key


def test_an_unknown_key_lists_those_there_are(registry: Registry[object]) -> None:
    assert "abacus" not in registry
    with pytest.raises(UnknownKey) as raised:
        registry.get("abacus")
    assert "'abacus'" in str(raised.value)
    assert all(key in str(raised.value) for key in registry.keys())  # noqa: SIM118
