"""Models to measure with: the shapes asked for, in any format, that lanes can be made of."""

import numpy as np
import pytest

from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.probing.lane_times import placed_step
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.quants import FORMATS

SHAPE = ModelShape(width=256, ffn_width=512, heads=4, kv_heads=2, head_width=64, n_layers=2, n_vocab=320, n_context=128)


@pytest.mark.parametrize("form", sorted(entry.name for entry in FORMATS.entries().values()))
def test_a_model_of_any_format_has_the_shape_asked_for(form: str) -> None:
    with synthetic_model(SHAPE, form) as model:
        spec = model.spec
        assert (spec.width, spec.ffn_width, spec.heads, spec.kv_heads, spec.head_width) == (256, 512, 4, 2, 64)
        assert (spec.n_layers, spec.n_vocab) == (2, 320)
        matrices = [op for op in spec.ops() if isinstance(op, MatMul) and op.weight.tensor.startswith("blk.1.")]
        assert sum(op.weight.n_rows * op.weight.columns for op in matrices) == SHAPE.layer_weights
        assert {model.file.tensors[op.weight.tensor].type_name for op in matrices} == {form}
        assert not model.file.raw("blk.0.ffn_up.weight").any()


@pytest.mark.parametrize("form", sorted(entry.name for entry in FORMATS.entries().values()))
def test_numbers_are_finite_and_matrices_differ(form: str) -> None:
    with synthetic_model(SHAPE, form, 1) as model, synthetic_model(SHAPE, form, 1) as again:
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
