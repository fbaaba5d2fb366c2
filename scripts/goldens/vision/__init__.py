"""Tiny random vision models as published, one file per family: `CASE` says how each is made and judged."""
