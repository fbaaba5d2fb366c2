"""The catalogue: local models, offers of a source, forecasts for both, and the pulls that download offers.

In: a store; sources as people write them. Out: `ModelEntry`s, `Forecast`s, `PullStatus`es. Its methods read disk and
network, so call them from worker threads. Contacts the network only for a source that the user named. Knows no screen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.app.catalogue.forecast import Forecast, by_size, estimated, forecast_of
from edgeinfer.app.catalogue.own_projector import OwnProjector, own_projector
from edgeinfer.app.catalogue.pulling import PullQueue
from edgeinfer.app.catalogue.recommendation import Recommendation, known_forecast
from edgeinfer.app.removal import bundle_bytes
from edgeinfer.errors import EdgeInferError, ModelNotFound
from edgeinfer.models.decoder_folder import is_decoder_folder
from edgeinfer.models.delivery import ListedModel
from edgeinfer.models.file_facts import listed_format
from edgeinfer.models.file_names import quant_of
from edgeinfer.models.look import HeaderLook
from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE, LocalModel, ModelStore
from edgeinfer.settings import CTX_CAP

if TYPE_CHECKING:
    from edgeinfer.app.removal import Removed
    from edgeinfer.models.gguf import Header
    from edgeinfer.models.known_models import Task
    from edgeinfer.scheduling.machine.profile import Profile
    from edgeinfer.settings import KVKind
    from edgeinfer.steps import Progress


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model. `path` is None if it first has to be pulled from `source`.

    `nbytes`: size of all of its files, None while unknown; `bundle_bytes`: of its packed weights; `notice`: what is
    wrong; `place`: the other program whose folder holds it, "" for none; `projector`: with which it reads images.
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
    projector: OwnProjector | None = None

    @property
    def key(self) -> str:
        """Identifies the entry; a local model and the offer it came from have different keys."""
        return f"{'offer' if self.path is None else 'here'} {self.source if self.path is None else self.name}"


def is_here(offer: ModelEntry, here: ModelEntry) -> bool:
    """Whether a local model is what an offer would download. Its recorded source may include a version."""
    asked = offer.source.partition("#")[0]
    return here.source == asked or (here.name == offer.name and here.source.startswith(f"{asked}=="))


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
        own_projector(model.path, model.source),
    )


MOST_RECOMMENDED = 10
USUAL_QUANTS = ("Q4_K_M", "Q4_0", "Q4_1", "Q8_0")
"""If a source has several quants, the header of the first of these is read; the others are estimated from it."""


def nothing_held() -> int:
    """Default for `held_bytes`: choosing a model frees no memory."""
    return 0


class Catalogue:
    """Models on this machine and elsewhere. Owns a thread while it pulls something; `close` it, or use `with`."""

    def __init__(
        self,
        store: ModelStore | None = None,
        *,
        kv: KVKind = "f16",
        held_bytes: Callable[[], int] = nothing_held,
        threads: int | None = None,
    ) -> None:
        """`held_bytes`: memory held by the model in use, which becomes free when another model replaces it."""
        self.store = store or ModelStore()
        self.pulls = PullQueue(self.store, self._approve)
        self._kv: KVKind = kv
        self._held_bytes = held_bytes
        self._threads = threads
        self._lock = threading.Lock()
        self._looks: dict[str, HeaderLook] = {}
        self._known: dict[str, Recommendation] = {}
        self._quick: Profile | None = None

    def __enter__(self) -> Catalogue:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Pause all pulls."""
        self.pulls.close()

    def entries(self) -> tuple[ModelEntry, ...]:
        """The local models, the starter model as an offer if it is not here, and unfinished pulls."""
        self.pulls.find_unfinished()
        here = local_entries(self.store)
        starter = starter_offer(self.store)
        offers = [] if starter is None else [starter]
        begun = {found.source: found for found in self.store.unfinished()}
        sources = {*begun, *(each.source for each in self.pulls.statuses() if each.state not in ("done", "cancelled"))}
        for source in sorted(sources - {entry.source for entry in offers}):
            found = begun.get(source)
            name, nbytes = (source, None) if found is None else (found.name, found.nbytes or None)
            offers.append(ModelEntry(name, source, quant_of(name), nbytes))
        return (*here, *offers)

    def offers(self, source: str) -> tuple[ModelEntry, ...]:
        """What a source offers, one entry per quant; the header of one of them is read.

        Raises DownloadFailed, ModelNotFound, BadGGUF.
        """
        found = tuple(offered(listed) for listed in self.store.listed(source))
        by_quant = {entry.quant: entry for entry in reversed(found)}
        usual = next((by_quant[quant] for quant in USUAL_QUANTS if quant in by_quant), found[0])
        try:
            self.look(usual)
        except EdgeInferError:
            return found  # the list is useful even so
        return found

    def recommended(self, task: Task = "chat", most: int | None = MOST_RECOMMENDED) -> tuple[ModelEntry, ...]:
        """Known models that suit this machine, as offers, the best first; `most`: None lists all."""
        from edgeinfer.app.catalogue.recommendation import recommended
        from edgeinfer.engine.kv.limits import memory_for_model

        found = recommended(task, memory_for_model() + self._held_bytes(), self._any_profile())[:most]
        with self._lock:
            self._known |= {each.source: each for each in found}
        return tuple(
            ModelEntry(each.pull_name, each.source, each.quant, each.model.download_bytes(each.quant)) for each in found
        )

    def look(self, entry: ModelEntry) -> HeaderLook:
        """The header of an offer, downloaded once. Raises DownloadFailed, ModelNotFound, BadGGUF."""
        with self._lock:
            known = self._looks.get(entry.source)
        if known is None:
            known = self.store.look(entry.source)
            with self._lock:
                self._looks[entry.source] = known
        return known

    def was_looked_at(self, entry: ModelEntry) -> bool:
        """Whether the header of a model is known."""
        with self._lock:
            return entry.path is not None or entry.source in self._looks

    def forecast(self, entry: ModelEntry, n_context: int | None = None) -> Forecast | None:
        """Forecast for a model at a context length, without network access; None if nothing is known of the model.

        Raises BadGGUF for a local model that cannot be read.
        """
        from edgeinfer.app.plans.measured import kept_profile
        from edgeinfer.engine.kv.limits import memory_for_model

        available, profile = memory_for_model() + self._held_bytes(), kept_profile()
        if entry.path is not None:
            return self._of_local(entry, n_context, profile, available)
        with self._lock:
            looks, known = dict(self._looks), self._known.get(entry.source)
        if (seen := looks.get(entry.source)) is not None:
            return self._of_look(seen, n_context, profile, available)
        if known is not None:
            return known_forecast(known.model, known.quant, n_context, available, self._any_profile())
        sibling = next(
            (seen for source, seen in looks.items() if _repository(source) == _repository(entry.source)), None
        )
        if sibling is not None and entry.nbytes and sibling.n_files == 1:
            of_sibling = self._of_look(sibling, n_context, profile, available)
            return estimated(of_sibling, sibling.nbytes, entry.nbytes)
        if entry.nbytes is None:
            return None
        return by_size(entry.nbytes, n_context or CTX_CAP, available, "judged by its size; i looks at its header")

    def _any_profile(self) -> Profile:
        """The saved profile, else guesses from a look at memory that is taken once."""
        from edgeinfer.app.plans.measured import kept_or_quick_profile, kept_profile

        if (found := kept_profile()) is not None:
            return found
        with self._lock:
            if self._quick is None:
                self._quick = kept_or_quick_profile()
            return self._quick

    def remove(self, entry: ModelEntry) -> Removed:
        """Delete a model and its derived files, or take it off the list. Raises ModelNotFound."""
        from edgeinfer.app.removal import remove_model

        return remove_model(self.store, entry.name)

    def is_referenced(self, entry: ModelEntry) -> bool:
        """Whether the model's files lie outside the store and stay when it is deleted."""
        return entry.path is not None and entry.path.parent.resolve() != self.store.root.resolve()

    def measure_machine(self, formats: tuple[str, ...] = (), progress: Progress | None = None) -> Profile:
        """The machine's profile: the saved one, or the result of a short probe."""
        from edgeinfer.app.plans.measured import profile_or_short_probe

        return profile_or_short_probe(formats, progress)

    def _approve(self, header: Header, nbytes: int) -> None:
        """Approve a model that this machine can run. Raises DoesNotFit."""
        from edgeinfer.app.plans.fit import check_fits

        check_fits(header, nbytes, freed_bytes=self._held_bytes())

    def _of_look(self, seen: HeaderLook, n_context: int | None, profile: Profile | None, available: int) -> Forecast:
        if seen.n_files > 1:
            note = f"judged by its size: the first of its {seen.n_files} files does not list all tensors"
            return by_size(seen.nbytes, n_context or CTX_CAP, available, note)
        from edgeinfer.engine.opening.seeing import fetched_projector

        how, projector = (seen.header, seen.nbytes, n_context), fetched_projector(seen.header)
        return forecast_of(*how, profile=profile, kv=self._kv, available_bytes=available, projector=projector)

    def _of_local(self, entry: ModelEntry, n_context: int | None, profile: Profile | None, available: int) -> Forecast:
        from edgeinfer.app.plans.measured import SpeedLog
        from edgeinfer.engine.opening.seeing import projector_facts
        from edgeinfer.engine.run.executor import AUTO_DEVICE
        from edgeinfer.load_options import LoadOptions
        from edgeinfer.models.decoder_folder import is_decoder_folder
        from edgeinfer.models.file_facts import fingerprint
        from edgeinfer.models.gguf import GGUFFile
        from edgeinfer.scheduling.machine.topology import usable_cores

        if entry.path is None or is_decoder_folder(entry.path):
            note = "a folder with an ONNX decoder is judged by its size"
            return by_size(entry.nbytes or 0, n_context or CTX_CAP, available, note)
        with GGUFFile.open(entry.path) as file:
            known = fingerprint(file)
            projector, _ = projector_facts(entry.path, file, LoadOptions(), entry.source)
            found = forecast_of(
                file,
                entry.nbytes or 0,
                n_context,
                profile=profile,
                kv=self._kv,
                available_bytes=available,
                fingerprint=known,
                measured=SpeedLog().find(known, AUTO_DEVICE, self._threads or len(usable_cores()), self._kv),
                projector=projector,
            )
        return replace(found, note=entry.notice or found.note)


def _repository(source: str) -> str:
    """The part of a source that all quants of a model share."""
    return source.rpartition(":")[0] if source.count(":") > 1 else source
