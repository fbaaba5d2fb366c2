"""Chat templates against Jinja's own sandbox, set up as `transformers` does, and against `transformers` itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import BadSetting, BadTemplate
from edgeinfer.models.text import ChatTemplate, Message, Vocabulary
from tests.unit.models.text.jinja_judge import TODAY, render_unguarded
from tests.unit.models.text.small_vocabularies import gguf_metadata

TEMPLATES = Path(__file__).parent / "templates"
NAMES = ("smollm2", "llama3", "qwen25", "qwen3", "gemma2", "phi3", "mistral")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The <weather> & more in «Köln»",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2.5, None]}}}
USER = {"role": "user", "content": "  Hi there, <b>you</b> & 'me'\n"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello! "}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, {"role": "user", "content": "And 🦙 now?"}],
    "system and turns": [SYSTEM, USER, ANSWER, {"role": "user", "content": "More."}, ANSWER, USER],
    "ends with an answer": [USER, ANSWER],
    "tools": [
        SYSTEM,
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "5°"},
    ],
    "odd role": [USER, {"role": "critic", "content": "no", "name": "x\ny"}],
    "reasoning": [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "why"}],
}


def source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8").removesuffix("\n")


def template(name: str) -> ChatTemplate:
    return ChatTemplate({"default": source(name)}, SPECIAL, now=lambda: TODAY)


def by_jinja(name: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    return render_unguarded(source(name), messages=messages, documents=None, **SPECIAL, **variables)


def refused(render: Callable[[], str]) -> bool:
    try:
        render()
    except Exception:
        return True
    return False


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", NAMES)
def test_text_equals_jinjas(name: str, chat: str, prompt: bool) -> None:
    variables: dict[str, Any] = {"add_generation_prompt": prompt, "tools": [TOOL] if chat == "tools" else None}
    if refused(lambda: by_jinja(name, CHATS[chat], **variables)):
        if CHATS[chat][0]["role"] != "system":
            with pytest.raises(BadTemplate):
                template(name).render(CHATS[chat], **variables)
        return
    check_equal(template(name).render(CHATS[chat], **variables), by_jinja(name, CHATS[chat], **variables), chat)


def check_equal(ours: str, theirs: str, chat: str) -> None:
    """Texts are equal, but where a template leaves out a call: then ours has it."""
    if chat == "tools" and "weather" not in theirs:
        assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"' in ours
    else:
        assert ours == theirs


@pytest.mark.parametrize("chat", ["one", "system", "system and turns", "tools"])
@pytest.mark.parametrize("name", ["smollm2", "llama3", "qwen25", "phi3", "gemma2"])
def test_text_equals_transformers(name: str, chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    tools = [TOOL] if chat == "tools" else None
    options: dict[str, Any] = {"tools": tools, "add_generation_prompt": True, "date_string": "1 May 2025", **SPECIAL}

    def judge() -> str:
        texts, _ = utilities.render_jinja_template([CHATS[chat]], chat_template=source(name), **options)
        return str(texts[0])

    if refused(judge):
        assert name == "gemma2"
        return
    options.pop("bos_token"), options.pop("eos_token")
    ours = template(name).render(CHATS[chat], **options)
    options |= SPECIAL
    check_equal(ours, judge(), chat)


def test_enable_thinking_reaches_the_template() -> None:
    assert template("qwen3").render([USER], enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert not template("qwen3").render([USER], enable_thinking=True).endswith("</think>\n\n")


def test_a_refused_system_message_goes_before_the_user_message() -> None:
    rendering = template("gemma2").rendering([SYSTEM, USER, ANSWER, USER])
    assert rendering.system_merged
    user = {"role": "user", "content": "Be brief.\n\n" + USER["content"]}
    assert rendering.text == template("gemma2").render([user, ANSWER, USER])


def test_a_system_message_that_is_left_out_is_put_back() -> None:
    silent = ChatTemplate({"default": "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}"})
    rendering = silent.rendering([SYSTEM, USER])
    assert rendering.system_merged
    assert rendering.text == "[Be brief.\n\n" + USER["content"] + "]"
    assert silent.render([SYSTEM]) == "[Be brief.]"
    assert silent.render([USER, SYSTEM, ANSWER]) == silent.render([USER, {**SYSTEM, "role": "user"}, ANSWER])
    assert not template("smollm2").rendering([SYSTEM, USER]).system_merged
    assert not silent.rendering([{"role": "system", "content": " "}, USER]).system_merged


NO_ROLE = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
FRAGILE = "{% for m in messages %}{% if '</think>' in m.content %}x{% endif %}{{ m.role }} {% endfor %}"
JOINED = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}"
    "{% endfor %}{% endfor %}"
)
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def test_templates_get_what_they_take() -> None:
    """Templates that search in no content, add to arguments, or print parts or none."""
    assert ChatTemplate({"default": FRAGILE}).render([USER, CALLING]) == "user assistant "
    assert (
        ChatTemplate({"default": JOINED})
        .render([USER, CALLING])
        .endswith('weather{"city": "Köln", "days": [1, 2.5, null]}')
    )
    assert "None" not in ChatTemplate({"default": NO_ROLE}).render([USER, CALLING])
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]}
    assert ChatTemplate({"default": NO_ROLE}).render([parts]) == "user: Hi you;"
    only_parts = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    assert ChatTemplate({"default": only_parts}).render([USER]) == USER["content"]
    assert (
        ChatTemplate({"default": "{{ messages[0].n | from_json | length }}"}).render([{**USER, "n": "[1, 2]"}]) == "2"
    )
    with pytest.raises(BadTemplate, match="a text that is none"):
        ChatTemplate({"default": "{{ 'x' | from_json }}"}).render([USER])


def test_one_call_at_a_time_where_the_template_wants_that() -> None:
    single = ChatTemplate(
        {
            "default": "{% for m in messages %}{% if m.tool_calls|length > 1 %}{{ raise_exception('one') }}{% endif %}"
            "{{ m.role }}{{ m.content }}{% for c in m.tool_calls %}{{ c.id }}.{{ c.function.name }}{% endfor %};"
            "{% endfor %}"
        }
    )
    calls = [{**CALL, "id": "a"}, {**CALL, "id": "b"}]
    results = [{"role": "tool", "tool_call_id": name, "content": f"={name}"} for name in "ba"]
    told = [{"role": "assistant", "content": "so ", "tool_calls": calls}, *results]
    assert single.render(told) == "assistantso a.weather;tool=a;assistantb.weather;tool=b;"


def test_calls_beside_text_go_apart_where_the_template_writes_no_others() -> None:
    lone = ChatTemplate(
        {
            "default": "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
            "<{{ c.function.name }}>{% endfor %}{% else %}{{ m.role }}: {{ m.content }};{% endif %}{% endfor %}"
        }
    )
    for content, before in (("I look.", "assistant: I look.;"), ("", ""), (None, "")):
        told = [USER, {"role": "assistant", "content": content, "tool_calls": [CALL]}]
        assert lone.render(told) == f"user: {USER['content']};{before}<weather>"


@pytest.mark.parametrize(
    ("mark", "written"),
    [
        ("<|tool_list_start|>", "<|tool_call_start|>[weather(city='Köln', days=[1, 2.5, None])]<|tool_call_end|>"),
        (
            "<|tool_call|> <|end_of_role|>",
            '<|tool_call|>[{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2.5, null]}}]',
        ),
        ("", '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2.5, null]}}\n</tool_call>'),
    ],
)
def test_calls_are_written_as_the_family_writes_them_where_its_template_does_not(mark: str, written: str) -> None:
    silent = ChatTemplate(
        {"default": f"{{# {mark} #}}" + "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"}
    )
    told = [USER, {"role": "assistant", "content": "So.", "tool_calls": [CALL]}, {"role": "tool", "content": "5 mm"}]
    result = "tool=5 mm;" if mark else "user=<tool_response>\n5 mm\n</tool_response>;"
    assert silent.render(told) == f"user={USER['content']};assistant=So.\n{written};{result}"


def test_a_late_system_message_stays_in_place_where_only_the_first_may_be_one() -> None:
    strict = ChatTemplate(
        {
            "default": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
            "{{ raise_exception('late') }}{% endif %}{{ m.role }}={{ m.content }};{% endfor %}"
        }
    )
    late = {"role": "system", "content": "In German."}
    question = {"role": "user", "content": "And now?"}
    rendering = strict.rendering([SYSTEM, USER, ANSWER, late, question])
    assert rendering.system_merged
    assert rendering.text.startswith(f"system=Be brief.;user={USER['content']};assistant=")
    assert rendering.text.endswith("user=In German.\n\nAnd now?;")


def test_functions_without_parameters_are_described_where_the_template_wants_that() -> None:
    source = "{% for t in tools %}{{ t.function.name }}: {{ t.function.parameters | tojson }}{% endfor %}"
    told = ChatTemplate({"default": source + "{{ messages[0].content }}"})
    clock = {"type": "function", "function": {"name": "clock"}}
    assert told.render([USER], tools=[clock]).startswith('clock: {"type": "object", "required": [], "properties": {}}')


def test_developers_are_the_system_to_templates_that_do_not_know_them() -> None:
    chat = [{"role": "developer", "content": "Be brief."}, USER]
    assert ChatTemplate({"default": NO_ROLE}).render(chat).startswith("system: Be brief.")
    assert ChatTemplate({"default": NO_ROLE + "{# developer #}"}).render(chat).startswith("developer: Be brief.")


def test_a_chat_without_a_user_keeps_its_order_or_is_refused_in_the_templates_words() -> None:
    users = "messages|selectattr('role', 'equalto', 'user')|list"
    wants_user = "{% if not " + users + " %}{{ raise_exception('no user query') }}{% endif %}"
    chat = [SYSTEM, CALLING, {"role": "tool", "tool_call_id": "a", "content": "7 degrees"}]
    for refusal in ("", "{% for m in messages if m.role == 'system' %}{{ raise_exception('no system') }}{% endfor %}"):
        told = ChatTemplate({"default": wants_user + refusal + NO_ROLE}).render(chat)
        assert 0 <= told.find("Be brief.") < told.find("assistant") < told.find("7 degrees")
    with pytest.raises(BadTemplate, match="no user query"):
        ChatTemplate({"default": wants_user + NO_ROLE}).render([ANSWER])


def test_a_later_system_message_keeps_its_place() -> None:
    later, second = {"role": "system", "content": "Now in French."}, {"role": "user", "content": "And?"}
    chat = [USER, ANSWER, later, second]
    told = ChatTemplate({"default": NO_ROLE}).render(chat)
    assert told.index(ANSWER["content"].strip()) < told.index("system: Now in French.") < told.index("user: And?")
    for name in ("gemma2", "mistral"):
        told = template(name).render([{"role": "user", "content": "Hi"}, ANSWER, later, second])
        assert told.index(ANSWER["content"].strip()) < told.index("Now in French.") < told.index("And?")


def test_templates_change_their_own_lists() -> None:
    own = "{% set ns = namespace(ids=[]) %}{% for m in messages %}{% set _ = ns.ids.append(m.role) %}{% endfor %}"
    assert (
        ChatTemplate({"default": own + "{{ ns.ids.pop(0) }}{{ ns.ids }}"}).render([USER, ANSWER]) == "user['assistant']"
    )
    for wrong in ("{{ messages.append(1) }}", "{% set a = [] %}{{ a.append(a) }}", "{% set a = [] %}{{ a.pop() }}"):
        with pytest.raises(BadTemplate):
            ChatTemplate({"default": wrong}).render([USER])


def test_the_templates_own_refusal_is_what_is_reported() -> None:
    with pytest.raises(BadTemplate, match="must alternate"):
        template("gemma2").render([ANSWER, USER])
    with pytest.raises(BadTemplate, match="System role not supported"):
        template("gemma2").render([SYSTEM, ANSWER, USER])


def test_messages_in_a_row_are_one_where_a_template_wants_turns() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "Of "}, {"type": "text", "text": "tin."}]}
    one = [{"role": "user", "content": f"{USER['content']}\n\nOf tin."}, ANSWER, USER]
    for name, taken in (("gemma2", True), ("qwen25", False)):
        assert (template(name).render([USER, parts, ANSWER, USER]) == template(name).render(one)) is taken
    rules = [SYSTEM, {"role": "developer", "content": "No tin."}]
    told = template("gemma2").render([*rules, USER, parts])
    assert told.index("Be brief.") < told.index("No tin.") < told.index("Hi there") < told.index("Of tin.")
    with pytest.raises(BadTemplate, match="must alternate"):
        template("gemma2").render([USER, {"role": "user", "content": [{"type": "image"}]}])


def test_templates_of_a_file() -> None:
    metadata = gguf_metadata("gpt2", ["<s>", "</s>"], [3, 3], bos_token_id=0, eos_token_id=1)
    metadata["tokenizer.chat_template"] = "{{ bos_token }}default{{ eos_token }}"
    metadata["tokenizer.chat_templates"] = ["tool_use", "rag"]
    metadata["tokenizer.chat_template.tool_use"] = "tools {{ tools | length }}"
    metadata["tokenizer.chat_template.rag"] = "rag"
    chat = ChatTemplate.from_metadata(metadata, Vocabulary.from_metadata(metadata))
    assert chat.origin == "model"
    assert chat.names == ("default", "tool_use", "rag")
    assert chat.render([USER]) == "<s>default</s>"
    assert chat.render([USER], tools=[TOOL]) == "tools 1"
    assert chat.render([USER], name="rag") == "rag"
    with pytest.raises(BadTemplate, match="'other'; the model has: default, tool_use, rag"):
        chat.render([USER], name="other")


def test_models_without_a_template() -> None:
    chatml = gguf_metadata("gpt2", ["<|im_start|>", "<|im_end|>"], [3, 3])
    chat = ChatTemplate.from_metadata(chatml, Vocabulary.from_metadata(chatml))
    assert chat.origin == "chatml"
    assert chat.render([SYSTEM, {"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    gemma = gguf_metadata("gpt2", ["<start_of_turn>", "<end_of_turn>"], [4, 3])
    chat = ChatTemplate.from_metadata(gemma, Vocabulary.from_metadata(gemma))
    assert chat.origin == "gemma"
    assert chat.render([{"role": "user", "content": "Hi"}]) == (
        "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
    )
    plain = gguf_metadata("gpt2", ["a"], [1])
    chat = ChatTemplate.from_metadata(plain, Vocabulary.from_metadata(plain))
    assert chat.origin == "plain"
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]
    assert chat.render([SYSTEM, {"role": "user", "content": parts}]) == "Be brief.\n\nUser: Hi you\nAssistant:"
    turns = [Message("user", "Hi"), Message("assistant", "Yo"), Message("user", "And?")]
    assert chat.render(turns) == "User: Hi\nAssistant: Yo\nUser: And?\nAssistant:"
    with pytest.raises(BadTemplate, match="reads text only"):
        chat.render([{"role": "user", "content": [{"type": "image"}]}])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"content": "Hi"}], "needs a role"),
        ([{"role": "user", "content": 5}], "content of a user message is int"),
        ([{"role": "user", "content": "Hi", "extra": object()}], r"messages\[0\].extra is object"),
        ([{"role": "user", "content": "Hi", "extra": b"bytes"}], r"messages\[0\].extra is bytes"),
    ],
)
def test_messages_that_are_none(messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        template("smollm2").render(messages)


def test_templates_see_plain_data_only() -> None:
    class Text(str):
        def upper(self) -> str:
            raise AssertionError

    class Number(int):
        pass

    chat = ChatTemplate({"default": "{{ messages[0].content.upper() }}{{ messages[0].n + 1 }}"})
    assert chat.render([{"role": "user", "content": Text("a"), "n": Number(2)}]) == "A3"


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = json.loads(json.dumps(CHATS["tools"]))
    template("qwen25").render(messages, tools=[TOOL])
    assert messages == CHATS["tools"]


def test_a_broken_template_names_the_line() -> None:
    with pytest.raises(BadTemplate, match=r"cannot be read: TemplateSyntaxError: .*line 2"):
        ChatTemplate({"default": "a\n{% if %}"}).render([USER])


def test_threads_share_a_template() -> None:
    shared, expected = template("qwen3"), template("qwen3").render(CHATS["turns"])
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.extend(shared.render(CHATS["turns"]) for _ in range(5))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20


def test_long_chats_render() -> None:
    turns = [USER, {"role": "assistant", "content": "word " * 400}] * 300
    for name in ("smollm2", "qwen3", "gemma2", "mistral"):
        assert template(name).render(turns) == by_jinja(name, turns, add_generation_prompt=True, tools=None)
    document = [SYSTEM, {"role": "user", "content": "x" * 2_000_000}]
    assert len(template("llama3").render(document)) > 2_000_000
