"""Apriel: tags that are words."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<thinking>",
    end="</thinking>",
    marks=("<thinking>", "</thinking>"),
)
