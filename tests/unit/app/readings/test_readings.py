"""Readings of models that run: what they say before, while and after answers, on several kinds of devices."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import edgeinfer
from edgeinfer.app.readings import DraftCount, Readings
from edgeinfer.app.readings.service import CoreWatch
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.run.observed import LastStep
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.shared_lane.timeline import DeviceSpan, StepTimeline
from edgeinfer.engine.telemetry import Telemetry
from edgeinfer.errors import UnsupportedModel
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, DeviceRates, ProductRates, Profile
from edgeinfer.scheduling.machine.topology import Core, Topology

TURN = [{"role": "user", "content": "the cat in the hat"}]
PROFILE = Profile(
    "test",
    (
        DeviceRates(
            "cpu",
            "cpu",
            1 << 34,
            Curve.level(1e10),
            {"*": ProductRates(4.0, Curve.level(2e11))},
            (AttentionRates(16, Curve.level(1e10)),),
            Curve.level(1e9),
        ),
    ),
)


def topology_of(*cores: Core) -> Topology:
    return Topology(cores, (), len(cores), None, False, 0, 0, 1 << 34, 1 << 33)


TWO_CORES = topology_of(Core((0, 2), "performance", 0, 0, 0, 0, None), Core((1,), "efficiency", 0, 0, 1, 0, None))


def answered(llm: LLM, readings: Readings, n_tokens: int = 24) -> Stats:
    """Let it answer, and tell the readings."""
    stream = llm.chat(TURN, max_tokens=n_tokens, temperature=0)
    stream.read()
    assert stream.stats is not None
    readings.answered(stream.stats)
    return stream.stats


def test_without_a_model_there_is_the_machine(home: Path) -> None:
    readings = Readings()
    assert readings.plan().note == readings.roofline().note == "no model is loaded yet"
    assert readings.cores().cores
    memory = readings.memory()
    assert memory.process_bytes
    assert memory.weight_bytes is None
    assert not readings.drafting().is_on
    assert readings.energy().policy is None
    assert not readings.can_time_stages
    assert not readings.time_stages()


def test_a_model_on_the_reference_device_says_what_is_not_known(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="reference", spec="off") as llm:
        readings = Readings(llm, profile=lambda: PROFILE)
        stats = answered(llm, readings)
        plan = readings.plan()
        assert plan.source == "by bytes"
        assert plan.note == "reference does not time its ops"
        assert [stretch.label for stretch in plan.stretches] == ["blk.0", "blk.1", "head"]
        assert stats.plain_tok_s is not None
        assert plan.pass_s == pytest.approx(1 / stats.plain_tok_s)
        assert plan.stretches[-1].ended_s == pytest.approx(plan.pass_s)
        roof = readings.roofline()
        assert [each.phase for each in roof.reached] == ["prefill", "decode"]
        assert roof.madds_s is None
        assert "the roof of reference is not known" in roof.note
        assert not readings.can_time_stages
        assert not readings.time_stages()


def test_before_an_answer_nothing_was_reached(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="reference", spec="off") as llm:
        readings = Readings(llm, profile=lambda: None)
        assert readings.plan().pass_s is None
        assert readings.roofline().reached == ()
        memory = readings.memory()
        assert (memory.n_kv_tokens, memory.kv_used_bytes) == (0, 0)
        answered(llm, readings)
        after = readings.memory()
        assert after.n_kv_tokens
        assert after.kv_bytes is not None
        assert after.kv_used_bytes is not None
        assert 0 < after.kv_used_bytes < after.kv_bytes
        assert readings.follow(None) is None
        assert readings.memory().n_kv_tokens is None


def test_the_figures_of_decoding_are_those_of_its_passes(home: Path, tiny_model: Path) -> None:
    """Multiply-adds a second by bytes a second: of one token, one for each weight, which has four bytes here."""
    with edgeinfer.load(tiny_model, device="reference", spec="off") as llm:
        readings = Readings(llm, profile=lambda: PROFILE)
        stats = answered(llm, readings)
        decode = readings.roofline().reached[-1]
        assert stats.decode_tok_s is not None
        assert decode.madds_s > llm.telemetry.work.n_weights * stats.decode_tok_s
        assert decode.madds_s < 1.5 * llm.telemetry.work.n_weights * stats.decode_tok_s
        assert decode.intensity == pytest.approx(1 / 4, rel=0.3)
        prefill = readings.roofline().reached[0]
        assert prefill.intensity > 3 * decode.intensity


def test_the_cpu_tells_of_steps_stages_and_drafts(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="cpu") as llm:
        readings = Readings(llm, profile=lambda: PROFILE)
        first = answered(llm, readings)
        cores = readings.cores()
        assert cores.n_working
        assert cores.step_s
        assert sum(core.share or 0.0 for core in cores.cores) == pytest.approx(1.0)
        assert readings.plan().source == "predicted"
        roof = readings.roofline()
        assert roof.madds_s == pytest.approx(2e11)
        assert roof.bytes_s == pytest.approx(1e10)
        assert roof.note == ""
        second = answered(llm, readings)
        assert first.draft is not None
        assert second.draft is not None
        drafting = readings.drafting()
        assert drafting.is_on
        for name, total in drafting.total:
            both = [
                DraftCount(each.proposed, each.accepted)
                for each in (first.draft.sources[name], second.draft.sources[name])
            ]
            assert total == both[0] + both[1]


def test_stages_are_measured_when_nothing_is_generated_and_answers_stay_the_same(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="cpu", spec="off") as llm:
        readings = Readings(llm, profile=lambda: None)
        before = llm.chat(TURN, max_tokens=24, temperature=0).read()
        n_free = llm.telemetry.n_free_pages
        assert readings.can_time_stages
        assert readings.time_stages()
        plan = readings.plan()
        assert plan.source == "measured"
        assert [stretch.label for stretch in plan.stretches if stretch.seconds] == ["blk.0", "blk.1", "head"]
        assert sum(stretch.seconds for stretch in plan.stretches) == pytest.approx(plan.pass_s)
        answered(llm, readings)
        scaled, stats = readings.plan(), answered(llm, readings)
        assert stats.plain_tok_s is not None
        assert readings.plan().pass_s == pytest.approx(1 / stats.plain_tok_s), "as answers take it"
        assert scaled.stretches[-1].ended_s == pytest.approx(scaled.pass_s)
        assert dict(plan.kinds)["products"] > 0
        assert llm.telemetry.n_free_pages == n_free
        again = llm.chat(TURN, max_tokens=24, temperature=0)
        assert again.read() == before
        assert again.stats is not None
        assert again.stats.n_cached == again.stats.n_prompt - 1, "what was cached is still there"


def test_nothing_is_measured_while_an_answer_is_in_the_making(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="cpu", spec="off") as llm:
        readings = Readings(llm, profile=lambda: None)
        stream = llm.chat(TURN, max_tokens=24, temperature=0)
        next(stream)
        assert not readings.time_stages()
        stream.close()


def test_readings_wait_for_nobody(home: Path, tiny_model: Path) -> None:
    """They are given while another thread holds the lock that passes need."""
    with edgeinfer.load(tiny_model, device="reference", spec="off") as llm:
        readings = Readings(llm, profile=lambda: None)
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with llm._pool.lock:
                held.set()
                done.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert held.wait(30)
            for read in (readings.plan, readings.roofline, readings.cores, readings.memory, readings.energy):
                assert read() is not None
            assert not readings.time_stages()
        finally:
            done.set()
            holder.join()


def test_a_closed_model_is_read_of_as_one_that_holds_nothing(home: Path, tiny_model: Path) -> None:
    llm = edgeinfer.load(tiny_model, device="cpu", spec="off")
    readings = Readings(llm, profile=lambda: None)
    answered(llm, readings)
    llm.close()
    assert readings.memory().weight_bytes is None
    assert readings.cores().n_working is None
    assert readings.plan().model == llm.info.name
    assert not readings.time_stages()


def test_a_model_that_streams_tells_what_is_read(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="cpu", threads=1, spec="off", ram_bytes=300_000) as llm:
        readings = Readings(llm, profile=lambda: None)
        answered(llm, readings)
        plan = readings.plan()
        assert plan.stored is not None
        assert plan.stored.n_stages == 3
        assert plan.stored.read_bytes == pytest.approx(plan.stored.token_bytes)
        assert plan.stored.disk_bytes_s
        assert plan.stored.waiting_share is not None
        assert 0 <= plan.stored.waiting_share <= 1
        assert {stretch.read_share for stretch in plan.stretches} == {1.0}
        stored = readings.memory().stored
        assert stored is not None
        assert replace(stored, disk_bytes_s=0) == replace(plan.stored, disk_bytes_s=0)
        assert readings.time_stages()
        assert readings.plan().note == "without waiting for the disk"


def test_two_devices_are_told_apart_by_the_last_pass(
    home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = (
        DeviceSpan("cpu", "embed", 10.0, 10.2),
        DeviceSpan("other", "blk.0 to blk.1", 10.2, 10.8),
        DeviceSpan("cpu", "head", 10.7, 11),
    )
    shared = SimpleNamespace(timeline=StepTimeline(spans, 10.0, 11.0))
    with edgeinfer.load(tiny_model, device="reference", spec="off") as llm:
        monkeypatch.setattr(llm, "telemetry", _Together(llm.telemetry, shared))
        readings = Readings(llm, profile=lambda: None)
        plan = readings.plan()
        assert plan.devices == ("cpu", "other")
        assert plan.pass_s == pytest.approx(1.0)
        assert [stretch.began_s for stretch in plan.stretches] == pytest.approx([0.0, 0.2, 0.7])
        assert plan.overlap == pytest.approx(0.1 / 0.5)


def test_a_program_that_runs_models_by_itself_is_known_less_of(
    home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with edgeinfer.load(tiny_model, device="reference", spec="off") as llm:
        monkeypatch.setattr(llm, "telemetry", _Alone(llm.telemetry))
        readings = Readings(llm, profile=lambda: PROFILE)
        answered(llm, readings)
        assert readings.plan().note == "reference runs this model itself and does not report layers"
        assert readings.plan().stretches == ()
        assert readings.plan().pass_s is not None
        assert readings.roofline().note == "what a pass of this model computes only reference knows"
        memory = readings.memory()
        assert memory.kv_bytes is None
        assert memory.n_kv_tokens
        assert not readings.can_time_stages


def test_readings_go_on_while_answers_are_made(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="cpu") as llm:
        readings, failed, over = Readings(llm, profile=lambda: PROFILE), list[Exception](), threading.Event()

        def look() -> None:
            while not over.is_set():
                try:
                    for read in (readings.plan, readings.roofline, readings.cores, readings.memory, readings.drafting):
                        read()
                except Exception as error:  # whatever it is must be seen by the test
                    failed.append(error)
                    return

        looker = threading.Thread(target=look)
        looker.start()
        try:
            for _ in range(3):
                answered(llm, readings, 64)
        finally:
            over.set()
            looker.join()
        assert not failed


class _Alone:
    """Telemetry of a model that edgeinfer has no layers of."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def __getattr__(self, name: str) -> object:
        return getattr(self._telemetry, name)

    @property
    def work(self) -> ModelWork:
        raise UnsupportedModel("edgeinfer does not know what it has to do")


