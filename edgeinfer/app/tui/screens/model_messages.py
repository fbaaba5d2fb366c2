"""What workers of the models screen tell it.

In: results of the catalogue. Out: messages. Workers post them and touch no widget.
"""

from __future__ import annotations

from textual.message import Message

from edgeinfer.app.catalogue.entries import ModelEntry
from edgeinfer.app.catalogue.forecast import Forecast


class EntriesRead(Message):
    """The models that are here, and what was begun to be fetched; `chosen` is the name of the one to go to."""

    def __init__(self, entries: tuple[ModelEntry, ...], chosen: str = "") -> None:
        super().__init__()
        self.entries, self.chosen = entries, chosen


class OffersFound(Message):
    """What a source offers."""

    def __init__(self, source: str, offers: tuple[ModelEntry, ...]) -> None:
        super().__init__()
        self.source, self.offers = source, offers


class ForecastMade(Message):
    """What to expect of a model at a context; None where nothing is known."""

    def __init__(self, key: str, n_context: int, found: Forecast | None) -> None:
        super().__init__()
        self.key, self.n_context, self.found = key, n_context, found


class LookTaken(Message):
    """The header of an offer is known, and with it what the offer is."""

    def __init__(self, entry: ModelEntry) -> None:
        super().__init__()
        self.entry = entry


class ModelRemoved(Message):
    """A model was deleted, or taken off the list; `text` says which."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class PullCancelled(Message):
    """A pull is stopped, or about to stop, and what had arrived of it goes."""


class Measuring(Message):
    """How far the short probe of this machine is; done at 1."""

    def __init__(self, share: float, what: str) -> None:
        super().__init__()
        self.share, self.what = share, what


class ModelTrouble(Message):
    """What went wrong, for people."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
