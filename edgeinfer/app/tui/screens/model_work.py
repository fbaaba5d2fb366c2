"""What the models screen has done by workers: everything that reads disk or network, or measures.

In: a catalogue, and where to post messages. Out: messages, `ModelTrouble` for what went wrong. Touches no widget.
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
    """Each method is for one worker thread."""

    def __init__(self, catalogue: Catalogue, post: Callable[[Message], object]) -> None:
        self._catalogue = catalogue
        self._post = post

    def entries(self, chosen: str) -> None:
        """List models; `chosen` is the name of the one to go to."""
        self._try(lambda: EntriesRead(self._catalogue.entries(), chosen))

    def offers(self, source: str) -> None:
        """List what a source offers."""
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
        """Stop a pull and delete what has arrived: large files take their time to go."""

        def cancelled() -> Message:
            self._catalogue.pulls.cancel(source)
            return PullCancelled()

        self._try(cancelled)

    def forecasts(self, entries: tuple[ModelEntry, ...], n_context: int) -> None:
        """Forecast for models one after the other, until others are asked for."""
        worker = get_current_worker()
        for entry in entries:
            if worker.is_cancelled:
                return
            try:
                found = self._catalogue.forecast(entry, n_context)
            except FAILURES:
                found = None  # the state of such a model is shown as unread
            self._post(ForecastMade(entry.key, n_context, found))

    def measurement(self) -> None:
        """Measure this machine in short."""

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
