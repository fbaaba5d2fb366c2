"""Which schedule comes next: by prediction, by name, corrected by what passes made; and what users are told."""

from __future__ import annotations

import pytest

from edgeinfer.engine.opening.overlap import accelerator_of
from edgeinfer.engine.overlap.choosing import Choosing, Expectation, expected
from edgeinfer.errors import BadSetting, UnknownKey
from edgeinfer.scheduling.batch.costs import BatchCosts, SequenceGroup
from edgeinfer.scheduling.batch.schedules import SCHEDULES, Correction, asymmetric_s, choose
from edgeinfer.scheduling.batch.simulation import RECHECK
from edgeinfer.scheduling.machine.catalogue import machine_profile
from tests.unit.scheduling.models import model

PROFILE = machine_profile("a10-16core")
COSTS = BatchCosts(PROFILE, model(8))
RESIDENT, OFFLOADED = SequenceGroup(8, 8 * 900), SequenceGroup(6, 6 * 900)


def test_auto_is_the_best_prediction() -> None:
    for resident, offloaded in (
        (RESIDENT, OFFLOADED),
        (SequenceGroup(0, 0), OFFLOADED),
        (RESIDENT, SequenceGroup(0, 0)),
    ):
        assert Choosing(COSTS).next(resident, offloaded) == choose(COSTS, resident, offloaded)  # nothing ran yet


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_may_be_asked_for(name: str) -> None:
    for costs in (COSTS, None):
        found = Choosing(costs, name).next(RESIDENT, OFFLOADED)
        assert found.schedule == name
        assert found.n_resident == 8
        assert found.n_offloaded == (0 if name == "accelerator-only" else 6)


def test_offloaded_sequences_alone_never_wait() -> None:
    for name in ("auto", *SCHEDULES):
        found = Choosing(COSTS, name).next(SequenceGroup(0, 0), OFFLOADED)
        assert found.n_offloaded > 0
        assert found.schedule != "accelerator-only"


def test_halves_that_are_asked_for_take_least_time() -> None:
    found = Choosing(COSTS, "asymmetric").next(RESIDENT, OFFLOADED)
    every = [asymmetric_s(COSTS, RESIDENT, OFFLOADED, n) for n in range(7)]
    assert found.seconds == min(every) == every[found.behind]


def test_a_choice_holds_until_others_are_under_way() -> None:
    choosing = Choosing(COSTS)
    first = choosing.next(RESIDENT, OFFLOADED)
    deeper = SequenceGroup(8, 8 * 2000)
    for _ in range(RECHECK - 1):
        assert choosing.next(deeper, OFFLOADED) is first
    assert choosing.next(deeper, OFFLOADED) is not first
    assert choosing.next(SequenceGroup(7, 7 * 900), OFFLOADED).n_resident == 7


def test_what_passes_make_corrects_the_choice() -> None:
    """Schedules that are predicted nearly as good are tried; then what they made decides."""
    choosing = Choosing(COSTS)
    predicted = {name: choose(COSTS, RESIDENT, OFFLOADED, (name,)) for name in SCHEDULES}
    most = max(each.tok_s for each in predicted.values())
    made = {"accelerator-only": 0.5, "asymmetric": 0.7, "overlap": 0.9}
    tried = []
    for _ in range(8):
        found = choosing.predicted(RESIDENT, OFFLOADED)
        if found.schedule not in tried:
            tried.append(found.schedule)
        for _ in range(9):
            choosing.learn(found, found.tokens * made[found.schedule], found.seconds)
    near = {name for name, each in predicted.items() if each.tok_s >= most / 2}
    assert set(tried) == near
    assert len(near) > 1
    assert tried[0] == choose(COSTS, RESIDENT, OFFLOADED).schedule
    reached = {name: predicted[name].tok_s * made[name] for name in near}
    assert choosing.predicted(RESIDENT, OFFLOADED).schedule == max(reached, key=lambda name: reached[name])
    assert choosing.predicted(RESIDENT, SequenceGroup(0, 0)).schedule == "accelerator-only"


def test_corrections_are_medians() -> None:
    correction = Correction()
    assert correction.factor("overlap") == 1.0
    for measured in (50.0, 60.0, 1000.0):
        correction.note("asymmetric", 100.0, measured)
    correction.note("overlap", 0.0, 10.0)
    correction.note("overlap", 10.0, 0.0)
    assert correction.factor("asymmetric") == pytest.approx(0.6)
    assert correction.factor("overlap") == 1.0


def test_unknown_names_are_refused() -> None:
    with pytest.raises(BadSetting, match="auto, accelerator-only"):
        Choosing(COSTS, "hetegen")
    with pytest.raises(BadSetting, match="name one"):
        Choosing(None)


def test_what_users_are_told() -> None:
    told = Expectation(4, 2, 512, {"accelerator-only": 10.0, "overlap": 20.0}, {"cpu": 30.0, "gpu": 5.0})
    assert told.best == "overlap"
    assert "room for 4 whole contexts on gpu, 2 in memory" in told.notice("gpu", "auto")
    assert told.notice("gpu", "auto").endswith("cpu alone 30, which is more: --device cpu")
    found = expected(COSTS, {"cpu": PROFILE}, model(8), "f16", (8, 6), 4096)
    assert found.schedules.keys() == set(SCHEDULES)
    assert found.depth == 512
    assert found.schedules[found.best] == pytest.approx(
        choose(COSTS, SequenceGroup(8, 4096), SequenceGroup(6, 3072)).tok_s
    )


@pytest.mark.parametrize("device", ["cpu", "openvino,onnx", "cpu,openvino,onnx", "cpu,cpu", "cpu,llamacpp"])
def test_devices_that_do_not_make_a_pair_are_refused(device: str) -> None:
    with pytest.raises(BadSetting):
        accelerator_of(device)


def test_a_pair_is_the_cpu_and_another() -> None:
    assert accelerator_of("cpu,openvino") == accelerator_of("openvino,cpu") == "openvino"
    with pytest.raises(UnknownKey):
        accelerator_of("cpu,abacus")
