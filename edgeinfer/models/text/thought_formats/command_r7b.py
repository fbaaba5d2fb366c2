"""Command R7B: special tokens around plans and responses."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<|START_THINKING|>",
    end="<|END_THINKING|>",
    marks=("<|START_THINKING|>",),
    anywhere=True,
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    turn="",
    answer="<|START_RESPONSE|>",
)
