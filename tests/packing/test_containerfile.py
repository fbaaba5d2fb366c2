"""The container file: what it installs and starts exists, as a user without rights, and no key is in it."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from edgeinfer.app.cli import COMMANDS, built
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.errors import BadSetting

ROOT = Path(__file__).parents[2]
TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text(encoding="utf-8"))
LINES = [line.partition(" ") for line in TEXT.splitlines() if line and not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def said(word: str) -> list[str]:
    """What the lines with an instruction say."""
    return [rest for first, _, rest in LINES if first == word]


def test_the_base_is_of_a_version_that_is_supported() -> None:
    (base, *_) = [rest for rest in said("ARG") if rest.startswith("BASE=")]
    name, minor = re.fullmatch(r"BASE=(.+):3\.(\d+)-slim", base).groups()  # type: ignore[union-attr]
    assert name == "docker.io/library/python"
    assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]


def test_its_extras_exist() -> None:
    (extras,) = [rest.partition("=")[2] for rest in said("ARG") if rest.startswith("EXTRAS=")]
    assert "server" in extras.split(",")
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_server_runs_without_rights_and_keeps_its_files_in_a_volume() -> None:
    (user,) = said("USER")
    assert int(user) > 999
    (volume,) = said("VOLUME")
    variables = dict(each.split("=", 1) for line in said("ENV") for each in shlex.split(line))
    assert variables["EDGEINFER_HOME"] == variables["HOME"] == volume
    assert variables["XDG_CACHE_HOME"].startswith(volume)
    assert not any("KEY" in name for name in variables)


def test_what_it_starts_is_a_command_that_needs_a_key() -> None:
    (program,) = map(json.loads, said("ENTRYPOINT"))
    (words,) = map(json.loads, said("CMD"))
    assert program == ["edgeinfer"]
    context = built(words[0], COMMANDS.get(words[0])).make_context(words[0], list(words[1:]))
    assert (context.params["host"], str(context.params["port"])) == ("0.0.0.0", *said("EXPOSE"))
    with pytest.raises(BadSetting, match="set EDGEINFER_API_KEY"):
        ServerOptions(host=context.params["host"]).check()


def test_the_health_check_asks_a_path_that_needs_no_key() -> None:
    from edgeinfer.app.server.guard import OPEN_PATHS

    (check,) = said("HEALTHCHECK")
    assert re.findall(r"http://127\.0\.0\.1:8080(/\w+)", check) == ["/health"]
    assert "/health" in OPEN_PATHS
    assert ServerOptions(host="0.0.0.0").knows_host("127.0.0.1:8080")


def test_the_image_is_built_from_what_the_wheel_is_built_from() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"]
    assert {"edgeinfer", "hatch_build.py", "pyproject.toml", "README.md", "LICENSE"} == set(kept)
    assert all((ROOT / name).exists() for name in kept)
