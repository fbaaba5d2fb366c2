"""`edgeinfer mcp` and `edgeinfer run --mcp` with servers of the official package."""

from __future__ import annotations

import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.chat.dialogue import Dialogue
from edgeinfer.app.cli import main
from edgeinfer.app.commands import run as command
from tests.conftest import write_tiny_llama
from tests.unit.app.mcp.conftest import PATHS, PROGRAM, require_package, table


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


@pytest.fixture
def file(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of a program without standard input."""
    require_package()
    monkeypatch.setattr("sys.stdin", None)
    home.mkdir()
    return home / "config.toml"


def test_listing_starts_nothing_and_shows_no_secret(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "mcp", "list") == (
        0,
        "",
        f"no MCP server is in {file}; a table [mcp.servers.NAME] with command or url adds one\n",
    )
    file.write_text(
        table("good", 'trusted = ["add"]') + '[mcp.servers.web]\nurl = "http://x/mcp"\nheaders = {A = "s3cret"}'
    )
    code, out, _ = run(capsys, "mcp", "list")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["NAME", "TRUSTED"], ["good", "add"], ["web", "none"]]
    shown = run(capsys, "mcp", "list", "--json")[1]
    assert [each["name"] for each in json.loads(shown)["servers"]] == ["good", "web"]
    assert "s3cret" not in out + shown
    assert "yours" not in out + shown


def test_checking_tells_tools_and_failures(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(table("good", 'trusted = ["add"]') + table("broken"))
    code, out, _ = run(capsys, "mcp", "check")
    assert code == 1
    assert "good: 9 tools\n  add (trusted)  Add two numbers.\n  fail  Fail.\n" in out
    assert "broken: failed: broken ended" in out
    assert "no licence for Tuesdays" in out
    code, out, _ = run(capsys, "mcp", "check", "good", "--json")
    (record,) = json.loads(out)["servers"]
    assert (code, record["error"], len(record["tools"])) == (0, None, 9)


def always_calling(begin: Any, llm: Any, wanted: Any, conversation: list[Any], further: dict[str, Any]) -> Any:
    """The first answer must call `process`: a model of random weights would not by itself."""
    choice = "process" if len(conversation) == 1 else "none"
    return begin(llm, wanted, conversation, {**further, "tool_choice": choice})


@pytest.mark.parametrize("trusted", [True, False])
def test_an_answer_calls_a_tool(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=4096)
    file.write_text(table("good", f"trusted = {str(trusted).lower()}") + table("broken"))
    monkeypatch.setattr(command, "_begin", partial(always_calling, command._begin))
    options = ("--mcp", "all", "--max-tokens", "500", "--json")
    code, out, err = run(capsys, "run", "-m", str(model), *options, "which process")
    assert code == 0, err
    (call,) = json.loads(out)["calls"]
    assert call["name"] == "process"
    if trusted:
        assert int(call["result"]) > 0
        assert f"gave: {call['result']}" in err
    else:
        assert call["result"] == "The user did not allow this call."
        assert "nobody can be asked here" in err
    assert "note: broken ended" in err


def test_a_chat_in_lines_calls_tools_of_the_servers_that_the_file_names(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=4096)
    file.write_text(f'[mcp]\nchat = "good"\n{table("good", "trusted = true")}')
    begin, asked = Dialogue.begin, []

    def always_calling(self: Any, messages: list[Any], further: Any = None, *, is_again: bool = False) -> Any:
        asked.append(list(messages))
        further = {**(further or {}), "tool_choice": "process" if messages[-1]["role"] == "user" else "none"}
        return begin(self, messages, further, is_again=is_again)

    monkeypatch.setattr(Dialogue, "begin", always_calling)
    monkeypatch.setattr("sys.stdin", io.StringIO("which process\nand again\n/regen\n"))
    code, _, err = run(capsys, "chat", "-m", str(model), "--max-tokens", "300", "--temp", "0")
    assert code == 0, err
    assert err.count("tool process {} gave: ") == 3
    assert [len(messages) for messages in asked] == [1, 3, 5, 7, 5, 7]
    assert [message["role"] for message in asked[2]] == ["user", "assistant", "tool", "assistant", "user"]
    assert asked[2][:3] == asked[1]


class Typed(io.StringIO):
    """Lines of which the second comes once a file is there."""

    def __init__(self, lines: str, file: Path) -> None:
        super().__init__(lines)
        self._file = file

    def __next__(self) -> str:
        line = super().__next__()
        if self.tell() == len(self.getvalue()):
            self._file.write_text("")
        return line


def test_a_chat_in_lines_tries_servers_again_that_failed(
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    restless: None,
) -> None:
    late = tmp_path / "late"
    command = [str(PROGRAM), "late", str(late)]
    file.write_text(
        f"[mcp.servers.late]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(command)}\n"
        f"env = {{ PYTHONPATH = {json.dumps(PATHS)} }}\n"
    )
    monkeypatch.setattr("sys.stdin", Typed("one\ntwo\n", late))
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=4096)
    code, _, err = run(capsys, "chat", "-m", str(model), "--mcp", "late", "--max-tokens", "2")
    assert code == 0, err
    assert "its last words: not yet" in err
    assert err.count("note: late has started: 9 tools") == 1


def test_what_run_refuses(file: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", "-m", str(tiny_model), "--mcp", "good", "hello")
    assert (code, "there is no MCP server" in err) == (1, True)
    file.write_text(table("good"))
    code, _, err = run(capsys, "run", "-m", str(tiny_model), "--mcp", "bad", "hello")
    assert (code, "no MCP server is called 'bad'; there are: good" in err) == (1, True)
    code, _, err = run(capsys, "run", "-m", str(tiny_model), "--raw", "--mcp", "good", "hello")
    assert (code, "leave out --mcp" in err) == (1, True)
