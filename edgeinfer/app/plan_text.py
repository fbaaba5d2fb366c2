"""A plan for people: sizes, where everything runs, how fast, and what bounds it.

In: a model's facts and a `Planned`. Out: lines. Equal stages that follow each other are one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from edgeinfer.app.counting import counted
from edgeinfer.app.plan_record import ModelFacts, placed_line
from edgeinfer.app.planning import VERIFIED, Planned
from edgeinfer.models.thresholds import threshold_of, told
from edgeinfer.scheduling.core_plan import CorePlan
from edgeinfer.scheduling.memory import in_gigabytes
from edgeinfer.scheduling.placement import Part, StagePlacement
from edgeinfer.scheduling.plan import Plan, Speeds
from edgeinfer.scheduling.profile import QUIET_SHARE, Profile
from edgeinfer.scheduling.step_time import StageTime, attention_device
from edgeinfer.scheduling.streaming import Kept
from edgeinfer.scheduling.work import StageShape, StageWork

Placed = tuple[StageWork, StagePlacement, StageTime]


def model_lines(
    name: str,
    facts: ModelFacts,
    here: Plan | None,
    n_context: int,
    planned: Planned | None = None,
    *,
    refused: bool = False,
) -> list[str]:
    """What the model is, and what it takes on this machine (`here`), if it is about this one.

    `refused`: it cannot be run, so that what it takes is all of it, and nothing is placed.
    """
    spec = facts.spec
    lines = [
        f"{name}: {spec.architecture}, {facts.n_params / 1e6:.0f} M parameters, {counted(spec.n_layers, 'layer')}",
        *([] if here is None or refused else [f"plan      {_plan_line(here, planned)}"]),
    ]
    threshold = threshold_of(spec)
    lines += [] if threshold is None else [told(threshold)]
    kept = here.kept if here is not None else planned.kept if planned is not None else None
    held = ""
    if here is not None and kept is None:
        held = f", {in_gigabytes(here.need.weight_bytes)} as {here.device} holds them"
    lines.append(f"weights   {in_gigabytes(facts.file_bytes)} in the file{held}")
    if kept is not None:
        lines.append(_kept_line(kept))
    kv_bytes = facts.kv_bytes_per_token * n_context if here is None else here.need.kv_bytes
    per_token = facts.kv_bytes_per_token if here is None else here.need.kv_bytes_per_token
    lines.append(f"KV cache  {per_token} bytes a token, {in_gigabytes(kv_bytes)} for {n_context} tokens")
    if here is not None:
        need = in_gigabytes(here.need.total_bytes)
        lines.append(f"memory    {need} of {in_gigabytes(here.available_bytes)} available")
    return lines


def _kept_line(kept: Kept) -> str:
    """What stays in memory, and how the rest passes through it."""
    through = f"through a window of {in_gigabytes(kept.window_bytes)}"
    if kept.cache_bytes:
        experts = f"a cache of {in_gigabytes(kept.cache_bytes)} for experts"
        through = f"{through} and {experts}" if kept.window_bytes else f"into {experts}"
    if kept.by_neurons:
        room = f"room for {in_gigabytes(kept.residency.neuron_bytes)} of single neurons"
        through = f"{through} and {room}" if kept.window_bytes else f"into {room}"
    why = f"\nlayers    {kept.why}" if kept.why else ""
    return (
        f"streams   {in_gigabytes(kept.pinned_bytes)} of weights stay in memory, {in_gigabytes(kept.flash_bytes)} are "
        f"read from disk in every pass, {through}, {counted(kept.residency.n_readers, 'read')} at a time{why}"
    )


def _plan_line(here: Plan, planned: Planned | None) -> str:
    """Where everything is: on the one device that was counted for, else as it is placed."""
    is_placed = planned is not None and planned.decode.placement.devices != (here.device,)
    return placed_line(planned) if planned is not None and is_placed else here.line


def machine_lines(profile: Profile) -> Iterator[str]:
    """What predictions are made from."""
    how = "imagined" if not profile.measured else f"measured {profile.measured}{', in short' if profile.short else ''}"
    yield f"machine   {profile.name} ({how})"
    if profile.idle_share is not None and profile.idle_share < QUIET_SHARE:
        busy = 100 * (1 - profile.idle_share)
        yield f"          others used {busy:.0f} % of it meanwhile: edgeinfer probe measures again when it is quiet"


def core_lines(planned: Planned) -> Iterator[str]:
    """Which cores take part in what, and how many replicas there should be."""
    if planned.cores is not None and planned.nodes is None:
        decode, prefill = planned.cores.decode, planned.cores.prefill
        same = decode.cores == prefill.cores
        yield f"cores     {_cores(decode)}" + ("" if same else f" for decoding, {_cores(prefill)} for prompts")
    if planned.duty < 1:
        yield f"quiet     computes {100 * planned.duty:.0f} % of the time"
    if planned.nodes is not None:
        teams = planned.nodes.teams
        how = "one team over all nodes" if len(teams) == 1 else f"{len(teams)} replicas, one on each node"
        yield f"nodes     {how}: cores {'; '.join(_cores(team) for team in teams)}"


def speed_lines(planned: Planned, speeds: Speeds) -> Iterator[str]:
    """Predictions, with what was measured beside them."""
    if planned.corrections != (1.0, 1.0):
        prefill, decode = planned.corrections
        yield f"corrected by what answers took here: prompts {prefill:.2f}, decoding {decode:.2f} times as long"
    if planned.n_sequences == 1:
        yield (
            f"prompt    {planned.prefill_tok_s:.0f} tok/s{_measured(speeds.prefill_tok_s)}, first token of "
            f"{planned.n_prompt} after {_seconds(planned.ttft_s)}; bound by {planned.prefill[-1].bound_by}"
        )
    several = "" if planned.n_sequences == 1 else f" for {planned.n_sequences} sequences together"
    bound = "" if planned.batch is not None else f"; bound by {planned.decode.time.bound_by}"
    yield (
        f"decode    {_rate(planned.decode_tok_s)} tok/s{several}, one token at a time"
        f"{_measured(speeds.decode_tok_s, ' with drafts')}{bound}"
    )
    if planned.n_sequences == 1:
        times = planned.verify.seconds / planned.decode.seconds
        yield f"drafts    a pass over {VERIFIED} tokens costs {times:.2f} times one"
    if planned.batch is not None:
        batch = planned.batch
        yield (
            f"batch     {batch.schedule}: {batch.n_resident} sequences cached on the accelerator, "
            f"{batch.n_offloaded} in the machine's memory, {_seconds(batch.seconds)} a pass"
        )


def placement_lines(stages: Sequence[StageWork], planned: Planned) -> Iterator[str]:
    """Where every stage runs in decoding: equal neighbours together, with the seconds of all of them."""
    placed = zip(stages, planned.decode.placement.stages, planned.decode.time.stages, strict=True)
    for _, found in groupby(placed, key=lambda each: (each[0].shape, _where(each[0].shape, each[1]))):
        run: list[Placed] = list(found)
        first, last = run[0][0].name, run[-1][0].name
        name = first if first == last else f"{first} to {last}"
        seconds = sum(took.seconds for _, _, took in run)
        yield f"{name:20s} {_seconds(seconds):>8s}  {_where(run[0][0].shape, run[0][1])}"
    usage = planned.decode.usage
    for device, n_bytes in usage.vram_bytes.items():
        yield f"{device:20s} holds {in_gigabytes(int(n_bytes))} of weights and cache"
    if usage.streamed_bytes:
        yield f"links                carry {in_gigabytes(int(usage.streamed_bytes))} of weights in every pass"
    if planned.prefill_placement is not planned.decode.placement:
        yield "prompts              stream other rows than decoding: --json has both"
    if usage.flash_bytes:
        yield f"disk                 gives {in_gigabytes(int(usage.flash_bytes))} of weights in every pass"


def _where(shape: StageShape, placed: StagePlacement) -> str:
    """Devices of a stage: one name if all of it is in one place, else rows by kind of product."""
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
    """Core numbers as ranges, with the shares of rows where they differ by more than a little."""
    numbers = sorted(plan.cores)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    low, high = 100 * min(plan.shares), 100 * max(plan.shares)
    return f"{shown} ({low:.0f} to {high:.0f} % of the rows each)" if high > 1.1 * low else shown


def _share(part: Part, n_rows: int) -> str:
    held = "" if part.held == "own" else f" {part.held}"
    return f"{part.device}{held} {100 * part.n_rows / n_rows:.0f} %"


def _measured(rate: float | None, how: str = "") -> str:
    return "" if rate is None else f" (measured {_rate(rate)}{how})"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def _seconds(seconds: float) -> str:
    """Seconds for people: 12 us, 3.4 ms, 1.2 s."""
    for unit, size in (("s", 0.9995), ("ms", 0.9995e-3)):
        if seconds >= size:
            return f"{seconds * (1 if unit == 's' else 1e3):.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