class _Together:
    """Telemetry of a model that several devices share."""

    def __init__(self, telemetry: Telemetry, shared: object) -> None:
        self._telemetry = telemetry
        self.shared = shared

    def __getattr__(self, name: str) -> object:
        return getattr(self._telemetry, name)


@pytest.mark.parametrize("affinity", [((0,), (1,)), ((2,), (1,))])
def test_shares_are_those_of_the_cores_that_workers_are_pinned_to(affinity: tuple[tuple[int, ...], ...]) -> None:
    step = LastStep(1e-3, (0, 1), (0.75, 0.25), (100.0, 100.0))
    cores = CoreWatch(TWO_CORES).read(step, affinity, 2)
    assert [(core.number, core.share, core.speed) for core in cores.cores] == [
        (0, 0.75, 1.0),
        (1, 0.25, pytest.approx(1 / 3)),
    ]
    assert cores.note == ""


def test_workers_on_no_core_of_their_own_are_told_beside_the_cores() -> None:
    step = LastStep(1e-3, (1,), (1.0,), ())
    cores = CoreWatch(TWO_CORES).read(step, ((0, 1), (0, 1)), 2)
    assert [core.share for core in cores.cores] == [None, None, 1.0]
    assert cores.cores[-1].is_worker
    assert cores.cores[-1].number == 1
    assert (cores.n_working, cores.n_workers) == (1, 2)


def test_a_core_is_as_busy_as_its_busier_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import namedtuple

    import psutil

    Times = namedtuple("Times", "user idle")
    counts = iter([[Times(0, 0)] * 3, [Times(9, 1), Times(0, 10), Times(5, 5)]])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(counts))
    now = iter(range(1000))
    watch = CoreWatch(TWO_CORES, lambda: float(next(now)))
    assert [core.busy for core in watch.read(None, (), None).cores] == [None, None]
    assert [core.busy for core in watch.read(None, (), None).cores] == [pytest.approx(0.9), 0.0]
