"""Answers to prompts whose beginning an earlier load has left on disk: bit for bit those of reading all of it anew."""

from __future__ import annotations

import shutil
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.kv import limits
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.prefixes import keeping, restoring
from edgeinfer.engine.prefixes.folders import CHECKPOINT, PAGES, clear_prefixes, n_bytes_kept, prefixes_folder
from edgeinfer.engine.prefixes.parts_file import PartsReader
from edgeinfer.engine.scheduler.batcher import Prompt
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.graph.step import PAGE
from tests.adapter_files import write_adapter
from tests.golden.goldens import DATA
from tests.unit.engine.prefixes.stored import Usage
from tests.waiting import until

TEXT = "one two three four five six seven eight nine ten " * 14
"""A byte of it is a token."""
GREEDY, SEEDED = {"temperature": 0.0}, {"temperature": 0.9, "seed": 5}
Bits = tuple[tuple[int, ...], tuple[object, ...]]
"""Tokens of an answer, and the log probabilities of each and of likely others: equal only if all bits are."""


@pytest.fixture(autouse=True)
def small_windows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep few positions behind a window, so that short texts outgrow it, and nothing where users keep it.

    However full this machine's disk is.
    """
    monkeypatch.setattr(limits, "LEAST_BEHIND", 0)
    monkeypatch.setattr(limits, "BEHIND_SHARE", 0.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**11, 9 * 10**11))


def opened(path: Path, *, keeps: bool = True, **options: Any) -> LLM:
    return load(path, device="cpu", n_context=1024, prefix_cache=keeps, **options)


def bits(stream: TextStream) -> Bits:
    stream.read()
    return stream.tokens, stream.logprobs


@dataclass(frozen=True)
class Asked:
    """Bits of an answer, tokens of its prompt that were not read, and those of them that came from disk.

    `n_most`: how many tokens of the prompt can come from there.
    """

    bits: Bits
    n_cached: int
    n_from_disk: int
    n_most: int


def is_cut_anywhere(llm: LLM) -> bool:
    """Whether a text can be continued within a page: pages are all that it needs."""
    return llm.info.architecture == "llama"


def ask(llm: LLM, text: str = TEXT, n: int = 12, **options: Any) -> Asked:
    stream = llm.complete(text, max_tokens=n, logprobs=3, **options)
    found = bits(stream)
    assert stream.stats is not None
    n_most = len(stream.prompt) - 1 if is_cut_anywhere(llm) else (len(stream.prompt) - 1) // PAGE * PAGE
    return Asked(found, stream.stats.n_cached, stream.stats.n_from_disk, n_most)


def files(suffix: str = PAGES) -> list[Path]:
    return sorted(prefixes_folder().rglob(f"*{suffix}"))


def anew(path: Path, text: str = TEXT, n: int = 12, **options: Any) -> Bits:
    with opened(path, keeps=False) as llm:
        return ask(llm, text, n, **options).bits


def test_memory_to_read_with_is_free_when_the_prompt_is_there(
    uncollected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when Python next looks for garbage: a server does so rarely."""
    readers: list[weakref.ref[PartsReader]] = []

    class Reader(PartsReader):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            readers.append(weakref.ref(self))

    path = DATA / "llama-q8_0.gguf"
    with opened(path) as llm:
        ask(llm, **GREEDY)
    monkeypatch.setattr(restoring, "PartsReader", Reader)
    with opened(path) as llm:
        assert ask(llm, **GREEDY).n_from_disk > 0
        assert readers
        until(lambda: not any(reader() for reader in readers))


