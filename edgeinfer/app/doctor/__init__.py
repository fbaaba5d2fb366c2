"""Finds what is slow or wrong on this machine, and how to fix it. `checks` is the registry; each file exports `CHECK`.

A check reads a few facts of a machine and judges them. Judging is pure, so that tests can use recorded facts. Reading
never fails because a system does not report something; unknown facts yield no findings. Findings are lines of text, or
the record of `edgeinfer doctor --json`. Nothing here changes the machine.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from edgeinfer.errors import EdgeInferError
from edgeinfer.registry import Registry
from edgeinfer.steps import DETAIL, Progress, no_progress

if TYPE_CHECKING:
    from edgeinfer.app.doctor.machine import ExaminedMachine

Status = Literal["wrong", "slow", "note", "ok"]
"""wrong: something does not work; slow: it costs speed now; note: worth knowing; ok: nothing to do."""
STATUSES: tuple[Status, ...] = get_args(Status)
Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of looking at one thing. `fix`: how to fix it; None if and only if the status is ok.

    `value` is the number in the message, if there is one, in `unit`.
    """

    name: str
    status: Status
    message: str
    fix: str | None = None
    value: float | None = None
    unit: str | None = None

    def __post_init__(self) -> None:
        if (self.fix is None) != (self.status == "ok"):
            raise ValueError(f"{self.name} is {self.status}, its fix {self.fix!r}: all findings but ok ones have one")


@dataclass(frozen=True, slots=True)
class Check(Generic[Facts]):
    """What each file of `checks` exports.

    order    position of its findings among equally bad ones
    summary  what it looks at, in one line
    read     reads facts of a machine
    judge    turns facts into findings
    unknown  the facts of a machine that reports nothing
    """

    order: int
    summary: str
    read: Callable[[ExaminedMachine], Facts]
    judge: Callable[[Facts], Sequence[Finding]]
    unknown: Facts


CHECKS: Registry[Check[Any]] = Registry(f"{__name__}.checks", "CHECK", "check of doctor")


def examine(machine: ExaminedMachine, progress: Progress = no_progress) -> tuple[Finding, ...]:
    """The findings of all checks, the worst first."""
    checks = sorted(CHECKS.entries().items(), key=lambda item: (item[1].order, item[0]))
    findings: list[Finding] = []
    for number, (key, check) in enumerate(checks):
        progress(f"looking at this machine{DETAIL}{key.replace('_', ' ')}", number, len(checks))
        findings += run_check(key, check, machine)
    return tuple(sorted(findings, key=lambda finding: STATUSES.index(finding.status)))


def run_check(key: str, check: Check[Facts], machine: ExaminedMachine) -> Sequence[Finding]:
    """The findings of one check. If the check itself fails, the finding says so, and other checks are not affected."""
    try:
        return check.judge(check.read(machine))
    except (ImportError, OSError, ValueError, EdgeInferError) as reason:
        message = f"could not be looked at ({check.summary}): {reason}"
        return [Finding(key.replace("_", "-"), "note", message, "the other findings hold; please report this message")]


def finding_lines(findings: Sequence[Finding], *, is_whole: bool = True) -> Iterator[str]:
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


def doctor_record(machine: ExaminedMachine, findings: Sequence[Finding]) -> dict[str, object]:
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
