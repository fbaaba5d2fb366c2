"""What a plan's chart is drawn from: the strip of each device adds up to the pass, and passes lie below the roofs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.app.charts.panels import BarPart
from edgeinfer.app.plans.chart import device_parts, merged
from edgeinfer.app.plans.planning import Planned, PlanRequest, plan_model
from edgeinfer.app.plans.roofline import planned_points, planned_roofs
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import spec_of
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.catalogue import machine_profile
from edgeinfer.scheduling.prediction import MeasuredSpeeds
from tests.unit.scheduling.profiles import machine

NOTHING = MeasuredSpeeds()


@pytest.fixture
def work(tiny_model: Path) -> ModelWork:
    with GGUFFile.open(tiny_model) as file:
        return work_of(spec_of(file.metadata, file.tensors, 256), file.tensors)


def on_the_cpu(work: ModelWork) -> Planned:
    return plan_model(machine(), work, PlanRequest(n_context=256))


@pytest.mark.parametrize("schedule", ["cpu", "accelerator", "rows"])
def test_what_each_device_does_and_waits_for_takes_as_long_as_the_pass(work: ModelWork, schedule: str) -> None:
    planned = plan_model(machine_profile("rtx4060-laptop"), work, PlanRequest(n_context=256, schedule=schedule))
    time, placement = planned.decode.time, planned.decode.placement
    whole_s = sum(stage.seconds for stage in time.stages) + time.fixed_s
    busy_s = {}
    for device in placement.devices:
        parts = tuple(device_parts(work, placement, time, device))
        assert sum(part.value for part in parts) == pytest.approx(whole_s)
        assert sum(part.value for part in merged(iter(parts))) == pytest.approx(whole_s)
        busy_s[device] = sum(part.value for part in parts if part.style)
    assert max(busy_s.values()) <= whole_s * (1 + 1e-9)
    assert sum(busy_s.values()) >= whole_s * (1 - 1e-9), "somebody works at any time"


def test_neighbours_of_one_look_are_one_part() -> None:
    parts = (BarPart("a", 1.0, "f0"), BarPart("", 0.0, "f1"), BarPart("b", 2.0, "f0"), BarPart("c", 3.0, ""))
    assert merged(iter(parts)) == (BarPart("a", 3.0, "f0"), BarPart("c", 3.0, ""))


def test_passes_lie_below_the_roof_and_prompts_further_right(work: ModelWork) -> None:
    planned = on_the_cpu(work)
    (roof,) = planned_roofs(work, planned)
    assert roof.device == "cpu"
    assert roof.rate(roof.ridge) == pytest.approx(roof.madds_s)
    assert roof.rate(roof.ridge / 4) == pytest.approx(roof.madds_s / 4)
    points = {point.name: point for point in planned_points(work, planned, NOTHING, "f16")}
    assert set(points) == {"prompt", "one token", "8 drafted tokens"}
    assert points["one token"].intensity < points["8 drafted tokens"].intensity < points["prompt"].intensity
    for point in points.values():
        assert 0 < point.madds_s <= roof.rate(point.intensity) * 1.001


def test_what_was_measured_is_a_point_of_its_own(work: ModelWork) -> None:
    planned = on_the_cpu(work)
    predicted, measured = (
        next(point for point in planned_points(work, planned, speeds, "f16") if point.name.startswith(name))
        for speeds, name in (
            (NOTHING, "one token"),
            (MeasuredSpeeds(plain_tok_s=0.5 / planned.decode.seconds), "one token, measured"),
        )
    )
    assert measured.is_measured
    assert measured.intensity == predicted.intensity
    assert measured.madds_s == pytest.approx(predicted.madds_s / 2)


def test_weights_from_disk_have_a_roof_of_their_own(work: ModelWork) -> None:
    planned = on_the_cpu(work)
    profile = replace(planned.profile, disk=machine_profile("rtx4060-laptop").disk)
    usage = replace(planned.decode.usage, flash_bytes=work.weight_bytes / 2)
    streamed = replace(planned, profile=profile, decode=replace(planned.decode, usage=usage))
    assert profile.disk is not None
    disk = planned_roofs(work, streamed)[-1]
    assert disk.device == "disk, 50% of the weights"
    assert disk.bytes_s == pytest.approx(2 * profile.disk.best_bytes_s)


def test_several_sequences_have_no_points_of_one(work: ModelWork) -> None:
    planned = plan_model(machine(), work, PlanRequest(n_context=256, n_sequences=4))
    assert planned_points(work, planned, NOTHING, "f16") == ()
