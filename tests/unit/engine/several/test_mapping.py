"""One instruction for many items: each answer is the one that its item has alone; errors stay in their place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.several.mapping import Mapped
from edgeinfer.engine.several.parts_asking import item_prompt
from edgeinfer.errors import BadSetting, ContextOverflow, EdgeInferError, EngineClosed

INSTRUCTION = "say what the hen says, in the inn"
ITEMS = ("the rain", "a hen in the tin", "", "then", "an inn\nin two lines", "the heat", "  \t", "the rain", "anther")
HOT = {"temperature": 1.2, "max_tokens": 18}
GREEDY = {"temperature": 0, "max_tokens": 18}
ENDS = {2: 8.5}
"""A bias that lets answers of the tiny model come to an end, at different lengths."""


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="cpu", n_sessions=4) as loaded:
        yield loaded


def alone(llm: LLM, item: str, system: str | None = None, **options: object) -> tuple[str, tuple[int, ...]]:
    head = [{"role": "system", "content": system}] if system else []
    stream = llm.chat([*head, {"role": "user", "content": f"{INSTRUCTION}\n\n{item}"}], **options)  # type: ignore[arg-type]
    return stream.read(), stream.tokens


def pieces(mapped: Mapped) -> list[str]:
    """What each item gave as pieces."""
    found = [""] * len(mapped.items)
    for piece in mapped:
        found[piece.number] += piece.text
    return found


def tokens(mapped: Mapped) -> list[tuple[int, ...]]:
    streams = (mapped.stream(number) for number in range(len(mapped.items)))
    return [() if stream is None else stream.tokens for stream in streams]


@pytest.mark.parametrize("parallel", [1, 2, 3, 16])
@pytest.mark.parametrize("options", [GREEDY, {**HOT, "seed": 5}, {**HOT, "seed": 5, "logit_bias": ENDS}])
def test_each_answer_is_the_one_its_item_has_alone(llm: LLM, parallel: int, options: dict[str, object]) -> None:
    expected = [alone(llm, item, **options) if item.strip() else ("", ()) for item in ITEMS]
    mapped = llm.map(INSTRUCTION, ITEMS, parallel=parallel, **options)  # type: ignore[arg-type]
    assert pieces(mapped) == [text for text, _ in expected] == list(mapped.texts)
    assert tokens(mapped) == [found for _, found in expected]
    assert not mapped.errors
    assert [stats is None for stats in mapped.stats] == [not item.strip() for item in ITEMS]


def test_without_a_seed_each_is_what_its_own_seed_gives(llm: LLM) -> None:
    mapped = llm.map(INSTRUCTION, ITEMS, **HOT)
    texts = mapped.read()
    seeds = [None if stats is None else stats.seed for stats in mapped.stats]
    assert len({seed for seed in seeds if seed is not None}) > 1
    for item, text, seed in zip(ITEMS, texts, seeds, strict=True):
        if seed is not None:
            assert alone(llm, item, **HOT, seed=seed)[0] == text


def test_the_system_prompt_stands_before_all(llm: LLM) -> None:
    mapped = llm.map(INSTRUCTION, ITEMS[:2], system="the tin", **GREEDY)
    assert mapped.read() == tuple(alone(llm, item, "the tin", **GREEDY)[0] for item in ITEMS[:2])


def test_the_instruction_is_read_once(llm: LLM) -> None:
    items = [f"{number} hens" for number in range(12)]
    mapped = llm.map(INSTRUCTION * 3, items, parallel=6, **GREEDY)
    mapped.read()
    shared = len(llm.prompts.tokenizer.encode(item_prompt(INSTRUCTION * 3, "")))
    assert all(stats is not None and stats.n_cached >= shared - 2 for stats in mapped.stats[1:])


def test_hundreds_of_items_run_a_few_at_a_time_in_order(llm: LLM) -> None:
    items = [f"{number}" if number % 7 else "" for number in range(300)]
    began, most = list[int](), 0
    mapped = llm.map(INSTRUCTION, items, parallel=5, temperature=0, max_tokens=2)
    for _ in mapped:
        running = [number for number in range(300) if mapped.stream(number) and not mapped.is_over(number)]
        most = max(most, len(running))
        began += [number for number in running if number not in began]
    assert began == sorted(began)
    assert most == 5
    assert len(mapped.texts) == 300
    assert [bool(text) for text in mapped.texts] == [bool(item) for item in items]


def test_items_share_passes(llm: LLM) -> None:
    passes = llm._driver.scheduler.counts
    before = passes.passes
    llm.map(INSTRUCTION, ["a", "b", "c", "d"], temperature=0, max_tokens=20).read()
    assert passes.passes - before < 30  # of 80 tokens


def test_an_item_that_fails_does_not_lose_the_others(llm: LLM) -> None:
    items = ["the rain", "the hen " * 600, "then"]
    mapped = llm.map(INSTRUCTION, items, **GREEDY)
    with pytest.raises(EdgeInferError, match=r"1 of 3 items have no answer: item 2: .* the context holds 512"):
        mapped.read()
    assert list(mapped.errors) == [1]
    assert isinstance(mapped.errors[1], ContextOverflow)
    assert mapped.texts == (alone(llm, items[0], **GREEDY)[0], "", alone(llm, items[2], **GREEDY)[0])


def test_an_answer_that_fails_by_itself_does_not_end_the_others(llm: LLM) -> None:
    calls = list[int]()

    def progress(what: str, done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 3:
            raise RuntimeError("no more")

    mapped = llm.map(INSTRUCTION, ["the rain", "in", "then", "a tin"], parallel=2, progress=progress, **GREEDY)
    with pytest.raises(EdgeInferError, match="1 of 4 items have no answer"):
        mapped.read()
    (failed,) = mapped.errors
    assert str(mapped.errors[failed]) == "no more"
    others = [text for number, text in enumerate(mapped.texts) if number != failed]
    assert others == [alone(llm, item, **GREEDY)[0] for number, item in enumerate(mapped.items) if number != failed]


@pytest.mark.parametrize("after", [0, 1, 4, 11])
@pytest.mark.parametrize("parallel", [1, 3, 16])
def test_it_may_be_stopped_at_any_point(llm: LLM, after: int, parallel: int) -> None:
    expected = [alone(llm, item, **GREEDY)[0] if item.strip() else "" for item in ITEMS]
    mapped = llm.map(INSTRUCTION, ITEMS, parallel=parallel, **GREEDY)
    if after == 0:
        mapped.stop()
    for number, _ in enumerate(mapped, 1):
        if number == after:
            mapped.stop()
    assert all(whole.startswith(text) for text, whole in zip(mapped.texts, expected, strict=True))
    assert any(text != whole for text, whole in zip(mapped.texts, expected, strict=True))
    assert all(mapped.is_over(number) for number in range(len(ITEMS)))
    assert (llm.telemetry.queue.n_active, llm.telemetry.queue.n_waiting) == (0, 0)


@pytest.mark.parametrize("item", range(4))
def test_any_item_may_be_stopped_alone(llm: LLM, item: int) -> None:
    items = ["the rain", "in", "then", "a tin"]
    expected = [alone(llm, each, **GREEDY)[0] for each in items]
    mapped = llm.map(INSTRUCTION, items, parallel=2, **GREEDY)
    for _ in mapped:
        stream = mapped.stream(item)
        if stream is not None:
            stream.stop()
    found = mapped.texts
    assert found[:item] + found[item + 1 :] == tuple(expected[:item] + expected[item + 1 :])
    assert expected[item].startswith(found[item])
    assert found[item] != expected[item]


def test_closing_early_leaves_nothing_running(llm: LLM) -> None:
    mapped = llm.map(INSTRUCTION, ITEMS, parallel=3, temperature=1.0, max_tokens=300)
    next(mapped)
    mapped.close()
    assert (llm.telemetry.queue.n_active, llm.telemetry.queue.n_waiting) == (0, 0)
    with pytest.raises(StopIteration):
        next(mapped)


def test_another_thread_may_stop_it(llm: LLM) -> None:
    mapped = llm.map(INSTRUCTION, ["the rain"] * 40, parallel=2, temperature=0, max_tokens=100)
    begun = threading.Event()
    stopper = threading.Thread(target=lambda: (begun.wait(30), mapped.stop()))
    stopper.start()
    for _ in mapped:
        begun.set()
    stopper.join()
    assert sum(stats is not None for stats in mapped.stats) < 40


def test_in_an_event_loop_the_answers_are_the_same(llm: LLM) -> None:
    expected = list(llm.map(INSTRUCTION, ITEMS, seed=3, **HOT).read())

    async def gathered() -> tuple[list[str], Mapped]:
        mapped = llm.map(INSTRUCTION, ITEMS, parallel=3, seed=3, **HOT)
        found = [""] * len(ITEMS)
        async for piece in mapped:
            found[piece.number] += piece.text
        return found, mapped

    found, mapped = asyncio.run(gathered())
    assert found == expected == list(mapped.texts)


def test_leaving_an_event_loops_iteration_ends_all(llm: LLM) -> None:
    async def left() -> Mapped:
        mapped = llm.map(INSTRUCTION, ["the rain"] * 9, parallel=3, temperature=0, max_tokens=300)
        pieces = aiter(mapped)
        await anext(pieces)
        await pieces.aclose()  # type: ignore[attr-defined]
        return mapped

    mapped = asyncio.run(left())
    mapped.close()
    assert (llm.telemetry.queue.n_active, llm.telemetry.queue.n_waiting) == (0, 0)
    assert sum(stats is not None for stats in mapped.stats) == 3


def test_nothing_to_do(llm: LLM) -> None:
    assert llm.map(INSTRUCTION, []).read() == ()
    assert llm.map(INSTRUCTION, ["", " "]).read() == ("", "")


def test_a_model_that_was_closed_answers_nothing(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu") as loaded:
        mapped = loaded.map(INSTRUCTION, ["a", "b"], **GREEDY)
    with pytest.raises(EngineClosed):
        mapped.read()
    with pytest.raises(EngineClosed):
        loaded.map(INSTRUCTION, ["a"])


@pytest.mark.parametrize(
    ("instruction", "items", "options", "error", "message"),
    [
        (" ", ["a"], {}, BadSetting, "the instruction is empty"),
        ("do", "a", {}, BadSetting, "items are several texts"),
        ("do", ["a", 3], {}, BadSetting, "an item must be a text, not 3"),
        ("do", ["a"], {"parallel": 0}, BadSetting, "parallel cannot be 0"),
        ("do", ["a"], {"heat": 1}, BadSetting, "heat"),
        ("do", ["a"], {"temperature": -1}, BadSetting, "temperature"),
        ("do", ["a"], {"max_tokens": -1}, BadSetting, "max_tokens"),
        ("the hen " * 600, ["a"], {}, ContextOverflow, "the context holds"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    llm: LLM, instruction: str, items: list[str], options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        llm.map(instruction, items, **options)  # type: ignore[arg-type]
