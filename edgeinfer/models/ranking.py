"""Heads of rerankers, which turn a pooled hidden row into scores.

In: a graph, and how the family's head differs. Out: the head in the graph, or a refusal. Uses GGUF's tensor names;
independent of the families. Raises BadGGUF for wrong shapes, UnsupportedModel for classifiers.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import Bend, RankHead, Row
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph

RANK = 4
"""GGUF's number for pooling by ranking."""
OUT, DENSE, NORM = "cls.output.weight", "cls.weight", "cls.norm.weight"


class HeadKind(TypedDict, total=False):
    """What heads of a family have in common, as in `RankHead`."""

    row: Row
    bend: Bend


def ranks(g: ModelGraph, *, unsaid: bool = False, **kind: Unpack[HeadKind]) -> bool:
    """Whether the file ranks documents; if so, the ranking head is added to the graph.

    `unsaid`: a head with one score means ranking, whatever the file says of its pooling. llama.cpp's converter does not
    state that cross-encoders rank.
    """
    hp, sizes = g.hp, g.sizes
    if OUT not in hp.tensors:
        return False
    out = hp.columns_of(OUT, sizes.width)
    if hp.integer("pooling_type", 0, least=0) != RANK and not (unsaid and out.n_rows == 1):
        return False
    if out.n_rows > 2:
        raise UnsupportedModel(f"this reranker tells {out.n_rows} kinds apart; edgeinfer has those of one score or two")
    dense = hp.matrix(DENSE, (sizes.width, sizes.width)) if DENSE in hp.tensors else None
    layers = (dense, hp.bias("cls.bias", sizes.width)), (out, hp.bias("cls.output.bias", out.n_rows))
    g.rank(RankHead(*layers, hp.bias(NORM, sizes.width), sizes.epsilon, **kind))
    return True


def ranks_or_embeds(g: ModelGraph, **kind: Unpack[HeadKind]) -> bool:
    """The same for encoders, of which those with another head are refused."""
    has_head = any(name.startswith("cls.") for name in g.hp.tensors)
    if has_head and not ranks(g, unsaid=True, **kind):
        raise UnsupportedModel(f"this {g.hp.architecture} is a classifier; edgeinfer has those that embed or rank")
    return has_head


def without_classifier(hp: Hyperparameters, why: str = "") -> None:
    """Raise UnsupportedModel if the file has the head of a classifier or a reranker."""
    if any(name.startswith("cls.") for name in hp.tensors):
        raise UnsupportedModel(
            f"this {hp.architecture} ranks or classifies{why}; edgeinfer has those that embed, and rerankers of bert "
            "(bge-reranker-v2-m3, jina-reranker-v2), ModernBERT, NeoBERT and Qwen3-Reranker"
        )
