"""The workflow for hosted runners: what it runs exists here, it may change nothing, and nobody starts it unasked."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.cli import COMMANDS
from tests.conftest import POSIX_ALONE
from tests.platforms.foreign_system import has_stub, is_missing

TESTS, ROOT = Path(__file__).parents[1], Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "tests.yml"
ACTIONS = {"actions/checkout": "v4", "actions/setup-python": "v5"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    import yaml

    loaded: dict[str, Any] = yaml.load(WORKFLOW.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # `on` is no truth
    return loaded


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_it_is_started_by_hand_and_may_only_read(workflow: dict[str, Any]) -> None:
    assert workflow["on"] == {"workflow_dispatch": ""}
    assert workflow["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in workflow["jobs"].values())
    assert "secrets" not in WORKFLOW.read_text(encoding="utf-8")
    assert all(int(job["timeout-minutes"]) <= 180 for job in workflow["jobs"].values())


def test_systems_and_versions(workflow: dict[str, Any]) -> None:
    unix, windows = workflow["jobs"]["unix"], workflow["jobs"]["windows"]
    assert unix["strategy"]["matrix"]["runner"] == ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest"]
    assert windows["runs-on"] == "windows-latest"
    least = PROJECT["requires-python"].removeprefix(">=")
    for job in (unix, windows):
        versions = job["strategy"]["matrix"]["python"]
        assert versions[0] == least
        assert versions == sorted(versions, key=lambda version: int(version.partition(".")[2]))


def test_actions_are_pinned(workflow: dict[str, Any]) -> None:
    used = {step["uses"] for step in steps(workflow) if "uses" in step}
    assert used == {f"{name}@{version}" for name, version in ACTIONS.items()}


def test_commands_exist(workflow: dict[str, Any]) -> None:
    """Targets of the Makefile, extras of the package, modules, commands of edgeinfer and their options."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    seen = set[str]()
    for command in [step["run"] for step in steps(workflow) if "run" in step]:
        words = [word for word in shlex.split(command.rpartition("|")[2]) if not re.match(r"[A-Z_]+=", word)]
        program, rest = Path(words[0]).name, words[1:]
        seen.add(program)
        if program == "make":
            assert rest[0] in targets
        elif program == "edgeinfer":
            assert rest[0] in COMMANDS
        else:
            assert (program, rest[0]) == ("python", "-m")
            assert rest[1] in ("pip", "pytest")
            for extra in re.findall(r"\.\[(.+)\]", command):
                assert extra in PROJECT["optional-dependencies"]
    assert seen == {"make", "edgeinfer", "python"}


def test_commands_are_those_of_the_readme(workflow: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    for command in ("make chat", "make test", 'echo "What is photosynthesis?" | EDGEINFER_SEED=1 make chat'):
        assert command in readme
        assert any(command in each for each in commands)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m pytest -n 2 --dist worksteal" in makefile  # what Windows runs, which has no make
    assert "python -m pytest -n 2 --dist worksteal" in commands


def test_files_that_windows_cannot_import_are_left_out_there() -> None:
    """Those that import, themselves or by way of another file of the tests, what only POSIX has."""
    imports = {path: imported(path) for path in TESTS.rglob("*.py")}
    by_name = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in imports}

    def needs_posix(path: Path, above: frozenset[Path] = frozenset()) -> bool:
        if any(
            name in sys.stdlib_module_names and is_missing(name, "win32") for name in imports[path] if has_stub(name)
        ):
            return True
        further = {by_name[name] for name in imports[path] if name in by_name} - above
        return any(needs_posix(each, above | {path}) for each in further)

    found = {
        path.relative_to(TESTS).as_posix() for path in imports if path.name.startswith("test_") and needs_posix(path)
    }
    assert found == set(POSIX_ALONE)


def imported(path: Path) -> set[str]:
    """Modules that a file imports as it is loaded."""
    names = set[str]()
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module), names=aliases):
                names.update({module, *(f"{module}.{alias.name}" for alias in aliases)})
    return names
