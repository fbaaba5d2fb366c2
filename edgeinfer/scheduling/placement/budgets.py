"""Memory that a plan may use, and what it uses: the machine's, each accelerator's, and the disk for the rest.

In: a profile, available memory, the context. Out: `Budgets` for weights and KV caches; the `Usage` of a placement; the
error that says what is lacking. Knows no times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.cost.memory import FIXED_BUFFER_BYTES, PROGRAM_BYTES, RESERVE_SHARE, SMALLER_MODEL
from edgeinfer.scheduling.cost.seconds import ACTIVATION_BYTES, KV_ELEMENT_BYTES
from edgeinfer.scheduling.cost.work import ModelWork, StageShape
from edgeinfer.scheduling.machine.profile import CPU, DeviceRates, Profile
from edgeinfer.scheduling.placement.placement import Placement, StagePlacement
from edgeinfer.scheduling.placement.step_time import attention_device
from edgeinfer.text_values import size_text

STREAM_BUFFER_BYTES = 64 << 20
"""Two pieces of streamed weights: one computes while the other arrives."""
DRIVER_BYTES = 256 << 20
"""Accelerator memory taken by its driver and compiled kernels."""
USUAL_CONTEXT = 256
"""Shortest context worth proposing."""


@dataclass(frozen=True, slots=True)
class Caching:
    """What KV caches must hold: `n_sequences` with `n_context` tokens each, of elements of a kind."""

    n_context: int
    n_sequences: int = 1
    kv: str = "f16"

    def stage_bytes(self, shape: StageShape) -> float:
        """Bytes of one stage's KV cache, wherever it attends."""
        return shape.kv_bytes_per_token(KV_ELEMENT_BYTES[self.kv]) * self.n_context * self.n_sequences


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes for weights and KV caches: of the machine's memory, and of each accelerator's by name.

    `ram_weight_bytes`: of the machine's memory for weights alone.
    """

    ram_bytes: float
    vram_bytes: Mapping[str, float] = field(default_factory=dict)
    ram_weight_bytes: float = inf


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes that a placement takes; every pass reads `flash_bytes` from disk and sends `streamed_bytes` over links.

    `ram_weight_bytes` of `ram_bytes` are weights.
    """

    ram_bytes: float
    vram_bytes: Mapping[str, float]
    flash_bytes: float
    streamed_bytes: float
    ram_weight_bytes: float = 0.0


def budgets_of(
    profile: Profile,
    work: ModelWork,
    available_ram_bytes: int,
    *,
    most_rows: int = 1,
    other_bytes: int = FIXED_BUFFER_BYTES,
    available_vram_bytes: Mapping[str, int] | None = None,
    ram_weight_bytes: float = inf,
) -> Budgets:
    """Budgets from the memory available now, less a reserve.

    RAM loses the runtime and `other_bytes` (buffers, an embedding table); an accelerator loses its driver, the buffers
    of a pass of `most_rows` tokens and those of streaming. `available_vram_bytes`: by name, where it is known;
    `ram_weight_bytes`: at most this much of RAM for weights.
    """
    ram = available_ram_bytes * (1 - RESERVE_SHARE) - PROGRAM_BYTES - other_bytes
    known = available_vram_bytes or {}
    vram = {
        rates.name: _vram(rates, work, known.get(rates.name, rates.memory_bytes), most_rows)
        for rates in profile.accelerators
    }
    return Budgets(max(0.0, ram), vram, ram_weight_bytes)


def _vram(rates: DeviceRates, work: ModelWork, available_bytes: int, most_rows: int) -> float:
    buffers = activation_bytes(work, most_rows) + STREAM_BUFFER_BYTES + DRIVER_BYTES
    return max(0.0, min(available_bytes, rates.memory_bytes) * (1 - RESERVE_SHARE) - buffers)


def activation_bytes(work: ModelWork, n_rows: int) -> float:
    """Bytes of the values between the ops of the widest stage; logits of one token."""
    widest = 0
    for shape in {stage.shape for stage in work.stages}:
        outputs = sum(product.n_rows for product in shape.products)
        widest = max(widest, outputs if shape.for_outputs else outputs * n_rows)
    return float(ACTIVATION_BYTES * (widest + 2 * work.width * n_rows))


