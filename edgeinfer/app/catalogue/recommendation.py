"""Which known models suit this machine: those that fit into memory and answer fast enough, the best first.

In: known models, the memory available, the machine's profile. Out: `Recommendation`s. No header is read: work and
memory are reckoned from the sizes in the list, as plans reckon them from headers. Downloads and measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgeinfer.app.catalogue.forecast import QUICKLY_MEASURED, Forecast
from edgeinfer.models.known_models import KnownModel, Task, known_models
from edgeinfer.scheduling.cost.memory import MemoryNeed, missing_bytes
from edgeinfer.settings import CTX_CAP
from edgeinfer.text_values import size_text

if TYPE_CHECKING:
    from edgeinfer.scheduling.cost.work import ModelWork
    from edgeinfer.scheduling.machine.profile import Profile

READING_TOK_S = 6.0
"""Below this rate, people read faster than a model writes."""
PACKED_SHARE = 1.03
"""Bytes of weights in memory per byte of a file: K-quants take 2 to 4 % more there, others hardly more."""
KV_BYTES, BUFFER_BYTES = 2, 4
N_PROMPT, PASS_TOKENS = 128, 256
BUFFER_VECTORS = 34
"""Vectors of the model's width that working buffers hold for each token of a pass, on average over measured models."""
PASSING_LAYERS = 2
"""Layers whose weights must have room in memory, if the others are read from disk."""
LAYER_OPS, LAYER_VECTORS = 14, 12
"""Ops of a usual layer, and vectors of the model's width that they write."""
DISK_BYTES_S = 1e9
"""What a disk is thought to read where it was not measured: less than an NVMe drive does, more than SATA."""
ENCODER_BUFFER_BYTES = 300_000_000
"""Working buffers of image encoders of some hundred million weights, for an image of four thousand patches."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A known model at one quant, and what to expect of it here."""

    model: KnownModel
    quant: str
    forecast: Forecast

    @property
    def pull_name(self) -> str:
        """What `edgeinfer pull` takes."""
        is_usual = self.quant == next(iter(self.model.quants))
        return self.model.name if is_usual else f"{self.model.name}:{self.quant}"

    @property
    def source(self) -> str:
        """Where the file is."""
        return self.model.source_of(self.quant)

    @property
    def is_fast(self) -> bool:
        """Whether it answers at the speed of reading, with all weights in memory."""
        in_memory = self.forecast.fits and not self.forecast.streamed_bytes
        return in_memory and (self.forecast.decode_tok_s or 0.0) >= READING_TOK_S

    @property
    def _order(self) -> tuple[bool, bool, int]:
        """Those in memory first, then those from disk, each the best first."""
        return not self.forecast.fits, self.forecast.streamed_bytes > 0, -self.model.rank


def recommended(task: Task, available_bytes: int, profile: Profile) -> tuple[Recommendation, ...]:
    """The models for a task that fit into memory and are fast enough, the best first; see `judged`."""
    return tuple(each for each in judged(task, available_bytes, profile) if each.is_fast)


def judged(task: Task, available_bytes: int, profile: Profile) -> tuple[Recommendation, ...]:
    """All known models for a task that open: first those in memory, then those from disk, then those too large.

    Each at its usual quant, or at a smaller one if only that fits. Of models that see, those whose projectors open.
    """
    models = (model for model in known_models().values() if model.does(task))
    found = (_at_best_quant(model, available_bytes, profile) for model in models)
    return tuple(sorted(found, key=lambda each: each._order))


def _at_best_quant(model: KnownModel, available_bytes: int, profile: Profile) -> Recommendation:
    found = [
        Recommendation(model, quant, known_forecast(model, quant, None, available_bytes, profile))
        for quant in model.quants
    ]
    return min(found, key=lambda each: each._order)  # the usual quant comes first among equals


