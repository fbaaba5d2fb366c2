"""The overlap executor as an evaluator: trees, branches, saved states, sessions, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import Limits
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.engine.loading import load
from edgeinfer.engine.overlap.choosing import Choosing
from edgeinfer.engine.overlap.executor import OverlapExecutor
from edgeinfer.engine.overlap.passes import paired
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.session import Session
from edgeinfer.errors import (
    BadSetting,
    ContextOverflow,
    DeviceUnavailable,
    DoesNotFit,
    EdgeInferError,
)
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import PAGE, Batch, Floats
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import open_model
from edgeinfer.steps import Progress, no_progress
from tests.golden.goldens import Golden, distance
from tests.unit.engine.overlap.journeys import (
    EACH,
    LIMITS,
    NOISE,
    accelerator,
    alone,
    chain,
    cpu,
    overlapping,
)

GOLDEN = Golden.read("llama-q8_0")


def pages(products_bytes: int) -> tuple[int, int]:
    """Resident ones, offloaded ones."""
    assert products_bytes > 0
    return 8, 24


def read(executor: SequenceEvaluator, sequence: int, tokens: Sequence[int]) -> Floats:
    """Evaluate tokens and keep them: their logits."""
    logits = executor.evaluate(chain(sequence, executor.n_cached(sequence), tokens)).copy()
    executor.commit(sequence, np.arange(len(tokens), dtype=np.int32))
    return logits


def test_it_is_an_evaluator() -> None:
    with overlapping(GOLDEN, accelerator("reference"), "overlap") as executor:
        evaluator: SequenceEvaluator = executor
        assert evaluator.capabilities.overlapping is executor
        assert evaluator.device == "cpu+reference"
        assert executor.in_flight == frozenset()
        assert executor.advance([]) == {}
        assert evaluator.resident_bytes > 0


def test_a_batch_of_both_kv_partitions_with_trees_is_evaluated_at_once() -> None:
    """Interleaved tokens of four sequences, two with draft trees of which paths are kept."""
    one, two = GOLDEN.tokens[:30].tolist(), GOLDEN.tokens[30:60].tolist()
    with overlapping(GOLDEN, accelerator("reference"), "overlap") as executor, alone(GOLDEN, cpu()) as single:
        names = [executor.create(EACH) for _ in range(4)]
        others = [single.create() for _ in range(4)]
        for number, tokens in enumerate((one, two, two, one)):
            assert distance(read(executor, names[number], tokens), read(single, others[number], tokens)) < NOISE
        batch = tree(names)
        logits = executor.evaluate(batch)
        for number, (path, own) in enumerate((([0, 8, 10], [0, 2, 3]), ([1, 5], [0, 1]), ([2], [0]), ([3, 7], [0, 1]))):
            executor.commit(names[number], np.array(path, np.int32))
            expected = single.evaluate(part_of(batch, names[number], others[number]))
            single.commit(others[number], np.array(own, np.int32))
            assert distance(logits[batch.sequences[batch.outputs] == names[number]], expected) < NOISE
        for number in range(4):
            assert executor.n_cached(names[number]) == single.n_cached(others[number])
            assert distance(read(executor, names[number], [5, 6]), read(single, others[number], [5, 6])) < NOISE


def tree(sequences: Sequence[int]) -> Batch:
    """Tokens of four sequences with 30 cached ones; the first and the third have siblings."""
    parents = [-1, -1, -1, -1, 0, 1, 2, 3, 0, 2, 8, -1]
    owners = [0, 1, 2, 3, 0, 1, 2, 3, 0, 2, 0, 2]
    positions: list[int] = []
    for parent in parents:
        positions.append(30 if parent < 0 else positions[parent] + 1)
    return Batch(
        np.arange(40, 52, dtype=np.int32),
        np.array([sequences[owner] for owner in owners], np.int32),
        np.array(positions, np.int32),
        np.array(parents, np.int32),
        np.array([0, 1, 4, 5, 6, 7, 9, 10, 11], np.int32),
    )


def part_of(batch: Batch, sequence: int, other: int) -> Batch:
    """The tokens of one sequence of a batch, for another one."""
    members = np.flatnonzero(batch.sequences == sequence).tolist()
    places = {-1: -1, **{member: place for place, member in enumerate(members)}}
    return Batch(
        batch.tokens[members],
        np.full(len(members), other, np.int32),
        batch.positions[members],
        np.array([places[parent] for parent in batch.parents[members].tolist()], np.int32),
        np.array([places[output] for output in batch.outputs.tolist() if output in places], np.int32),
    )


@pytest.mark.parametrize("key", ["reference", "openvino", "onnx"])
def test_batches_of_which_no_logits_are_wanted(key: str) -> None:
    """Parts of prompts, alone and beside a batch whose logits are wanted."""
    text, none = GOLDEN.tokens[:40].tolist(), np.zeros(0, np.int32)
    try:
        device = accelerator(key)
    except DeviceUnavailable as reason:
        pytest.skip(str(reason))
    with overlapping(GOLDEN, device, "asymmetric", n_resident=1) as executor:
        for sequence in (executor.create(EACH), executor.create(EACH)):
            silent = replace(chain(sequence, 0, text[:20]), outputs=none)
            assert executor.evaluate(silent).shape == (0, GOLDEN.last.size)
            executor.commit(sequence, np.arange(20, dtype=np.int32))
            other = executor.create(EACH)
            silent = replace(chain(sequence, 20, text[20:30]), outputs=none)
            found = executor.advance([silent, chain(other, 0, text)])
            assert found[sequence].shape == (0, GOLDEN.last.size)
            assert distance(found[other][:, GOLDEN.columns], GOLDEN.logits[:40]) < 0.1
            executor.commit(sequence, np.arange(10, dtype=np.int32))
            executor.free(other)
            last = read(executor, sequence, text[30:])
            assert distance(last[:, GOLDEN.columns], GOLDEN.logits[30:40]) < 0.1


def test_what_is_not_committed_is_forgotten() -> None:
    with overlapping(GOLDEN, accelerator("reference"), "asymmetric") as executor, alone(GOLDEN, cpu()) as single:
        for sequence in (executor.create(EACH), executor.create(EACH), executor.create(EACH)):
            read(executor, sequence, [1, 2, 3])
            executor.advance([chain(sequence, 3, [9, 8])])
            assert executor.n_cached(sequence) == 3
            found, other = read(executor, sequence, [4, 5]), single.create()
            assert distance(found, read(single, other, [1, 2, 3, 4, 5])[3:]) < NOISE
            with pytest.raises(ValueError, match="nothing pending"):
                executor.commit(sequence, np.zeros(1, np.int32))


def test_states_are_saved_and_restored_in_the_kv_partition_they_come_from() -> None:
    text = GOLDEN.tokens[:70].tolist()
    with overlapping(GOLDEN, accelerator("reference"), "overlap") as executor:
        resident, offloaded = executor.create(EACH), executor.create(2 * EACH)
        assert (executor.is_resident(resident), executor.is_resident(offloaded)) == (True, False)
        last = {}
        for sequence in (resident, offloaded):
            read(executor, sequence, text[:50])
            read(executor, sequence, text[50:60])
            state = executor.save(sequence)
            last[sequence] = read(executor, sequence, text[60:])
            other = executor.create(EACH)
            executor.restore(other, state)
            assert executor.n_cached(other) == 60
            assert executor.is_resident(other) == executor.is_resident(sequence)
            assert distance(read(executor, other, text[60:]), last[sequence]) < 1e-5
            with pytest.raises(EdgeInferError, match="damaged"):
                executor.restore(other, state[:-1] + b"\0")
            executor.free(other)
        full = [executor.create(EACH)]
        assert executor.is_resident(full[0])
        executor.truncate(resident, 60)
        with pytest.raises(DoesNotFit, match="saved on the accelerator"):
            executor.restore(offloaded, executor.save(resident))
        assert executor.n_cached(offloaded) == 70


def test_kv_partitions_follow_the_room_that_is_left() -> None:
    with overlapping(GOLDEN, accelerator("reference"), "overlap", n_resident=2) as executor:
        first, second, third = (executor.create(EACH) for _ in range(3))
        assert [executor.is_resident(each) for each in (first, second, third)] == [True, True, False]
        executor.free(first)
        assert not executor.is_resident(third)
        assert executor.is_resident(executor.create(PAGE))
        assert not executor.is_resident(executor.create())  # it may grow to the whole context
        assert executor.is_resident(executor.branch(second))
        with pytest.raises(ValueError, match="no sequence"):
            executor.n_cached(first)


def test_batches_that_have_no_room_leave_everything_as_it_was() -> None:
    with overlapping(GOLDEN, accelerator("reference"), "overlap", n_resident=1) as executor:
        first, second, third = executor.create(EACH), executor.create(), executor.create(EACH)
        assert [executor.is_resident(each) for each in (first, second, third)] == [True, False, False]
        read(executor, first, [1, 2] * 32)
        read(executor, first, [1, 2])
        for _ in range(4):
            read(executor, second, [3] * 64)
        n_free = executor.n_free_pages
        with pytest.raises(ContextOverflow):
            executor.advance([chain(first, 66, [3]), chain(third, 0, [1]), chain(second, LIMITS.n_context, [3])])
        with pytest.raises(DoesNotFit, match="cache is full"):
            executor.advance([chain(third, 0, [3]), tree_of(first, 66, 64)])
        with pytest.raises(ValueError, match="one position before"):
            executor.advance([chain(first, 66, [3]), chain(third, 7, [3])])
        assert executor.in_flight == frozenset()
        assert executor.n_free_pages == n_free
        with pytest.raises(ValueError, match="64 tokens"):
            executor.advance([chain(first, 2, [3] * 65)])
        with pytest.raises(ValueError, match="of one sequence"):
            executor.advance([tree([first, second, first, second])])


def tree_of(sequence: int, n_cached: int, n_tokens: int) -> Batch:
    """Siblings, each of which takes a slot of its own."""
    batch = chain(sequence, n_cached, [1] * n_tokens)
    return replace(batch, parents=np.full(n_tokens, -1, np.int32), positions=np.full(n_tokens, n_cached, np.int32))


def test_a_sequence_has_one_batch_under_way() -> None:
    with overlapping(GOLDEN, accelerator("reference"), "overlap", n_resident=0) as executor:
        sequence = executor.create()
        assert executor.advance([chain(sequence, 0, [1])]) == {}
        assert executor.in_flight == {sequence}
        for batches in ([chain(sequence, 0, [1])],):
            with pytest.raises(ValueError, match="one batch under way"):
                executor.advance(batches)
        with pytest.raises(ValueError, match="one batch under way"):
            executor.evaluate(chain(sequence, 0, [1]))


def test_devices_that_take_no_parts_are_refused() -> None:
    with open_model(GOLDEN.model, 128) as model:
        with pytest.raises(DeviceUnavailable, match="cannot attend"):
            paired(model.spec, model.file, accelerator("reference"), accelerator("reference"), LIMITS, pages)
        with pytest.raises(DeviceUnavailable, match="part of a model"):
            paired(model.spec, model.file, cpu(), Silent(), LIMITS, pages)


class Silent:
    """A device that runs whole models only."""

    name, batch_invariant, capabilities = "silent", True, DeviceCapabilities()

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> object:
        raise AssertionError

    def close(self) -> None: ...


def test_unknown_schedules_are_refused() -> None:
    with overlapping(GOLDEN, accelerator("reference"), "overlap") as executor:
        with pytest.raises(BadSetting, match="accelerator-only, asymmetric, overlap"):
            executor.use("apex")
        executor.use("asymmetric")


def test_sessions_answer_as_on_one_device(tiny_model: Path) -> None:
    """Two sessions, one resident, in turns; their last texts are cut back to what they have in common."""
    told = {"temperature": 0.0, "max_tokens": 12}
    with load(tiny_model, device="cpu", n_sessions=2) as llm, open_model(tiny_model, 512) as model:
        limits = replace(LIMITS, n_context=512)
        pair = paired(model.spec, model.file, cpu(), accelerator("reference"), limits, pages)
        pool = Pool(OverlapExecutor(pair, "tiny", Choosing(None, "overlap")))
        sessions = [Session(pool.open(), llm.prompts) for _ in range(2)]
        for text in ("the rain in the tin", "the rain in an inn", "hen"):
            with llm.session() as alone_:
                stream = alone_.complete(text, **told)
                stream.read()
            for session in sessions:
                found = session.complete(text, **told)
                found.read()
                assert found.tokens == stream.tokens
        for session in sessions:
            session.close()
        pool.close()
