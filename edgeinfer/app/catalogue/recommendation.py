"""Which known models suit this machine: those that fit into memory and answer fast enough, the best first.

In: known models, the memory available, the machine's profile if one is saved. Out: `Recommendation`s. No header is
read: work and memory are reckoned from the sizes in the list. Downloads and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.app.catalogue.forecast import UNMEASURED, Forecast
from edgeinfer.models.known_models import ANSWERED, KnownModel, Task, known_models
from edgeinfer.scheduling.cost.memory import MemoryNeed, missing_bytes
from edgeinfer.settings import CTX_CAP

if TYPE_CHECKING:
    from edgeinfer.scheduling.cost.work import ModelWork
    from edgeinfer.scheduling.machine.profile import Profile

READING_TOK_S = 6.0
"""Below this rate, people read faster than a model writes."""
UNMEASURED_BYTES = 3e9
"""Where the machine is not measured: most bytes of weights that a token may need."""
KV_BYTES = 2
N_PROMPT = 128
LAYER_OPS, LAYER_VECTORS = 14, 12
"""Ops of a usual layer, and vectors of the model's width that they write."""
NO_IMAGES = "edgeinfer reads no images yet; models that see are listed with --task chat, for their text part"


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
        """Whether it answers at the speed of reading, as far as is known."""
        rate = self.forecast.decode_tok_s
        if rate is not None:
            return rate >= READING_TOK_S
        return self.model.n_active / self.model.n_params * self.model.quants[self.quant] <= UNMEASURED_BYTES


def recommended(task: Task, available_bytes: int, profile: Profile | None) -> tuple[Recommendation, ...]:
    """The models for a task that open, fit and are fast enough here, the best first.

    Each at its usual quant, or a smaller one if that does not fit. Empty for a task that edgeinfer does not do.
    """
    if task not in ANSWERED:
        return ()
    models = (model for model in known_models().values() if task in model.tasks and model.opens)
    found = [each for each in _at_quants(models, available_bytes, profile) if each.forecast.fits and each.is_fast]
    return tuple(sorted(found, key=lambda each: -each.model.rank))


def _at_quants(models: Iterable[KnownModel], available_bytes: int, profile: Profile | None) -> Iterable[Recommendation]:
    for model in models:
        for quant in model.quants:
            forecast = known_forecast(model, quant, None, available_bytes, profile)
            if forecast.fits:
                yield Recommendation(model, quant, forecast)
                break


def known_forecast(
    model: KnownModel, quant: str, n_context: int | None, available_bytes: int, profile: Profile | None
) -> Forecast:
    """What to expect of a known model, from its sizes."""
    n_context = min(n_context or CTX_CAP, model.n_context)
    per_token = model.kv_numbers * KV_BYTES
    nbytes = model.quants[quant]
    need = MemoryNeed(nbytes, per_token, per_token * n_context, 0, n_context)
    rate = None if profile is None else _decode_tok_s(profile, work_of_known(model, quant))
    return Forecast(
        n_context,
        not missing_bytes(need, available_bytes),
        need.total_bytes,
        available_bytes,
        nbytes,
        need.kv_bytes,
        decode_tok_s=rate,
        is_estimate=True,
        note=UNMEASURED if profile is None else "reckoned from its sizes; i looks at its header",
        n_params=model.n_params,
        n_context_trained=model.n_context,
        architecture=model.architecture,
        licence=model.licence,
        title=model.good_at,
    )


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


def _decode_tok_s(profile: Profile, work: ModelWork) -> float:
    from edgeinfer.app.plans.expectation import adjustment_of
    from edgeinfer.engine.run.workers import worker_pools_of
    from edgeinfer.scheduling.prediction import Predictor

    decoding, _ = worker_pools_of(profile, work)
    return 1.0 / adjustment_of(profile).tokens_s(Predictor(decoding, work).decode_s(1, N_PROMPT))
