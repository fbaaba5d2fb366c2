"""The goldens of Llama 4, DBRX and others see what these families need: no wrong variant gives the same logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.clip import Clip
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.gated_heads import GatedHeads
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.router import Router
from edgeinfer.models.load import open_model
from tests.golden.goldens import Golden, Player
from tests.golden.test_architecture_logits import (
    Edit,
    change,
    edited,
    no_mean,
    one_expert_more,
    rope_change,
    scaled_as,
    without,
    without_head_norms,
    without_post_norms,
)
from tests.golden.test_converted import FOLDER, golden


def rope_of(name: str, **values: object) -> Edit:
    """An edit of the rotary tables of a buffer."""

    def edit(op: Op) -> Op:
        is_its = isinstance(op, Rope) and op.value == name
        return replace(op, table=replace(op.table, **values)) if is_its else op  # type: ignore[attr-defined]

    return edit


def turning(op: Op) -> Op:
    """Queries that only grow turn too."""
    is_still = isinstance(op, Rope) and op.table.scaling == "still"
    return replace(op, table=replace(op.table, scaling="none", base=1e4)) if is_still else op  # type: ignore[attr-defined]


def without_bare_norms(op: Op) -> Op | None:
    """No norms without weights."""
    return None if isinstance(op, RMSNorm) and op.weight is None else op


def both(*edits: Edit) -> Edit:
    """One edit after another."""

    def edit(op: Op) -> Op | None:
        found: Op | None = op
        for each in edits:
            found = None if found is None else each(found)
        return found

    return edit


def whole(name: str) -> Golden:
    return Golden.read(name)


def peer(name: str) -> Golden:
    return Golden.read(f"peer/{name}")


def converted(name: str) -> Golden:
    return golden(FOLDER / f"{name}.npz")


Source = Callable[[str], Golden]
MISTAKES: dict[str, tuple[Source, str, Edit]] = {
    "llama4: windows that slide": (whole, "llama4-f32", change(Attention, chunked=False)),
    "llama4: no windows": (whole, "llama4-f32", change(Attention, window=None)),
    "llama4: shares multiply results": (whole, "llama4-f32", change(Experts, scales_source=False)),
    "llama4: softmax": (whole, "llama4-f32", change(Router, scoring="softmax")),
    "llama4: two experts": (whole, "llama4-f32", one_expert_more),
    "llama4: queries do not grow": (whole, "llama4-f32", rope_change(growth=0.0)),
    "llama4: queries grow one position later": (whole, "llama4-f32", rope_change(growth_start=0)),
    "llama4: all layers rotated": (whole, "llama4-f32", turning),
    "llama4: no norms of heads": (whole, "llama4-f32", without_bare_norms),
    "llama4: no factors": (converted, "llama4", rope_change(factors=None)),
    "mistral4: plain parts do not grow": (whole, "mistral4-f32", rope_of("plain_query", growth=0.0)),
    "mistral4: rotated parts do not grow": (whole, "mistral4-f32", rope_of("rotated_query", growth=0.0)),
    "mistral4: shares do not add up": (converted, "mistral4", change(Router, normalised=False)),
    "mistral4: scores without YaRN's magnitude": (converted, "mistral4", change(Attention, scale=48**-0.5)),
    "dbrx: nothing clipped": (converted, "dbrx", without(Clip)),
    "dbrx: another limit": (converted, "dbrx", change(Clip, limit=1.5)),
    "dbrx: shares do not add up": (converted, "dbrx", change(Router, normalised=False)),
    "olmo: nothing clipped": (converted, "olmo-clipped", without(Clip)),
    "phimoe: softmax of two": (converted, "phimoe", change(Router, scoring="softmax", normalised=True)),
    "phimoe: RMSNorms": (converted, "phimoe", no_mean),
    "phimoe: no magnitude": (converted, "phimoe", rope_change(magnitude=1.0)),
    "laguna: no gates": (converted, "laguna", without(GatedHeads)),
    "laguna: chosen by shares alone": (converted, "laguna", change(Router, bias=None)),
    "laguna: shares not scaled": (converted, "laguna", change(Router, scale=1.0)),
    "laguna: one base": (converted, "laguna", rope_change(base=5e5)),
    "laguna: scaled in no layer": (converted, "laguna", rope_change(scaling="none", magnitude=1.0)),
    "laguna: no window": (converted, "laguna", change(Attention, window=None)),
    "laguna: no head norms": (converted, "laguna", without_head_norms),
    "cohere2moe: a sum for the mean": (
        converted,
        "cohere2moe",
        both(change(Router, scale=1.0), scaled_as("branch", 1.0)),
    ),
    "cohere2moe: softmax": (converted, "cohere2moe", change(Router, scoring="softmax")),
    "cohere2moe: no window": (converted, "cohere2moe", change(Attention, window=None)),
    "cohere2moe: RMSNorms": (converted, "cohere2moe", no_mean),
    "deepseek2: groups rated by two": (converted, "deepseek2-groups", change(Router, rated_by=2)),
    "deepseek2: all groups": (converted, "deepseek2-groups", change(Router, groups=1, active_groups=1)),
    "grok: no cap": (peer, "grok", change(Attention, soft_cap=None)),
    "grok: other scale": (peer, "grok", change(Attention, scale=0.35)),
    "grok: no embedding scale": (peer, "grok", change(Embed, scale=1.0)),
    "grok: logits whole": (peer, "grok", scaled_as("logits", 1.0)),
    "grok: SiLU": (peer, "grok", change(Experts, activation="silu")),
    "grok: no post norms": (peer, "grok", without_post_norms),
    "puzzle: one count for all layers": (
        peer,
        "nemotron-puzzle",
        both(change(Router, active=3), change(Experts, active=3)),
    ),
    "puzzle: chosen by shares alone": (peer, "nemotron-puzzle", change(Router, bias=None)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_goldens_see_every_feature(mistake: str) -> None:
    source, name, edit = MISTAKES[mistake]
    expected = source(name)
    with open_model(expected.model, expected.n_context) as model:
        spec = edited(model.spec, edit)
    with Player(ReferenceDevice(), expected, spec) as player:
        assert expected.error(player.feed(expected.tokens)) > 1e-3
