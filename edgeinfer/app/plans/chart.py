"""A plan as a chart: memory by part and place, the seconds of a pass by device and stage, the roofline.

In: a model's facts, a plan or None where nothing is known of the machine, whether it fits. Out: a `ChartPage`. Plans
nothing; all numbers are those of `edgeinfer plan --json`.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgeinfer.app.charts.axes import unit_of
from edgeinfer.app.charts.page import ChartPage
from edgeinfer.app.charts.panels import BarPart, ChartCurve, ChartPanel, CurvePanel, PartedRow, PartsPanel, Spot
from edgeinfer.app.plain_text import counted, seconds_text
from edgeinfer.app.plans.fit import Fit
from edgeinfer.app.plans.planning import Planned
from edgeinfer.app.plans.record import PlannedModel, placed_line
from edgeinfer.app.plans.roofline import DeviceRoof, planned_points, planned_roofs
from edgeinfer.scheduling.cost.seconds import Spent
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.scheduling.placement.step_time import PassTime, attention_device
from edgeinfer.scheduling.prediction import MeasuredSpeeds
from edgeinfer.text_values import size_text

LAYER = "blk."
EVEN, ODD, ATTENTION, OUTSIDE, OTHERS, IDLE = "f0", "p0", "f1", "f2", "f7", ""
STAGES = (
    *(("products, every other layer", EVEN), ("of the layers between", ODD), ("attention", ATTENTION)),
    *(("outside of layers", OUTSIDE), ("all else", OTHERS)),
)
MEMORY = (("weights", "f0"), ("KV cache", "f1"), ("buffers", "f2"), ("program", "f7"), ("of an accelerator", "f4"))
SPENT = (
    *(("memory bandwidth", "f0"), ("arithmetic", "f2"), ("attention", "f1"), ("overhead", "f7")),
    *(("link", "f4"), ("disk", "f3")),
)


def plan_page(
    name: str,
    facts: PlannedModel,
    planned: Planned | None,
    fit: Fit,
    speeds: MeasuredSpeeds,
    kv: str,
    command: str,
) -> ChartPage:
    """The chart of a plan."""
    spec, size = facts.spec, size_text(facts.weight_bytes)
    told = [f"{spec.architecture}, {facts.n_params / 1e6:.0f} M parameters, {counted(spec.n_layers, 'layer')}, {size}"]
    if fit.refusal:
        told.append(f"cannot be run: {fit.line}")
    elif planned is None:
        told.append("nothing is known of the speed yet: edgeinfer probe measures this machine")
    else:
        how = f"measured {planned.profile.measured}" if planned.profile.measured else "imagined"
        rates = f"predicted: prompts {planned.prefill_tok_s:.0f}, answers {planned.decode_tok_s:.1f} tok/s"
        told += [f"{planned.profile.name} ({how}): {placed_line(planned)}", rates]
    panels = [_memory(facts, planned, fit)]
    if planned is not None and not fit.refusal:
        panels += [*_passes(facts.work, planned), _spent(planned), *_roofline(facts.work, planned, speeds, kv)]
    return ChartPage(f"Plan of {name}", tuple(told), tuple(panels), command=command)


def _memory(facts: PlannedModel, planned: Planned | None, fit: Fit) -> ChartPanel:
    """What is where: memory in its parts, each accelerator, what every pass reads from disk."""
    styles, need = dict(MEMORY), fit.need
    accelerators = {} if planned is None or fit.refusal else planned.decode.usage.vram_bytes
    flash_bytes = 0 if planned is None else int(planned.decode.usage.flash_bytes)
    size, unit = unit_of(max(need.total_bytes, facts.file_bytes, *accelerators.values(), flash_bytes), "B")
    parts = tuple(BarPart(f"{part}: {size_text(n)}", n / size, styles[part]) for part, n in need.parts)
    there_is = f"of {size_text(fit.available_bytes)}"
    rows = [PartedRow("memory", parts, size_text(need.total_bytes), fit.available_bytes / size, there_is)]
    for name, n_bytes in accelerators.items():
        limit = fit.vram_bytes.get(name)
        of_all = (None, "") if limit is None else (limit / size, f"of {size_text(limit)}")
        part = BarPart(f"{name}: {size_text(int(n_bytes))}", n_bytes / size, styles["of an accelerator"])
        rows.append(PartedRow(name, (part,), size_text(int(n_bytes)), *of_all))
    for label, n_bytes, style in (("disk, each pass", flash_bytes, "f3"), ("the model's file", facts.file_bytes, "f6")):
        if n_bytes:
            rows.append(PartedRow(label, (BarPart(label, n_bytes / size, style),), size_text(n_bytes)))
    return PartsPanel("Memory, by part and place", unit, tuple(rows), MEMORY if accelerators else MEMORY[:-1])


def _passes(work: ModelWork, planned: Planned) -> Iterator[ChartPanel]:
    """The time of each kind of pass, from left to right, with a row for each device."""
    passes = (
        ("A pass of one token", planned.decode.placement, planned.decode.time),
        ("The last pass of the prompt", planned.prefill_placement, planned.prefill[-1]),
    )
    for title, placement, time in passes:
        size, unit = unit_of(time.seconds, "s")
        rows = []
        for device in placement.devices:
            parts = merged(device_parts(work, placement, time, device))
            busy_s = sum(part.value for part in parts if part.style != IDLE)
            scaled = tuple(BarPart(part.name, part.value / size, part.style) for part in parts)
            rows.append(PartedRow(device, scaled, seconds_text(busy_s)))
        if time.spent.disk and planned.kept is not None:
            reading = BarPart("reading weights", min(time.seconds, time.spent.disk) / size, "f3")
            rows.append(PartedRow("disk", (reading,), seconds_text(time.spent.disk)))
        told = f"{title}: {seconds_text(time.seconds)}, bound by {time.bound_by}"
        yield PartsPanel(told, unit, tuple(rows), STAGES)


def device_parts(work: ModelWork, placement: Placement, time: PassTime, device: str) -> Iterator[BarPart]:
    """What a device does in a pass, stage after stage, in seconds; where it waits, parts without a style."""
    n_layers = 0
    for stage, where, took in zip(work.stages, placement.stages, time.stages, strict=True):
        is_layer = stage.name.startswith(LAYER)
        style = (EVEN, ODD)[n_layers % 2] if is_layer else OUTSIDE
        n_layers += is_layer
        yield BarPart(f"{stage.name}, moving", took.move_s, OTHERS if where.home == device else IDLE)
        attends = attention_device(where) == device
        for place, group in enumerate(took.groups):
            busy_s = sum(lane.seconds for lane in group.lanes if lane.device == device)
            yield BarPart(f"{stage.name}, products", busy_s, style)
            yield BarPart("", max(0.0, group.seconds - busy_s), IDLE)
            if not place:
                yield BarPart(f"{stage.name}, attention", took.attention_s, ATTENTION if attends else IDLE)
        if not took.groups:
            yield BarPart(f"{stage.name}, attention", took.attention_s, ATTENTION if attends else IDLE)
        rest = (OTHERS if is_layer else OUTSIDE) if where.home == device else IDLE
        yield BarPart(f"{stage.name}, all else", took.others_s, rest)
    yield BarPart("between passes", time.fixed_s, OTHERS if device == placement.devices[0] else IDLE)


def merged(parts: Iterator[BarPart]) -> tuple[BarPart, ...]:
    """Neighbours of one style as one part, without empty ones."""
    found: list[BarPart] = []
    for part in parts:
        if part.value <= 0:
            continue
        if found and found[-1].style == part.style:
            found[-1] = BarPart(found[-1].name, found[-1].value + part.value, part.style)
        else:
            found.append(part)
    return tuple(found)


def _spent(planned: Planned) -> ChartPanel:
    """Shares of the work of all devices, which may be done side by side."""
    rows = []
    for label, spent in (("one token", planned.decode.time.spent), ("the prompt", planned.prefill[-1].spent)):
        shares = _shares(spent)
        rows.append(PartedRow(label, shares, f"{spent.largest} {max(part.value for part in shares):.0f} %"))
    used = {part.style for row in rows for part in row.parts if part.value >= 0.05}
    named = tuple(each for each in SPENT if each[1] in used)
    return PartsPanel("What the time of these passes is spent on", "%", tuple(rows), named)


def _shares(spent: Spent) -> tuple[BarPart, ...]:
    values = (spent.memory, spent.arithmetic, spent.attention, spent.overhead, spent.link, spent.disk)
    whole = sum(values) or 1.0
    return tuple(
        BarPart(f"{name}: {value / whole:.1%}", 100 * value / whole, style)
        for (name, style), value in zip(SPENT, values, strict=True)
    )


def _roofline(work: ModelWork, planned: Planned, speeds: MeasuredSpeeds, kv: str) -> Iterator[ChartPanel]:
    """The roofs, and where the passes lie below them; nothing where no device's rates are known."""
    roofs, points = planned_roofs(work, planned), planned_points(work, planned, speeds, kv)
    if not roofs or not points:
        return
    places = [*(point.intensity for point in points), *(roof.ridge for roof in roofs)]
    least, most = min(places) / 2, max(places) * 2
    curves = tuple(_roof_curve(roof, least, most, number_of) for number_of, roof in enumerate(roofs))
    spots = tuple(
        Spot(point.name, (point.intensity, point.madds_s / 1e9), "f3" if point.is_measured else "f1")
        for point in points
    )
    title = "Roofline: what the machine allows, and where the passes lie"
    yield CurvePanel(title, "multiply-adds per byte read", "10⁹ multiply-adds / s", curves, spots)


def _roof_curve(roof: DeviceRoof, least: float, most: float, number_of: int) -> ChartCurve:
    ends = (least, roof.ridge, most) if least < roof.ridge < most else (least, most)
    points = tuple((at, roof.rate(at) / 1e9) for at in ends)
    told = f"{roof.device}: {roof.bytes_s / 1e9:.1f} GB/s, {roof.madds_s / 1e9:.0f} G multiply-adds/s"
    return ChartCurve(told, points, f"l{(0, 4, 5)[number_of % 3]}")
