"""Background work of the models screen: everything that accesses disk or network, or measures.

In: a catalogue, a function that posts messages. Out: the messages below; errors become `ModelTrouble`. Runs in worker
threads and touches no widget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from textual.message import Message
from textual.worker import get_current_worker

from edgeinfer.app.catalogue.catalogue import Catalogue, ModelEntry
from edgeinfer.app.catalogue.forecast import Forecast
from edgeinfer.errors import EdgeInferError

FAILURES = (EdgeInferError, OSError)


class EntriesRead(Message):
    """The local models and unfinished pulls; `chosen` is the name of the model to select."""

    def __init__(self, entries: tuple[ModelEntry, ...], chosen: str = "") -> None:
        super().__init__()
        self.entries, self.chosen = entries, chosen


class OffersFound(Message):
    """The models that a source offers, or without a source those recommended for this machine."""

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


class CatalogueWork:
    """Each method runs in a worker thread."""

    def __init__(self, catalogue: Catalogue, post: Callable[[Message], object]) -> None:
        self._catalogue = catalogue
        self._post = post

    def entries(self, chosen: str) -> None:
        """List models; `chosen` is the name of the model to select."""
        self._try(lambda: EntriesRead(self._catalogue.entries(), chosen))

    def offers(self, source: str) -> None:
        """List the models that a source offers."""
        self._try(lambda: OffersFound(source, self._catalogue.offers(source)))

    def recommended(self) -> None:
        """List known models that suit this machine."""

        def found() -> Message:
            offers = self._catalogue.recommended()
            return OffersFound("", offers) if offers else ModelTrouble("no known model fits this machine")

        self._try(found)

    def look(self, entry: ModelEntry) -> None:
        """Fetch the header of an offer."""

        def taken() -> Message:
            seen = self._catalogue.look(entry)
            known = replace(entry, name=seen.name, quant=seen.quant, nbytes=seen.nbytes, n_files=seen.n_files)
            return LookTaken(known)

        self._try(taken)

    def remove(self, entry: ModelEntry) -> None:
        """Delete a model."""
        self._try(lambda: ModelRemoved(self._catalogue.remove(entry).text))

    def cancel(self, source: str) -> None:
        """Stop a pull and delete its partial download, which can take a while for large files."""

        def cancelled() -> Message:
            self._catalogue.pulls.cancel(source)
            return PullCancelled()

        self._try(cancelled)

    def forecasts(self, entries: tuple[ModelEntry, ...], n_context: int) -> None:
        """Forecast for each model in turn, until the worker is cancelled by a newer request."""
        worker = get_current_worker()
        for entry in entries:
            if worker.is_cancelled:
                return
            try:
                found = self._catalogue.forecast(entry, n_context)
            except FAILURES:
                found = None  # the table shows such a model as unread
            self._post(ForecastMade(entry.key, n_context, found))

    def measurement(self) -> None:
        """Run the short probe of this machine."""

        def progress(what: str, done: int, total: int) -> None:
            self._post(Measuring(min(0.99, done / max(1, total)), what))

        def measured() -> Message:
            self._catalogue.measure_machine(progress=progress)
            return Measuring(1.0, "this machine")

        self._try(measured)

    def _try(self, result: Callable[[], Message]) -> None:
        try:
            self._post(result())
        except FAILURES as error:
            self._post(ModelTrouble(str(error)))
