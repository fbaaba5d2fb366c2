"""What drafts for a model, in numbers: a trained head, a second model, or the model itself."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.scheduling.cost.work import ModelWork


@dataclass(frozen=True, slots=True)
class PlannedDrafter:
    """What drafting takes beside the model. nbytes: 0 if there is none, or no use for it.

    waiting_bytes: the part for rows of the model, those shown and those that wait to be read; work: of a draft model.
    is_itself: the model drafts for itself. writes: in words, what writes in the model's place instead of drafting.
    """

    nbytes: int = 0
    waiting_bytes: int = 0
    work: ModelWork | None = None
    is_itself: bool = False
    writes: str = ""
