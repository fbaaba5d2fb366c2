"""All answers from the start, each with a seed of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.several.leading import Leader, Strategy
from edgeinfer.models.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Independent:
    """Has no options."""

    n_logprobs: ClassVar[None] = None
    reads_entropy: ClassVar[bool] = False
    reads_forks: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    def n_first(self, n: int) -> int:
        """All of them."""
        return n

    def begin(self, n: int, request: Request, tokenizer: Tokenizer) -> Leader | None:
        """Nobody leads them."""
        return None


STRATEGY = Strategy(Independent, "all from the start, each with its own seed")
