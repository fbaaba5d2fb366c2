"""Thoughts in requests: opened by the prompt, closed before an answer that is continued, kept out of histories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.constrained.after_thoughts import AfterThoughts
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options
from edgeinfer.engine.scheduler.batcher import BatchStream
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import ChatTemplate

TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.reasoning_content }}\n{% endfor %}"
OPENED = TURNS + "{% if add_generation_prompt %}assistant: <think>\n{% endif %}{# </think> #}"
CHANNELS = TURNS + "{# <|channel|>analysis #}"
USER = {"role": "user", "content": "the capital"}


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, spec="off") as opened:
        yield opened


def with_template(llm: LLM, source: str) -> Prompts:
    return replace(llm.prompts, template=ChatTemplate({"default": source}))


def test_a_prompt_that_opens_a_thought(llm: LLM) -> None:
    request = with_template(llm, OPENED).chat([USER], {})
    assert request.opens_thought
    reader = request.reader()
    assert reader is not None
    assert (reader.push("why</think>\n\nso"), reader.thoughts) == ("so", "why")
    assert with_template(llm, TURNS).chat([USER], {}).reader() is None
    assert not with_template(llm, OPENED.replace("<think>", "<think></think>")).chat([USER], {}).opens_thought


def test_an_answer_that_is_continued_is_in_no_thought(llm: LLM) -> None:
    prompts = with_template(llm, OPENED)
    told = prompts.render([USER, {"role": "assistant", "content": "Paris"}])
    assert told.endswith("assistant: <think>\n\n</think>\n\nParis")
    whole = prompts.render([USER, {"role": "assistant", "content": "<think>\nwhy</think>Paris"}])
    assert whole.endswith("assistant: <think>\nwhy</think>Paris")
    assert prompts.render([USER, {"role": "assistant", "content": ""}]) == prompts.render([USER])
    assert not prompts.chat([USER, {"role": "assistant", "content": "Paris"}], {}).opens_thought


def test_histories_have_no_channels(llm: LLM) -> None:
    said = "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>So."
    told = with_template(llm, CHANNELS).render([USER, {"role": "assistant", "content": said}, USER])
    assert "assistant: So.why\n" in told


def test_what_must_hold_holds_after_the_thought(llm: LLM) -> None:
    prompts = with_template(llm, OPENED)
    assert isinstance(prompts.chat([USER], {"schema": True}).constraint, AfterThoughts)
    limited = prompts.chat([USER], {"max_thought_tokens": 0}).constraint
    assert limited is not None
    assert llm.prompts.tokenizer.decode(limited.forced()).startswith("</think>")
    assert with_template(llm, TURNS).chat([USER], {"max_thought_tokens": 5}).constraint is None
    with pytest.raises(BadSetting, match="max_thought_tokens"):
        prompts.chat([USER], {"max_thought_tokens": -1})


def test_answers_of_a_batch_have_their_thoughts_apart(llm: LLM) -> None:
    options: Options = {"max_thought_tokens": 4, "max_tokens": 24, "temperature": 0}
    (answer,) = BatchStream([llm.batcher(1)], [[USER]], with_template(llm, OPENED), options)
    thoughts, end, content = answer.text.partition("</think>")
    assert end
    assert (answer.reasoning, answer.content) == (thoughts.strip(), content.lstrip())


def test_forms_are_those_of_the_chosen_template(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text(OPENED)
    with load(tiny_model, spec="off", isolate=True, device="reference", chat_template_file=path) as llm:
        path.unlink()  # a child that starts again has no need of it
        request = llm.prompts.chat([USER], {})
        assert request.opens_thought
        assert llm.chat([USER], max_tokens=4, temperature=0).read()
    with load(tiny_model, spec="off", chat_template="qwen3") as llm:
        assert llm.prompts.thoughts is not None
    with load(tiny_model, spec="off", chat_template="chatml") as llm:
        assert llm.prompts.thoughts is None


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHANNELS + "<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>Paris"),
        ("<|START_THINKING|>{# <|START_RESPONSE|> #}", "<|START_THINKING|><|END_THINKING|><|START_RESPONSE|>Paris"),
        ("<|START_THINKING|><|END_THINKING|>", "<|START_THINKING|><|END_THINKING|><|START_RESPONSE|>Paris"),
    ],
)
def test_an_answer_is_continued_after_its_familys_marks(llm: LLM, template: str, end: str) -> None:
    assert with_template(llm, template).render([USER, {"role": "assistant", "content": "Paris"}]).endswith(end)
    marked = end.removeprefix("<|start|>assistant").removeprefix("<|START_THINKING|>").removeprefix("<|END_THINKING|>")
    assert with_template(llm, template).render([USER, {"role": "assistant", "content": marked}]).endswith(marked)


def test_functions_and_channels(llm: LLM) -> None:
    """What is free is not constrained, since calls and texts have marks of their own; a limit still holds."""
    prompts = with_template(llm, CHANNELS + "{# functions. <|call|> #}{{ tools }}")
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]
    assert prompts.chat([USER], {"tools": tools}).constraint is None
    assert isinstance(prompts.chat([USER], {"schema": True}).constraint, AfterThoughts)
    limited = prompts.chat([USER], {"tools": tools, "max_thought_tokens": 0}).constraint
    assert isinstance(limited, AfterThoughts)
