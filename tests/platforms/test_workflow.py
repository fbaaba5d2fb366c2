"""The workflows for hosted runners: what they run exists here, they may change nothing, nobody starts them unasked."""

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
WORKFLOWS = {path.stem: path for path in (ROOT / ".github/workflows").glob("*.yml")}
ACTIONS = {
    "actions/checkout": "v4",
    "actions/setup-python": "v5",
    "actions/upload-artifact": "v4",
    "actions/download-artifact": "v4",
    "pypa/gh-action-pypi-publish": "release/v1",
}
UPLOADS = {"upload-kernels", "upload"}
"""Jobs that may show the package index who they are."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EACH = pytest.mark.parametrize("name", sorted(WORKFLOWS))


def loaded(name: str) -> dict[str, Any]:
    """A workflow, all of whose values are text, since `on` is true in YAML."""
    import yaml

    found: dict[str, Any] = yaml.load(WORKFLOWS[name].read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return found


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    return loaded("tests")


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for step in steps(workflow) if "run" in step]


def test_there_are_these() -> None:
    assert set(WORKFLOWS) == {"docs", "release", "tests"}


@EACH
def test_it_is_started_by_hand_and_may_only_read(name: str) -> None:
    workflow = loaded(name)
    assert set(workflow["on"]) == {"workflow_dispatch"}
    assert workflow["permissions"] == {"contents": "read"}
    text = WORKFLOWS[name].read_text(encoding="utf-8")
    assert "secrets" not in text
    assert "password" not in re.sub(r"#.*", "", text)
    for job_name, job in workflow["jobs"].items():
        assert int(job["timeout-minutes"]) <= 180
        if job_name in UPLOADS:
            assert (job["permissions"], job["environment"]) == ({"id-token": "write"}, "pypi")
        else:
            assert "permissions" not in job


def test_nothing_is_uploaded_unless_that_was_chosen() -> None:
    workflow = loaded("release")
    assert workflow["on"]["workflow_dispatch"]["inputs"]["upload"]["default"] == "false"
    jobs = workflow["jobs"]
    assert jobs["upload-kernels"]["if"] == "github.event_name == 'push' || inputs.upload"
    assert jobs["upload-kernels"]["needs"] == ["build", "kernels"]
    assert jobs["upload"]["needs"] == "upload-kernels"  # which is left out with it
    publishing = {name for name, job in jobs.items() if any("publish" in step.get("uses", "") for step in job["steps"])}
    assert publishing == UPLOADS


def test_what_is_uploaded_was_built_by_the_same_run() -> None:
    jobs = loaded("release")["jobs"]
    given = {step["with"]["name"] for job in jobs.values() for step in job["steps"] if "upload-artifact" in str(step)}
    taken = {step["with"]["name"] for job in jobs.values() for step in job["steps"] if "download-artifact" in str(step)}
    assert given - taken == {"bill-of-materials"}
    assert taken - given == set()


def test_systems_and_versions(workflow: dict[str, Any]) -> None:
    unix, windows = workflow["jobs"]["unix"], workflow["jobs"]["windows"]
    assert unix["strategy"]["matrix"]["runner"] == ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest"]
    assert windows["runs-on"] == "windows-latest"
    least = PROJECT["requires-python"].removeprefix(">=")
    for job in (unix, windows):
        versions = job["strategy"]["matrix"]["python"]
        assert versions[0] == least
        assert versions == sorted(versions, key=lambda version: int(version.partition(".")[2]))


@EACH
def test_actions_are_pinned(name: str) -> None:
    used = {step["uses"] for step in steps(loaded(name)) if "uses" in step}
    assert used
    assert used <= {f"{action}@{version}" for action, version in ACTIONS.items()}


@EACH
def test_commands_exist(name: str) -> None:
    """Targets of the Makefile, extras of the package, modules, commands of edgeinfer and their options."""
    targets = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)
    seen = set[str]()
    for command in commands(loaded(name)):
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
    assert "make" in seen


def test_commands_are_those_of_the_readme(workflow: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("make chat", "make test", 'echo "What is photosynthesis?" | EDGEINFER_SEED=1 make chat'):
        assert command in readme
        assert any(command in each for each in commands(workflow))
    assert "-m pytest -n 2 --dist worksteal" in MAKEFILE  # what Windows runs, which has no make
    assert "python -m pytest -n 2 --dist worksteal" in commands(workflow)


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
