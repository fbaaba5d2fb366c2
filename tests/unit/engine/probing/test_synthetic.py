"""Models of zeros: the shapes asked for, in any format, that lanes can be made of."""

import pytest

from edgeinfer.engine.probing.synthetic import Shape, synthetic_model
from edgeinfer.models.quants import FORMATS
from edgeinfer.ops import MatMul

SHAPE = Shape(width=256, ffn_width=512, heads=4, kv_heads=2, head_width=64, n_layers=2, n_vocab=320, n_context=128)


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
