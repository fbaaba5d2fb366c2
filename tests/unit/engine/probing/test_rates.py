"""Lanes timed op by op, and the synthetic models that they run."""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import pytest

from edgeinfer.backends.base import OpSeconds
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.probing.rates import TimedLane, placed_step
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import Step
from edgeinfer.models.quants import FORMATS

SHAPE = ModelShape(256, 512, 4, 2, 64, 3, 320, 512)


@dataclass
class Clockwork:
    """Takes 1 s for a product's weights in a layer, 10 s for attention, 100 s for anything else; fused gates."""

    spec: ModelSpec
    factors: list[float] = field(default_factory=lambda: [1.0])
    asked: list[Collection[str] | None] = field(default_factory=list)

    def time_ops(self, step: Step, stages: Collection[str] | None = None) -> list[OpSeconds]:
        self.asked.append(stages)
        factor = self.factors[len(self.asked) % len(self.factors)]
        found = []
        for stage in self.spec.stages:
            if stages is not None and stage.name not in stages:
                continue
            for op in stage.ops:
                if isinstance(op, MatMul) and op.out in ("gate", "up"):
                    continue  # done with the activation
                multiplies = isinstance(op, MatMul | GatedAct)
                seconds = 1.0 if multiplies else 10.0 if isinstance(op, Attention) else 100.0
                found.append(OpSeconds(op, multiplies, factor * seconds))
        return found


@pytest.fixture
def spec():
    with synthetic_model(SHAPE, "Q8_0") as model:
        yield model.spec


def test_products_are_told_apart_by_columns_and_gates_belong_to_what_they_read(spec: ModelSpec) -> None:
    times, *others = TimedLane(Clockwork(spec), spec, limits_for(512)).passes(4, n_runs=3)
    assert others == [times, times]
    assert (times.n_tokens, times.n_layers) == (4, 3)
    narrow, wide = times.products
    assert (narrow.columns, wide.columns) == (256, 512)
    assert narrow.n_weights == 3 * 256 * (4 * 64 + 2 * 2 * 64 + 256 + 2 * 512)
    assert wide.n_weights == 3 * 512 * 256
    assert narrow.seconds == 3 * 5  # q, k, v, o and the gated pair
    assert wide.seconds == 3
    assert times.attention_s == 3 * 10
    assert times.others_s == 3 * 100 * 5  # two norms, two rotations, storing


def test_a_part_asks_for_its_layers_alone_and_the_first_run_only_warms_up(spec: ModelSpec) -> None:
    clockwork = Clockwork(spec, [3.0, 9.0, 1.0, 2.0])
    runs = TimedLane(clockwork, spec, limits_for(512)).passes(1, n_runs=3, n_layers=2)
    assert set(clockwork.asked) == {frozenset({"blk.0", "blk.1"})}
    assert [times.n_layers for times in runs] == [2] * 3
    assert [times.attention_s for times in runs] == [2 * 10 * factor for factor in (1.0, 2.0, 3.0)]


def test_a_pass_is_placed_after_the_tokens_before_it():
    step = placed_step(limits_for(512), 3, 300)
    assert step.batch.positions.tolist() == [300, 301, 302]
    assert step.starts.tolist() == [300, 301, 302] or step.starts.min() >= 300
    assert step.batch.outputs.tolist() == [2]


SMALL_SHAPE = ModelShape(
    width=256, ffn_width=512, heads=4, kv_heads=2, head_width=64, n_layers=2, n_vocab=320, n_context=128
)


IN_FILES = sorted(entry.name for entry in FORMATS.entries().values() if entry.ggml_type >= 0)


@pytest.mark.parametrize("form", IN_FILES)
def test_a_model_of_any_format_has_the_shape_asked_for(form: str) -> None:
    with synthetic_model(SMALL_SHAPE, form) as model:
        spec = model.spec
        assert (spec.width, spec.ffn_width, spec.heads, spec.kv_heads, spec.head_width) == (256, 512, 4, 2, 64)
        assert (spec.n_layers, spec.n_vocab) == (2, 320)
        matrices = [op for op in spec.ops() if isinstance(op, MatMul) and op.weight.tensor.startswith("blk.1.")]
        assert sum(op.weight.n_rows * op.weight.columns for op in matrices) == SMALL_SHAPE.layer_weights
        assert {model.file.tensors[op.weight.tensor].type_name for op in matrices} == {form}
        assert not model.file.raw("blk.0.ffn_up.weight").any()


@pytest.mark.parametrize("form", IN_FILES)
def test_numbers_are_finite_and_matrices_differ(form: str) -> None:
    with synthetic_model(SMALL_SHAPE, form, 1) as model, synthetic_model(SMALL_SHAPE, form, 1) as again:
        names = [f"blk.{n}.{name}.weight" for n in (0, 1) for name in ("ffn_up", "ffn_gate", "attn_norm")]
        values = {name: model.file.raw(name) for name in names}
        assert len({found.tobytes() for found in values.values()}) == len(names)
        assert all(found.tobytes() == again.file.raw(name).tobytes() for name, found in values.items())
        device = ReferenceDevice()
        limits = limits_for(64)
        lane = device.compile(model.spec, model.file, limits)
        logits = lane.run(placed_step(limits, 3, 0))
        assert np.isfinite(logits).all()
        assert np.ptp(logits) > 0 or form == "MXFP4"  # its scales are powers of two down to nothing
        lane.close()
        del values
