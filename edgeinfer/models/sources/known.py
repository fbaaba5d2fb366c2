"""A model by its short name: qwen3-4b, qwen3:4b, or qwen3-4b:Q8_0 for another quant than the usual one.

In: a name of `known_models`. Out: what the source behind it delivers, recorded under the short name too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.models.delivery import Delivery, ListedModel, ModelSource, Pull, SourceKind
from edgeinfer.models.download.policy import DownloadPolicy
from edgeinfer.models.known_models import known_model


@dataclass(frozen=True, slots=True)
class KnownSource:
    """A short name, and the source that it stands for."""

    text: str
    behind: ModelSource

    @property
    def key(self) -> str:
        """That of the source behind it."""
        return self.behind.key

    def fetch(self, pull: Pull) -> Delivery:
        """Fetch the model behind the name. Raises as that source does."""
        return self.behind.fetch(pull)


def _matches(text: str) -> bool:
    return known_model(text)[0] is not None and not Path(text).exists()


def _parse(text: str) -> ModelSource:
    from edgeinfer.models.sources import parse_source

    known, quant = known_model(text)
    behind = parse_source(text if known is None else known.source_of(quant))
    return behind if known is None else KnownSource(text.strip().lower() if quant is None else text.strip(), behind)


def _listed(text: str, policy: DownloadPolicy) -> tuple[ListedModel, ...]:
    known, quant = known_model(text)
    if known is None:
        return ()
    found = known.quants if quant is None else {quant: known.quants.get(quant, 0)}
    name = known.name
    return tuple(ListedModel(known.source_of(each), f"{name}-{each}", each, size, 1) for each, size in found.items())


SOURCE = SourceKind("a name of edgeinfer models --recommend", _matches, _parse, _listed)
