"""The program `edgeinfer`, and `python -m edgeinfer`: the command line, and what an interrupt does before and after it.

Imports nothing first: whoever presses Ctrl-C at once is to see no traceback.
"""

from __future__ import annotations

import sys

from edgeinfer.interrupts import end, leave_quietly

APP_PACKAGES = ("typer", "textual", "tomlkit", "rich")
"""What the extra `app` installs."""

leave_quietly()


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    try:
        run_command_line()
    except SystemExit as left:
        leave_quietly()
        end(left.code)
        raise


def run_command_line() -> None:
    """Run the command line. Exits with 1 and a line that says what to install where its packages are missing."""
    try:
        from edgeinfer.app.cli import main as run
    except ModuleNotFoundError as missing:
        if missing.name not in APP_PACKAGES:
            raise
        sys.stderr.write(f"error: the command line needs {missing.name}: pip install 'edgeinfer[app]'\n")
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
