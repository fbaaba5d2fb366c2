"""Permission for a call, asked at a terminal."""

from __future__ import annotations

import io
import os
import select
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Never, cast

import pytest

from edgeinfer.app.mcp.answering import Permission
from edgeinfer.app.mcp.connections import Connections, RemoteTool
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.mcp.terminal import SHOWN_CAP, ask_at_terminal, try_again_at_terminal, waiting_at_terminal
from edgeinfer.app.mcp.toolbox import OfferedTool, Toolbox
from tests.waiting import until

TOOL = OfferedTool("remove", RemoteTool(ToolServer("files", ("x",)), "re\x1b[2Jmove", "", {}), {})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch, keyboard: io.StringIO) -> Terminal:
    """What the person sees, whose keys are these. Called by the test: pytest sets its own stderr after fixtures."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdin", keyboard)
    return screen


@pytest.mark.parametrize(
    ("typed", "permission"),
    [
        ("y\n", Permission.ONCE),
        ("Yes\n", Permission.ONCE),
        ("a\n", Permission.FROM_NOW_ON),
        ("n\n", Permission.NO),
        ("\n", Permission.NO),
        ("", Permission.NO),
        ("what?\nhm\ny\n", Permission.ONCE),
    ],
)
def test_the_person_decides(monkeypatch: pytest.MonkeyPatch, typed: str, permission: Permission) -> None:
    shown = at_terminal(monkeypatch, Terminal(typed))
    assert ask_at_terminal(TOOL, '{"path": "/"}') is permission
    assert 'tool files/re[2Jmove wants to be called with {"path": "/"}\n' in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudoterminals")
def test_what_was_typed_before_the_question_does_not_answer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = os.openpty()
    with os.fdopen(keyboard, "wb", buffering=0) as keys, os.fdopen(terminal, "r") as typed:
        keys.write(b"y\n")
        until(lambda: select.select([typed], [], [], 0)[0])
        monkeypatch.setattr("sys.stdin", typed)
        shown = Terminal()
        monkeypatch.setattr("sys.stderr", shown)
        with ThreadPoolExecutor(1) as asking:
            said = asking.submit(ask_at_terminal, TOOL, "{}")
            until(lambda: "call it?" in shown.getvalue())
            keys.write(b"n\n")
            assert said.result() is Permission.NO


def test_what_cannot_be_seen_whole_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = at_terminal(monkeypatch, Terminal("y\n"))
    assert ask_at_terminal(TOOL, "x" * (SHOWN_CAP + 1)) is Permission.NO
    assert "too long to be shown" in shown.getvalue()


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = at_terminal(monkeypatch, io.StringIO("y\n"))
    assert ask_at_terminal(TOOL, "{}") is Permission.NO
    assert "`trusted` in [mcp.servers.files]" in shown.getvalue()


def test_a_call_that_takes_long_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = at_terminal(monkeypatch, Terminal())
    with waiting_at_terminal("wa\x1b[2Jit"):
        until(lambda: "calling wa[2Jit" in shown.getvalue())
    assert shown.getvalue().endswith("\r")


def test_ctrl_c_goes_on_without_a_server_that_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Toolbox):
        def try_again(self, is_stopped: object = None) -> Never:
            raise KeyboardInterrupt

    shown = at_terminal(monkeypatch, Terminal())
    try_again_at_terminal(Interrupted((), cast("Connections", None)))
    assert "the answer does without" in shown.getvalue()
