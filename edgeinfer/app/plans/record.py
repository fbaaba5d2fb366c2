"""A plan as JSON: the keys of the command-line contract.

In: a model's facts and a `Planned`. Out: plain values. Keys may be added, never renamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from edgeinfer.app.plans.fit import Fit, memory_record
from edgeinfer.app.plans.images import NO_PROJECTOR, FoundProjector, planned_images
from edgeinfer.app.plans.planning import DeepPass, Planned
from edgeinfer.app.plans.sound import planned_sound
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.variants import block_budget_of, threshold_of
from edgeinfer.scheduling.cost.drafter import PlannedDrafter
from edgeinfer.scheduling.cost.images import EncoderWork
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import CPU
from edgeinfer.scheduling.offload.streaming import StreamedModel
from edgeinfer.scheduling.placement.placement import Placement, StagePlacement
from edgeinfer.scheduling.placement.step_time import PassTime, StageTime, attention_device
from edgeinfer.scheduling.prediction import MeasuredSpeeds, Plan
from edgeinfer.scheduling.workers.core_plan import CorePlan, IdleDrafting, idle_drafting

Value = object
NO_DRAFTER = PlannedDrafter()


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """Facts from a model's header. `weight_bytes`: size in the file of the tensors used; `file_bytes`: of the file.

    `adapters`: path, scale and bytes of each LoRA adapter; the sizes of the model include them. `drafter`: the trained
    head or draft model, which drafts if there is room beside the model. `projector`: with which it reads images.
    """

    spec: ModelSpec
    work: ModelWork
    n_params: int
    weight_bytes: int
    kv_bytes_per_token: int
    file_bytes: int = 0
    adapters: tuple[tuple[str, float, int], ...] = ()
    drafter: PlannedDrafter = NO_DRAFTER
    kv_budget: int | None = None
    projector: FoundProjector = NO_PROJECTOR

    def formats_on(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Quant formats of the matrices, those with the most bytes first; of encoders, the first ones last."""
        projector, own = self.projector.facts, self.work.formats
        if projector is None or devices != (CPU,):
            return own
        works = (EncoderWork.of(encoder, projector.tensors) for encoder in projector.encoders.all)
        return tuple(dict.fromkeys((*own, *(form for work in works for form in work.trunk.formats[:1]))))

    def idle_drafting(self, planned: Planned) -> IdleDrafting | None:
        """What cores that only prompts use could do for the draft model; None if there are none, or no such model."""
        if self.drafter.work is None or planned.cores is None:
            return None
        used = planned.cores.decode.cores
        idle = sorted({*planned.cores.prefill.cores} - {*used})
        return idle_drafting(planned.profile.cpu, used, idle, self.drafter.work, Pass(1, planned.n_prompt))


def record_of(
    facts: PlannedModel, here: Plan | None, planned: Planned | None, speeds: MeasuredSpeeds, fit: Fit
) -> dict[str, Value]:
    """The plan. `here`: the plan for this machine's device, None for another machine; `planned`: None without rates."""
    images = planned_images(facts.projector, fit.need, planned)
    sound = planned_sound(facts.projector, fit.need, planned)
    return {
        "model": {
            "arch": facts.spec.architecture,
            "params": facts.n_params,
            "file_bytes": facts.file_bytes,
            "weight_bytes": facts.weight_bytes,
            "kv_bytes_per_token": facts.kv_bytes_per_token,
            "adapters": [{"path": path, "scale": scale, "bytes": size} for path, scale, size in facts.adapters],
            "drafter_bytes": facts.drafter.nbytes,
            "drafter_waiting_bytes": facts.drafter.waiting_bytes,
        },
        "approx": threshold_of(facts.spec),
        "kv_budget": facts.kv_budget,
        "prefill_budget": block_budget_of(facts.spec),
        "machine": None if planned is None else planned.profile.name,
        "assumptions": [] if planned is None else list(planned.profile.assumptions),
        "schedule": None if planned is None else planned.decode.schedule,
        "refused": None if planned is None or not planned.refused else planned.refused,
        "predicted": _predicted(here, planned, fit),
        "measured": {
            "prefill_tok_s": speeds.prefill_tok_s,
            "decode_tok_s": speeds.decode_tok_s,
            "n_prompt": speeds.n_prompt,
            "plain_tok_s": speeds.plain_tok_s,
        },
        "memory": memory_record(fit.need, fit.available_bytes),
        "fit": fit.record,
        "images": None if images is None else images.record,
        "sound": None if sound is None else sound.record,
        "plan": here.line if planned is None and here is not None else placed_line(planned) if planned else None,
        "batch": None if planned is None or planned.batch is None else _batch(planned),
        "cores": None if planned is None else _cores(planned) | {"idle_drafting": _idle(facts.idle_drafting(planned))},
        "stages": [] if planned is None else list(_stages(facts.work, planned)),
    }


