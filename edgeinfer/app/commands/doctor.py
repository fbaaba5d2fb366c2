"""`edgeinfer doctor`: what is slow or wrong on this machine, and what to do about it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.plain_text import echo


def doctor(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what is ok too, not only how many things are.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find what is slow or wrong on this machine, with fixes.

    Changes nothing and takes a second. The worst findings come first: wrong, slow, note. The exit code is 0 whatever
    is found. JSON has all findings.
    """
    from edgeinfer.app.doctor import doctor_record, examine, finding_lines
    from edgeinfer.app.doctor.machine import this_machine
    from edgeinfer.app.progress import ProgressLine

    with ProgressLine() as progress:
        machine = this_machine()
        findings = examine(machine, progress)
    if as_json:
        echo(json.dumps(doctor_record(machine, findings), ensure_ascii=False))
    else:
        for line in finding_lines(findings, is_whole=verbose):
            echo(line)


COMMAND = Command(doctor)
