"""Permission for a call, asked at a terminal."""

from __future__ import annotations

import io

import pytest

from edgeinfer.app.mcp.answering import Permission
from edgeinfer.app.mcp.connections import RemoteTool
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.mcp.terminal import SHOWN_CAP, ask_at_terminal
from edgeinfer.app.mcp.toolbox import OfferedTool

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


def test_what_cannot_be_seen_whole_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = at_terminal(monkeypatch, Terminal("y\n"))
    assert ask_at_terminal(TOOL, "x" * (SHOWN_CAP + 1)) is Permission.NO
    assert "too long to be shown" in shown.getvalue()


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = at_terminal(monkeypatch, io.StringIO("y\n"))
    assert ask_at_terminal(TOOL, "{}") is Permission.NO
    assert "`trusted` in [mcp.servers.files]" in shown.getvalue()
