"""Finds what is slow or wrong on this machine, and how to fix it. `checks` is the registry; each file exports `CHECK`.

A check reads a few facts of a machine and judges them. Judging is pure, so that tests can use recorded facts. Reading
never fails because a system does not report something; unknown facts yield no findings. Nothing here changes the
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from edgeinfer.errors import EdgeInferError
from edgeinfer.registry import Registry

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


def examine(machine: ExaminedMachine) -> tuple[Finding, ...]:
    """The findings of all checks, the worst first."""
    checks = sorted(CHECKS.entries().items(), key=lambda item: (item[1].order, item[0]))
    findings = [finding for key, check in checks for finding in run_check(key, check, machine)]
    return tuple(sorted(findings, key=lambda finding: STATUSES.index(finding.status)))


def run_check(key: str, check: Check[Facts], machine: ExaminedMachine) -> Sequence[Finding]:
    """The findings of one check. If the check itself fails, the finding says so, and other checks are not affected."""
    try:
        return check.judge(check.read(machine))
    except (ImportError, OSError, ValueError, EdgeInferError) as reason:
        message = f"could not be looked at ({check.summary}): {reason}"
        return [Finding(key.replace("_", "-"), "note", message, "the other findings hold; please report this message")]