def _predicted(here: Plan | None, planned: Planned | None, fit: Fit) -> dict[str, Value]:
    if planned is None:
        kept = None if here is None else here.kept
        unknown = ("prefill_tok_s", "decode_tok_s", "ttft_s", "verify_cost", "bound_by", "deep")
        return {
            **dict.fromkeys(unknown),
            "ram_bytes": fit.need.total_bytes,
            "vram_bytes": 0,
            "flash_bytes_per_token": 0 if kept is None else kept.flash_bytes,
            **_kept(kept),
        }
    return {
        "prefill_tok_s": planned.prefill_tok_s,
        "decode_tok_s": planned.decode_tok_s,
        "ttft_s": planned.ttft_s,
        "n_prompt": planned.n_prompt,
        "n_sequences": planned.n_sequences,
        "verify_cost": planned.verify.seconds / planned.decode.seconds if planned.n_sequences == 1 else None,
        "ram_bytes": fit.need.total_bytes,
        "vram_bytes": planned.vram_bytes,
        "flash_bytes_per_token": planned.flash_bytes_per_token,
        "deep": None if planned.deep is None else _deep(planned.deep),
        "bound_by": planned.decode.time.bound_by,
        "corrections": {
            "prefill": planned.adjustment.prompt,
            "decode": planned.adjustment.token,
            "begin_s": planned.adjustment.begin_s,
            "step_s": planned.adjustment.step_s,
        },
        "prefill_bound_by": planned.prefill[-1].bound_by,
        **_kept(planned.kept),
    }


def _deep(deep: DeepPass) -> dict[str, Value]:
    """Decoding at the end of the context, within the budget and without."""
    return {"n_cached": deep.n_cached, "decode_tok_s": 1 / deep.within_s, "whole_tok_s": 1 / deep.whole_s}


def _kept(kept: StreamedModel | None) -> dict[str, Value]:
    """Placement of weights that do not all stay in memory; all values are None if they do."""
    return {
        "pinned_bytes": None if kept is None else kept.pinned_bytes,
        "window_bytes": None if kept is None else kept.window_bytes,
        "cache_bytes": None if kept is None else kept.cache_bytes,
        "n_readers": None if kept is None else kept.placement.n_readers,
        "neuron_bytes": None if kept is None else kept.placement.record_bytes,
        "by_neurons": None if kept is None else kept.by_records,
        "why_layout": None if kept is None or not kept.why else kept.why,
    }


def _cores(planned: Planned) -> dict[str, Value]:
    """Cores by kind of pass, and the worker pools of replicas if one replica per node was considered."""
    plans = planned.cores
    worker_pools = (
        None if planned.nodes is None else [_worker_pool(worker_pool) for worker_pool in planned.nodes.worker_pools]
    )
    return {
        "decode": None if plans is None else _worker_pool(plans.decode),
        "prefill": None if plans is None else _worker_pool(plans.prefill),
        "replicas": worker_pools,
        "duty": planned.duty,
    }


