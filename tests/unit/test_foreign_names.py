"""Names of other libraries, and misspelt ones: each error says what ours is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer import foreign_names
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.requests.request import Options
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.session import Session
from edgeinfer.load_options import LoadOptions

TABLES = ("TO_LOAD", "OF_ANSWERS", "OF_PACKAGE", "OF_MODELS", "OF_STREAMS", "OF_SESSIONS")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("n_ctx", "it is called n_context here"),
        ("num_ctx", "it is called n_context here"),
        ("n_threads", "it is called threads here"),
        ("ram", "it is called ram_bytes here"),
        ("n_gpu_layers", "device says where a model runs"),
        ("verbose", "nothing is printed; pass progress to watch the loading"),
        ("n_contxt", "did you mean n_context"),
        ("temperature", r"answers have it: llm.chat\(messages, temperature=…\)"),
        ("colour", "there are: n_context, approx, "),
    ],
)
def test_load_says_what_a_keyword_is_called(name: str, told: str) -> None:
    with pytest.raises(edgeinfer.BadSetting, match=f"load has no option '{name}'; {told}"):
        edgeinfer.load("a-model", **{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("max_new_tokens", "it is called max_tokens here"),
        ("repetition_penalty", "it is called repeat_penalty here"),
        ("temprature", r"did you mean temperature\?"),
        ("stream", "every answer is a stream"),
        ("response_format", "schema is a JSON schema"),
        ("n", r"llm.several\(prompt, n\)"),
        ("n_context", r"a model is loaded with it: edgeinfer.load\(name, n_context=…\)"),
        ("colour", "there are: temperature, top_k, "),
    ],
)
def test_answers_say_what_an_option_is_called(tiny_model: Path, name: str, told: str) -> None:
    with edgeinfer.load(tiny_model, device="reference") as llm:
        asks: list[Callable[..., object]] = [llm.chat, llm.complete]
        for ask in asks:
            with pytest.raises(edgeinfer.BadSetting, match=f"there is no option '{name}'; {told}"):
                ask("Hi", **{name: 1})
        (answer,) = llm.batch(["Hi"], **{name: 1})  # type: ignore[arg-type]
        assert f"there is no option '{name}'" in str(answer.error)


def test_members_say_what_they_are_called(tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="reference") as llm, llm.session() as session:
        stream = llm.chat("Hi", max_tokens=1)
        for owner, name, told in (
            (llm, "create_chat_completion", r"llm.chat\(messages\) answers"),
            (llm, "count_tokens", r"len\(llm.tokenize\(text\)\)"),
            (stream, "usage", "stats.n_prompt and stats.n_generated"),
            (stream, "cancel", r"stop\(\) ends it"),
            (session, "fork", r"branch\(\) returns a copy"),
            (edgeinfer, "Llama", r"edgeinfer.load\(name\) opens a model"),
            (edgeinfer, "pull", "it is a command of the terminal"),
        ):
            with pytest.raises(AttributeError, match=f"has no attribute '{name}'; {told}"):
                getattr(owner, name)
        with pytest.raises(AttributeError, match=r"'TextStream' object has no attribute 'colour'$"):
            _ = stream.colour  # type: ignore[attr-defined]


def test_no_foreign_name_is_one_of_ours() -> None:
    """Otherwise the hint could never be told, or told something wrong."""
    ours = {
        "TO_LOAD": LoadOptions.__dataclass_fields__,
        "OF_ANSWERS": Options.__annotations__,
        "OF_PACKAGE": edgeinfer.__all__,
        "OF_MODELS": dir(LLM),
        "OF_STREAMS": dir(TextStream),
        "OF_SESSIONS": dir(Session),
    }
    for table in TABLES:
        assert not set(getattr(foreign_names, table)) & set(ours[table]), table
    for table in ("TO_LOAD", "OF_ANSWERS"):
        single = {told for told in getattr(foreign_names, table).values() if " " not in told}
        assert single <= set(ours[table]), "a name that is told must be one of ours"


def test_an_unlike_name_has_no_hint() -> None:
    assert foreign_names.hint("colour", ["temperature", "seed"], {}) == ""


def test_a_model_that_is_not_opened_by_load_says_how() -> None:
    with pytest.raises(TypeError, match=r"edgeinfer.load\(name\)"):
        edgeinfer.LLM("a-model")  # type: ignore[call-arg, arg-type]
