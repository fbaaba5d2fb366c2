"""`edgeinfer doctor`: what is slow or wrong on this machine, and what to do about it."""

from __future__ import annotations

import json

import typer

from edgeinfer.app.command import Command
from edgeinfer.app.options import Json


def doctor(as_json: Json = False) -> None:
    """Say what is slow or wrong on this machine, and what to do about it.

    Looks and changes nothing; takes a second. The worst comes first: wrong, slow, worth a note, ok. The exit code is 0
    whatever was found: findings are the answer, not a failure.
    """
    from edgeinfer.app.doctor import examine
    from edgeinfer.app.doctor.machine import this_machine
    from edgeinfer.app.doctor.report import lines, record

    machine = this_machine()
    findings = examine(machine)
    if as_json:
        typer.echo(json.dumps(record(machine, findings), ensure_ascii=False))
    else:
        for line in lines(findings):
            typer.echo(line)


COMMAND = Command(doctor)
