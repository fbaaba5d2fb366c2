"""What is slow or wrong on this machine, and what to do about it. `checks` is the registry, each file exports `CHECK`.

A check reads a few facts of a machine and judges them. Judging is pure, so that it is tested with recorded facts;
reading never fails for what a system does not tell: of unknown facts nothing is said. Nothing here changes anything.
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
"""wrong: something does not work; slow: it costs speed now; note: worth knowing; ok: nothing to be done."""
STATUSES: tuple[Status, ...] = get_args(Status)
Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix`: what would change it, None if and only if the status is ok.

    `value` is the number of the message, if it is about one, in `unit`.
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
    """What a file of `checks` exports.

    order    where its findings stand among equally bad ones
    summary  what is looked at, in a line
    read     facts of a machine
    judge    what they mean: findings
    unknown  the facts of a machine that tells nothing
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
    """The findings of one check. One that fails says so, and leaves the others be."""
    try:
        return check.judge(check.read(machine))
    except (ImportError, OSError, ValueError, EdgeInferError) as reason:
        message = f"could not be looked at ({check.summary}): {reason}"
        return [Finding(key.replace("_", "-"), "note", message, "the other findings hold; please report this message")]
