"""Scripted answers of every form, whole and cut at every place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import THOUGHT_FORMATS, thoughts_of
from edgeinfer.models.text.tool_formats import TOOL_FORMATS, format_of
from edgeinfer.models.text.tools import ToolReader

ARGUMENTS = {"city": "Köln </b> {x} 1", "days": [1, 2.5, None], "now": True}
TEXT = json.dumps(ARGUMENTS, ensure_ascii=False)
SCHEMA = {"properties": {"city": {"type": "string"}, "days": {"type": "array"}, "now": {"type": "boolean"}}}
PARAMETERS = {"get-weather": SCHEMA, "clock": {"properties": {}}, "weather": SCHEMA}
XML = (
    "<parameter=city>\nKöln </b> {x} 1\n</parameter>\n<parameter=days>\n[1, 2.5, null]\n</parameter>\n"
    "<parameter=now>\ntrue\n"
)
KEYS = "".join(
    f"<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>\n"
    for key, value in ARGUMENTS.items()
)


def invoked(prefix: str, outer: str) -> str:
    inside = ""
    for key, value in ARGUMENTS.items():
        text = value if isinstance(value, str) else json.dumps(value)
        inside += f'<{prefix}parameter name="{key}">{text}</{prefix}parameter>\n'
    return (
        f'<{outer}>\n<{prefix}invoke name="get-weather">\n{inside}</{prefix}invoke>\n'
        f'<{prefix}invoke name="clock">\n</{prefix}invoke>\n</{outer}>'
    )


def listed(name: str, arguments: str) -> str:
    first, second = {name: "get-weather", arguments: ARGUMENTS}, {name: "clock", arguments: {}}
    return json.dumps([first, second], ensure_ascii=False)


def objects(arguments: str = "arguments") -> list[str]:
    return [f'{{"name": "get-weather", "{arguments}": {TEXT}}}', f'{{"name": "clock", "{arguments}": {{}}}}']


PYTHON = "[weather(city='Köln </b> {x} 1', days=[1, 2.5, null], now=True), clock()]"
GEMMA = '<|tool_call>call:get-weather{city:<|"|>Köln </b> {x} 1<|"|>,days:[1,2.5,null],now:true}<tool_call|>'
KIMI = "<|tool_call_begin|>functions.get-weather:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
WRITTEN = {
    "hermes": "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects()),
    "llama3": "; ".join(objects("parameters")),
    "mistral": f"[TOOL_CALLS]{listed('name', 'arguments')}",
    "phi4": f"<|tool_call|>{listed('name', 'arguments')}<|/tool_call|>",
    "granite": f"<|tool_call|>{listed('name', 'arguments')}",
    "nemotron_v2": f"<TOOLCALL>{listed('name', 'arguments')}</TOOLCALL>",
    "apriel": f"<tool_calls>{listed('name', 'arguments')}</tool_calls>",
    "firefunction": f"functools{listed('name', 'arguments')}",
    "command_r7b": f"<|START_ACTION|>{listed('tool_name', 'parameters')}<|END_ACTION|>",
    "command_r": f"Action:\n```json\n{listed('tool_name', 'parameters')}\n```",
    "gigachat": "".join(f"<|function_call|>{each}" for each in objects()),
    "qwen3_coder": f"<tool_call>\n<function=get-weather>\n{XML}</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    "seed_oss": f"<seed:tool_call>\n<function=get-weather>\n{XML}</parameter>\n</function>\n</seed:tool_call>"
    "<seed:tool_call><function=clock></function></seed:tool_call>",
    "glm": f"<tool_call>get-weather\n{KEYS}</tool_call>\n<tool_call>clock</tool_call>",
    "hunyuan3": f"<tool_calls:opensource><tool_call:opensource>get-weather\n{KEYS}</tool_call:opensource>"
    "<tool_call:opensource>clock</tool_call:opensource></tool_calls:opensource>",
    "deepseek": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get-weather\n```json\n{TEXT}\n```"
    "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get-weather<｜tool▁sep｜>{TEXT}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v32": invoked("｜DSML｜", "｜DSML｜function_calls"),
    "deepseek_v4": invoked("｜DSML｜", "｜DSML｜tool_calls"),
    "minimax_m2": invoked("", "minimax:tool_call"),
    "muse": invoked("atem:", "atem:function_calls"),
    "minicpm5": '<function name="get-weather"><param name="city"><![CDATA[Köln </b> {x} 1]]></param>'
    '<param name="days">[1, 2.5, null]</param><param name="now">true</param></function>'
    '<function name="clock"></function>',
    "kimi_k2": f"<|tool_calls_section_begin|>{KIMI.replace('{}', TEXT)}"
    f"{KIMI.replace('get-weather:0', 'clock:1')}<|tool_calls_section_end|>",
    "solar": f"<|tool_call:begin|>1<|tool_call:name|>get-weather<|tool_call:args|>{TEXT}<|tool_call:end|>"
    "<|tool_call:begin|>2<|tool_call:name|>clock<|tool_call:args|>{}<|tool_call:end|>",
    "functionary_v31": f"<function=get-weather>{TEXT}</function><function=clock>{{}}</function>",
    "mistral_args": f"[TOOL_CALLS]get-weather[ARGS]{TEXT}[TOOL_CALLS]clock[CALL_ID]123456789[ARGS]{{}}",
    "harmony": f"<|channel|>commentary to=functions.get-weather <|constrain|>json<|message|>{TEXT}<|call|>"
    "<|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}<|call|>",
    "lfm2": f"<|tool_call_start|>{PYTHON}<|tool_call_end|>",
    "llama4": f"<|python_start|>{PYTHON}<|python_end|>",
    "minimax_m1": "<tool_calls>\n" + "\n".join(objects()) + "\n</tool_calls>",
    "apertus": f'<|tools_prefix|>[{{"get-weather": {TEXT}}}, {{"clock": {{}}}}]<|tools_suffix|>',
    "gemma4": GEMMA + "<|tool_call>call:clock{}<tool_call|>",
}
GIGACHAT = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
WRITTEN["gigachat_roles"] = "".join(f"{GIGACHAT}{each}" for each in objects())
K3 = '<|open|>argument key="city" type="string"<|sep|>Köln </b> {x} 1<|close|>argument<|sep|>'
K3 += '<|open|>argument key="days" type="array"<|sep|>[1, 2.5, null]<|close|>argument<|sep|>'
K3 += '<|open|>argument key="now" type="boolean"<|sep|>true<|close|>argument<|sep|>'
WRITTEN["kimi_k3"] = (
    f'<|open|>tools<|sep|><|open|>call tool="get-weather" index="1"<|sep|>{K3}<|close|>call<|sep|>'
    '<|open|>call tool="clock" index="2"<|sep|><|open|>json type="object"<|sep|>{}<|close|>json<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>"
)
M3 = (
    '<tool_call>\n~<invoke name="get-weather">~<city>Köln </b> {x} 1~</city>~<days>~<item>1~</item>~<item>2.5~</item>'
    '~<item>null~</item>~</days>~<now>true~</now>~</invoke>\n~<invoke name="clock">~</invoke>\n~</tool_call>'
)
WRITTEN["minimax_m3"] = f"~{M3}".replace("~", "]<]minimax[>[")
WRITTEN["lfm2_list"] = WRITTEN["lfm2"]
WRITTEN["hunyuan3"] = (
    WRITTEN["hunyuan3"].replace("arg_key>", "arg_key:opensource>").replace("arg_value>", "arg_value:opensource>")
)


def read(
    name: str, pieces: list[str], thought: str | None = None, *, opened: bool = False
) -> tuple[str, str, list[tuple[str, object]]]:
    tools = ToolReader(TOOL_FORMATS.get(name), frozenset(PARAMETERS), PARAMETERS)
    reader = AnswerReader(THOUGHT_FORMATS.get(thought) if thought else None, tools, opened=opened)
    content = "".join([*map(reader.push, pieces), reader.finish()])
    return reader.thoughts, content, [(call.name, json.loads(call.arguments)) for call in reader.calls]


def thought_for(name: str) -> str:
    own = {"harmony", "kimi_k3", "minimax_m3", "gemma4", "command_r7b", "apertus", "solar", "seed_oss", "hunyuan3"}
    return name if name in own else "mistral" if name.startswith("mistral") else "think"


KEPT = {"kimi_k2": "<|tool_call_end|>", "minimax_m2": "</invoke>", "deepseek_v4": "</｜DSML｜invoke>"}
"""Ends of first calls in blocks of several."""


def test_every_form_is_tried() -> None:
    assert set(WRITTEN) == set(TOOL_FORMATS.keys())


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_calls_are_found_wherever_the_text_is_cut(name: str) -> None:
    thought = THOUGHT_FORMATS.get(thought_for(name))
    text = f"{thought.begin}\nlet me see{thought.end}\n\n{WRITTEN[name]}"
    thoughts, content, calls = read(name, [text], thought_for(name))
    assert (thoughts, content.strip()) == ("let me see", "")
    assert [call[1] for call in calls] == [ARGUMENTS, {}]
    assert [call[0] for call in calls] in (["get-weather", "clock"], ["weather", "clock"])
    assert read(name, list(text), thought_for(name))[2] == calls
    for at in range(len(text)):
        assert read(name, [text[:at], text[at:]], thought_for(name)) == (thoughts, content, calls)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(WRITTEN)), st.data())
def test_nothing_depends_on_the_pieces(name: str, data: st.DataObject) -> None:
    thought = THOUGHT_FORMATS.get(thought_for(name))
    parts = [
        WRITTEN[name],
        WRITTEN[name][:-9],
        thought.begin,
        thought.end,
        *thought.dropped,
        "words",
        " ",
        "\n",
        "<",
        "{",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=6)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    opened = data.draw(st.booleans())
    assert read(name, pieces, thought_for(name), opened=opened) == read(name, [text], thought_for(name), opened=opened)


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_unknown_functions_stay_text(name: str) -> None:
    text = WRITTEN[name].replace("weather", "climate").replace("clock", "watch")
    thoughts, content, calls = read(name, [text])
    assert (thoughts, content, calls) == ("", text, [])


def test_thoughts_begin_where_answers_do() -> None:
    assert read("hermes", ["a <think>b</think>"], "think")[:2] == ("", "a <think>b</think>")
    assert read("hermes", ["why</think>\n\nso"], "think", opened=True)[:2] == ("why", "so")
    assert read("hermes", ["why"], "think", opened=True)[:2] == ("why", "")
    assert read("hermes", [" \n<think>\n\n</think>\n\nso"], "think")[:2] == ("", "so")
    assert read("hermes", ["<think>1</think><think>"], "think")[:2] == ("1", "<think>")


def test_channels_come_apart() -> None:
    text = (
        "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary<|message|>I look<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>ah<|end|><|start|>assistant<|channel|>final<|message|>So."
    )
    assert read("harmony", list(text), "harmony")[:2] == ("why\n\nah", "I lookSo.")


@pytest.mark.parametrize(
    ("source", "tool", "thought"),
    [
        ("<tool_call><function=a><parameter=b></think>", "qwen3_coder", "think"),
        ("<tool_call> <arg_key> <arg_value></think>", "glm", "think"),
        ("<|channel|>analysis functions.x <|call|>", "harmony", "harmony"),
        ("[TOOL_CALLS] [ARGS] [THINK] [/THINK]", "mistral_args", "mistral"),
        ("nothing", None, None),
    ],
)
def test_forms_are_chosen_by_the_template(source: str, tool: str | None, thought: str | None) -> None:
    found = format_of(source)
    assert (found and found[0]) == tool
    assert thoughts_of(source) is (THOUGHT_FORMATS.get(thought) if thought else None)


@pytest.mark.parametrize("name", ["llama3", "llama4"])
@pytest.mark.parametrize("text", [PYTHON, f"\n {PYTHON}\n", "[clock()]", "[ clock( ) , clock()]"])
def test_an_answer_may_be_a_list_of_calls_and_nothing_else(name: str, text: str) -> None:
    expected = read(name, [text])
    assert expected[1].strip() == ""
    assert {call for call, _ in expected[2]} <= {"weather", "clock"}
    assert len(expected[2]) == text.count("(")
    for at in range(len(text)):
        found = read(name, [text[:at], text[at:]])
        assert (found[1].strip(), found[2]) == ("", expected[2])
    assert read(name, list(text))[2] == expected[2]


@pytest.mark.parametrize("name", ["llama3", "llama4"])
@pytest.mark.parametrize(
    "text",
    [
        *(
            "[1] see there",
            "[clockwork](there)",
            "[clock()] is what to call",
            "[clock(",
            "[clock(1)]",
            "[",
            "[other()]",
        ),
        *("Call [clock()]", "[clock(), 3]", "clock()", "[clock()"),
    ],
)
def test_other_lists_are_text(name: str, text: str) -> None:
    for pieces in ([text], list(text)):
        assert read(name, pieces)[1:] == (text, [])


def test_nested_elements_follow_the_schema() -> None:
    mark = "]<]minimax[>["
    schema = {
        "f": {
            "properties": {
                "ids": {"type": "array", "items": {"type": "string"}},
                "none": {"type": "array"},
                "at": {"type": "object", "properties": {"x": {"type": "string"}}},
            }
        }
    }
    text = (
        '~<tool_call>\n~<invoke name="f">~<ids>~<item>1~</item>~</ids>~<none>~</none>~<at>~<x>2~</x>~<y>3~</y>~</at>'
        "~<deep>~<item>~<a>1~</a>~</item>~<item>~<a>b~</a>~</item>~</deep>~</invoke>\n~</tool_call>"
    ).replace("~", mark)
    tools = ToolReader(TOOL_FORMATS.get("minimax_m3"), frozenset({"f"}), schema)
    assert tools.push(text) + tools.finish() == ""
    assert json.loads(tools.calls[0].arguments) == {
        "ids": ["1"],
        "none": [],
        "at": {"x": "2", "y": 3},
        "deep": [{"a": 1}, {"a": "b"}],
    }


@pytest.mark.parametrize(
    "name",
    ["qwen3_coder", "seed_oss", "glm", "deepseek_v32", "deepseek_v4", "minimax_m2", "muse", "kimi_k3", "minimax_m3"],
)
def test_a_call_that_is_cut_within_an_argument_is_none(name: str) -> None:
    whole = WRITTEN[name]
    cut = whole[: whole.index("Köln") + 6]
    for pieces in ([cut], list(cut)):
        thoughts, content, calls = read(name, pieces)
        assert (thoughts, content, calls) == ("", cut, [])


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_answers_cut_anywhere_have_whole_calls_alone(name: str) -> None:
    """Whatever was complete is called with all its arguments, and the rest is neither called nor lost."""
    whole = WRITTEN[name]
    calls = read(name, [whole])[2]
    for at in range(len(whole)):
        _, content, found = read(name, [whole[:at]])
        assert found == calls[: len(found)]
        assert found or content.strip() == whole[:at].strip() or whole[:at].strip() in TOOL_FORMATS.get(name).begin
    first = KEPT.get(name)
    if first is not None:
        assert read(name, [whole[: whole.index(first) + len(first) + 3]])[2] == calls[:1]


HYPHENS = frozenset({"f-g"})
ODD = '{"a":"}} </tool_call>","b":1.0,"c":true}'
ODD_CALL = f'<tool_call>\n{{"name":"f-g","arguments":{ODD}}}\n</tool_call>'
FOUND = {"a": "}} </tool_call>", "b": 1.0, "c": True}


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        (ODD_CALL, "", [FOUND]),
        (f"{ODD_CALL}\n{ODD_CALL}", "", [FOUND, FOUND]),
        (f"I look.\n{ODD_CALL}\nDone.", "I look.\nDone.", [FOUND]),
        (f"{ODD_CALL}\n</tool_call>", "", [FOUND]),
        (ODD_CALL[:-5], "", [FOUND]),
        (ODD_CALL[:-16], ODD_CALL[:-16], []),
        (f"<tool_call>\n{ODD_CALL}", "<tool_call>", [FOUND]),
        (f"I look.\n{ODD_CALL}\n{ODD_CALL}", "I look.", [FOUND, FOUND]),
        (f"I look. \n\n{ODD_CALL[:-16]}", f"I look. \n\n{ODD_CALL[:-16]}", []),
        (f"I look.\n{ODD_CALL}\n{ODD_CALL}\n\nDone.\n", "I look.\nDone.\n", [FOUND, FOUND]),
        (ODD_CALL.replace("f-g", "g"), ODD_CALL.replace("f-g", "g"), []),
        (ODD_CALL.replace(ODD, "null"), "", [{}]),
        (ODD_CALL.replace(ODD, '""'), ODD_CALL.replace(ODD, '""'), []),
        (ODD_CALL.replace("}} <", "a\nb <"), "", [{**FOUND, "a": "a\nb </tool_call>"}]),
        (ODD_CALL.replace("1.0", "NaN"), ODD_CALL.replace("1.0", "NaN"), []),
    ],
)
def test_odd_calls_are_read_or_stay_text(text: str, content: str, arguments: list[object]) -> None:
    for pieces in ([text], list(text)):
        reader = ToolReader(TOOL_FORMATS.get("hermes"), HYPHENS)
        found = "".join([*map(reader.push, pieces), reader.finish()])
        assert (found, [json.loads(call.arguments) for call in reader.calls]) == (content, arguments)
