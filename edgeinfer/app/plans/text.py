"""A plan as text: sizes, where everything runs, how fast, and what limits it.

In: a model's facts and a `Planned`. Out: lines. Stages that run alike are one line, so that a plan fits on a screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgeinfer.app.plain_text import counted, seconds_text
from edgeinfer.app.plans.fit import Fit, memory_text
from edgeinfer.app.plans.images import planned_images
from edgeinfer.app.plans.planning import VERIFIED, Planned
from edgeinfer.app.plans.record import PlannedModel, placed_line
from edgeinfer.app.plans.sound import planned_sound
from edgeinfer.engine.measure.profiles import Adjustment
from edgeinfer.models.rope import told_of_factors
from edgeinfer.models.variants import approximation_of, told
from edgeinfer.scheduling.cost.drafter import PlannedDrafter
from edgeinfer.scheduling.cost.work import StageShape, StageWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.offload.streaming import StreamedModel
from edgeinfer.scheduling.placement.placement import RowRange, StagePlacement
from edgeinfer.scheduling.placement.step_time import StageTime, attention_device
from edgeinfer.scheduling.prediction import MeasuredSpeeds, Plan
from edgeinfer.scheduling.workers.core_plan import CorePlan, IdleDrafting
from edgeinfer.text_values import size_text

SIMILAR = 1.5
"""Prompts whose lengths differ by at most this factor take about as long per token."""

LEAST_ROWS = 4
"""Minimum number of lines for stages, whatever else is shown."""

Placed = tuple[StageWork, StagePlacement, StageTime]


def model_lines(
    name: str, facts: PlannedModel, here: Plan | None, fit: Fit, planned: Planned | None = None
) -> list[str]:
    """What the model is, its sizes, and whether it fits. `here`: its plan, if this machine is the one planned for."""
    spec = facts.spec
    lines = [
        f"{name}: {spec.architecture}, {facts.n_params / 1e6:.0f} M parameters, {counted(spec.n_layers, 'layer')}",
        *([] if here is None or fit.refusal else [f"plan      {_plan_line(here, planned)}"]),
    ]
    lines += told(replace(approximation_of(spec), kv=facts.kv_budget), fit.need.n_context)
    kept = here.kept if here is not None else planned.kept if planned is not None else None
    lines.append(f"file      {size_text(facts.file_bytes)}")
    lines += [f"adapter   {size_text(size)} of it: {path} at scale {scale:g}" for path, scale, size in facts.adapters]
    lines.append(f"fits      {fit.line}")
    total, parts = memory_text(fit.need, fit.available_bytes).split(": ")
    lines += [f"memory    {total}", f"          {parts}"]
    if fit.need.kv_file_bytes:
        lines.append("          predicted speeds leave out reading keys and values from disk")
    if facts.drafter.nbytes:
        lines.append(f"          and {_beside(facts.drafter)}")
    if kept is not None:
        lines.append(_kept_line(kept))
    lines.append(f"context   {fit.need.n_context} tokens, {fit.need.kv_bytes_per_token} bytes of KV cache each")
    lines += [f"          {line}" for line in told_of_factors(spec, fit.need.n_context, also_short=True)]
    return lines


def _beside(drafter: PlannedDrafter) -> str:
    """What a head, a draft model, drafting for itself or a small model that writes takes beside the model."""
    if drafter.writes:
        return f"{size_text(drafter.nbytes)} beside: {drafter.writes}; answers are not this model's own"
    if drafter.is_itself:
        return f"{size_text(drafter.nbytes)} to draft for long texts by itself; --self-draft off leaves it out"
    waiting = size_text(drafter.waiting_bytes)
    rows = f", {waiting} of it for rows of the model that wait to be read" if drafter.waiting_bytes else ""
    drafts = "a trained head or draft model, if there is room; --spec off leaves it out"
    return f"{size_text(drafter.nbytes)} beside{rows}: {drafts}"


def _kept_line(kept: StreamedModel) -> str:
    """What stays in memory, and how the rest passes through it."""
    through = f"through a window of {size_text(kept.window_bytes)}"
    if kept.cache_bytes:
        experts = f"a cache of {size_text(kept.cache_bytes)} for experts"
        through = f"{through} and {experts}" if kept.window_bytes else f"into {experts}"
    if kept.by_records:
        room = f"room for {size_text(kept.placement.record_bytes)} of single neurons"
        through = f"{through} and {room}" if kept.window_bytes else f"into {room}"
    why = f"\nlayers    {kept.why}" if kept.why else ""
    return (
        f"streams   {size_text(kept.pinned_bytes)} of weights stay in memory, {size_text(kept.flash_bytes)} are "
        f"read from disk in every pass, {through}, {counted(kept.placement.n_readers, 'read')} at a time{why}"
    )


def _plan_line(here: Plan, planned: Planned | None) -> str:
    """Where everything runs: the single device that was counted for, otherwise the placement."""
    is_placed = planned is not None and planned.decode.placement.devices != (here.device,)
    return placed_line(planned) if planned is not None and is_placed else here.line


def machine_lines(profile: Profile) -> Iterator[str]:
    """The machine that predictions are made for, and how it was measured."""
    how = "imagined" if not profile.measured else f"measured {profile.measured}{', in short' if profile.short else ''}"
    yield f"machine   {profile.name} ({how})"
    if others := profile.used_by_others:
        told = f"others used {100 * others:.0f} % of it meanwhile"
        yield f"          {told}: edgeinfer probe measures again when it is quiet"


def core_lines(planned: Planned) -> Iterator[str]:
    """Which cores are used for what, and how many replicas there should be."""
    if planned.cores is not None and planned.nodes is None:
        decode, prefill = planned.cores.decode, planned.cores.prefill
        same = decode.cores == prefill.cores
        yield f"cores     {_cores(decode)}" + ("" if same else f" for decoding, {_cores(prefill)} for prompts")
    if planned.duty < 1:
        yield f"quiet     computes {100 * planned.duty:.0f} % of the time"
    if planned.nodes is not None:
        worker_pools = planned.nodes.worker_pools
        how = (
            "one worker pool over all nodes"
            if len(worker_pools) == 1
            else f"{len(worker_pools)} replicas, one on each node"
        )
        yield f"nodes     {how}: cores {'; '.join(_cores(worker_pool) for worker_pool in worker_pools)}"


def idle_lines(found: IdleDrafting | None) -> Iterator[str]:
    """What a draft model could do on cores that decoding leaves idle, and why it does not."""
    if found is None:
        return
    why = "as it would share the memory's rate with the model" if found.is_faster else "not faster"
    yield (
        f"idle      cores {_ranges(found.cores)} when decoding: a token of the draft model is predicted to take "
        f"{seconds_text(found.idle_s)} there, {seconds_text(found.used_s)} on the cores in use: refused, {why}"
    )


def speed_lines(planned: Planned, speeds: MeasuredSpeeds, *, writes: bool = True) -> Iterator[str]:
    """Predictions beside measurements. A model that does not generate (`writes` False) has only a prefill rate."""
    if planned.n_sequences == 1:
        what = "first token" if writes else "embedded"
        yield (
            f"prompt    {planned.prefill_tok_s:.0f} tok/s for {planned.n_prompt} tokens, {what} after "
            f"{seconds_text(planned.ttft_s)}{measured_prompt(speeds, planned.n_prompt)}; "
            f"bound by {planned.prefill[-1].bound_by}"
        )
    if not writes:
        return
    several = "" if planned.n_sequences == 1 else f" for {planned.n_sequences} sequences together"
    bound = "" if planned.batch is not None else f"; bound by {planned.decode.time.bound_by}"
    yield (f"decode    {_rate(planned.decode_tok_s)} tok/s{several}, one token at a time{_measured(speeds)}{bound}")
    if planned.deep is not None:
        deep = planned.deep
        rates = f"{_rate(1 / deep.within_s)} tok/s within the budget, {_rate(1 / deep.whole_s)} with all of them"
        yield f"deep      after {deep.n_cached} tokens {rates} (not exact)"
    if planned.n_sequences == 1:
        times = planned.verify.seconds / planned.decode.seconds
        yield f"drafts    a pass over {VERIFIED} tokens costs {times:.2f} times one"
    if planned.batch is not None:
        batch = planned.batch
        yield (
            f"batch     {batch.schedule}: {batch.n_resident} sequences cached on the accelerator, "
            f"{batch.n_offloaded} in the machine's memory, {seconds_text(batch.seconds)} a pass"
        )


def image_lines(facts: PlannedModel, fit: Fit, planned: Planned | None = None) -> Iterator[str]:
    """With what the model reads images and sound, and what those of a usual size take."""
    images, sound = (each(facts.projector, fit.need, planned) for each in (planned_images, planned_sound))
    if images is not None:
        yield images.line
    if sound is not None:
        yield sound.line


def adjustment_line(adjustment: Adjustment) -> str:
    """How earlier answers on this machine correct predictions."""
    if adjustment == Adjustment():
        return "estimate  by passes alone, as no answer was measured here yet"
    prompt, token = adjustment.prompt, adjustment.token
    begin = "" if adjustment.begin_s is None else f" + {seconds_text(adjustment.begin_s)}"
    step = "" if adjustment.step_s is None else f" + {seconds_text(adjustment.step_s)}"
    return f"corrected by answers given here: prompts x {prompt:.2f}{begin}, tokens x {token:.2f}{step}"


def placement_lines(stages: Sequence[StageWork], planned: Planned, room: int | None = None) -> list[str]:
    """Where every stage runs in decode, and its seconds, in at most `room` lines: layers that run alike share a line.

    `room` None: a line for each stage.
    """
    rest = list(_device_lines(planned))
    placed = zip(stages, planned.decode.placement.stages, planned.decode.time.stages, strict=True)
    groups: dict[object, list[Placed]] = {}
    for number, each in enumerate(placed):
        kind = each[0].name.partition(".")[0]  # the same for all layers, whatever formats their weights have
        groups.setdefault(number if room is None else (kind, _lanes(each[0].shape, each[1])), []).append(each)
    runs = list(groups.values())
    most = len(runs) if room is None else max(LEAST_ROWS, room - len(rest))
    shown = runs if len(runs) <= most else sorted(runs, key=_group_s, reverse=True)[: most - 1]
    rows = []
    for run in (run for run in runs if run in shown):
        stage, where, _ = run[0]
        text = _where(stage.shape, where) if len(run) == 1 else _range_of(run)
        rows.append(_row(_names([stage.name for stage, _, _ in run]), run, text))
    others = [each for run in runs if run not in shown for each in run]
    rows += [_row(f"{len(others)} others", others, "otherwise; --verbose has each")] if others else []
    return rows + rest


def _group_s(group: Sequence[Placed]) -> float:
    return sum(took.seconds for _, _, took in group)


def _row(name: str, group: Sequence[Placed], where: str) -> str:
    """One line for stages that run alike, with their total seconds."""
    return f"{name:20s} {seconds_text(_group_s(group)):>8s}  {where}"


def _lanes(shape: StageShape, placed: StagePlacement) -> tuple[object, ...]:
    """Which devices run a stage and how they hold its weights, regardless of their shares."""
    attends = None if shape.attention is None else attention_device(placed)
    return placed.home, attends, frozenset((part.device, part.held) for part in _parts(placed))


def _parts(placed: StagePlacement) -> list[RowRange]:
    return [part for found in placed.products for part in found if part.n_rows]


def _range_of(group: Sequence[Placed]) -> str:
    """Where stages with the same lanes run, with the smallest and largest share of rows on each device."""
    stage, placed, _ = group[0]
    if len({placed.home, *(part.device for part in _parts(placed))}) == 1:
        return _where(stage.shape, placed)
    shares: dict[str, list[float]] = {}
    for other, where, _ in group:
        for product, parts in zip(other.shape.products, where.products, strict=True):
            for part in (part for part in parts if part.n_rows):
                name = part.device if part.held == "own" else f"{part.device} {part.held}"
                shares.setdefault(name, []).append(100 * part.n_rows / product.n_rows)
    rows = ", ".join(f"{name} {_percents(found)}" for name, found in sorted(shares.items()))
    attends = "" if stage.shape.attention is None else f"; attention: {attention_device(placed)}"
    return f"home {placed.home}; rows: {rows}{attends}"


def _percents(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.0f}", f"{max(shares):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _names(names: Sequence[str]) -> str:
    """Names of stages: "head", "blk.0 to blk.31", or "12: blk.3 … 30" if others lie between."""
    if len(names) == 1:
        return names[0]
    first, last = names[0], names[-1]
    numbers = [int(name.partition(".")[2] or 0) for name in names]
    if numbers[-1] - numbers[0] == len(names) - 1:
        return f"{first} to {last}"
    return f"{len(names)}: {first} … {last.partition('.')[2]}"


def _device_lines(planned: Planned) -> Iterator[str]:
    """What devices hold, and what comes over links and from disk."""
    usage = planned.decode.usage
    for device, n_bytes in usage.vram_bytes.items():
        yield f"{device:20s} holds {size_text(int(n_bytes))} of weights and cache"
    if usage.streamed_bytes:
        yield f"links                carry {size_text(int(usage.streamed_bytes))} of weights in every pass"
    if planned.prefill_placement is not planned.decode.placement:
        yield "prompts              stream other rows than decoding: --json has both"
    if usage.flash_bytes:
        yield f"disk                 gives {size_text(int(usage.flash_bytes))} of weights in every pass"


def _where(shape: StageShape, placed: StagePlacement) -> str:
    """Devices of a stage: one name if all of it runs in one place, else shares of rows by kind of product."""
    parts = [part for found in placed.products for part in found if part.n_rows]
    homes = {placed.home, *(part.device for part in parts)}
    if shape.attention is not None:
        homes.add(attention_device(placed))
    if len(homes) == 1 and all(part.held == "own" for part in parts):
        return placed.home
    shown: dict[str, list[str]] = {}
    for product, found in zip(shape.products, placed.products, strict=True):
        shown.setdefault(" + ".join(_share(part, product.n_rows) for part in found if part.n_rows), []).append(
            product.kind
        )
    split = "; ".join(f"{', '.join(kinds)}: {how}" for how, kinds in shown.items())
    attends = "" if shape.attention is None else f"; attention: {attention_device(placed)}"
    return f"home {placed.home}; {split}{attends}"


def _cores(plan: CorePlan) -> str:
    """Core numbers as ranges, with the shares of rows if they differ by more than 10 %."""
    shown = _ranges(plan.cores)
    low, high = 100 * min(plan.shares), 100 * max(plan.shares)
    return f"{shown} ({low:.0f} to {high:.0f} % of the rows each)" if high > 1.1 * low else shown


def _ranges(cores: Sequence[int]) -> str:
    """Core numbers as ranges."""
    runs: list[list[int]] = []
    for number in sorted(cores):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _share(part: RowRange, n_rows: int) -> str:
    held = "" if part.held == "own" else f" {part.held}"
    return f"{part.device}{held} {100 * part.n_rows / n_rows:.0f} %"


def _measured(speeds: MeasuredSpeeds) -> str:
    """Measured decode rates: one token at a time, and with drafts."""
    plain, drafted = speeds.plain_tok_s, speeds.decode_tok_s
    parts = [] if plain is None else [_rate(plain)]
    parts += [] if drafted is None else [f"{_rate(drafted)} with drafts"]
    return f" (measured {', '.join(parts)})" if parts else ""


def measured_prompt(speeds: MeasuredSpeeds, n_prompt: int) -> str:
    """Measured prefill rate, with the prompt length if it differs clearly from `n_prompt`."""
    if speeds.prefill_tok_s is None:
        return ""
    n = speeds.n_prompt
    is_alike = n is None or n_prompt / SIMILAR <= n <= n_prompt * SIMILAR
    length = "" if is_alike else f" for {n} tokens"
    return f" (measured {_rate(speeds.prefill_tok_s)} tok/s{length})"


def unpredicted(here: Plan, speeds: MeasuredSpeeds) -> str:
    """What is known without a prediction."""
    if speeds.decode_tok_s is not None:
        return f"{speeds.decode_tok_s:.0f} tok/s (measured)"
    if here.kept is not None:
        return "not predicted, as the disk of this machine was not measured; edgeinfer probe does that"
    return "not measured yet; edgeinfer run measures it"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"
