"""Batches whose sequences a CPU and another device share: answers, failures, and the choice of one device alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from edgeinfer.app.cli import build_app
from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.loading import load
from edgeinfer.engine.overlap.choosing import Choosing, Expectation, expected
from edgeinfer.engine.overlap.executor import OverlapExecutor
from edgeinfer.engine.overlap.passes import paired
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.run.rescue import RescuedBatches
from edgeinfer.engine.scheduler.batcher import BatchAnswer, Batcher, NumberedRequest, Prompt
from edgeinfer.engine.scheduler.passes import AdvancingPasses, passes_of
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.errors import BadSetting, DeviceFailed, DoesNotFit
from edgeinfer.graph.step import PAGE
from edgeinfer.load_options import SequenceSharing
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import open_model
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.batch.schedules import SCHEDULES
from edgeinfer.scheduling.machine.topology import usable_cores
from tests.unit.engine.overlap.journeys import cpu, pretend_machine
from tests.unit.engine.speculation.test_speculative_generation import right, wild

LIMITS = Limits(4 * PAGE, 24, 64, 64)
SIZES = [(5, 20), (90, 9), (130, 30), (2, 1), (40, 40), (70, 25)]
"""Tokens of prompts and answers."""


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


@pytest.fixture
def wanted() -> list[Request]:
    sampling = SamplingSettings(temperature=0, logit_bias=dict.fromkeys((0, 2), -np.inf))
    return [
        Request(tuple(20 + (7 * n + k) % 200 for k in range(n_prompt)), sampling, n_answer)
        for n, (n_prompt, n_answer) in enumerate(SIZES)
    ]


def shared(model: Path, schedule: str, device: ReferenceDevice, n_resident_pages: int = 5) -> OverlapExecutor:
    """A model on the CPU and a reference device that rounds as the CPU does."""
    with open_model(model, LIMITS.n_context) as opened:
        pages = n_resident_pages, LIMITS.n_pages
        pair = paired(opened.spec, opened.file, cpu(), device, LIMITS, lambda products_bytes: pages)
        return OverlapExecutor(pair, "tiny", Choosing(None, schedule), DeviceOptions(n_workers=1))


def alone(model: Path) -> Executor:
    with open_model(model, LIMITS.n_context) as opened:
        device = cpu()
        return Executor(device, device.compile(opened.spec, opened.file, LIMITS), LIMITS, "tiny")


def answered(evaluator: SequenceEvaluator, tokenizer: Tokenizer, wanted: list[Request]) -> dict[int, BatchAnswer]:
    pool = Pool(evaluator)
    try:
        batcher = Batcher(StepDriver(Scheduler(pool)), tokenizer, 4)
        found = {
            each.number: each for each in batcher.answers(NumberedRequest(n, each) for n, each in enumerate(wanted))
        }
        assert sorted(found) == list(range(len(wanted)))
        return found
    finally:
        pool.close()


def tokens_of(found: dict[int, BatchAnswer]) -> list[tuple[int, ...]]:
    return [found[number].tokens for number in sorted(found)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("n_resident_pages", [0, 5, 24])
def test_answers_are_those_of_one_device(
    tiny_model: Path, tokenizer: Tokenizer, wanted: list[Request], schedule: str, n_resident_pages: int
) -> None:
    expected = tokens_of(answered(alone(tiny_model), tokenizer, wanted))
    executor = shared(tiny_model, schedule, ReferenceDevice(activations="int8", kv="f16"), n_resident_pages)
    assert isinstance(passes_of(executor), AdvancingPasses)
    assert tokens_of(answered(executor, tokenizer, wanted)) == expected
    assert [len(tokens) for tokens in expected] == [n_answer for _, n_answer in SIZES]
    assert sum(tally.n_passes for tally in executor.tallies.values()) > 40


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("n_resident_pages", [0, 5, 24])
@pytest.mark.parametrize("is_right", [True, False])
def test_answers_that_are_drafted_are_those_of_one_device(
    tiny_model: Path, tokenizer: Tokenizer, schedule: str, n_resident_pages: int, is_right: bool
) -> None:
    """Each answer is drafted for when its turn comes, while others are under way."""
    sampling = SamplingSettings(temperature=0, logit_bias=dict.fromkeys((0, 2), -np.inf))
    wants = [Request(tuple(20 + (7 * n + k) % 200 for k in range(9)), sampling, 20) for n in range(3)]
    expected = tokens_of(answered(alone(tiny_model), tokenizer, wants))
    pool = Pool(shared(tiny_model, schedule, ReferenceDevice(activations="int8", kv="f16"), n_resident_pages))
    scheduler, sequences = Scheduler(pool), list[ScheduledSequence]()
    drafting = [right(tokens, 9, 3, 1) if is_right else wild(number) for number, tokens in enumerate(expected)]
    for each, drafts in zip(wants, drafting, strict=True):
        sequences.append(ScheduledSequence(pool.open(), tokenizer, each, drafts, counts_energy=False))
        sequences[-1].is_driven = True
        scheduler.enter(sequences[-1])
    while not all(sequence.is_over for sequence in sequences):
        scheduler.step()
    assert [sequence.tokens for sequence in sequences] == expected
    counts = scheduler.counts
    assert counts.n_drafted > 0
    assert all(each.seconds[:2] == [None] * 2 for each in drafting)  # others took part in what these passes took
    if is_right:
        assert counts.n_accepted > 0
        assert all(sequence.stats is not None and sequence.stats.steps == 6 for sequence in sequences)
    pool.close()


@pytest.mark.usefixtures("_pretended")
def test_drafts_on_two_devices_if_they_are_asked_for(tiny_model: Path) -> None:
    """Not by themselves, as answers may round otherwise then."""
    texts = [Prompt("the rain in"), Prompt("in the inn and in the"), Prompt("the the the"), Prompt("a")]
    for spec, drafts in (("auto", False), (4, True)):
        options = {"device": "cpu,reference", "schedule": "apex", "n_context": 128, "n_sessions": 4}
        with load(tiny_model, spec=spec, **options) as llm:  # type: ignore[arg-type]
            stream = llm.batch(texts, parallel=4, temperature=0, max_tokens=24)
            assert all(each.error is None for each in stream)
        assert (stream.counts.n_drafted > 0) == drafts
        assert (stream.counts.n_accepted > 0) == drafts


class Breaking(ReferenceDevice):
    """Fails when its parts were waited for so often."""

    def __init__(self, last: int) -> None:
        super().__init__(activations="int8", kv="f16")
        self.last = last

    def compile_fragment(self, *arguments, **options):  # type: ignore[no-untyped-def]
        lane = super().compile_fragment(*arguments, **options)
        wait = lane.wait

        def counted():  # type: ignore[no-untyped-def]
            self.last -= 1
            if self.last <= 0:
                raise DeviceFailed("the driver was reset")
            return wait()

        lane.wait = counted
        return lane


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("last", [1, 3, 50, 111, 180])
def test_a_device_that_fails_costs_no_answer(
    tiny_model: Path, tokenizer: Tokenizer, wanted: list[Request], schedule: str, last: int
) -> None:
    expected = tokens_of(answered(alone(tiny_model), tokenizer, wanted))
    evaluator = RescuedBatches(shared(tiny_model, schedule, Breaking(last)), lambda: alone(tiny_model))
    found = answered(evaluator, tokenizer, wanted)
    assert tokens_of(found) == expected
    assert evaluator.device == "cpu"
    told = [notice for each in found.values() if each.stats is not None for notice in each.stats.notices]
    assert len([notice for notice in told if "the driver was reset" in notice]) == 1


@pytest.mark.parametrize("n_refused", [1, 2, 100])
def test_a_batch_goes_on_once_there_is_memory_for_another_device(
    tiny_model: Path, tokenizer: Tokenizer, wanted: list[Request], n_refused: int
) -> None:
    left = [n_refused]

    def fallback() -> Executor:
        left[0] -= 1
        if left[0] >= 0:
            raise DoesNotFit("it takes 5 GB, and 1 GB is free")
        return alone(tiny_model)

    evaluator = RescuedBatches(shared(tiny_model, "overlap", Breaking(111)), fallback)
    if n_refused == 100:
        with pytest.raises(DoesNotFit, match=r"the driver was reset.*it takes 5 GB.*close other programs"):
            answered(evaluator, tokenizer, wanted)
        return
    found = answered(evaluator, tokenizer, wanted)
    assert tokens_of(found) == tokens_of(answered(alone(tiny_model), tokenizer, wanted))


def test_stopping_ends_what_is_under_way(tiny_model: Path, tokenizer: Tokenizer, wanted: list[Request]) -> None:
    executor = shared(tiny_model, "overlap", ReferenceDevice(activations="int8", kv="f16"), 0)
    pool = Pool(executor)
    batcher = Batcher(StepDriver(Scheduler(pool)), tokenizer, 4)
    answers = batcher.answers(NumberedRequest(number, each) for number, each in enumerate(wanted))
    assert next(answers).number == 3
    batcher.stop()
    rest = list(answers)
    assert rest
    assert all(each.stats is not None and each.stats.finish_reason == "cancelled" for each in rest)
    assert not executor.in_flight
    pool.close()


@pytest.mark.parametrize("n_passes", range(2, 6))
def test_closing_a_session_whose_batch_is_under_way_ends_its_answer(
    tiny_model: Path, tokenizer: Tokenizer, wanted: list[Request], n_passes: int
) -> None:
    pool = Pool(shared(tiny_model, "overlap", ReferenceDevice(activations="int8", kv="f16"), 0))
    scheduler = Scheduler(pool)
    closed, other = (ScheduledSequence(pool.open(), tokenizer, each) for each in wanted[:2])
    for sequence in (closed, other):
        sequence.is_driven = True
        scheduler.enter(sequence)
    for _ in range(n_passes):
        scheduler.step()
    closed.cached.close()
    while not (closed.is_over and other.is_over):
        scheduler.step()
    assert closed.stats is not None
    assert closed.stats.finish_reason == "cancelled"
    assert other.tokens == tokens_of(answered(alone(tiny_model), tokenizer, wanted))[1]
    pool.close()


@pytest.fixture
def _pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if len(usable_cores()) < 2:
        pytest.skip("two devices on the machine's own cores need two cores")
    pretend_machine(monkeypatch)
    return


@pytest.mark.usefixtures("_pretended")
def test_a_batch_by_name_of_devices_and_schedule(tiny_model: Path) -> None:
    texts = [Prompt("the rain in"), Prompt("then another"), Prompt("heat"), Prompt("a")]
    with load(tiny_model, device="cpu,reference", schedule="apex", n_context=128, n_sessions=4, spec="off") as llm:
        found = {each.number: each for each in llm.batch(texts, parallel=4, temperature=0, max_tokens=12)}
        assert llm.telemetry.passes_by_schedule
        assert "schedule" in llm.info.notices[0]
        assert llm.complete("the rain in", temperature=0, max_tokens=12).read() == found[0].text
    assert all(each.stats is not None for each in found.values())


@pytest.mark.usefixtures("_pretended")
def test_schedules_on_the_command_line(tiny_model: Path) -> None:
    lines = "\n".join(json.dumps({"text": text, "max_tokens": 6}) for text in ("the rain", "then", "heat"))
    common = [
        "batch",
        "-",
        "-m",
        str(tiny_model),
        "--device",
        "cpu,reference",
        "--ctx",
        "128",
        "--temp",
        "0",
        "--stats",
    ]
    for schedule in SCHEDULES:
        result = CliRunner().invoke(build_app(), [*common, "--schedule", schedule], input=lines)
        assert result.exit_code == 0, result.stderr
        assert f"schedule {schedule}: " in result.stderr
        assert len(result.stdout.splitlines()) == 3
    small = CliRunner().invoke(build_app(), [*common, "--schedule", "apex", "--vram", "1000"], input=lines)
    assert small.exit_code == 1
    assert "does not fit on reference" in small.stderr


@pytest.mark.usefixtures("_pretended")
def test_one_device_alone_where_that_is_predicted_to_make_more(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicted(*arguments: object) -> Expectation:
        return Expectation(2, 2, 127, {"accelerator-only": 10.0, "overlap": 30.0}, {"cpu": 50.0, "reference": 20.0})

    monkeypatch.setattr("edgeinfer.engine.opening.overlap.expected", predicted)
    options = {"device": "cpu,reference", "n_context": 128, "n_sessions": 4, "spec": "off"}
    with load(tiny_model, sharing=SequenceSharing(), **options) as llm:  # type: ignore[arg-type]
        assert llm.telemetry.device == "cpu"
        assert "30 tok/s of 4 sequences by schedule overlap, and cpu alone 50" in llm.info.notices[0]
    with load(tiny_model, sharing=SequenceSharing(), schedule="apex", **options) as llm:  # type: ignore[arg-type]
        assert llm.telemetry.device == "cpu+reference"


@pytest.mark.usefixtures("_pretended")
def test_a_device_without_room_for_all_is_not_counted_on_alone(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []

    def predicted(costs: object, alone: dict[str, object], *others: object) -> Expectation:
        asked.append(set(alone))
        return expected(costs, alone, *others)  # type: ignore[arg-type]

    monkeypatch.setattr("edgeinfer.engine.opening.overlap.expected", predicted)
    options = {"device": "cpu,reference", "n_context": 128, "n_sessions": 4, "spec": "off"}
    with load(tiny_model, sharing=SequenceSharing(), **options) as llm:  # type: ignore[arg-type]
        llm.complete("the", max_tokens=2).read()
    assert asked[0] == {"cpu", "reference"}
    asked.clear()
    monkeypatch.setattr("edgeinfer.engine.opening.overlap._Situation.room", lambda *given: 2)
    with load(tiny_model, sharing=SequenceSharing(), **options):  # type: ignore[arg-type]
        pass
    assert asked[0] == {"cpu"}


@pytest.mark.usefixtures("_pretended")
def test_memory_that_an_accelerator_has_of_its_own_is_asked_for(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.engine.opening.overlap.own_memory", lambda *given: {"reference": 10})
    monkeypatch.setattr("edgeinfer.engine.probing.combination.on_host", lambda name: False)
    with pytest.raises(DoesNotFit, match="does not fit on reference"):
        load(tiny_model, device="cpu,reference", schedule="apex", n_context=128, n_sessions=4)


@pytest.mark.usefixtures("_pretended")
def test_a_model_that_nobody_chats_with_reserves_nothing(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu,reference", schedule="overlap", n_context=128, n_sessions=1, spec="off") as llm:
        answers = list(llm.batch([Prompt("the")], parallel=1, max_tokens=100))
        assert answers[0].stats is not None
        executor = llm._pool.executor
        assert isinstance(executor, RescuedBatches)
        inner = executor._inner
        assert isinstance(inner, OverlapExecutor)
        assert inner.is_resident(inner.create())


def test_devices_that_share_no_sequences_are_refused(tiny_model: Path) -> None:
    with pytest.raises(BadSetting, match="the cpu and one other device"):
        load(tiny_model, device="cpu", schedule="overlap")
