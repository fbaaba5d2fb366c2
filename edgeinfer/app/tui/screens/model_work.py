"""Background work of the models screen: everything that accesses disk or network, or measures.

In: a catalogue, a function that posts messages. Out: messages; errors become `ModelTrouble`. Touches no widget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from textual.message import Message
from textual.worker import get_current_worker

from edgeinfer.app.catalogue.catalogue import Catalogue
from edgeinfer.app.catalogue.entries import ModelEntry
from edgeinfer.app.tui.screens.model_messages import (
    EntriesRead,
    ForecastMade,
    LookTaken,
    Measuring,
    ModelRemoved,
    ModelTrouble,
    OffersFound,
    PullCancelled,
)
from edgeinfer.errors import EdgeInferError

FAILURES = (EdgeInferError, OSError)


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