def _idle(found: IdleDrafting | None) -> dict[str, Value] | None:
    return None if found is None else {"cores": list(found.cores), "idle_s": found.idle_s, "used_s": found.used_s}


def _worker_pool(plan: CorePlan) -> dict[str, Value]:
    return {"cores": list(plan.cores), "shares": list(plan.shares), "seconds": plan.seconds}


def _batch(planned: Planned) -> dict[str, Value]:
    batch = planned.batch
    assert batch is not None
    return {
        "schedule": batch.schedule,
        "pass_s": batch.seconds,
        "n_resident": batch.n_resident,
        "n_offloaded": batch.n_offloaded,
        "tok_s": batch.tok_s,
    }


def _stages(work: ModelWork, planned: Planned) -> Iterator[dict[str, Value]]:
    mixed = planned.kept is not None
    yield from _phase("decode", work, planned.decode.placement.stages, planned.decode.time, mixed=mixed)
    yield from _phase("prefill", work, planned.prefill_placement.stages, planned.prefill[-1], mixed=mixed)


def _phase(
    phase: str, work: ModelWork, placed: tuple[StagePlacement, ...], time: PassTime, *, mixed: bool
) -> Iterator[dict[str, Value]]:
    """`mixed`: rows that stay in memory are interleaved with rows read from disk."""
    for stage, where, took in zip(work.stages, placed, time.stages, strict=True):
        for group in took.groups:
            for number in range(group.first, group.stop):
                lanes = _lanes(where, took, number)
                if mixed:
                    lanes = [{**lane, "held": None} for lane in lanes]
                yield {
                    "phase": phase,
                    "ops": stage.tensors[number].removesuffix(".weight"),
                    "lanes": lanes,
                    "seconds": group.seconds / (group.stop - group.first),
                }
        if stage.shape.attention is not None:
            yield _whole(phase, f"{stage.name}.attention", attention_device(where), took.attention_s)
        yield _whole(phase, f"{stage.name}.others", where.home, took.move_s + took.others_s)


def _whole(phase: str, ops: str, device: str, seconds: float) -> dict[str, Value]:
    return {
        "phase": phase,
        "ops": ops,
        "lanes": [{"device": device, "rows": None, "seconds": seconds}],
        "seconds": seconds,
    }


def _lanes(where: StagePlacement, took: StageTime, number: int) -> list[dict[str, Value]]:
    """Row ranges of one matrix; its seconds are its share of the lane's time for the whole group."""
    group = next(group for group in took.groups if group.first <= number < group.stop)
    seconds = {lane.device: lane.seconds for lane in group.lanes}
    rows_of = {
        lane.device: sum(
            part.n_rows
            for parts in where.products[group.first : group.stop]
            for part in parts
            if part.device == lane.device
        )
        for lane in group.lanes
    }
    return [
        {
            "device": part.device,
            "rows": [part.start, part.stop],
            "held": part.held,
            "seconds": seconds[part.device] * part.n_rows / rows_of[part.device],
        }
        for part in where.products[number]
        if part.n_rows
    ]


def placed_line(planned: Planned) -> str:
    """Where everything runs, in one line."""
    usage = planned.decode.usage
    extra = [
        text
        for text, n_bytes in (
            (f"{usage.streamed_bytes / 1e6:.0f} MB a pass over links", usage.streamed_bytes),
            (f"{usage.flash_bytes / 1e6:.0f} MB a pass from disk", usage.flash_bytes),
        )
        if n_bytes
    ]
    return "; ".join([stages_text(planned.decode.placement), *extra])


def stages_text(placement: Placement) -> str:
    """Number of stages by device; devices that share a stage are joined by a plus."""
    counts = Counter("+".join(Placement((stage,)).devices) for stage in placement.stages)
    return ", ".join(f"{n} {'stage' if n == 1 else 'stages'} on {devices}" for devices, n in counts.items())
