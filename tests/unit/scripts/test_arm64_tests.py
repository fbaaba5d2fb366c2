"""The script for emulated ARM: its tests exist, what it fetches is fetched once, and its words reach the other side."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import arm64_tests
from scripts.arm64_tests import ROOT, TESTS, ArmSystem, Failed, Outcome


def test_its_tests_exist() -> None:
    for words in TESTS.values():
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
        assert words[0].startswith("tests/")


def test_what_was_made_is_made_again_only_for_other_contents(tmp_path: Path) -> None:
    system = ArmSystem(tmp_path)
    with pytest.raises(Failed), system._once("wheels", ["numpy"]):
        raise Failed("no such wheel")
    for contents, expected in ((["numpy"], True), (["numpy"], False), (["numpy", "numba"], True)):
        with system._once("wheels", contents) as is_new:
            assert is_new == expected


def test_the_command_survives_quoting(tmp_path: Path) -> None:
    """Folders with spaces and commands with quotes; `mount` and what runs in the system are only printed."""
    system = ArmSystem(tmp_path / "a folder")
    said = "python3 -c 'print(\"it is $HOME\")'"
    *unshare, script = system.command("max", tmp_path, said)
    assert unshare[0] == "unshare"
    harmless = script.replace("mount ", "echo mount ").replace("> /proc/sys/fs/binfmt_misc/register", "")
    harmless = harmless.replace('"$(command -v chroot)"', "printf '%s\\n' chroot")
    done = subprocess.run(["sh", "-c", harmless], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-4:] == [str(system.root), "/bin/sh", "-c", said]
    assert f":{system.emulator}:F" in done.stdout


@pytest.mark.parametrize(("there", "good"), [("a plant\n", True), ("a planet\n", False)])
def test_the_answer_is_compared(there: str, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm64_tests, "run", lambda *_: "a plant\n")
    code = f"print({there!r}, end='')"
    monkeypatch.setattr(ArmSystem, "command", lambda *_: [sys.executable, "-c", code])
    options = argparse.Namespace(cpu=["max"], parts=["answer"], model=tmp_path / "m.gguf", folder=tmp_path)
    (outcome,) = arm64_tests.outcomes(ArmSystem(tmp_path), options)
    assert isinstance(outcome, Outcome)
    assert (outcome.cpu, outcome.part, outcome.good) == ("max", "answer", good)


def test_tests_that_fail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('1 failed, 2 passed'); raise SystemExit(1)"
    monkeypatch.setattr(ArmSystem, "command", lambda *_: [sys.executable, "-c", code])
    options = argparse.Namespace(cpu=["max"], parts=["rows"], model=None, folder=tmp_path)
    (outcome,) = arm64_tests.outcomes(ArmSystem(tmp_path), options)
    assert (outcome.said, outcome.good) == ("1 failed, 2 passed", False)


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(Failed, match="no such package"):
        arm64_tests.run([sys.executable, "-c", "import sys; sys.exit('no such package')"])
