"""Entries of the catalogue: models on this machine, and models that can be pulled.

In: the store. Out: `ModelEntry` values. Reads headers of local files; does not use the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.removal import bundle_bytes
from edgeinfer.errors import EdgeInferError, ModelNotFound
from edgeinfer.models.decoder_folder import is_decoder_folder
from edgeinfer.models.delivery import ListedModel
from edgeinfer.models.file_facts import listed_format
from edgeinfer.models.file_names import quant_of
from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE, LocalModel, ModelStore


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model. `path` is None if it first has to be pulled from `source`.

    `nbytes`: size of all of its files, None while unknown; `bundle_bytes`: of its packed weights; `notice`: what is
    wrong; `place`: the other program whose folder holds it, "" for none.
    """

    name: str
    source: str
    quant: str | None
    nbytes: int | None
    n_files: int = 1
    path: Path | None = None
    architecture: str | None = None
    bundle_bytes: int = 0
    is_last_used: bool = False
    place: str = ""
    notice: str = ""

    @property
    def key(self) -> str:
        """Identifies the entry; a local model and the offer it came from have different keys."""
        return f"{'offer' if self.path is None else 'here'} {self.source if self.path is None else self.name}"


def is_here(offer: ModelEntry, here: ModelEntry) -> bool:
    """Whether a local model is what an offer would download. Its recorded source may include a version."""
    asked = offer.source.partition("#")[0]
    return here.name == offer.name and (here.source == asked or here.source.startswith(f"{asked}=="))


def local_entries(store: ModelStore) -> tuple[ModelEntry, ...]:
    """The models on this machine, by name."""
    last = store.last_used()
    return tuple(_local(model, is_last_used=last in (model.name, str(model.path))) for model in store.models())


def starter_offer(store: ModelStore) -> ModelEntry | None:
    """The starter model as an offer; None if it is on this machine."""
    try:
        store.find(STARTER_NAME)
    except ModelNotFound:
        return ModelEntry(STARTER_NAME, STARTER_SOURCE, None, None)
    except EdgeInferError:
        return None
    return None


def offered(listed: ListedModel) -> ModelEntry:
    """One model offered by a source."""
    return ModelEntry(listed.name, listed.source, listed.quant, listed.nbytes, listed.n_files)


def _local(model: LocalModel, *, is_last_used: bool) -> ModelEntry:
    architecture, quant, notice = None, quant_of(model.name), ""
    if is_decoder_folder(model.path):
        architecture = "onnx decoder"
    else:
        try:
            architecture, found = listed_format(model)
            quant = found or quant
        except EdgeInferError as error:
            notice = str(error)
    return ModelEntry(
        model.name,
        model.source,
        quant,
        model.nbytes,
        len(model.paths),
        model.path,
        architecture,
        bundle_bytes(model),
        is_last_used,
        model.place if model.is_elsewhere else "",
        notice,
    )
