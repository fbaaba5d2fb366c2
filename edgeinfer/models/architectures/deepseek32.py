"""DeepSeek-V3.2 and GLM 5: DeepSeek-V3 whose tokens attend to the `top_k` positions that an indexer rates highest.

In contexts of up to `top_k` tokens these are all positions, so nothing is rated. Source: DeepSeek-V3.2 (arXiv
2512.02556).
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.graph.graph import ContextLimit, ModelSpec
from edgeinfer.models.architectures import Architecture, deepseek2
from edgeinfer.models.hyperparameters import Hyperparameters


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a DeepSeek-V3.2 for contexts without sparse attention. Raises as DeepSeek-V3's."""
    top_k = hp.integer("attention.indexer.top_k")
    why = f"tokens of {hp.architecture} attend to {top_k} positions at most, and edgeinfer has no way to choose them"
    return replace(deepseek2.build(hp), limit=ContextLimit(top_k, why))


ARCHITECTURE = Architecture(build, aliases=("glm-dsa",), unread=r"blk\.\d+\.indexer\..*")