@pytest.mark.parametrize(
    ("name", "kv"),
    [
        ("llama-q8_0", "f16"),
        ("llama-q8_0", "q8"),
        ("llama-q8_0", "q4"),
        ("gemma3-q8_0", "f16"),
        ("gemma3-q8_0", "q8"),
        ("gpt-oss-q8_0", "f16"),
        ("qwen35-q8_0", "f16"),
        ("lfm2-q8_0", "f16"),
        ("converted/mamba2-bf16", "f16"),
        ("converted/granitehybrid-bf16", "f16"),
    ],
)
def test_another_load_gives_the_same_bits(name: str, kv: str) -> None:
    path = DATA / f"{name}.gguf"
    with opened(path, keeps=False, kv=kv, spec="off") as llm:
        expected = [ask(llm, **options).bits for options in (GREEDY, SEEDED)]
    longer = TEXT + " and so on, " * 9
    with opened(path, kv=kv) as llm:
        assert ask(llm, **GREEDY).n_cached == 0
    assert files()
    for _ in range(2):
        for options, each in zip((GREEDY, SEEDED), expected, strict=True):
            with opened(path, kv=kv) as llm:
                found = ask(llm, **options)
            assert found == Asked(each, found.n_most, found.n_most, found.n_most)
    with opened(path, keeps=False, kv=kv) as llm:
        last = ask(llm, longer, **SEEDED).bits
    with opened(path, kv=kv) as llm:
        more = ask(llm, longer, **SEEDED)
        assert more.bits == last
        assert more.n_from_disk >= found.n_most


@pytest.mark.parametrize("name", ["llama-q8_0", "gemma3-q8_0", "qwen35-q8_0"])
def test_a_text_that_leaves_another_one_takes_what_they_share(name: str) -> None:
    path, shared = DATA / f"{name}.gguf", TEXT[: 64 * 7 + 30]
    with opened(path) as llm:
        ask(llm, shared + "and then they went home", **GREEDY)
    other = shared + "but nobody came to see them, and so " * 3
    expected = anew(path, other, **GREEDY)
    with opened(path) as llm:
        found = ask(llm, other, **GREEDY)
        n_shared = len(llm.tokenize(shared))
        n_shared = n_shared if is_cut_anywhere(llm) else n_shared // PAGE * PAGE
    assert found.bits == expected
    assert found.n_cached == found.n_from_disk == n_shared < found.n_most
    with opened(path) as llm:
        assert ask(llm, other, **GREEDY) == Asked(expected, found.n_most, found.n_most, found.n_most)


def test_memory_and_disk_together() -> None:
    """What memory has of a prompt stays, the disk adds to it, and neither replaces a longer one."""
    path = DATA / "llama-q8_0.gguf"
    expected = anew(path, **GREEDY)
    with opened(path) as llm:
        n_most = ask(llm, **GREEDY).n_most
    with opened(path) as llm:
        assert ask(llm, TEXT[:120], **GREEDY).n_cached == 0
        n_memory = len(llm.tokenize(TEXT[:110])) // PAGE * PAGE
        assert n_memory > 0
        assert ask(llm, **GREEDY) == Asked(expected, n_most, n_most - n_memory, n_most)
        n_prompt = len(llm.tokenize(TEXT))
        assert ask(llm, **GREEDY) == Asked(expected, n_prompt - 1, 0, n_most)  # memory has more than whole pages
        with llm.session() as session:
            session.complete(TEXT[:300], max_tokens=1).read()
            stream = session.complete(TEXT, max_tokens=12, logprobs=3, **GREEDY)
            assert bits(stream) == expected
            assert stream.stats is not None
            assert stream.stats.n_from_disk > 0


def test_sessions_leave_what_they_read() -> None:
    path = DATA / "gemma3-q8_0.gguf"
    expected = anew(path, **SEEDED)
    with opened(path) as llm, llm.session() as session:
        session.complete(TEXT, max_tokens=3).read()
    with opened(path) as llm, llm.session() as session:
        stream = session.complete(TEXT, max_tokens=12, logprobs=3, **SEEDED)
        assert bits(stream) == expected
        assert stream.stats is not None
        assert stream.stats.n_from_disk == (len(stream.prompt) - 1) // PAGE * PAGE