def known_forecast(
    model: KnownModel, quant: str, n_context: int | None, available_bytes: int, profile: Profile
) -> Forecast:
    """What to expect of a known model, from its sizes."""
    from edgeinfer.scheduling.offload.weight_placement import LONGEST_TOKEN_S

    need = known_need(model, quant, n_context)
    room = weight_room(need, model, available_bytes)
    read_bytes = int((need.weight_bytes - room) * model.active_share)
    disk_s = read_bytes / _disk_bytes_s(profile) if read_bytes else 0.0
    fits = room > 0 and disk_s <= LONGEST_TOKEN_S
    seconds = max(disk_s, _token_s(profile, work_of_known(model, quant)))
    held = replace(need, weight_bytes=room) if fits else need
    return Forecast(
        need.n_context,
        fits,
        held.total_bytes,
        available_bytes,
        held.weight_bytes,
        need.kv_bytes,
        need.buffer_bytes,
        read_bytes if fits else 0,
        1.0 / seconds if fits else None,
        is_estimate=True,
        note=_note(need, profile, fits=fits),
        n_params=model.n_params,
        n_context_trained=model.n_context,
        architecture=model.architecture,
        licence=model.licence,
        title=model.good_at,
    )


def known_need(model: KnownModel, quant: str, n_context: int | None = None) -> MemoryNeed:
    """The memory that a known model takes at a context, by default that of new chats; with its image encoder."""
    from edgeinfer.engine.kv.limits import positions_behind

    n_context = min(n_context or CTX_CAP, model.n_context)
    n_in_window = min(n_context, model.window + PASS_TOKENS + positions_behind(n_context))
    whole, windows = (KV_BYTES * numbers for numbers in (model.kv_numbers, model.window_numbers))
    need = MemoryNeed(
        int(model.quants[quant] * PACKED_SHARE),
        whole,
        whole * n_context + windows * n_in_window,
        PASS_TOKENS * model.width * BUFFER_VECTORS * BUFFER_BYTES,
        n_context,
        window_bytes=windows * n_in_window,
    )
    if not model.sees:
        return need
    return need.with_encoder(MemoryNeed(model.projector_bytes, 0, 0, ENCODER_BUFFER_BYTES, n_context))


def weight_room(need: MemoryNeed, model: KnownModel, available_bytes: int) -> int:
    """The bytes of weights that memory has room for; 0 if that is too little to read the others from disk."""
    room = need.weight_bytes - missing_bytes(need, available_bytes)
    passing = need.encoder_bytes + PASSING_LAYERS * (need.weight_bytes - need.encoder_bytes) // model.n_layers
    return room if room >= min(need.weight_bytes, passing) else 0


def _note(need: MemoryNeed, profile: Profile, *, fits: bool) -> str:
    if not fits:
        return f"the model needs {size_text(need.total_bytes)} of memory ({need.parts_text})"
    return QUICKLY_MEASURED if profile.assumptions else "reckoned from its sizes; i looks at its header"


def _disk_bytes_s(profile: Profile) -> float:
    return DISK_BYTES_S if profile.disk is None else profile.disk.best_bytes_s


def work_of_known(model: KnownModel, quant: str) -> ModelWork:
    """A model of equal layers with as many weights as a token is multiplied by."""
    from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape, StageWork

    bytes_per_weight = model.quants[quant] / model.n_params
    n_rows = max(1, model.n_active // (model.n_layers * model.width))
    product = MatMulWork("weights", format_of_quant(quant), bytes_per_weight, n_rows, model.width)
    shape = StageShape((product,), None, LAYER_VECTORS * model.width, LAYER_OPS)
    stages = tuple(StageWork(f"blk.{number}", shape, ("weights",)) for number in range(model.n_layers))
    return ModelWork(model.name, stages, model.width)


def format_of_quant(quant: str) -> str:
    """The format of most matrices of a file with this quant: Q4_K of UD-Q4_K_XL."""
    parts = quant.upper().removeprefix("UD-").split("_")
    return "_".join(parts[:-1] if parts[-1] in ("S", "M", "L", "XL", "MOE") else parts)


def _token_s(profile: Profile, work: ModelWork) -> float:
    """Seconds of a token if all weights are in memory. Which cores are best is not asked: that takes a second."""
    from edgeinfer.app.plans.expectation import adjustment_of
    from edgeinfer.scheduling.prediction import Predictor

    return adjustment_of(profile).tokens_s(Predictor(profile, work).decode_s(1, N_PROMPT))
