"""Corrections: outliers move nothing, factors are bounded, and plans recover from a wrong profile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edgeinfer.scheduling.machine.profile import Curve, DeviceRates, Link, ProductRates, Profile
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.machine_plan import PlanningTask, decode_step
from edgeinfer.scheduling.placement.planner import plan
from edgeinfer.scheduling.placement.step_time import step_time
from edgeinfer.scheduling.predict.corrections import (
    MOST,
    Corrections,
    Observation,
    change_seconds,
    observed,
    replanning_pays,
)
from tests.unit.scheduling.placement.models import decoder, layer
from tests.unit.scheduling.profiles import GB, device

WORK = decoder([layer(2048, 8192, 32, 8)] * 16, 2048, 32000)
TOKENS, EVERY = 128, 16


def profile() -> Profile:
    cpu = replace(device("cpu", read=50 * GB), products=_any(80e9), op_s=1e-6, pass_s=1e-5)
    gpu = replace(device("gpu", read=300 * GB, link=Link(20 * GB, 20 * GB, 5e-6)), products=_any(500e9), op_s=5e-6)
    return Profile("right", (cpu, gpu))


def _any(rate: float) -> dict[str, ProductRates]:
    return {"*": ProductRates(0.6, Curve.level(rate))}


def wrong(rates: DeviceRates, factor: float) -> DeviceRates:
    """A device taken to be so many times as fast."""
    products = {name: replace(each, rate=_times(each.rate, factor)) for name, each in rates.products.items()}
    return replace(rates, read=_times(rates.read, factor), products=products)


def _times(curve: Curve, factor: float) -> Curve:
    return Curve(curve.at, tuple(value * factor for value in curve.values))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_throughput_recovers_within_128_tokens(number, factor):
    right = profile()
    believed = replace(
        right, devices=tuple(wrong(each, factor) if n == number else each for n, each in enumerate(right.devices))
    )
    caching = Caching(2048)
    task = PlanningTask(right, WORK, decode_step(caching), caching, Budgets(64 * GB, {"gpu": 0.3 * WORK.weight_bytes}))
    best = plan(task).seconds
    now = plan(replace(task, profile=believed)).placement
    corrections, source = Corrections(), random.Random(1)
    first_s = step_time(right, WORK, now, task.step).seconds
    for token in range(TOKENS):
        measured = step_time(right, WORK, now, task.step)
        predicted = step_time(believed, WORK, now, task.step)
        noise = 5.0 if source.random() < 0.05 else source.gauss(1, 0.02)
        seen = observed(WORK, now, predicted, measured)
        corrections.note([replace(each, measured_s=each.measured_s * noise) for each in seen])
        if token % EVERY == EVERY - 1:
            task_now = replace(task, profile=corrections.applied(believed))
            after = plan(task_now)
            present_s = step_time(task_now.profile, WORK, now, task.step).seconds
            if replanning_pays(present_s, after.seconds, change_seconds(right, WORK, now, after.placement)):
                now = after.placement
    last_s = step_time(right, WORK, now, task.step).seconds
    assert last_s <= first_s * 1.001
    assert best / last_s >= 0.95


def test_a_wrong_profile_matters_here():
    """Without corrections some throughput is lost, so that the test above can fail."""
    right = profile()
    believed = replace(right, devices=(right.devices[0], wrong(right.devices[1], 2.0)))
    caching = Caching(2048)
    task = PlanningTask(right, WORK, decode_step(caching), caching, Budgets(64 * GB, {"gpu": 0.3 * WORK.weight_bytes}))
    misled = [
        step_time(right, WORK, plan(replace(task, profile=each)).placement, task.step).seconds
        for each in (
            believed,
            replace(right, devices=(wrong(right.devices[0], 0.5), right.devices[1])),
            replace(right, devices=(wrong(right.devices[0], 2.0), right.devices[1])),
        )
    ]
    assert max(misled) > plan(task).seconds / 0.95


def test_a_single_outlier_moves_nothing():
    corrections = Corrections()
    for number in range(20):
        corrections.note([Observation("gpu", "products", 1.0, 50.0 if number == 12 else 1.0)])
        assert corrections.factor("gpu", "products") == 1.0


def test_factors_are_bounded_and_reached_soon():
    corrections = Corrections()
    for _ in range(12):
        corrections.note([Observation("cpu", "products", 1.0, 2.0), Observation("gpu", "link", 1.0, 1e9)])
    assert corrections.factor("cpu", "products") == pytest.approx(2.0, rel=0.02)
    assert corrections.factor("gpu", "link") <= MOST
    assert corrections.factor("gpu", "products") == 1.0


def test_a_corrected_profile_predicts_what_was_measured():
    right = profile()
    believed = replace(right, devices=(wrong(right.devices[0], 2.0), wrong(right.devices[1], 0.5)))
    caching = Caching(2048)
    task = PlanningTask(
        believed, WORK, decode_step(caching), caching, Budgets(64 * GB, {"gpu": 0.3 * WORK.weight_bytes})
    )
    placement = plan(task).placement
    corrections = Corrections()
    for _ in range(16):
        pair = [step_time(each, WORK, placement, task.step) for each in (believed, right)]
        corrections.note(observed(WORK, placement, *pair))
    corrected = step_time(corrections.applied(believed), WORK, placement, task.step).seconds
    assert corrected == pytest.approx(step_time(right, WORK, placement, task.step).seconds, rel=0.01)


def test_a_change_must_come_back_soon():
    assert replanning_pays(1.0, 0.9, 1.0, 512)
    assert not replanning_pays(1.0, 0.99, 0.0, 512)
    assert not replanning_pays(1.0, 0.9, 100.0, 512)
