"""LFM2 before 2.5: its template tells the functions between special tokens, and writes no calls itself."""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.models.text.tool_formats import lfm2

FORMAT = replace(lfm2.FORMAT, marks=("<|tool_list_start|>",))