def usage_of(work: ModelWork, placement: Placement, caching: Caching) -> Usage:
    """Bytes that a placement takes with KV caches of a size."""
    known: dict[tuple[int, int], tuple[dict[str, float], float, float]] = {}
    held = {CPU: 0.0}
    flash = streamed = in_ram = 0.0
    for stage, placed in zip(work.stages, placement.stages, strict=True):
        key = (id(stage.shape), id(placed))
        if key not in known:
            known[key] = _stage_usage(stage.shape, placed, caching)
        for device, n_bytes in known[key][0].items():
            held[device] = held.get(device, 0.0) + n_bytes
        flash += known[key][1]
        streamed += known[key][2]
        in_ram += known[key][0].get(CPU, 0.0) - (caching.stage_bytes(stage.shape) if attends_on_cpu(placed) else 0.0)
    return Usage(held.pop(CPU), held, flash, streamed, in_ram)


def attends_on_cpu(placed: StagePlacement) -> bool:
    """Whether a stage has a KV cache in the machine's memory."""
    return attention_device(placed) == CPU


def _stage_usage(shape: StageShape, placed: StagePlacement, caching: Caching) -> tuple[dict[str, float], float, float]:
    """Bytes of a stage by device, on flash, and streamed."""
    held: dict[str, float] = {}
    flash = streamed = 0.0
    for product, parts in zip(shape.products, placed.products, strict=True):
        for part in parts:
            n_bytes = part.n_rows * product.columns * product.bytes_per_weight
            if part.held == "flash":
                flash += n_bytes
                continue
            owner = CPU if part.held == "streamed" else part.device
            streamed += n_bytes if part.held == "streamed" else 0.0
            held[owner] = held.get(owner, 0.0) + n_bytes
    if shape.attention is not None:
        device = attention_device(placed)
        held[device] = held.get(device, 0.0) + caching.stage_bytes(shape)
    return held, flash, streamed


def fits(usage: Usage, budgets: Budgets) -> bool:
    """Whether a placement keeps within all budgets, to the byte."""
    within = all(used <= budgets.vram_bytes.get(name, 0.0) + 0.5 for name, used in usage.vram_bytes.items())
    within = within and usage.ram_weight_bytes <= budgets.ram_weight_bytes + 0.5
    return within and usage.ram_bytes <= budgets.ram_bytes + 0.5


def refusal(work: ModelWork, budgets: Budgets, caching: Caching, has_disk: bool) -> DoesNotFit:
    """The error when nothing fits: how many bytes are missing, and what would fit."""
    cache = sum(caching.stage_bytes(stage.shape) for stage in work.stages)
    ram = min(budgets.ram_bytes, budgets.ram_weight_bytes + cache)
    room = ram + sum(budgets.vram_bytes.values())
    weights = 0.0 if has_disk else work.weight_bytes
    missing = max(1.0, weights + cache - room)
    per_token = cache / max(1, caching.n_context)
    n_context = int(max(0.0, room - weights) / per_token) if per_token else 0
    remedy = SMALLER_MODEL
    if USUAL_CONTEXT <= n_context < caching.n_context:
        remedy = f"a context of {n_context} tokens would fit (--ctx {n_context})"
    elif caching.n_sequences > 1:
        n_sequences = int(max(0.0, room - weights) / (cache / caching.n_sequences))
        if 0 < n_sequences < caching.n_sequences:
            remedy = f"{n_sequences} sequences at once would fit"
    return DoesNotFit(
        f"{work.name} needs {size_text(int(work.weight_bytes))} for weights and {size_text(int(cache))} for "
        f"{caching.n_sequences} x {caching.n_context} tokens of context; {size_text(int(ram))} of "
        f"RAM and {size_text(int(sum(budgets.vram_bytes.values())))} of accelerator memory may be used"
        f"{' and the disk' if has_disk else ''}: {size_text(int(missing))} too much; {remedy}"
    )
