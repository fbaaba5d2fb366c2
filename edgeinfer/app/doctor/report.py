"""Formats findings for people and for programs.

In: findings, and the machine they are about. Out: lines of text, or the record of `edgeinfer doctor --json`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from edgeinfer.app.doctor import STATUSES, Finding

if TYPE_CHECKING:
    from edgeinfer.app.doctor.machine import ExaminedMachine


def lines(findings: Sequence[Finding], *, is_whole: bool = True) -> Iterator[str]:
    """One line per finding that needs action, with its fix below; then the ok findings, or only their number."""
    pressing = [finding for finding in findings if finding.status != "ok"]
    fine = [finding for finding in findings if finding.status == "ok"]
    shown = [*pressing, *(fine if is_whole else ())]
    name_width = max((len(finding.name) for finding in shown), default=0)
    status_width = max(len(status) for status in STATUSES)
    indent = " " * (status_width + name_width + 4)
    for finding in shown:
        yield f"{finding.status:<{status_width}}  {finding.name:<{name_width}}  {finding.message}"
        if finding.fix is not None:
            yield f"{indent}→ {finding.fix}"
    counts = {status: sum(finding.status == status for finding in findings) for status in STATUSES}
    counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    rest = "" if is_whole or not fine else "; --verbose shows those that are ok"
    nothing = "" if pressing else "nothing to do: "
    yield f"{nothing}{counted}{rest}"


def record(machine: ExaminedMachine, findings: Sequence[Finding]) -> dict[str, object]:
    """The same facts with stable keys; unknown values are null."""
    import edgeinfer
    from edgeinfer.engine.measure.profiles import machine_name

    topology = machine.topology
    described = {
        "cpu": machine_name(),
        "cores": len(topology.cores),
        "processors": topology.n_installed,
        "ram_bytes": topology.total_bytes or None,
        "available_bytes": topology.available_bytes or None,
        "system": f"{platform.system()} {platform.release()}",
        "is_virtual": machine.is_virtual,
        "python": platform.python_version(),
        "edgeinfer": edgeinfer.__version__,
    }
    return {"machine": described, "findings": [asdict(finding) for finding in findings]}
