"""Models cut at their attention: every op once, what goes from part to part, rows that wait."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.engine.overlap.micro_batches import RowStore
from edgeinfer.engine.overlap.parts import parts_of
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.models.load import open_model
from tests.golden.goldens import Golden


def spec_of(name: str) -> ModelSpec:
    golden = Golden.read(name)
    with open_model(golden.model, golden.n_context) as model:
        return model.spec


@pytest.mark.parametrize("name", ["llama-q8_0", "qwen2-q8_0", "qwen3-q8_0", "gemma2-q8_0", "gemma3-q8_0", "phi3-q8_0"])
def test_every_op_is_in_one_part(name: str) -> None:
    spec = spec_of(name)
    parts = parts_of(spec)
    kinds = (StoreKV, Attention)
    products = [op for fragment in parts.products for op in fragment.spec.ops()]
    assert products == [op for op in spec.ops() if not isinstance(op, kinds)]
    attention = [op for op in spec.ops() if isinstance(op, kinds)]
    assert list(parts.host.spec.ops()) == attention
    assert sum(len(list(fragment.spec.ops())) for fragment in parts.attentions) == len(attention)
    assert parts.n_layers == spec.n_layers == len(parts.products) - 1
    assert [fragment.spec.kv for fragment in parts.attentions] == [(layer,) for layer in spec.kv]
    assert not any(fragment.spec.kv for fragment in parts.products)
    assert isinstance(next(parts.products[0].spec.ops()), Embed)


def test_what_goes_from_part_to_part() -> None:
    parts = parts_of(spec_of("llama-q8_0"))
    assert parts.widths.keys() == {"x", "query", "key", "value", "attended"}
    assert parts.products[0].inputs == ()
    assert set(parts.products[0].outputs) == {"x", "query", "key", "value"}
    assert set(parts.products[1].inputs) == {"x", "attended"}
    assert parts.products[-1].outputs == ("logits",)
    assert set(parts.attentions[0].inputs) == {"query", "key", "value"}
    assert parts.attentions[0].outputs == ("attended",)
    assert {buffer.name for buffer in parts.host.spec.buffers} == {"query", "key", "value", "attended"}


def test_models_without_attention_are_refused() -> None:
    spec = spec_of("llama-q8_0")
    ends = tuple(stage for stage in spec.stages if not any(isinstance(op, Attention) for op in stage.ops))
    headless = ModelSpec(
        **{name: getattr(spec, name) for name in ModelSpec.__dataclass_fields__ if name not in ("stages", "kv")},
        stages=ends,
        kv=(),
    )
    with pytest.raises(UnsupportedModel, match="no layers of attention"):
        parts_of(headless)


def test_rows_wait_until_they_are_given_back() -> None:
    store = RowStore({"x": 3})
    first, second = store.take(50), store.take(40)
    assert store.n_taken == 90
    assert not set(first.tolist()) & set(second.tolist())
    values = np.arange(120, dtype=np.float32).reshape(40, 3)
    store.scatter({"x": values, "unknown": values}, second)
    assert np.array_equal(store.gather(("x",), second[::-1])["x"], values[::-1])
    store.give_back(first)
    n_bytes = store.nbytes
    again = store.take(50)
    assert store.nbytes == n_bytes
    assert not set(again.tolist()) & set(second.tolist())
    assert np.array_equal(store.gather(("x",), second)["x"], values)
