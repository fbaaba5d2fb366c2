"""The overlap executor as an evaluator: trees, branches, saved states, failures, its end, and work at the same time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.backends.base import PAGE, Batch, Floats, Lane, Limits, Progress, Step, no_progress
from edgeinfer.backends.host import HostDevice, HostLane
from edgeinfer.backends.reference import ReferenceDevice, ReferenceFragment
from edgeinfer.engine.evaluators import Overlapping, SequenceEvaluator
from edgeinfer.engine.lanes.overlap.attending import HostAttention, Job
from edgeinfer.engine.lanes.overlap.pair import paired
from edgeinfer.engine.lanes.timeline import Span
from edgeinfer.errors import (
    BadSetting,
    ContextOverflow,
    DeviceFailed,
    DeviceUnavailable,
    DoesNotFit,
    EdgeInferError,
    EngineClosed,
)
from edgeinfer.models.fragment import Fragment
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import open_model
from edgeinfer.models.spec import ModelSpec
from edgeinfer.scheduling.batch.schedules import SCHEDULES
from tests.golden.goldens import Golden, distance
from tests.unit.engine.lanes.overlap.journeys import (
    EACH,
    LIMITS,
    NOISE,
    Journey,
    accelerator,
    alone,
    chain,
    cpu,
    overlapping,
    texts,
    travel,
)

GOLDEN = Golden.read("llama-q8_0")


def read(executor: SequenceEvaluator, sequence: int, tokens: Sequence[int]) -> Floats:
    """Evaluate tokens and keep them: their logits."""
    logits = executor.evaluate(chain(sequence, executor.n_cached(sequence), tokens)).copy()
    executor.commit(sequence, np.arange(len(tokens), dtype=np.int32))
    return logits


def test_it_is_an_evaluator() -> None:
    with overlapping(GOLDEN, accelerator("reference"), "overlap") as executor:
        evaluator: SequenceEvaluator = executor
        assert isinstance(evaluator, Overlapping)
        assert evaluator.device == "cpu+reference"
        assert executor.in_flight == frozenset()
        assert executor.advance([]) == {}
        assert evaluator.resident_bytes > 0


def test_a_batch_of_both_homes_with_trees_is_evaluated_at_once() -> None:
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


def test_states_are_saved_and_restored_in_the_home_they_come_from() -> None:
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


def test_homes_follow_the_room_that_is_left() -> None:
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


class Breaking(ReferenceDevice):
    """A device of which every lane fails once so many steps were run."""

    def __init__(self, n_steps: int) -> None:
        super().__init__(activations="int8", kv="f16")
        self.n_left, self.n_open = n_steps, 0

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> ReferenceFragment:
        lane, device = super().compile_fragment(fragment, file, limits, progress), self
        wait, close = lane.wait, lane.close
        self.n_open += 1

        def failing() -> Mapping[str, Floats]:
            device.n_left -= 1
            if device.n_left == 0:
                raise DeviceFailed("the driver was reset")
            return wait()

        def closing() -> None:
            device.n_open -= 1
            close()

        lane.wait, lane.close = failing, closing  # type: ignore[method-assign]
        return lane


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_failure_in_the_middle_breaks_off_what_is_under_way(schedule: str) -> None:
    """Committed tokens stay, and once the device works again all goes on."""
    device = Breaking(60)
    with overlapping(GOLDEN, device, schedule) as executor, alone(GOLDEN, cpu()) as single:
        found = {executor.create(EACH): Journey(text, (9, *(1,) * 20)) for text in texts(GOLDEN, 4, 60)}
        with pytest.raises(DeviceFailed, match="driver was reset"):
            travel(executor, found)
        assert executor.in_flight == frozenset()
        for sequence, journey in found.items():
            journey.under_way = 0
            assert executor.n_cached(sequence) == journey.n_read
        travel(executor, found)
        for journey in found.values():
            other = single.create()
            assert distance(journey.logits(), read(single, other, journey.tokens[:29].tolist())) < NOISE
        for sequence in found:
            executor.free(sequence)
        assert executor.n_free_pages == 2 * EACH // PAGE + LIMITS.n_pages
    assert device.n_open == 0
    with pytest.raises(EngineClosed):
        executor.advance([])
    executor.close()


class Meeting:
    """The CPU, whose every section lasts until the accelerator has begun a part since, for some seconds at most.

    Since attention was sent away, or, `late`: since it began, so that both are seen to work at the same time.
    """

    batch_invariant = True

    def __init__(self, *, late: bool) -> None:
        self._cpu, self._late = cpu(), late
        self.name = self._cpu.name
        self.changed, self.n_begun, self.n_met = threading.Condition(), 0, 0
        self.at_sending: list[int] = []

    def begun(self) -> None:
        """The accelerator begins a part."""
        with self.changed:
            self.n_begun += 1
            self.changed.notify_all()

    def sent(self) -> None:
        """Attention is sent away."""
        with self.changed:
            self.at_sending.append(self.n_begun)

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane:
        return self._cpu.compile(spec, file, limits, progress)

    def compile_sections(
        self,
        spec: ModelSpec,
        exposed: Sequence[frozenset[str]],
        file: GGUFFile,
        limits: Limits,
        progress: Progress = no_progress,
    ) -> HostLane:
        assert isinstance(self._cpu, HostDevice)
        lane, device = self._cpu.compile_sections(spec, exposed, file, limits, progress), self
        run_section = lane.run_section

        def lingering(number: int) -> None:
            with device.changed:
                before = device.at_sending.pop(0)
                before = device.n_begun if device._late else before
                device.n_met += device.changed.wait_for(lambda: device.n_begun > before, 5)
            run_section(number)

        lane.run_section = lingering  # type: ignore[method-assign]
        return lane

    def close(self) -> None:
        self._cpu.close()


class Announcing(ReferenceDevice):
    """Tells the host's attention that a part has begun."""

    def __init__(self, host: Meeting) -> None:
        super().__init__(activations="int8", kv="f16")
        self.host = host

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> ReferenceFragment:
        lane, host = super().compile_fragment(fragment, file, limits, progress), self.host
        submit = lane.submit

        def announced(step: Step, inputs: Mapping[str, Floats]) -> None:
            host.begun()
            submit(step, inputs)

        lane.submit = announced  # type: ignore[method-assign]
        return lane


