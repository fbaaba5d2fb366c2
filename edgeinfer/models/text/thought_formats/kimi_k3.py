"""Kimi K3: tags around thoughts, responses and messages."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<|open|>think<|sep|>",
    end="<|close|>think<|sep|>",
    marks=("<|open|>", "open_tag('think')"),
    dropped=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    turn="",
    answer="<|open|>response<|sep|>",
)