@pytest.mark.parametrize("name", ["llama-q8_0", "gemma3-q8_0", "qwen35-q8_0"])
def test_a_text_that_grows_goes_on_over_restarts(name: str) -> None:
    """As an agent's conversation does: each time the last prompt, its answer and something new."""
    path, news = DATA / f"{name}.gguf", [TEXT[number : number + 50] for number in range(0, 40, 10)]
    with opened(path, keeps=False) as llm:
        prompt = list(llm.tokenize(TEXT))
        texts = [[*llm.tokenize(new)[1:]] for new in news]
        expected = []
        for new in texts:
            stream = llm.complete([*prompt, *new], max_tokens=10, logprobs=3, **SEEDED)
            expected.append(bits(stream))
            prompt = [*stream.prompt, *stream.tokens]
    n_read = 0
    for number, new in enumerate(texts):
        with opened(path) as llm:
            before = list(llm.tokenize(TEXT)) if not number else prompt
            stream = llm.complete([*before, *new], max_tokens=10, logprobs=3, **SEEDED)
            assert bits(stream) == expected[number]
            prompt = [*stream.prompt, *stream.tokens]
            assert stream.stats is not None
            n_read += stream.stats.n_prompt - stream.stats.n_cached
    assert n_read <= len(prompt) + 2 * PAGE * len(texts)


@pytest.mark.parametrize("name", ["llama-q8_0", "qwen35-q8_0"])
def test_batches_leave_what_their_prompts_share(name: str) -> None:
    path, tails = DATA / f"{name}.gguf", ["one", "two and more", "three", "four or so", "five"]
    expected = [anew(path, TEXT[:400] + tail, **SEEDED) for tail in tails]

    def answers() -> list[tuple[Bits, int]]:
        with opened(path, n_sessions=2) as llm:
            prompts = [Prompt(TEXT[:400] + tail, {"max_tokens": 12, "logprobs": 3}) for tail in tails]
            found = {each.number: each for each in llm.batch(prompts, parallel=2, **SEEDED)}
        assert all(each.error is None for each in found.values())
        ordered = [found[number] for number in range(len(tails))]
        return [(each.tokens, each.stats.n_from_disk) for each in ordered if each.stats is not None]

    first = answers()
    assert [tokens for tokens, _ in first] == [tokens for tokens, _ in expected]
    assert first[0][1] == 0
    assert len(files()) == 1  # what they do not share is not kept
    assert n_bytes_kept() > 0
    again = answers()
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in expected]
    assert all(n_from_disk >= 256 for _, n_from_disk in again)


def test_adapters_with_other_scales_are_other_texts(tmp_path: Path) -> None:
    path = DATA / "llama-q8_0.gguf"
    adapter = write_adapter(path, tmp_path / "poet.gguf", rank=4, seed=1)
    with opened(path, keeps=False, lora=[adapter]) as llm:
        expected = {scale: ask(llm, lora={0: scale}, ignore_eos=True, **GREEDY).bits for scale in (0.0, 0.5, 1.0)}
    assert len(set(expected.values())) == 3
    for scale, is_there in ((0.5, False), (1.0, False), (0.5, True), (1.0, True), (0.0, False)):
        with opened(path, lora=[adapter]) as llm:
            found = ask(llm, lora={0: scale}, ignore_eos=True, **GREEDY)
        assert found.bits == expected[scale]
        assert found.n_from_disk == (found.n_most if is_there else 0)
    with opened(path) as llm:  # without the adapter it is another model
        assert ask(llm, ignore_eos=True, **GREEDY).n_from_disk == 0


