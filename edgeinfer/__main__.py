"""Entry point of `edgeinfer` and `python -m edgeinfer`: runs the command line and handles Ctrl-C before and after it.

The interrupt handler is installed before any other import, so an early Ctrl-C prints no traceback.
"""

from __future__ import annotations

import gc
import sys

from edgeinfer.interrupts import end, leave_quietly

APP_PACKAGES = ("typer", "textual", "tomlkit", "rich")
"""Packages that the extra `app` installs."""
OBJECTS_PER_COLLECTION = 200_000
"""Python looks for garbage after 700 new objects; loading modules and a vocabulary makes more than 100,000."""

leave_quietly()


def main() -> None:
    """Run the command line and exit with its exit code."""
    try:
        run_command_line()
    except SystemExit as left:
        leave_quietly()
        end(left.code)
        gc.freeze()  # or Python looks through all objects for garbage as it ends, which takes 50 ms after an answer
        raise


def run_command_line() -> None:
    """Run the command line. If its packages are missing, print what to install and exit with 1."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
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
