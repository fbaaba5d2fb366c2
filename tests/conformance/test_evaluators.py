"""Everything that the engine can run models with: logits of transformers, trees, sequences, saved states, stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DEVICES, DeviceOptions, Limits
from edgeinfer.backends.evaluator import Interrupted, StopFlag
from edgeinfer.engine.opening.evaluator import open_evaluator
from edgeinfer.engine.run.evaluators import SequenceEvaluator, is_own, open_subject
from edgeinfer.errors import ContextOverflow, DeviceUnavailable, DoesNotFit, EdgeInferError, EngineClosed
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.load_options import LoadOptions
from edgeinfer.offload.weights import WeightReads
from tests import decoder_folders
from tests.golden.goldens import Golden, distance
from tests.unit.engine.run.test_executor import chain

GOLDENS = ("llama-f32", "llama-f16", "llama-q8_0", "qwen2-q8_0", "gemma2-q8_0", "phi3-f16", "qwen3-q8_0")
GOLDEN = "llama-f16"
WIDE_HEADED = "qwen2-k"
"""Its heads are as wide as a block of numbers that are rounded together."""
LIMITS = Limits(n_context=256, n_pages=12, max_tokens=256, max_outputs=64)
NAMES = [key for key in DEVICES.keys() if key != "null"]  # noqa: SIM118 (a registry is no dict)
KEYS = [
    *(pytest.param(key, marks=[] if is_own(key) else [pytest.mark.peer]) for key in NAMES),
    *(pytest.param(kind) for kind in decoder_folders.KINDS),
]
"""Devices that compute (other programs count as peers), and folders with a decoder, which the onnx device runs."""
ROUNDING = 0.1
"""Distance from transformers: activations, and keys and values as float16 or int8, are rounded on widths where errors
hardly average out (as `golden.conftest.Judged`)."""
SHAPES = 0.03
"""Between a token alone, in a chain and in a tree, where logits are not batch-invariant."""


@pytest.fixture(params=KEYS)
def key(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def opened(key: str, name: str = GOLDEN, limits: Limits = LIMITS, path: Path | None = None) -> SequenceEvaluator:
    """A model on a device with one worker; skips where it cannot run."""
    path = path or Golden.read(name).model
    if key in decoder_folders.KINDS:
        pytest.importorskip("onnx.helper")
        path, key = decoder_folders.exported(path, key), "onnx"
    subject = open_subject(path, LoadOptions(device=key, n_context=limits.n_context))
    with subject.file:
        try:
            return open_evaluator(subject, limits, DeviceOptions(n_workers=1), LoadOptions(device=key))
        except DeviceUnavailable as reason:
            pytest.skip(f"{key}: {reason}")


@pytest.fixture
def evaluator(key: str) -> Iterator[SequenceEvaluator]:
    found = opened(key)
    yield found
    found.close()


def text() -> NDArray[np.int32]:
    """Tokens of the vocabulary, as many as the context has."""
    return np.random.default_rng(5).integers(3, 260, LIMITS.n_context).astype(np.int32)


def every(batch: Batch) -> Batch:
    """The batch with the logits of all its tokens."""
    return replace(batch, outputs=np.arange(len(batch.tokens), dtype=np.int32))


def feed(evaluator: SequenceEvaluator, sequence: int, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits of all of these tokens, which are kept."""
    found = []
    for part in np.split(tokens, range(evaluator.limits.max_outputs, len(tokens), evaluator.limits.max_outputs)):
        batch = every(chain(sequence, evaluator.n_cached(sequence), part.tolist()))
        found.append(evaluator.evaluate(batch).copy())
        evaluator.commit(sequence, np.arange(len(part), dtype=np.int32))
    return np.concatenate(found)


