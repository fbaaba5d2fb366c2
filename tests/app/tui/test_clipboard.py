"""Copying: what reaches the terminal and the desktop's programs, and that no more is said than is known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from textual.app import App

from edgeinfer.app.tui.clipboard import (
    TERMINAL_CAP_BYTES,
    TERMINAL_SURE_BYTES,
    Copied,
    copy,
    copy_by_tool,
    outcome,
    tools,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake programs are shell scripts")


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:/usr/bin:/bin", "WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0", "HERE": str(folder)}


def test_the_first_program_that_works_has_copied(tmp_path: Path) -> None:
    program(tmp_path, "wl-copy", "exit 1")
    program(tmp_path, "xclip", 'echo "$@" > "$HERE/args"; cat > "$HERE/got"; echo noise; echo noise >&2')
    assert copy_by_tool("grüße\n😀", environment(tmp_path), limit_s=20) == "xclip"
    assert (tmp_path / "got").read_bytes() == "grüße\n😀".encode()
    assert (tmp_path / "args").read_text() == "-selection clipboard\n"


def test_a_program_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("wl-copy", "xclip", "xsel"):
        program(tmp_path, name, "exec sleep 60")
    assert copy_by_tool("x" * 200_000, environment(tmp_path), limit_s=0.2) is None


def test_a_program_may_stay_in_the_background(tmp_path: Path) -> None:
    program(tmp_path, "wl-copy", "cat > /dev/null; sleep 2 & exit 0")
    assert copy_by_tool("text", environment(tmp_path), limit_s=20) == "wl-copy"


def test_programs_are_those_of_the_desktop_that_is_there() -> None:
    assert [tool.name for tool in tools({"DISPLAY": ":0"}, "linux")] == ["xclip", "xsel"]
    assert tools({}, "linux") == []
    assert [tool.name for tool in tools({"WSL_DISTRO_NAME": "Ubuntu"}, "linux")] == ["clip.exe"]
    assert [tool.name for tool in tools({}, "darwin")] == ["pbcopy"]
    assert [tool.encoding for tool in tools({}, "win32")] == ["utf-16"]


def test_no_more_is_said_than_is_known() -> None:
    assert outcome(10, None) == Copied("sent to the terminal's clipboard")
    assert outcome(TERMINAL_CAP_BYTES + 1, "wl-copy") == Copied("copied with wl-copy")
    unsure = outcome(TERMINAL_SURE_BYTES + 1, None)
    assert unsure.offer_file
    assert unsure.notice.startswith("sent to the terminal's clipboard, but 100 kB is more than many take")
    lost = outcome(TERMINAL_CAP_BYTES + 1, None)
    assert lost.offer_file
    assert lost.notice.startswith("not copied")


async def test_the_terminal_gets_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "wl-copy", 'cat > "$HERE/got"')
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    app: App[object] = App()
    async with app.run_test():
        result = await copy(app, "half \ud800 of a pair")
        assert app.clipboard == "half ? of a pair"
    assert result == Copied("copied with wl-copy")
    assert (tmp_path / "got").read_text() == "half ? of a pair"


async def test_what_is_too_long_for_the_terminal_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAYLAND_DISPLAY", "DISPLAY", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    app: App[object] = App()
    async with app.run_test():
        result = await copy(app, "x" * (TERMINAL_CAP_BYTES + 1))
        assert app.clipboard == ""
    assert result.offer_file
