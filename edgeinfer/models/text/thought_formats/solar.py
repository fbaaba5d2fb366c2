"""Solar Open: messages, of which one is for thoughts."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<|think|>",
    end="<|end|>",
    marks=("<|think|>", "<|tool_calls|>"),
    anywhere=True,
    dropped=("<|begin|>assistant", "<|content|>", "<|tool_calls|>", "<|calls|>", "<|end|>"),
    turn="<|begin|>assistant",
    answer="<|content|>",
)