def close_to(evaluator: SequenceEvaluator, found: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    """Whether logits are the same, as far as the evaluator promises it."""
    return found.tobytes() == expected.tobytes() if evaluator.batch_invariant else distance(found, expected) < SHAPES


@pytest.mark.parametrize("name", GOLDENS)
def test_logits_are_those_of_transformers(key: str, name: str) -> None:
    golden = Golden.read(name)
    limits = replace(LIMITS, n_context=golden.n_context)
    evaluator = opened(key, name, limits)
    try:
        parts = np.split(golden.tokens, [10, 11, 40])
        sequence = evaluator.create()
        assert golden.error(np.concatenate([feed(evaluator, sequence, part) for part in parts])) < ROUNDING
    finally:
        evaluator.close()


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_cached_numbers_of_either_kind_give_those_logits(key: str, kv: str) -> None:
    if key in decoder_folders.KINDS and kv == "q8":
        pytest.skip("its graph says how numbers are kept")
    golden = Golden.read(WIDE_HEADED)
    evaluator = opened(key, WIDE_HEADED, replace(LIMITS, kv=kv))  # type: ignore[arg-type]
    try:
        assert evaluator.limits.kv == kv
        assert golden.error(feed(evaluator, evaluator.create(), golden.tokens)) < ROUNDING
    finally:
        evaluator.close()


def test_only_wanted_logits_are_given(evaluator: SequenceEvaluator) -> None:
    tokens = text()[:20]
    sequence = evaluator.create()
    everything = evaluator.evaluate(every(chain(sequence, 0, tokens.tolist()))).copy()
    some = replace(chain(sequence, 0, tokens.tolist()), outputs=np.array([3, 11, 19], np.int32))
    assert close_to(evaluator, evaluator.evaluate(some).copy(), everything[[3, 11, 19]])
    none = replace(some, outputs=some.outputs[:0])
    assert evaluator.evaluate(none).shape == (0, everything.shape[1])


def test_every_path_of_a_tree_is_a_chain(evaluator: SequenceEvaluator) -> None:
    """The tree 1-(2, 3-(4, 5-6)) and a second root 7, in one pass with another sequence."""
    golden = text()
    one, two = evaluator.create(), evaluator.create()
    feed(evaluator, one, golden[:70])
    feed(evaluator, two, golden[:9])
    tokens, parents = [11, 12, 13, 14, 15, 16, 17], [-1, 0, 0, 2, 2, 4, -1]
    positions = [70, 71, 71, 72, 72, 73, 70]
    tree = Batch(
        *(
            np.array(values, np.int32)
            for values in (
                [*tokens, 21, 22],
                [one] * 7 + [two] * 2,
                [*positions, 9, 10],
                [*parents, -1, 7],
                range(9),
            )
        )
    )
    logits = evaluator.evaluate(tree).copy()
    for sequence, n_cached, path in (
        (one, 70, [0, 1]),
        (one, 70, [0, 2, 3]),
        (one, 70, [0, 2, 4, 5]),
        (one, 70, [6]),
        (two, 9, [7, 8]),
    ):
        alone = evaluator.evaluate(every(chain(sequence, n_cached, tree.tokens[path].tolist())))
        assert close_to(evaluator, logits[path], alone)
        assert distance(alone, logits[path[::-1]]) > 0.1 or len(path) == 1


@pytest.mark.parametrize("path", [[0], [0, 1], [0, 2], [0, 2, 3], [0, 2, 4], []])
def test_a_sequence_goes_on_after_any_path_of_a_tree(evaluator: SequenceEvaluator, path: list[int]) -> None:
    golden = text()
    sequence, plain = evaluator.create(), evaluator.create()
    feed(evaluator, sequence, golden[:70])
    values = ([11, 12, 13, 14, 15], [sequence] * 5, [70, 71, 71, 72, 72], [-1, 0, 0, 2, 2], range(5))
    tree = Batch(*(np.array(value, np.int32) for value in values))
    evaluator.evaluate(tree)
    evaluator.commit(sequence, np.array(path, np.int32))
    assert evaluator.n_cached(sequence) == 70 + len(path)
    feed(evaluator, plain, np.concatenate([golden[:70], tree.tokens[path]]))
    found, expected = (feed(evaluator, each, golden[70:75]) for each in (sequence, plain))
    assert close_to(evaluator, found, expected)


def test_what_is_not_committed_is_forgotten(evaluator: SequenceEvaluator) -> None:
    golden = text()
    sequence, plain = evaluator.create(), evaluator.create()
    for each in (sequence, plain):
        feed(evaluator, each, golden[:5])
    evaluator.evaluate(chain(sequence, 5, [3, 4, 5]))
    found, expected = (feed(evaluator, each, golden[5:9]) for each in (sequence, plain))
    assert close_to(evaluator, found, expected)
    evaluator.evaluate(chain(sequence, 9, [3, 4, 5]))
    evaluator.commit(sequence, np.array([0], np.int32))
    feed(evaluator, plain, np.array([3], np.int32))
    found, expected = (feed(evaluator, each, golden[10:14]) for each in (sequence, plain))
    assert close_to(evaluator, found, expected)


def test_twins_part_and_truncated_ones_go_on(evaluator: SequenceEvaluator) -> None:
    golden = text()
    sequence = evaluator.create()
    feed(evaluator, sequence, golden[:70])
    twin = evaluator.branch(sequence)
    evaluator.truncate(twin, 30)
    found = feed(evaluator, twin, golden[30:70])
    evaluator.truncate(sequence, 30)
    assert close_to(evaluator, found, feed(evaluator, sequence, golden[30:70]))
    other = feed(evaluator, twin, golden[70:72])
    evaluator.free(sequence)
    again = evaluator.create()
    feed(evaluator, again, golden[:70])
    assert close_to(evaluator, other, feed(evaluator, again, golden[70:72]))
    evaluator.free(again)
    evaluator.free(twin)
    assert evaluator.n_free_pages == LIMITS.n_pages


@pytest.mark.parametrize("n_tokens", [0, 1, PAGE + 9])
def test_a_restored_state_goes_on_as_the_saved_one(key: str, evaluator: SequenceEvaluator, n_tokens: int) -> None:
    golden = text()
    sequence = evaluator.create()
    if n_tokens:
        feed(evaluator, sequence, golden[:n_tokens])
    state = evaluator.save(sequence)
    expected = feed(evaluator, sequence, golden[n_tokens : n_tokens + 5])
    second = opened(key)
    try:
        target = second.create()
        feed(second, target, golden[-20:])
        second.restore(target, state)
        assert second.n_cached(target) == n_tokens
        assert close_to(second, feed(second, target, golden[n_tokens : n_tokens + 5]), expected)
        assert second.save(second.branch(target))
    finally:
        second.close()


def test_damaged_and_foreign_states_are_refused_and_change_nothing(key: str, evaluator: SequenceEvaluator) -> None:
    golden = text()
    sequence, plain = evaluator.create(), evaluator.create()
    for each in (sequence, plain):
        feed(evaluator, each, golden[:20])
    state = evaluator.save(sequence)
    for damaged in (b"", state[:-1], state[:200] + bytes([state[200] ^ 1]) + state[201:], b"GGUF" + state):
        with pytest.raises(EdgeInferError, match=r"damaged|version"):
            evaluator.restore(sequence, damaged)
    other = opened(key, "llama-q8_0")
    try:
        with pytest.raises(EdgeInferError, match="belongs to another model"):
            other.restore(other.create(), state)
    finally:
        other.close()
    found, expected = (feed(evaluator, each, golden[20:24]) for each in (sequence, plain))
    assert close_to(evaluator, found, expected)


def test_the_context_and_the_pages_end_with_our_errors(evaluator: SequenceEvaluator) -> None:
    tokens = text()
    full = [evaluator.create() for _ in range(3)]
    for sequence in full:
        feed(evaluator, sequence, tokens)
    with pytest.raises(ContextOverflow):
        evaluator.evaluate(chain(full[0], LIMITS.n_context, [1]))
    another = evaluator.create()
    with pytest.raises(DoesNotFit):
        evaluator.evaluate(chain(another, 0, [1]))
    evaluator.truncate(full[1], 100)
    assert len(feed(evaluator, another, tokens[:10])) == 10


def test_many_sequences_and_wide_trees_fit(evaluator: SequenceEvaluator) -> None:
    """As many roots as a pass may have outputs, each a sequence of its own beside the others, again and again."""
    golden, n_roots = text(), LIMITS.max_outputs
    begun = evaluator.create()
    feed(evaluator, begun, golden[:3])
    order, same = np.arange(n_roots, dtype=np.int32), np.ones(n_roots, np.int32)
    for _ in range(3):
        found = evaluator.evaluate(Batch(golden[order], begun * same, 3 * same, -same, order)).copy()
    alone = evaluator.evaluate(chain(begun, 3, golden[5:6].tolist()))
    assert close_to(evaluator, found[5:6], alone)


def test_pretended_tokens_count_and_cost_but_leave_nothing(evaluator: SequenceEvaluator) -> None:
    golden = text()
    sequence, plain = evaluator.create(), evaluator.create()
    n_free = evaluator.n_free_pages
    for n_tokens in (200, 70, 3):
        evaluator.pretend(sequence, n_tokens)
        assert evaluator.n_cached(sequence) == n_tokens
        assert evaluator.n_free_pages == n_free - -(-n_tokens // PAGE)
        values = ([11, 12, 13], [sequence] * 3, [n_tokens, n_tokens + 1, n_tokens + 1], [-1, 0, 0], range(3))
        assert np.isfinite(evaluator.evaluate(Batch(*(np.array(value, np.int32) for value in values)))).all()
    evaluator.pretend(sequence, 200)
    evaluator.truncate(sequence, 20)
    assert np.isfinite(feed(evaluator, sequence, golden[:5])).all()
    evaluator.truncate(sequence, 0)
    found, expected = (feed(evaluator, each, golden[:20]) for each in (sequence, plain))
    assert close_to(evaluator, found, expected)


def test_an_evaluator_does_what_its_record_says(evaluator: SequenceEvaluator) -> None:
    found, sequence = evaluator.capabilities, evaluator.create()
    logits = feed(evaluator, sequence, text()[:5])
    assert evaluator.reading == WeightReads()
    assert found.overlapping is found.shared is None  # one device, which does one thing at a time
    assert found.eventful is None or found.eventful.take_notices() == ()
    if found.program is not None:
        assert found.program.n_vocab == logits.shape[1] == found.program.text.vocabulary().n_tokens
        assert found.program.n_context_trained > 0
    if found.showing is not None:
        assert distance(found.showing.show("logits"), logits) < 1e-6
    if found.step_times is not None:
        last, ops = found.step_times.last_step, found.step_times.time_ops(10)
        assert last is None or last.seconds > 0
        assert not ops or sum(each.seconds for each in ops) > 0
        assert evaluator.n_cached(sequence) == 5


def test_a_stop_ends_a_pass_and_nothing_of_it_stays(evaluator: SequenceEvaluator) -> None:
    interruptible = evaluator.capabilities.interruptible
    if interruptible is None:
        pytest.skip("its passes are short")
    golden = text()
    sequence, plain = evaluator.create(), evaluator.create()
    for each in (sequence, plain):
        feed(evaluator, each, golden[:20])
    flag = StopFlag()
    interruptible.heed(flag)
    threading.Thread(target=flag.set).start()
    flag.wait()
    with pytest.raises(Interrupted):
        evaluator.evaluate(chain(sequence, 20, golden[20:120].tolist()))
    with pytest.raises(Interrupted):
        evaluator.evaluate(chain(evaluator.create(), 0, golden[20:120].tolist()))
    interruptible.heed(None)
    found, expected = (feed(evaluator, each, golden[20:24]) for each in (sequence, plain))
    assert close_to(evaluator, found, expected)


def test_closing_gives_back_memory_and_twice_is_safe(evaluator: SequenceEvaluator) -> None:
    sequence = evaluator.create()
    assert evaluator.resident_bytes > 0
    evaluator.close()
    evaluator.close()
    assert evaluator.resident_bytes == 0
    with pytest.raises(EngineClosed):
        evaluator.evaluate(chain(sequence, 0, [1]))
