"""gpt-oss: answers are messages in channels, of which one is for thoughts."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<|channel|>analysis<|message|>",
    end="<|end|>",
    marks=("<|channel|>analysis",),
    anywhere=True,
    dropped=(
        "<|start|>assistant",
        "<|channel|>final",
        "<|channel|>commentary",
        "<|constrain|>json",
        "<|message|>",
        "<|end|>",
        "<|return|>",
    ),
    turn="<|start|>assistant",
    answer="<|channel|>final<|message|>",
)
