"""`python -m edgeinfer` is the command line."""

from __future__ import annotations

from edgeinfer.app.cli import main

if __name__ == "__main__":
    main()
