"""Built-in chat templates against Jinja as `transformers` sets it up, transformers itself, and published templates.

What is published is read from where EDGEINFER_TEST_TEMPLATES says, and is not part of this project.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.requests.texts import chosen_template
from edgeinfer.errors import BadSetting, BadTemplate
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.text import ChatTemplate, Vocabulary
from edgeinfer.models.text.template_choice import MOST_BYTES, alike, built_in, built_in_names, template_choice
from tests.unit.models.text.jinja_judge import render_unguarded
from tests.unit.models.text.small_vocabularies import gguf_metadata

PUBLISHED = Path(os.environ.get("EDGEINFER_TEST_TEMPLATES", "/nowhere"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi, <b>you</b> & 'me'"}
ANSWER = {"role": "assistant", "content": "Hello!"}
MORE = {"role": "user", "content": "And 🦙 now?"}
TURNS = [SYSTEM, USER, ANSWER, MORE]
TOOL = {"role": "tool", "content": "5", "tool_call_id": "call00001"}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": TURNS,
    "an answer at the end": [USER, ANSWER],
    "two questions": [USER, MORE],
    "two system prompts": [SYSTEM, USER, SYSTEM, MORE],
    "a result": [USER, ANSWER, TOOL],
    "thoughts": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"}, MORE],
}
HI = "Hi, <b>you</b> & 'me'"
WRITTEN = {
    "alpaca": f"Be brief.\n\n### Instruction:\n{HI}\n\n### Response:\nHello!</s>\n\n### Instruction:\nAnd 🦙 now?\n\n"
    "### Response:\n",
    "chatml": f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{HI}<|im_end|>\n"
    "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nAnd 🦙 now?<|im_end|>\n<|im_start|>assistant\n",
    "command-r": "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
    f"<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{HI}<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello!<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>And 🦙 now?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "llama2": f"<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n{HI} [/INST] Hello! </s><s>[INST] And 🦙 now? [/INST]",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    f"<|start_header_id|>user<|end_header_id|>\n\n{HI}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nAnd 🦙 now?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral-v1": f"<s>[INST] Be brief.\n\n{HI} [/INST] Hello!</s>[INST] And 🦙 now? [/INST]",
    "mistral-v3": f"<s>[INST] Be brief.\n\n{HI}[/INST] Hello!</s>[INST] And 🦙 now?[/INST]",
    "mistral-v3-tekken": f"<s>[INST]Be brief.\n\n{HI}[/INST]Hello!</s>[INST]And 🦙 now?[/INST]",
    "mistral-v7-tekken": f"<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]{HI}[/INST]Hello!</s>"
    "[INST]And 🦙 now?[/INST]",
    "phi4": f"<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>{HI}<|im_end|>"
    "<|im_start|>assistant<|im_sep|>Hello!<|im_end|><|im_start|>user<|im_sep|>And 🦙 now?<|im_end|>"
    "<|im_start|>assistant<|im_sep|>",
    "plain": f"Be brief.\n\nUser: {HI}\nAssistant: Hello!\nUser: And 🦙 now?\nAssistant:",
    "vicuna": f"Be brief.\n\nUSER: {HI}\nASSISTANT: Hello!</s>\nUSER: And 🦙 now?\nASSISTANT:",
    "zephyr": f"<|system|>\nBe brief.</s>\n<|user|>\n{HI}</s>\n<|assistant|>\nHello!</s>\n<|user|>\nAnd 🦙 now?</s>\n"
    "<|assistant|>\n",
}
LIKE = (
    ("chatml", "Qwen-Qwen2.5-7B-Instruct", "turns"),
    ("deepseek-r1", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "turns"),
    ("gemma", "google-gemma-2-2b-it", "one"),
    ("granite", "ibm-granite-granite-4.0", "turns"),
    ("mistral-v3-tekken", "mistralai-Mistral-Nemo-Instruct-2407", "system"),
    ("mistral-v7-tekken", "Mistral-Small-3.2-24B-Instruct-2506", "turns"),
    ("phi3", "microsoft-Phi-3.5-mini-instruct", "turns"),
    ("qwen3", "Qwen-Qwen3-0.6B", "turns"),
    ("qwen3", "Qwen-Qwen3-0.6B", "thoughts"),
)


def template(name: str) -> ChatTemplate:
    return ChatTemplate({"default": built_in(name).source}, SPECIAL)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", built_in_names())
def test_text_equals_jinjas(name: str, chat: str, prompt: bool) -> None:
    text = template(name).render(CHATS[chat], add_generation_prompt=prompt)
    options = {"tools": None, "documents": None, "add_generation_prompt": prompt, **SPECIAL}
    assert text == render_unguarded(built_in(name).source, messages=CHATS[chat], **options)
    assert all(message["content"].split("</think>")[-1].strip() in text for message in CHATS[chat])


@pytest.mark.parametrize("name", built_in_names())
def test_text_equals_transformers(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    for chat in CHATS.values():
        options = {"chat_template": built_in(name).source, "add_generation_prompt": True, **SPECIAL}
        texts, _ = utilities.render_jinja_template([chat], **options)
        assert template(name).render(chat) == texts[0]


@pytest.mark.parametrize("name", WRITTEN)
def test_text_is_the_public_form(name: str) -> None:
    assert template(name).render(TURNS) == WRITTEN[name]


@pytest.mark.parametrize(("name", "published", "chat"), LIKE)
def test_text_equals_that_of_a_published_template(name: str, published: str, chat: str) -> None:
    path = PUBLISHED / f"{published}.jinja"
    if not path.is_file():
        pytest.skip("EDGEINFER_TEST_TEMPLATES names no folder with it")
    theirs = ChatTemplate({"default": path.read_text(encoding="utf-8")}, SPECIAL)
    assert template(name).render(CHATS[chat]) == theirs.render(CHATS[chat])


@pytest.mark.parametrize("name", ["qwen3", "deepseek-r1"])
def test_thinking_can_be_turned_off(name: str) -> None:
    assert template(name).render([USER], enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert not template(name).render([USER], enable_thinking=True).endswith("</think>\n\n")


@pytest.mark.parametrize("name", built_in_names())
def test_parts_are_joined_and_images_refused(name: str) -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]
    assert "Hi you" in template(name).render([{"role": "user", "content": parts}])
    with pytest.raises(BadTemplate, match="reads text only"):
        template(name).render([{"role": "user", "content": [{"type": "image"}]}])


def test_a_chosen_template_goes_before_the_models_own() -> None:
    metadata = gguf_metadata("gpt2", ["<s>", "</s>", "<|im_start|>"], [3, 3, 3], bos_token_id=0, eos_token_id=1)
    metadata["tokenizer.chat_template"] = "its own"
    vocabulary = Vocabulary.from_metadata(metadata)
    chosen = built_in("ChatML")
    chat = ChatTemplate.from_metadata(metadata, vocabulary, chosen)
    assert (chat.origin, chat.names) == ("chatml", ("default",))
    assert chat.render([USER]) == template("chatml").render([USER])
    used, lacking = chosen.notices(vocabulary.tokens)
    assert "chat template chatml, not by the model's own" in used
    assert "<|im_end|>" in lacking
    assert "<|im_start|>" not in lacking
    assert len(chosen.notices([*vocabulary.tokens, "<|im_end|>"])) == 1
    assert len(built_in("plain").notices([])) == 1


def test_a_template_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_bytes("\ufeff{{ messages[0].content }}ü".encode())
    chosen = template_choice(None, path)
    assert chosen is not None
    assert (chosen.origin, chosen.source) == (str(path), "{{ messages[0].content }}ü")
    assert template_choice(None, None) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "own.jinja cannot be read: No such file"),
        ("ü".encode("utf-16"), "own.jinja is not UTF-8 at byte 0"),
        (b" \n", "own.jinja is empty"),
        (b"x" * (MOST_BYTES + 1), "own.jinja has more than 1 MB"),
        (b"{% for %}", r"own.jinja: the chat template cannot be read: TemplateSyntaxError.*line 1"),
    ],
)
def test_a_file_that_is_no_template(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "own.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((BadSetting, BadTemplate), match=message):
        chosen_template(LoadOptions(chat_template_file=path))


def test_an_unknown_name_and_two_templates(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"'llama-3'; did you mean llama3\? there are: alpaca, chatml.*from a file"):
        chosen_template(LoadOptions(chat_template="llama-3"))
    with pytest.raises(BadSetting, match="cannot be read: Is a directory"):
        chosen_template(LoadOptions(chat_template_file=tmp_path))
    with pytest.raises(BadSetting, match="leave one of them out"):
        chosen_template(LoadOptions(chat_template="chatml", chat_template_file="x"))


ASKED, TOLD = "{{ if .Prompt }}", "{{ .Prompt }}{{ end }}"
IN_GO = {  # forms that Ollama's templates have had
    "chatml": f"{ASKED}<|im_start|>user\n{TOLD}<|im_end|>\n<|im_start|>assistant\n{{{{ .Response }}}}<|im_end|>",
    "llama3": f"<|start_header_id|>user<|end_header_id|>\n\n{TOLD}<|eot_id|>",
    "gemma": f"<start_of_turn>user\n{TOLD}<end_of_turn>\n<start_of_turn>model\n{{{{ .Response }}}}<end_of_turn>",
    "phi3": f"{ASKED}<|user|>\n{TOLD}<|end|>\n<|assistant|>\n{{{{ .Response }}}}<|end|>",
    "zephyr": "{{- range .Messages }}<|{{ .Role }}|>\n{{ .Content }}</s>\n{{ end }}<|assistant|>\n",
    "llama2": f"[INST] <<SYS>>{{{{ .System }}}}<</SYS>>\n\n{TOLD} [/INST] {{{{ .Response }}}}</s>",
    "mistral-v1": f"[INST] {{{{ .System }}}} {TOLD} [/INST]",
    "mistral-v3": f"[INST] {{{{ .System }}}} {TOLD}[/INST] {{{{ .Response }}}}</s>",
    "alpaca": f"{{{{ .System }}}}\n\n### Instruction:\n{TOLD}\n\n### Response:\n",
    "vicuna": f"{ASKED}USER: {TOLD}\nASSISTANT: {{{{ .Response }}}}</s>",
}
OTHERS_IN_GO = [
    f"System: {TOLD}\nFalcon:\n",
    f"GPT4 Correct User: {TOLD}<|end_of_turn|>",
    f"@@ Instruction\n{TOLD}",
    "",
    TOLD,
]


@pytest.mark.parametrize("name", IN_GO)
def test_what_writes_as_a_template_in_go_does(name: str) -> None:
    found = alike(IN_GO[name])
    assert found is not None
    assert found.origin == name
    metadata = gguf_metadata("gpt2", ["<s>", "</s>"], [3, 3], bos_token_id=0, eos_token_id=1)
    vocabulary = Vocabulary.from_metadata(metadata)
    chat = ChatTemplate.from_metadata(metadata, vocabulary, beside=IN_GO[name])
    assert (chat.origin, chat.render(TURNS)) == (name, template(name).render(TURNS))
    assert f"{name} writes the chats, as Ollama's template does" in chat.notices[0]
    chosen = ChatTemplate.from_metadata(metadata, vocabulary, built_in("granite"), IN_GO[name])
    assert chosen.origin == "granite"
    metadata["tokenizer.chat_template"] = "its own"
    own = ChatTemplate.from_metadata(metadata, vocabulary, beside=IN_GO[name])
    assert (own.origin, own.notices) == ("model", ())


@pytest.mark.parametrize("source", OTHERS_IN_GO)
def test_a_template_in_go_of_another_form_is_told(source: str) -> None:
    assert alike(source) is None
    metadata = gguf_metadata("gpt2", ["<s>", "</s>"], [3, 3], bos_token_id=0, eos_token_id=1)
    chat = ChatTemplate.from_metadata(metadata, Vocabulary.from_metadata(metadata), beside=source)
    assert chat.origin == "plain"
    assert [("a language that is not read" in notice) for notice in chat.notices] == ([True] if source else [])
