"""What is a function, what a call of one, and how calls that were made reach templates."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Message, tools
from edgeinfer.models.text.earlier_calls import calls_in_words
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from edgeinfer.models.text.tools import ToolCall, ToolReader, functions_of


def read(text: str, pieces: int = 1000) -> tuple[str, list[ToolCall]]:
    """Content and calls of a text that arrives in pieces of so many characters."""
    reader = ToolReader(TOOL_FORMATS.get("hermes"), frozenset({"clock"}))
    content = "".join([reader.push(text[at : at + pieces]) for at in range(0, len(text), pieces)])
    return content + reader.finish(), reader.calls


@pytest.mark.parametrize(
    "call",
    [
        '{"name": ["clock"], "arguments": {}}',
        '{"name": {}, "arguments": {}}',
        '{"name": "clock", "arguments": NaN}',
        '{"name": "clock", "arguments": {"a": NaN}}',
        '{"name": "clock", "arguments": {"a": 1e999}}',
        '{"name": "clock", "arguments": [1]}',
        '{"name": "clock", "arguments": "noon"}',
    ],
)
def test_a_call_has_a_name_and_an_object(call: str) -> None:
    text = f"<tool_call>\n{call}\n</tool_call>"
    assert read(text) == (text, [])


def test_arguments_are_the_text_of_an_object() -> None:
    for written, expected in ((r'{"a": "\ud83d\ude00 \ud800"}', r'{"a": "😀 \ud800"}'), (r'"{\"a\": 1}"', '{"a": 1}')):
        text = f'<tool_call>\n{{"name": "clock", "arguments": {written}}}\n</tool_call>'
        assert read(text) == ("", [ToolCall("clock", expected)])


def test_a_long_call_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the pieces are that it arrives in."""
    n_seen, find = 0, tools._ValueEnd.find

    def counted(value: tools._ValueEnd, text: str) -> int | None:
        nonlocal n_seen
        n_seen += len(text) - value._n_seen
        return find(value, text)

    monkeypatch.setattr(tools._ValueEnd, "find", counted)
    text = '<tool_call>{"name": "clock", "arguments": {"a": "' + "x" * 500 + '"}}'
    assert read(text, 1)[1]
    assert n_seen < len(text)


@pytest.mark.parametrize("wrong", ["abc", ["x"], [None], [{"type": "function"}], [{"function": {"name": 3}}]])
def test_tools_that_are_none_are_refused(wrong: object) -> None:
    with pytest.raises(BadSetting, match="a tool must be"):
        functions_of(wrong)
    with pytest.raises(BadSetting, match="parameters of f must be"):
        functions_of([{"function": {"name": "f", "parameters": []}}])
    assert functions_of([{"function": {"name": "f", "parameters": {}}}])[0].parameters == {"type": "object"}


def test_only_texts_of_objects_become_objects() -> None:
    for arguments in ("noon", "[1]", "3", "null", '{"a": ', None, 3):
        assert tools.object_of(arguments) == arguments
    for calls in (None, "none", [None], [{"function": "clock"}], [{"function": {"name": "clock"}}]):
        message = Message("assistant", "", {"tool_calls": calls})
        assert tools.with_objects(message) == message
        assert calls_in_words([message])


@pytest.mark.parametrize("arguments", ["", " ", "null", None])
def test_no_arguments_are_an_empty_object(arguments: str | None) -> None:
    message = Message("assistant", "", {"tool_calls": [{"function": {"name": "clock", "arguments": arguments}}]})
    assert tools.with_objects(message).extra["tool_calls"] == [{"function": {"name": "clock", "arguments": {}}}]


@pytest.mark.parametrize("arguments", ["[1]", "3", 3, [1], '"noon"'])
def test_arguments_are_no_other_json(arguments: object) -> None:
    message = Message("assistant", "", {"tool_calls": [{"function": {"name": "clock", "arguments": arguments}}]})
    with pytest.raises(BadSetting, match=r"'clock' are .* must be an object"):
        tools.with_objects(message)


def test_what_only_begins_as_calls_is_looked_at_a_limited_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    find = tools._ValueEnd.find

    def counted(self: tools._ValueEnd, text: str) -> int | None:
        looked.append(len(text))
        return find(self, text)

    monkeypatch.setattr(tools._ValueEnd, "find", counted)
    for form in ("firefunction", "hermes"):
        looked.clear()
        begun = f'{TOOL_FORMATS.get(form).trigger}{{"name": "f", '
        reader = ToolReader(TOOL_FORMATS.get(form), frozenset({"f"}))
        content = reader.push(begun * 500) + reader.finish()
        assert content == begun * 500
        assert reader.calls == []
        assert len(looked) <= tools.MOST_FAILED + 1


def test_calls_are_read_after_some_that_only_begin() -> None:
    form = TOOL_FORMATS.get("hermes")
    reader = ToolReader(form, frozenset({"f"}))
    call = f'{form.begin}{{"name": "f", "arguments": {{}}}}{form.end}'
    for _ in range(3):
        reader.push(f"{form.trigger}{{]}}" * (tools.MOST_FAILED - 1) + call)
    reader.finish()
    assert len(reader.calls) == 3


def test_the_compiler_tells_nobody_what_it_thinks_of_a_call() -> None:
    program = (
        "from edgeinfer.models.text.tool_formats.values import python_calls\n"
        "for text in ('[f(a=1if 2 else 3)]', r'[f(a=\"\\d\")]'):\n"
        "    try: print(python_calls(text, {}))\n"
        "    except ValueError: print('none')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["none", "[('f', {'a': '\\\\d'})]"]
    assert done.stderr == ""


def test_a_name_before_its_arguments_has_a_limit() -> None:
    form = TOOL_FORMATS.get("mistral_args")
    for n, n_calls in ((256, 1), (257, 0)):
        name = "f" * n
        reader = ToolReader(form, frozenset({name}))
        reader.push(f'[TOOL_CALLS]{name}[ARGS]{{"a": 1}}')
        reader.finish()
        assert len(reader.calls) == n_calls
    reader = ToolReader(form, frozenset({"f"}))
    begun = "[TOOL_CALLS]" + '"city": ' * 2000
    assert reader.push(begun) + reader.finish() == begun


def test_a_name_begins_after_a_mark() -> None:
    reader = ToolReader(TOOL_FORMATS.get("mistral_args"), frozenset({"f"}))
    written = '[TOOL_CALLS]see [f] or f[ARGS]{"a": 1}'
    assert reader.push(written) + reader.finish() == written
    assert not reader.calls
    assert not reader.push('[TOOL_CALLS] f [ARGS]{"a": 1}[TOOL_CALLS]f[ARGS]{}') + reader.finish()
    assert [call.arguments for call in reader.calls] == ['{"a": 1}', "{}"]
