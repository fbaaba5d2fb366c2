"""The tokens of encoders like CLIP: a class token, if the file has one, then the patches of one grid.

In: a projector file's header and a grid. Out: hidden rows in the order of the trunk, what its positions are made of,
and the rows that remain after it. The class token has no patch: its row begins as the class embedding alone, so a bias
of the patches is added with their positions instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order
from edgeinfer.models.vision.encoder import Size

CLASS, BIAS, POSITIONS = "v.class_embd", "v.patch_embd.bias", "v.position_embd.weight"


@dataclass(frozen=True, slots=True)
class TokensOfGrid:
    """The tokens of a grid, its patches in blocks of block x block that follow one another."""

    hp: Hyperparameters
    grid: Size
    block: int = 1

    @property
    def has_class(self) -> bool:
        """Whether a class token comes first."""
        return CLASS in self.hp.tensors

    @property
    def n_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def n_tokens(self) -> int:
        """Patches, and the class token."""
        return self.n_patches + self.has_class

    def input_rows(self, patches: Floats) -> Floats:
        """Patches row by row as the trunk takes them: float32[n_tokens, P]."""
        ordered = patches[block_order(self.grid, self.block)]
        return np.concatenate([np.zeros_like(ordered[:1]), ordered]) if self.has_class else ordered

    def without_class(self, rows: Floats) -> Floats:
        """Rows of patches alone: float32[n_patches, D]."""
        return rows[1:] if self.has_class else rows

    def positions(self, width: int) -> tuple[Weight, Callable[[Floats, Size], Floats]]:
        """The table of positions, which `constants` follow, and what is added to the tokens: float32[n_tokens, D]."""
        n_tokens, has_bias = self.n_tokens, self._has_bias
        order = block_order(self.grid, self.block)

        def added(table: Floats, _: Size) -> Floats:
            rows: Floats = table[order]
            if not self.has_class:
                return rows
            rows = table[np.concatenate([[0], 1 + order])]
            rows[0] += table[n_tokens]
            if has_bias:
                rows[1:] += table[n_tokens + 1]
            return rows

        return self.hp.kernel(POSITIONS, n_tokens, width), added

    def constants(self, width: int) -> tuple[Weight, ...]:
        """The class embedding, and the bias of patches."""
        if not self.has_class:
            return ()
        return self._vector(CLASS, width), *((self._vector(BIAS, width),) if self._has_bias else ())

    @property
    def _has_bias(self) -> bool:
        return self.has_class and BIAS in self.hp.tensors

    def _vector(self, name: str, width: int) -> Weight:
        info = self.hp.tensors[name]
        if np.prod(info.shape) != width:
            raise BadGGUF(f"{name} has shape {info.shape}; the encoder's width is {width}")
        return Weight(name, 0, width, 1)
