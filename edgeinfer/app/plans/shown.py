"""Shows a plan: as lines for people, as JSON, as a chart.

In: the plans of a model, measured speeds, how they are to be shown. Out: text on standard output, a file. Plans
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.plain_text import echo
from edgeinfer.app.plans.fit import Fit
from edgeinfer.app.plans.planning import Planned
from edgeinfer.app.plans.record import PlannedModel, record_of
from edgeinfer.app.plans.text import (
    adjustment_line,
    core_lines,
    idle_lines,
    image_lines,
    machine_lines,
    model_lines,
    placement_lines,
    speed_lines,
    unpredicted,
)
from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.prediction import MeasuredSpeeds, Plan
from edgeinfer.settings import KVKind

SCREEN_LINES = 24
"""Of a terminal, in which a plan has room."""


@dataclass(frozen=True, slots=True)
class PlanOutput:
    """How a plan is shown; `ram`: what a share of memory came to; `chart`: the file to draw; `kv`: of the plan."""

    as_json: bool
    every_stage: bool
    ram: str | None
    chart: Path | None
    kv: KVKind

    @property
    def ram_lines(self) -> list[str]:
        return [] if self.ram is None else [f"weights   may take {self.ram}"]


@dataclass(frozen=True, slots=True)
class ModelPlans:
    """The model in numbers, what it takes here, the plan (None where nothing is known), and why it cannot be run."""

    facts: PlannedModel
    here: Plan
    planned: Planned | None
    refusal: DoesNotFit | None
    fit: Fit
    bundle: str = ""
    """The bundle file that weights are read from, "" for none."""

    @property
    def bundle_lines(self) -> list[str]:
        return [f"bundle    {self.bundle}"] if self.bundle else []


def show_plan(name: str, plans: ModelPlans, speeds: MeasuredSpeeds, how: PlanOutput, *, is_elsewhere: bool) -> None:
    """Print and draw. Raises DoesNotFit for a plan that cannot be run, after all that is known was shown."""
    shown, refusal = None if is_elsewhere else plans.here, plans.refusal
    if how.as_json:
        record = record_of(plans.facts, shown, plans.planned, speeds, plans.fit)
        echo(json.dumps(record if refusal is None else {**record, "plan": None, "refused": str(refusal)}))
    elif refusal is not None:
        for line in (*model_lines(name, plans.facts, shown, plans.fit), *how.ram_lines):
            echo(line)
    else:
        for line in _lines(name, plans, shown, speeds, how):
            echo(line)
    if how.chart is not None:
        _draw(name, plans, speeds, how, how.chart)
    if refusal is not None:
        raise refusal


def _draw(name: str, plans: ModelPlans, speeds: MeasuredSpeeds, how: PlanOutput, path: Path) -> None:
    from edgeinfer.app.charts.page import write_chart
    from edgeinfer.app.plans.chart import plan_page
    from edgeinfer.app.written_command import written_command

    write_chart(plan_page(name, plans.facts, plans.planned, plans.fit, speeds, how.kv, written_command()), path)
    echo(f"wrote {path}", err=True)


def _lines(name: str, plans: ModelPlans, shown: Plan | None, speeds: MeasuredSpeeds, how: PlanOutput) -> Iterator[str]:
    """The plan for people."""
    planned = plans.planned
    lines = [*model_lines(name, plans.facts, shown, plans.fit, planned), *plans.bundle_lines, *how.ram_lines]
    if planned is None:
        yield from (*lines, *image_lines(plans.facts, plans.fit))
        yield f"decode    {unpredicted(plans.here, speeds)}"
        return
    lines += [*machine_lines(planned.profile), *core_lines(planned), *idle_lines(plans.facts.idle_drafting(planned))]
    lines += [f"refused   {planned.refused}"] if planned.refused else []
    lines += [] if shown is None else [adjustment_line(planned.adjustment)]
    lines += speed_lines(planned, speeds, writes=plans.facts.spec.is_causal)
    lines += image_lines(plans.facts, plans.fit, planned)
    yield from lines
    assumed = [f"  {assumption}" for assumption in planned.profile.assumptions]
    assumed = ["assumed of this machine:", *assumed] if assumed else []
    room = SCREEN_LINES - len(lines) - len(assumed)
    rows = list[str]()
    if planned.batch is None:
        rows = placement_lines(plans.facts.work.stages, planned, None if how.every_stage else room)
    if len(rows) > room and assumed and not how.every_stage:
        assumed = [f"assumed   {len(planned.profile.assumptions)} figures of this machine: --verbose lists them"]
    yield from (*rows, *assumed)
