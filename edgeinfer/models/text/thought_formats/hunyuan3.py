"""Hunyuan 3: tags with a suffix."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<think:opensource>",
    end="</think:opensource>",
    marks=("</think{}>", "':opensource'"),
)
