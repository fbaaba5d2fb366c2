"""Seed-OSS."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<seed:think>",
    end="</seed:think>",
    marks=("seed:think>",),
)
