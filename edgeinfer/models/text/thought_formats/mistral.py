"""Magistral and Ministral 3 Reasoning."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="[THINK]",
    end="[/THINK]",
    marks=("[THINK]", "[/THINK]"),
)
