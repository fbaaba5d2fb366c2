"""Command A Reasoning, North and other later models of Cohere: as Command R7B, with other marks around texts."""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.models.text.thought_formats import command_r7b

FORMAT = replace(command_r7b.FORMAT, marks=("<|START_THINKING|>", "<|START_TEXT|>"), answer="<|START_TEXT|>")
