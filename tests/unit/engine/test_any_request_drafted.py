"""Requests of every kind beside each other: drafted in any way, each gives what it gives alone and without drafts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.scheduler.stream import TextStream
from tests.conftest import write_tiny_llama
from tests.golden.goldens import DATA
from tests.head_files import write_sure_head, write_with_head
from tests.unit.engine.scripted_drafts import SCRIPTS, ScriptedDrafts

CONTEXT = 128
TEXTS = ("the rain", "in the inn and in the inn and", "another heat", "then", "a", "the the the", "the hen in the tin")
LONG = "the rain in the inn " * 6
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}, "required": ["a", "n"]}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.0}
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {},
    SAMPLED,
    {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {**SAMPLED, "seed": (1 << 70) + 3},
    {**SAMPLED, "repeat_penalty": 1.3, "penalty_window": -1},
    {"temperature": 0, "repeat_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    {"temperature": 0, "logit_bias": {"th": 3.0, 10: -1e9, 2: 4.0}},
    {**SAMPLED, "logit_bias": {0: 5.0, 2: 5.0}},
    {"temperature": 0, "logprobs": 3},
    {**SAMPLED, "logprobs": 2, "after_sampling": True},
    {"temperature": 0, "stop": ["th", "e"]},
    {**SAMPLED, "stop": ["a", "in"]},
    {**SAMPLED, "regex": "[a-h ]{12,40}(the rain in the inn)?x"},
    {"temperature": 0, "regex": "(the (rain|hen|inn) ){4,9}end", "logprobs": 1},
    {"temperature": 0, "schema": SCHEMA},
    {**SAMPLED, "schema": SCHEMA},
    {**SAMPLED, "schema": SCHEMA, "max_tokens": 24},
    {**SAMPLED, "grammar": 'root ::= ("the " | "a ")+ "hen" [0-9]{2,6}'},
    {"temperature": 0, "max_tokens": 1},
    {"temperature": 0, "max_tokens": 2},
    {**SAMPLED, "max_tokens": 3},
    {"temperature": 0, "max_tokens": None},
    {**SAMPLED, "max_tokens": None},
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request; `prompt`: its tokens."""

    text: str
    prompt: tuple[int, ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Given:
    """All that an answer tells of itself."""

    tokens: tuple[int, ...]
    text: str
    ends: str
    logprobs: tuple[object, ...]


def given(stream: TextStream) -> Given:
    """An answer, after it was read."""
    assert stream.stats is not None
    return Given(stream.tokens, stream.text, stream.stats.finish_reason, stream.logprobs)


def asked(llm: LLM) -> list[Asked]:
    """Requests of all kinds, of which some reach the end of the context."""
    found = []
    for number, options in enumerate(OPTIONS):
        text = LONG if number % 6 == 5 or options.get("max_tokens", 0) is None else TEXTS[number % len(TEXTS)]
        text = f"{number} {text}"  # scripts know answers by their prompts
        own = {"max_tokens": 40, "seed": number, **options}
        found.append(Asked(text, tuple(llm.tokenize(text)), own))
    return found


@pytest.fixture(scope="module")
def models(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models, some with a head that is always right or that knows nothing; two of them cannot go back anywhere."""
    folder, hybrid = tmp_path_factory.mktemp("models"), DATA / "converted" / "qwen35-bf16.gguf"
    return {
        "llama": tiny_model,
        "sure head": write_sure_head(hybrid, folder / "sure.gguf"),
        "random head": write_with_head(hybrid, folder / "random.gguf", seed=4),
        "windows": DATA / "gemma3-q8_0.gguf",
        "states": DATA / "lfm2-q8_0.gguf",
        "other": write_tiny_llama(folder / "other.gguf", seed=7, context=100),
    }


@pytest.fixture(scope="module")
def plain(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Given]]:
    """What each request gives alone and without drafts."""
    known: dict[tuple[str, str], list[Given]] = {}

    def of(name: str, kv: str = "f16") -> list[Given]:
        if (name, kv) not in known:
            with load(models[name], threads=1, n_context=CONTEXT, spec="off", kv=kv) as llm:  # type: ignore[arg-type]
                streams = [llm.complete(each.text, **each.options) for each in asked(llm)]
                for stream in streams:
                    stream.read()
                known[name, kv] = [given(stream) for stream in streams]
        return known[name, kv]

    return of


async def read(llm: LLM, each: Asked, breaks_off: int | None) -> Given:
    """Read an answer along with others; `breaks_off`: stop it after so many pieces."""
    stream = llm.complete(each.text, **each.options)
    n_pieces = 0
    async for _ in stream:
        n_pieces += 1
        if n_pieces == breaks_off:
            stream.stop()
    return given(stream)


def together(llm: LLM, requests: Sequence[Asked], broken_off: Sequence[int | None]) -> list[Given]:
    """All answers at the same time, as a server gives them."""

    async def gathered() -> list[Given]:
        pairs = zip(requests, broken_off, strict=True)
        return await asyncio.gather(*(read(llm, each, breaks_off) for each, breaks_off in pairs))

    return asyncio.run(gathered())


def check(llm: LLM, wanted: Sequence[Given], seed: int) -> int:
    """Ask for all answers in a random order, break off some; returns how many drafted tokens were accepted."""
    chance, requests = random.Random(seed), asked(llm)
    order = chance.sample(range(len(requests)), len(requests))
    broken_off = [chance.randint(1, 6) if chance.random() < 0.2 else None for _ in order]
    before = llm._driver.scheduler.counts.n_accepted
    for place, found in zip(order, together(llm, [requests[place] for place in order], broken_off), strict=True):
        if found.ends == "cancelled":
            assert wanted[place].tokens[: len(found.tokens)] == found.tokens
            if (
                "stop" not in requests[place].options
            ):  # the beginning of a stop string is text where an answer breaks off
                assert wanted[place].text.startswith(found.text)
            assert wanted[place].logprobs[: len(found.logprobs)] == found.logprobs
        else:
            assert found == wanted[place], requests[place].options
    return llm._driver.scheduler.counts.n_accepted - before


WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"spec": 6}),
    ("llama", {"spec": "on", "verify_cost": {2: 1.0, 64: 1.0}}),
    ("llama", {"spec": 8, "kv": "q8"}),
    ("llama", {"spec": 8, "ram_bytes": 300_000}),
    ("llama", {"spec": 6, "draft_from": ["llama"]}),
    ("llama", {"spec": 6, "draft_from": ["other"]}),
    ("sure head", {"spec": 5}),
    ("sure head", {"spec": 5, "kv": "q8"}),
    ("sure head", {"spec": 5, "ram_bytes": 200_000}),
    ("random head", {"spec": 5}),
    ("windows", {"spec": 6}),
    ("states", {"spec": 6}),
)


@pytest.mark.parametrize(("name", "how"), WAYS, ids=lambda each: str(each))
def test_any_request_is_the_same_with_drafts(
    name: str, how: dict[str, Any], models: dict[str, Path], plain: Callable[..., list[Given]], home: Path
) -> None:
    wanted = plain(name, how.get("kv", "f16"))
    loading = {**how, "draft_from": [models[source] for source in how.get("draft_from", ())]}
    for n_sessions in (1, 24):  # with memory for one, answers are put off and lose theirs
        with load(models[name], threads=1, n_context=CONTEXT, n_sessions=n_sessions, **loading) as llm:
            assert check(llm, wanted, n_sessions) > 0


@pytest.fixture
def scripted(models: dict[str, Path], plain: Callable[..., list[Given]], home: Path) -> Iterator[Callable[..., LLM]]:
    """Opens a model whose drafts are by a script that knows all answers."""
    opened: list[LLM] = []

    def opens(script: str, name: str, n_sessions: int) -> LLM:
        llm = load(models[name], threads=1, n_context=CONTEXT, n_sessions=n_sessions, spec="off")
        pairs = zip(asked(llm), plain(name), strict=True)
        llm.drafts = ScriptedDrafts(SCRIPTS[script], {each.prompt: answer.tokens for each, answer in pairs})  # type: ignore[assignment]
        opened.append(llm)
        return llm

    yield opens
    for llm in opened:
        llm.close()


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("name", ["llama", "sure head", "windows", "states"])
def test_no_script_changes_any_request(
    script: str, name: str, plain: Callable[..., list[Given]], scripted: Callable[..., LLM]
) -> None:
    for n_sessions in (1, 24):
        llm = scripted(script, name, n_sessions)
        n_accepted = check(llm, plain(name), n_sessions)
        drafts = llm.drafts
        assert isinstance(drafts, ScriptedDrafts)
        if script == "right":
            assert n_accepted > (0 if n_sessions == 1 else 100), n_sessions  # as many as passes happen to have room for
        if n_sessions > 1:
            assert drafts.n_together > 1


FUNCTION = {
    "name": "look",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}},
}
CALLING: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
CHATS: tuple[dict[str, Any], ...] = (
    {**CALLING, "temperature": 0},
    {**CALLING, **SAMPLED, "logprobs": 2},
    {**CALLING, **SAMPLED, "tool_choice": "auto", "schema": SCHEMA},
    {**CALLING, **SAMPLED, "max_tokens": 30},
    {**SAMPLED, "max_thought_tokens": 8},
    {"temperature": 0, "max_thought_tokens": 4, "regex": "[a-z]{3,30}"},
)


@pytest.mark.parametrize("template", ["chatml", "deepseek-r1"])
def test_calls_and_thoughts_are_the_same_with_drafts(template: str, tmp_path: Path, home: Path) -> None:
    model = write_tiny_llama(tmp_path / "m.gguf", context=1024)

    def answers(**how: Any) -> list[list[tuple[Given, object]]]:
        with load(model, threads=1, n_sessions=len(CHATS), chat_template=template, **how) as llm:
            found = []
            for _ in range(2):  # the second time, drafts know the answers
                message = {"role": "user", "content": TEXTS[0]}
                streams = [llm.chat([message], **{"max_tokens": 60, "seed": 1, **options}) for options in CHATS]
                with ThreadPoolExecutor(len(CHATS)) as threads:
                    list(threads.map(TextStream.read, streams))
                found.append([(given(stream), stream.tool_calls) for stream in streams])
            accepted.append(llm._driver.scheduler.counts.n_accepted)
            return found

    accepted = list[int]()
    assert answers(spec=8) == answers(spec="off")
    assert accepted[0] > 60
