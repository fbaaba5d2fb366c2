"""The program `edgeinfer`, and `python -m edgeinfer`: the command line, and what an interrupt does before and after it.

Imports nothing first: whoever presses Ctrl-C at once is to see no traceback.
"""

from __future__ import annotations

from edgeinfer.interrupts import end, leave_quietly

leave_quietly()


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    from edgeinfer.app.cli import main as run

    try:
        run()
    except SystemExit as left:
        leave_quietly()
        end(left.code)
        raise


if __name__ == "__main__":
    main()
