"""Runs the command line with its output in a file and with further variables, where the system does neither.

In, as words: the log's path, NAME=VALUE for each variable, then the command line after `--`. Out: the exit code. The
Windows task scheduler starts it. A log over a megabyte gives its place to a new one when the service starts; one before
it is kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from edgeinfer.private_files import private_folder, privately

LOG_CAP_BYTES = 1 << 20


def main(words: Sequence[str]) -> None:
    """Run `edgeinfer` with the words after `--`; does not return."""
    at = words.index("--")
    log, variables, arguments = Path(words[0]), words[1:at], words[at + 1 :]
    for each in variables:
        name, _, value = each.partition("=")
        os.environ[name] = value
    _write_into(log)
    from edgeinfer.__main__ import main as run

    sys.argv = ["edgeinfer", *arguments]
    run()


def _write_into(log: Path) -> None:
    """Send standard output and error to the log, also of what is not Python."""
    private_folder(log.parent)
    if log.exists() and log.stat().st_size > LOG_CAP_BYTES:
        os.replace(log, log.with_suffix(".before.log"))
    file = open(  # noqa: SIM115 - stays open
        log, "a", encoding="utf-8", errors="backslashreplace", buffering=1, opener=privately
    )
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        if stream is not None:  # a program without a console has none
            stream.flush()
            os.dup2(file.fileno(), number)
    sys.stdout = sys.stderr = file


if __name__ == "__main__":
    main(sys.argv[1:])