@pytest.mark.parametrize("schedule", ["overlap", "asymmetric"])
def test_the_cpu_attends_while_the_accelerator_works(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention ends only after the accelerator went on without it: whoever waited for it would wait too long."""
    host, send = Meeting(late=schedule == "overlap"), HostAttention.send

    def sending(self: HostAttention, job: Job) -> None:
        host.sent()
        send(self, job)

    monkeypatch.setattr(HostAttention, "send", sending)
    spans: list[Span] = []
    with overlapping(GOLDEN, Announcing(host), schedule, host=host) as executor:
        found = {executor.create(EACH): Journey(text, (9, *(1,) * 40)) for text in texts(GOLDEN, 4, 60)}
        for _ in range(8):
            idle = [sequence for sequence in found if sequence not in executor.in_flight]
            for sequence, logits in executor.advance([found[s].next(s) for s in idle]).items():
                found[sequence].arrived(executor, sequence, logits)
            spans += executor.timeline.spans
        assert not executor.is_resident(list(found)[-1])
    attention = [span for span in spans if span.device == "cpu"]
    products = [span for span in spans if span.device != "cpu"]
    assert len(attention) > 3
    assert host.n_met >= len(attention)
    if schedule == "overlap":
        assert all(any(a.began < p.began < a.ended for p in products) for a in attention)


def test_closing_while_attention_runs() -> None:
    for n_passes in range(6):
        with overlapping(GOLDEN, accelerator("reference"), "overlap", n_resident=1) as executor:
            found = [executor.create(EACH) for _ in range(6)]
            executor.advance([chain(sequence, 0, GOLDEN.tokens[:10].tolist()) for sequence in found])
            for _ in range(n_passes):
                executor.advance([])
            executor.close()
            executor.close()
            assert executor.resident_bytes == 0
            assert all(thread.name != "edgeinfer attention" for thread in threading.enumerate())
            with pytest.raises(EngineClosed):
                executor.evaluate(chain(found[0], 0, [1]))


def test_devices_that_take_no_parts_are_refused() -> None:
    with open_model(GOLDEN.model, 128) as model:
        with pytest.raises(DeviceUnavailable, match="cannot attend"):
            paired(model.spec, model.file, accelerator("reference"), accelerator("reference"), LIMITS, LIMITS)
        with pytest.raises(DeviceUnavailable, match="part of a model"):
            paired(model.spec, model.file, cpu(), Silent(), LIMITS, LIMITS)


class Silent:
    """A device that runs whole models only."""

    name, batch_invariant = "silent", True

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> object:
        raise AssertionError

    def close(self) -> None: ...


def test_unknown_schedules_are_refused() -> None:
    with overlapping(GOLDEN, accelerator("reference"), "overlap") as executor:
        with pytest.raises(BadSetting, match="accelerator-only, asymmetric, overlap"):
            executor.use("apex")
        executor.use("asymmetric")
