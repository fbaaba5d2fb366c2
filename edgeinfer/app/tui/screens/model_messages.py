"""Messages from the workers of the models screen.

In: results of the catalogue. Out: messages. Workers post them and touch no widget.
"""

from __future__ import annotations

from textual.message import Message

from edgeinfer.app.catalogue.entries import ModelEntry
from edgeinfer.app.catalogue.forecast import Forecast


class EntriesRead(Message):
    """The local models and unfinished pulls; `chosen` is the name of the model to select."""

    def __init__(self, entries: tuple[ModelEntry, ...], chosen: str = "") -> None:
        super().__init__()
        self.entries, self.chosen = entries, chosen


class OffersFound(Message):
    """The models that a source offers."""

    def __init__(self, source: str, offers: tuple[ModelEntry, ...]) -> None:
        super().__init__()
        self.source, self.offers = source, offers


class ForecastMade(Message):
    """The forecast for a model at a context size; None if nothing is known."""

    def __init__(self, key: str, n_context: int, found: Forecast | None) -> None:
        super().__init__()
        self.key, self.n_context, self.found = key, n_context, found


class LookTaken(Message):
    """The header of an offer has been fetched, and the entry completed from it."""

    def __init__(self, entry: ModelEntry) -> None:
        super().__init__()
        self.entry = entry


class ModelRemoved(Message):
    """A model was deleted, or taken off the list; `text` says which."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class PullCancelled(Message):
    """A pull has stopped or is about to; its partial download is deleted."""


class Measuring(Message):
    """Progress of the short probe of this machine, from 0 to 1."""

    def __init__(self, share: float, what: str) -> None:
        super().__init__()
        self.share, self.what = share, what


class ModelTrouble(Message):
    """An error message for the user."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
