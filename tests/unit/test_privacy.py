"""Reports of dependencies are off before anything of theirs can be imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.process import REPORTING_MODULES, TELEMETRY_OFF

PACKAGE = Path(edgeinfer.__file__).parent
REPORTING = ("onnxruntime", "openvino", "openvino_genai", "onnxruntime_genai", "huggingface_hub")
"""Packages that report, or whose dependencies do."""
GUARDED = (PACKAGE / "backends", PACKAGE / "app/bench/peers", PACKAGE / "models/hub_client.py")
"""Where they may be imported: `refuse_telemetry` is called before."""


def ran(code: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in TELEMETRY_OFF}
    return subprocess.run(
        [sys.executable, "-c", code], env={**environment, **variables}, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("module", ["edgeinfer.backends", "edgeinfer.app.bench.peers"])
def test_reports_are_off_once_a_package_is_imported_that_has_devices(module: str) -> None:
    code = f"import os, {module}; print([os.environ.get(name) for name in {list(TELEMETRY_OFF)}])"
    for before in ({}, {"ORT_DISABLE_TELEMETRY": "0"}):
        assert ran(code, **before) == str(list(TELEMETRY_OFF.values()))


@pytest.mark.parametrize("name", REPORTING_MODULES)
def test_what_only_reports_cannot_be_imported(name: str) -> None:
    code = f"import edgeinfer.backends\ntry:\n    import {name}\nexcept ImportError:\n    print('no')"
    assert ran(code) == "no"


def test_what_a_program_imported_itself_is_left_to_it() -> None:
    code = "import sys, json as mine; sys.modules['openvino_telemetry'] = mine; import edgeinfer.backends\n"
    assert ran(code + "import openvino_telemetry; print(openvino_telemetry is mine)") == "True"


def test_packages_that_report_are_imported_nowhere_else() -> None:
    strays = []
    for path in PACKAGE.rglob("*.py"):
        if any(path.is_relative_to(place) for place in GUARDED):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            strays += [f"{path}:{node.lineno}" for name in names if name.partition(".")[0] in REPORTING]
    assert not strays
