"""Model families, one file each: the file name is GGUF's `general.architecture`, `ARCHITECTURE` builds the spec.

In: `Hyperparameters` (metadata and tensor shapes of a header). Out: a ModelSpec. No weights are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edgeinfer.errors import OtherKindOfModel, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.trained_heads import TrainedHead
from edgeinfer.models.variants import WholeRows
from edgeinfer.registry import Registry


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to build the spec of a family.

    `aliases`: other values of `general.architecture` for the same family. `spelling`: the exact value, if it cannot
    be a module name. `unread`: a pattern of tensors that its specs have no use for. `axes`: how files whose rotary
    embedding has three axes (`rope.dimension_sections`) arrange them. `head`: how to build the trained
    head that its files may hold (`models.trained_heads`); None for families whose files hold none that edgeinfer runs.
    `whole`: where rows of an image see each other; None for families whose rows see only what comes before them.
    """

    build: Callable[[Hyperparameters], ModelSpec]
    aliases: tuple[str, ...] = ()
    spelling: str = ""
    unread: str = ""
    axes: Literal["contiguous", "interleaved"] | None = None
    head: Callable[[Hyperparameters], TrainedHead] | None = None
    whole: Callable[[Hyperparameters], WholeRows | None] | None = None


ARCHITECTURES: Registry[Architecture] = Registry("edgeinfer.models.architectures", "ARCHITECTURE", "architecture")


NOT_DONE = ", which edgeinfer does not do"
OF_OTHER_KINDS = (
    (f"writes a text by denoising all of it (diffusion){NOT_DONE}", ("dream", "llada", "llada-moe", "rnd1")),
    (f"has a decoder that attends to an encoder's rows (the encoder alone opens as t5encoder){NOT_DONE}", ("t5",)),
    (
        "guesses tokens for another model: open that one, and name this file with --draft-from",
        ("eagle3", "gemma4-assistant"),
    ),
    (f"guesses tokens for another model{NOT_DONE}", ("dflash",)),
    (f"reads images or sound for another model{NOT_DONE}", ("clip",)),
    (f"makes sound{NOT_DONE}", ("wavtokenizer-dec", "pockettts", "qwen3tts")),
)
"""What files of these names are, for people who try to open them."""


def architecture_of(key: str) -> Architecture:
    """The architecture with that name or alias. Raises UnsupportedModel with a list, or OtherKindOfModel."""
    if key in ARCHITECTURES:
        return ARCHITECTURES.get(key)
    entries = ARCHITECTURES.entries()
    for entry in entries.values():
        if key == entry.spelling or key in entry.aliases:
            return entry
    for kind, others in OF_OTHER_KINDS:
        if key in others:
            raise OtherKindOfModel(f"the model's architecture is {key!r}: it {kind}")
    own = (entry.spelling or name for name, entry in entries.items())
    names = sorted({*own, *(alias for entry in entries.values() for alias in entry.aliases)})
    raise UnsupportedModel(
        f"the model's architecture is {key[:80]!r}; edgeinfer has: {', '.join(names)} (a new one is a file of 20 to 60 "
        "lines: docs/ADDING.md)"
    )
