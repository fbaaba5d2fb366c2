"""The times of a machine with known rates are found: by passes of whole models, by exchanges of two devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.engine.probing import whole_passes
from edgeinfer.engine.probing.accelerator import AcceleratorProbe
from edgeinfer.engine.probing.link import measured_exchange
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
from edgeinfer.engine.probing.whole_passes import nonnegative
from edgeinfer.engine.shared_lane import lane
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, DeviceRates, Joining, Link, ProductRates
from edgeinfer.scheduling.placement.placement import all_on
from edgeinfer.scheduling.prediction import Predictor
from tests.unit.engine.probing.known_machine import Clock, KnownDevice, KnownHost, KnownOther
from tests.unit.scheduling.profiles import machine

FOOTPRINT = 100 << 20
LINK = Link(8e9, 4e9, 1e-5)
KNOWN = DeviceRates(
    "known",
    "a clock",
    1 << 40,
    Curve.level(20e9),
    {
        "Q4_0": ProductRates(0.5625, Curve((1, 8, 64, 256, 512), (30e9, 90e9, 150e9, 220e9, 250e9))),
        "Q8_0": ProductRates(1.0625, Curve((1, 8, 64, 256, 512), (18e9, 80e9, 120e9, 160e9, 170e9))),
    },
    (
        AttentionRates(
            64, Curve((1, 8, 256), (3e9, 9e9, 11e9)), 0.0, Curve((1, 8, 256), (1e-13, 2e-6, 4e-6)), cached_only=True
        ),
    ),
    Curve((8, 64, 256, 512), (2e9, 3e9, 3e9, 2.5e9)),
    op_s=1.2e-5,
    pass_s=8e-4,
    token_s=2e-6,
    joining=Joining(1024, 1.5e11),
    link=LINK,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (whole_passes, lane):
        monkeypatch.setattr(module, "time", found)
    return found


def other_model(form: str, width: int, ffn: int, n_layers: int) -> ModelWork:
    """A model that was not measured."""
    shape = ModelShape(width, ffn, width // 64, width // 256, 64, n_layers, 32000, 1024)
    with synthetic_model(shape, form) as model:
        return work_of(model.spec, model.file.tensors)


@pytest.mark.parametrize("form", ["Q4_0", "Q8_0"])
def test_whole_models_tell_what_a_device_takes(clock: Clock, form: str) -> None:
    probe = AcceleratorProbe(KnownDevice(clock, KNOWN), FOOTPRINT)
    found = probe.rates("known", "a clock", 1 << 40, ("Q4_0", "Q8_0"), LINK)
    for width, ffn, n_layers in ((512, 1536, 30), (2048, 8192, 16), (4096, 11008, 4)):
        work = other_model(form, width, ffn, n_layers)
        placed = all_on(work, "known")
        true = Predictor(machine(KNOWN), work, placement=placed)
        predicted = Predictor(machine(found), work, placement=placed)
        assert predicted.prompt_s(512) == pytest.approx(true.prompt_s(512), rel=0.04)
        assert predicted.decode_s(128) == pytest.approx(true.decode_s(128), rel=0.04)
        assert predicted.decode_s(64, 700) == pytest.approx(true.decode_s(64, 700), rel=0.04)
        assert predicted.pass_s(8, 100, 8) == pytest.approx(true.pass_s(8, 100, 8), rel=0.05)
    assert found.pass_s == pytest.approx(KNOWN.pass_s, rel=0.05)
    assert found.op_s == pytest.approx(KNOWN.op_s, rel=0.05)


def test_prompts_are_read_as_the_device_reads_them(clock: Clock) -> None:
    probe = AcceleratorProbe(KnownDevice(clock, KNOWN), FOOTPRINT)
    assert probe.joining == KNOWN.joining
    small, large = other_model("Q4_0", 512, 1536, 30), other_model("Q4_0", 2048, 8192, 16)
    joined = Predictor(machine(KNOWN), small, placement=all_on(small, "known"))
    assert joined.prompt_s(512) == joined.seconds(Pass(512, 0, 1)).total
    apart = Predictor(machine(KNOWN), large, placement=all_on(large, "known"))
    assert apart.prompt_s(512) == pytest.approx(
        apart.seconds(Pass(256, 0, 0)).total + apart.seconds(Pass(256, 256, 1)).total
    )


def test_an_exchange_takes_what_it_takes_in_a_pair(clock: Clock) -> None:
    host, other = KnownHost(clock, 5e-6, 2e-10), KnownOther(clock, 1.2e-4, 2.5e-4)
    found = measured_exchange(host, other, "other", "Q4_0", op_s=1e-5)
    assert 2 * found.host_s == pytest.approx(1.2e-4, rel=0.03)
    assert 2 * found.latency_s == pytest.approx(1.2e-4 + 2.5e-4 - 1.75e-5, rel=0.03)
    assert found.to_device_bytes_s == pytest.approx(1 / 2e-10, rel=0.03)


def test_nothing_that_takes_no_time_is_below_zero() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        matrix, true = rng.random((30, 12)), rng.random(12) * (rng.random(12) > 0.4)
        assert nonnegative(matrix, matrix @ true) == pytest.approx(true, abs=1e-8)
        found = nonnegative(matrix, matrix @ true + rng.normal(0, 0.1, 30))
        assert found.min() >= 0
        slopes = matrix.T @ (matrix @ true - matrix @ found)
        assert np.isfinite(slopes).all()


def test_rates_without_a_cache_before_them_have_no_attention(clock: Clock) -> None:
    work = other_model("Q4_0", 512, 1536, 4)
    slow = replace(KNOWN, attention=(replace(KNOWN.attention[0], rate=Curve.level(1.0)),))
    predicted = [Predictor(machine(rates), work, placement=all_on(work, "known")) for rates in (KNOWN, slow)]
    assert predicted[0].pass_s(64) == predicted[1].pass_s(64)
    assert predicted[0].pass_s(64, 1) < predicted[1].pass_s(64, 1)
