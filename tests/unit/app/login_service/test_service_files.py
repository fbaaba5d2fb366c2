"""Files of the service, read by other parsers: systemd's own, plistlib, an XML parser and Windows' rules of quoting."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edgeinfer.app.login_service.definition import ServiceDefinition, ServiceFailed
from edgeinfer.app.login_service.launchd import LaunchAgent
from edgeinfer.app.login_service.systemd import SystemdUnit
from edgeinfer.app.login_service.windows_task import SPACE, ScheduledTask

HARD = ("serve", "-m", "a model.gguf", "--system", 'it said "100 %" of $HOME\\', "ärger <&> 'x'", "")


def definition(folder: Path, *words: str) -> ServiceDefinition:
    """A service with words and a folder that need quoting."""
    return ServiceDefinition(
        (sys.executable, *words), folder, {"EDGEINFER_HOME": 'a "b" %h $c\\'}, folder / "serve.log"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my 100% $HOME folder"
    path.mkdir()
    return path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path, folder: Path) -> None:
    file = SystemdUnit(tmp_path).file(definition(folder, *HARD))
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(file.content)
    command = ["systemd-analyze", "verify", "--user", "--man=no", str(file.path)]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    checked = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    told = [line for line in (checked.stdout + checked.stderr).splitlines() if "edgeinfer" in line]
    assert (checked.returncode, told) == (0, [])


def test_the_unit_escapes_what_systemd_would_replace(tmp_path: Path, folder: Path) -> None:
    lines = SystemdUnit(tmp_path).file(definition(folder, 'a $b %c \\ "d"')).text.splitlines()
    assert f"WorkingDirectory={folder}".replace("%", "%%") in lines
    assert 'Environment="EDGEINFER_HOME=a \\"b\\" %%h $c\\\\"' in lines
    assert next(line for line in lines if line.startswith("ExecStart=")).endswith(' "a $$b %%c \\\\ \\"d\\""')
    assert SystemdUnit(tmp_path).path() == tmp_path / "systemd/user/edgeinfer.service"


@pytest.mark.parametrize("word", ["two\nlines", "a\x00b"])
def test_words_that_no_file_can_hold_are_refused(tmp_path: Path, folder: Path, word: str) -> None:
    with pytest.raises(ServiceFailed, match="cannot hold"):
        SystemdUnit(tmp_path).file(definition(folder, word))
    with pytest.raises(ServiceFailed, match="cannot hold"):
        ScheduledTask(tmp_path, "me").file(definition(folder, word))


def test_a_path_that_is_not_utf8_is_refused(tmp_path: Path, folder: Path) -> None:
    for system in (SystemdUnit(tmp_path), LaunchAgent(tmp_path, 501), ScheduledTask(tmp_path, "me")):
        with pytest.raises(ServiceFailed):
            system.file(definition(folder, "\udcff.gguf"))


def test_the_property_list(tmp_path: Path, folder: Path) -> None:
    agent = LaunchAgent(tmp_path, 501)
    file = agent.file(definition(folder, *HARD))
    assert file.path == tmp_path / "Library/LaunchAgents/edgeinfer.serve.plist"
    record = plistlib.loads(file.content)
    assert record["ProgramArguments"] == [sys.executable, *HARD]
    assert record["WorkingDirectory"] == str(folder)
    assert record["EnvironmentVariables"] == {"EDGEINFER_HOME": 'a "b" %h $c\\'}
    assert record["RunAtLoad"] is True
    assert record["KeepAlive"] == {"SuccessfulExit": False}
    assert record["StandardErrorPath"] == str(folder / "serve.log")
    assert [step.command for step in agent.starting()] == [
        ("launchctl", "bootout", "gui/501/edgeinfer.serve"),
        ("launchctl", "bootstrap", "gui/501", str(file.path)),
    ]


def arguments_of(line: str) -> list[str]:
    """Split a line as the C runtime of Windows does ("Parsing C command-line arguments")."""
    words: list[str] = []
    word, quoted, begun, at = "", False, False, 0
    while at < len(line):
        n_slashes = len(line[at:]) - len(line[at:].lstrip("\\"))
        if n_slashes:
            at += n_slashes
            before_quote = at < len(line) and line[at] == '"'
            word += "\\" * (n_slashes // 2 if before_quote else n_slashes)
            begun = True
            if before_quote and n_slashes % 2:
                word, at = word + '"', at + 1
            continue
        if line[at] == '"':
            quoted, begun = not quoted, True
        elif line[at] in " \t" and not quoted:
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + line[at], True
        at += 1
    return [*words, word] if begun else words


def test_the_task(tmp_path: Path, folder: Path) -> None:
    task = ScheduledTask(tmp_path, "PC\\me")
    file = task.file(definition(folder, *HARD))
    assert file.content.startswith((b"\xff\xfe", b"\xfe\xff"))  # as the declaration says
    root = ElementTree.fromstring(file.content)
    values = {each.tag.removeprefix(f"{{{SPACE}}}"): each.text or "" for each in root.iter()}
    assert root.tag == f"{{{SPACE}}}Task"
    assert values["Command"] == sys.executable
    assert arguments_of(values["Arguments"]) == list(HARD)
    assert values["WorkingDirectory"] == str(folder)
    assert (values["UserId"], values["LogonType"], values["RunLevel"]) == (
        "PC\\me",
        "InteractiveToken",
        "LeastPrivilege",
    )
    assert values["ExecutionTimeLimit"] == "PT0S"
    assert root.find(f".//{{{SPACE}}}LogonTrigger") is not None


def test_states_are_read() -> None:
    unit = SystemdUnit(Path("/x"))
    running = unit.state("ActiveState=active\nSubState=running\nMainPID=42\n")
    assert (running.is_running, running.word, running.pid) == (True, "active", 42)
    waiting = unit.state("ActiveState=activating\nSubState=auto-restart\nMainPID=0\n")
    assert (waiting.is_running, waiting.word, waiting.pid) == (False, "activating (auto-restart)", None)
    agent = LaunchAgent(Path("/x"), 501)
    loaded = agent.state("gui/501/edgeinfer.serve = {\n\tactive count = 1\n\tstate = running\n\n\tpid = 4711\n}")
    assert (loaded.is_running, loaded.pid) == (True, 4711)
    assert agent.state("").word == "not loaded"
    task = ScheduledTask(Path("/x"), "me")
    assert [task.state(text).is_running for text in ("Running\r\n", "Ready\r\n", "")] == [True, False, False]
