"""Calls of tools in the terminal app: a scripted model, servers of the official MCP package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgeinfer.app.mcp.answering import NOT_ALLOWED, STOPPED
from edgeinfer.app.mcp.chat_tools import ChatTools
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.records import MadeCall, ToolRound
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens import call_question
from edgeinfer.app.tui.screens.call_question import CallQuestion
from edgeinfer.app.tui.screens.viewer import ViewerScreen
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, last, quiet, say, wait_until
from tests.app.tui.scripted import Script
from tests.unit.app.mcp.conftest import PATHS, PROGRAM, late_server, require_package, restless

__all__ = ["restless"]  # a fixture
Make = Callable[..., ChatApp]
NewTools = Callable[..., ChatTools]
ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
ADDED = MadeCall("add", '{"a": 1, "b": 2}', "3")


def calls(*texts: str) -> str:
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


@pytest.fixture
def make(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    require_package()
    monkeypatch.setattr(call_question, "PAUSE_S", 0.0)
    with chat_app(home) as make:
        yield make


@pytest.fixture
def tools() -> Iterator[NewTools]:
    """Makes the tools of servers of these kinds."""

    with ExitStack() as stack:

        def make(*kinds: str, trusted: frozenset[str] | None = frozenset()) -> ChatTools:
            env = {"PYTHONPATH": PATHS}
            servers = [ToolServer(kind, (sys.executable, str(PROGRAM), kind), env, trusted=trusted) for kind in kinds]
            made = ChatTools(servers)
            stack.callback(made.close)
            return made

        yield make


async def asked(app: ChatApp, pilot: Pilot[int]) -> CallQuestion:
    """Until a call is to be allowed."""
    await wait_until(pilot, lambda: isinstance(app.screen, CallQuestion))
    assert isinstance(app.screen, CallQuestion)
    return app.screen


def shown(app: ChatApp) -> str:
    """The lines of the last answer."""
    entry, drawer = app.chat_screen.transcript.last_answer, app.chat_screen.transcript._drawer
    assert entry is not None
    assert drawer is not None
    return "\n".join(strip.text for strip in entry.lines(drawer))


async def test_a_call_is_asked_made_shown_folded_and_kept(make: Make, tools: NewTools) -> None:
    script = Script(f"<think>\nHm.\n</think>\n\nLet me see.\n{calls(ADD)}", "It is **3**.")
    app = make(script, tools=tools("good"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "What is 1 + 2?")
        question = await asked(app, pilot)
        text = "\n".join(str(part.render()) for part in question.query("Static"))
        assert "wants to call add of good" in text
        assert '"a": 1' in text
        assert last(app).rounds[0].calls == ()
        await pilot.press("y")
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "It is **3**.")
        assert last(app).rounds == (ToolRound("Let me see.", (ADDED,), "Hm."),)
        assert '▸ called add {"a": 1, "b": 2}, which gave: 3 (Alt+T)' in shown(app)
        assert "<tool_call>" not in shown(app)
        assert "Hm." not in shown(app)
        await pilot.press("alt+t")
        assert '▾ called add (Alt+T), which gave 1 character\n  {\n    "a": 1,' in shown(app)
        assert "Hm." in shown(app)
    second = script.asked[1]
    assert [message.role for message in second] == ["user", "assistant", "tool"]
    assert (second[1].content, second[2].content) == ("Let me see.", "3")


async def test_the_prompt_and_the_context_have_the_tools(make: Make, tools: NewTools) -> None:
    app = make(Script("Hi."), tools=tools("good"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hello")
        await quiet(app, pilot)
        await wait_until(pilot, lambda: app.chat_screen.context_bar.text)
        without = app.chat_screen.chat.prompt()
        assert app.state.model is not None
        n_words = app.state.model.prompts.n_tokens(without) + 2 * len(app.state.offered_functions)
        await wait_until(pilot, lambda: f" {n_words} of 1,000" in str(app.chat_screen.context_bar.text))
        await say(pilot, "/prompt")
        await wait_until(pilot, lambda: isinstance(app.screen, ViewerScreen))
        text = str(app.screen.query_one("#viewer-text").render())
        assert text.startswith("<|tool|> add\n<|tool|> fail\n")
        assert text.endswith("<|assistant|> Hi.\n")


async def test_forks_and_reopened_chats_keep_calls_and_tell_them_again(make: Make, tools: NewTools) -> None:
    script = Script(calls(ADD), "3", "yes", "indeed")
    app = make(script, tools=tools("good", trusted=None))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "What is 1 + 2?")
        await quiet(app, pilot)
        await say(pilot, "Sure?")
        await quiet(app, pilot)
        told = [message.as_mapping() for message in script.asked[2]]
        assert told[:3] == [message.as_mapping() for message in script.asked[1]]  # the cached prefix fits
        assert [each["role"] for each in told] == ["user", "assistant", "tool", "assistant", "user"]
        await say(pilot, "/fork")
        await wait_until(pilot, lambda: "(fork)" in app.chat_screen.chat.title)
        assert app.chat_screen.chat.branch[1].rounds == (ToolRound("", (ADDED,)),)
        await say(pilot, "Really?")
        await quiet(app, pilot)
        assert [message.as_mapping() for message in script.asked[3]][:5] == told
        number = app.chat_screen.chat.number
        assert number is not None
        again = Chat(app.state.store, app.state.store.session(number))
        assert again.branch[1].rounds == (ToolRound("", (ADDED,)),)
        assert "[called add" in str(again.told()[1].content)


async def test_always_is_for_one_tool_and_no_is_told_to_the_model(make: Make, tools: NewTools) -> None:
    process = '{"name": "process", "arguments": {}}'
    script = Script(calls(ADD), "three", calls(ADD, process), "no")
    app = make(script, tools=tools("good"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Add")
        await asked(app, pilot)
        await pilot.press("a")
        await quiet(app, pilot)
        await say(pilot, "Again")
        assert "call process of good" in str((await asked(app, pilot)).query("Static").first().render())
        await pilot.press("n")
        await quiet(app, pilot)
        assert [call.result for call in last(app).rounds[0].calls] == ["3", NOT_ALLOWED]
        assert script.asked[-1][-1].content == NOT_ALLOWED
        await say(pilot, "/tools")
        await wait_until(pilot, lambda: isinstance(app.screen, ViewerScreen))
        text = app.screen.query_one("#viewer-text").render()
        assert "add (allowed until you leave)  Add two numbers." in str(text)
        assert "process (asks)" in str(text)


async def test_escape_at_the_question_stops_and_calls_nothing(make: Make, tools: NewTools) -> None:
    script = Script(f"Wait. {calls(ADD, ADD)}", "again")
    app = make(script, tools=tools("good"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Add")
        await asked(app, pilot)
        await pilot.press("escape")
        await quiet(app, pilot)
        assert last(app).state == "stopped"
        assert [call.result for call in last(app).rounds[0].calls] == [NOT_ALLOWED, STOPPED]
        assert last(app).text == ""
        await say(pilot, "/continue")
        await quiet(app, pilot)
        assert [message.role for message in script.asked[-1]] == ["user", "assistant", "tool", "tool"]
        assert (last(app).text, len(last(app).rounds)) == ("again", 1)


async def test_escape_ends_a_call_that_hangs_and_the_server_stays(make: Make, tools: NewTools) -> None:
    script = Script(calls('{"name": "hang", "arguments": {}}'), calls(ADD), "3")
    app = make(script, tools=tools("good", trusted=None))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hang")
        await wait_until(pilot, lambda: "calling hang" in shown(app))
        await pilot.press("escape")
        await quiet(app, pilot)
        assert last(app).state == "stopped"
        assert "stopped" in last(app).rounds[0].calls[0].result
        await say(pilot, "Add")
        await quiet(app, pilot)
        assert (last(app).text, last(app).rounds[0].calls) == ("3", (ADDED,))


async def test_servers_that_fail_are_told_and_the_chat_goes_on(
    make: Make, tools: NewTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash, nothing = '{"name": "crash", "arguments": {}}', '{"name": "fail", "arguments": {"reason": "not today"}}'
    script = Script(calls(crash, nothing, ADD), "Well.")
    app = make(script, tools=tools("broken", "good", trusted=None))
    told: list[str] = []
    monkeypatch.setattr(app.chat_screen, "tell", lambda text, is_error=False: told.append(text))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Try")
        await quiet(app, pilot)
        assert [call.failed for call in last(app).rounds[0].calls] == [True, True, False]
        assert "out of cheese" in last(app).rounds[0].calls[0].result
        assert last(app).text == "Well."
        await wait_until(pilot, lambda: any("no licence for Tuesdays" in text for text in told))
        await say(pilot, "/tools")
        await wait_until(pilot, lambda: isinstance(app.screen, ViewerScreen))
        assert "failed: broken ended" in str(app.screen.query_one("#viewer-text").render())


async def test_a_server_that_failed_is_tried_again_with_the_next_question(
    make: Make, restless: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script("Hello.", calls(ADD), "3")
    file, told = tmp_path / "file", []
    tools = ChatTools([late_server(file, trusted=None)])
    app = make(script, tools=tools)  # which closes them
    monkeypatch.setattr(app.chat_screen, "tell", lambda text, is_error=False: told.append((text, is_error)))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        await wait_until(pilot, lambda: any("not yet" in text and is_error for text, is_error in told))
        file.write_text("")
        await say(pilot, "Add")
        await quiet(app, pilot)
        assert (last(app).text, last(app).rounds[0].calls) == ("3", (ADDED,))
        await wait_until(pilot, lambda: told[-1] == ("late has started: 9 tools", False))
        assert tools.failures == ()


async def test_without_any_tool_that_works_it_is_a_plain_chat(make: Make, tools: NewTools) -> None:
    script = Script("Hello.")
    app = make(script, tools=tools("broken"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert branch(app) == [("user", "Hi"), ("assistant", "Hello.")]
        assert "tools" not in script.options[0]


async def test_keys_that_were_being_typed_do_not_answer(
    make: Make, tools: NewTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_question, "PAUSE_S", 1000.0)
    app = make(Script(calls(ADD), "no"), tools=tools("good"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Add")
        question = await asked(app, pilot)
        await pilot.press("y", "a", "enter")
        assert app.screen is question
        assert last(app).rounds[0].calls == ()
        monkeypatch.setattr(call_question, "PAUSE_S", 0.0)
        await pilot.press("n")
        await quiet(app, pilot)


async def test_leaving_at_the_question_keeps_what_is_there(make: Make, tools: NewTools) -> None:
    app = make(Script(f"See. {calls(ADD)}"), tools=tools("good"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Add")
        await asked(app, pilot)
        await pilot.press("ctrl+q")
        await pilot.pause()
    assert app.return_code == 0
    number = app.chat_screen.chat.number
    assert number is not None
    kept = app.state.store.messages(number)[-1]
    assert (kept.state, kept.text, [each.text for each in kept.rounds]) == ("stopped", "", ["See."])


async def test_text_that_follows_calls_is_drawn_after_them(make: Make, tools: NewTools) -> None:
    script = Script(f"One. {calls(ADD)}", f"Two. {calls(ADD)}", "Three. Four.")
    app = make(script, tools=tools("good", trusted=frozenset({"add"})))
    async with app.run_test(size=(100, 40)) as pilot:
        script.hold()
        await say(pilot, "Count")
        script.step(1)
        await wait_until(pilot, lambda: "One." in shown(app))
        script.step(100)
        await quiet(app, pilot)
        assert [each.text for each in last(app).rounds] == ["One.", "Two."]
        lines = [line.strip() for line in shown(app).splitlines() if line.strip()]
        assert [line.split()[0] for line in lines[:5]] == ["One.", "▸", "Two.", "▸", "Three."]