@pytest.mark.parametrize("options", [{"kv": "q8"}, {"n_context": 512}])
def test_what_was_computed_otherwise_is_not_taken(options: dict[str, Any]) -> None:
    """A KV cache of another kind; a context of another length is no reason to read anew where it changes nothing."""
    path = DATA / "llama-q8_0.gguf"
    with opened(path) as llm:
        ask(llm, TEXT[:400], **GREEDY)
    with load(path, device="cpu", prefix_cache=True, **{"n_context": 1024, **options}) as llm:
        assert (ask(llm, TEXT[:400], **GREEDY).n_from_disk > 0) == ("kv" not in options)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        *(("llama-q8_0", harm) for harm in ("changed", "cut", "empty", "gone")),
        *((name, "changed") for name in ("gemma3-q8_0", "qwen35-q8_0")),
    ],
)
def test_damaged_files_cost_time_and_no_token(name: str, harm: str) -> None:
    path = DATA / f"{name}.gguf"
    expected = anew(path, **GREEDY)
    with opened(path) as llm:
        n_most = ask(llm, **GREEDY).n_most
    whole = {each: each.read_bytes() for each in (*files(PAGES), *files(CHECKPOINT))}
    assert len(whole) > ("llama" not in name)
    for each, data in whole.items():
        for other, before in whole.items():
            other.write_bytes(before)
        place = len(data) * 3 // 4
        match harm:
            case "changed":
                each.write_bytes(data[:place] + bytes([data[place] ^ 64]) + data[place + 1 :])
            case "cut":
                each.write_bytes(data[:place])
            case "empty":
                each.write_bytes(b"")
            case "gone":
                each.unlink()
        with opened(path) as llm:
            found = ask(llm, **GREEDY)
            assert found.bits == expected
            assert found.n_from_disk < n_most or each.suffix == CHECKPOINT
        with opened(path) as llm:  # and it was written anew
            assert ask(llm, **GREEDY) == Asked(expected, n_most, n_most, n_most)


def test_a_disk_without_room_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "llama-q8_0.gguf"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 10**7, 10**7))
    with opened(path) as llm:
        found = ask(llm, **GREEDY)
    assert (found.bits, found.n_cached) == (anew(path, **GREEDY), 0)
    assert files() == []


def test_space_is_kept_to() -> None:
    path = DATA / "llama-q8_0.gguf"
    for number in range(6):
        with opened(path, prefix_space="300KB") as llm:
            ask(llm, f"{number} {TEXT}", **GREEDY)
        assert n_bytes_kept() <= 300_000
    assert files()


@pytest.mark.parametrize("options", [{"keeps": False}, {"prefix_space": "0"}])
def test_nothing_is_kept_unless_asked_for(options: dict[str, Any]) -> None:
    path = DATA / "llama-q8_0.gguf"
    with opened(path, **options) as llm:
        ask(llm, **GREEDY)
    assert not prefixes_folder().exists()


def test_short_texts_are_not_kept() -> None:
    with opened(DATA / "llama-q8_0.gguf") as llm:
        ask(llm, TEXT[:200], n=20, **GREEDY)
    assert files() == []


def test_texts_are_written_once_nobody_waits_or_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "llama-q8_0.gguf"
    for longest_s in (1e9, 0.0):
        monkeypatch.setattr(keeping, "LONGEST_WAIT_S", longest_s)
        clear_prefixes()
        with opened(path, n_sessions=2, spec="off") as llm:
            going = iter(llm.complete("another text", max_tokens=400, **SEEDED))
            next(going)  # it is under way, and somebody waits for it
            ask(llm, n=4, **GREEDY)  # few enough tokens that the other one does not get ahead of its reader
            if longest_s:
                assert files() == []
                going.close()
            until(files)
        assert files()


def test_two_models_at_once_use_one_folder() -> None:
    path = DATA / "llama-q8_0.gguf"
    expected = anew(path, **GREEDY)
    with opened(path) as one, opened(path) as other:
        found: list[Bits] = []
        threads = [
            threading.Thread(target=lambda llm=llm: found.append(ask(llm, **GREEDY).bits)) for llm in (one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 2
    with opened(path) as llm:
        assert ask(llm, **GREEDY).bits == expected
        assert ask(llm, **GREEDY).bits == expected


def test_memory_of_others_makes_room_for_a_prefix() -> None:
    path = DATA / "llama-q8_0.gguf"
    expected = anew(path, **GREEDY)
    with opened(path) as llm:
        n_most = ask(llm, **GREEDY).n_most
    with opened(path) as llm:
        assert ask(llm, "another text " * 70, **GREEDY).n_most > 512
        assert ask(llm, **GREEDY) == Asked(expected, n_most, n_most, n_most)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    yield
    assert not [each for each in threading.enumerate() if each.name.startswith("edgeinfer prefix")]
