"""The models to choose from before any was used: those on this computer, the starter, and the best known ones by size.

In: a catalogue. Out: `FirstModel`s with size, fit, expected speed and what they are good at. Reads the disk and takes a
quick look at this machine's memory; touches no network. Knows no screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.app.catalogue.catalogue import Catalogue, ModelEntry
from edgeinfer.app.catalogue.words import fit_text, name_word, one_line, rate_word, size_word
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE

if TYPE_CHECKING:
    from edgeinfer.app.catalogue.forecast import Forecast

MOST_HERE, MOST_OFFERS = 6, 6
STEP = 0.5
"""An offer is at most this share of the size of the better one before it: a choice of sizes, not of brands."""
STARTER_GOOD_AT = "the starter: tiny and quick, for a first try"
UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class FirstModel:
    """A model to begin with. `name`: what opens it, pulled if it is not here; the rest is text for people."""

    name: str
    label: str
    size: str
    fit: str
    tok_s: str
    good_at: str
    is_here: bool = False

    @property
    def is_starter(self) -> bool:
        """Whether it is the starter model."""
        return self.name == STARTER_NAME


def starter_row(forecast: Forecast | None = None) -> FirstModel:
    """The starter model, which can be offered before anything is known of this machine."""
    from edgeinfer.models.known_models import known_models
    from edgeinfer.text_values import size_text

    size = next(known for known in known_models().values() if known.source == STARTER_SOURCE).download_bytes("Q4_1")
    fit = UNKNOWN if forecast is None else fit_text(forecast)
    return FirstModel(STARTER_NAME, STARTER_NAME, size_text(size), fit, rate_word(forecast), STARTER_GOOD_AT)


def first_models(catalogue: Catalogue) -> tuple[FirstModel, ...]:
    """Models that are here, then the starter, then others to pull, the smallest first."""
    here = [entry for entry in catalogue.entries() if entry.path is not None and not entry.notice]
    rows = [row for entry in here if (row := _here(catalogue, entry)) is not None][:MOST_HERE]
    offers = catalogue.recommended("chat", most=None)
    starter = next((entry for entry in offers if entry.source == STARTER_SOURCE), None)
    others = [entry for entry in offers if entry.source != STARTER_SOURCE]
    chosen = list(by_size_steps(others))[:MOST_OFFERS]
    forecast = None if starter is None else catalogue.forecast(starter)
    return (*rows, starter_row(forecast), *(_offer(catalogue, entry) for entry in reversed(chosen)))


def by_size_steps(offers: Iterable[ModelEntry]) -> Iterator[ModelEntry]:
    """Of offers, the best first: the best one, then the best of at most half its size, and so on."""
    cap_bytes: float | None = None
    for entry in offers:
        if entry.nbytes and (cap_bytes is None or entry.nbytes <= cap_bytes):
            cap_bytes = entry.nbytes * STEP
            yield entry


def _here(catalogue: Catalogue, entry: ModelEntry) -> FirstModel | None:
    """A model on this computer; None if it does not write text or does not fit."""
    from edgeinfer.models.file_facts import is_embedder

    assert entry.path is not None
    try:
        if entry.path.is_file() and is_embedder(entry.path):
            return None
        forecast = catalogue.forecast(entry)
    except (EdgeInferError, OSError):
        return None
    if forecast is None or not forecast.fits:
        return None
    place = f"on this computer, from {entry.place}" if entry.place else "on this computer"
    fit = fit_text(forecast)
    return FirstModel(entry.name, name_word(entry), size_word(entry), fit, rate_word(forecast), place, is_here=True)


def _offer(catalogue: Catalogue, entry: ModelEntry) -> FirstModel:
    forecast = catalogue.forecast(entry)
    good_at = "" if forecast is None else one_line(forecast.title)
    fit = UNKNOWN if forecast is None else fit_text(forecast)
    return FirstModel(entry.source, entry.name, size_word(entry), fit, rate_word(forecast), good_at)
