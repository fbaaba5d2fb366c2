"""Chat templates, which come with models: nothing of them is trusted."""

from __future__ import annotations

from pathlib import Path

import edgeinfer.models.text
from edgeinfer.models.text import ChatTemplate
from edgeinfer.models.text.chat_template import TemplateLimits

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": "1"},
    {"role": "user", "content": "And?"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
LIMITS = TemplateLimits(seconds=0.5)


def seeds() -> list[bytes]:
    """The built-in templates."""
    folder = Path(edgeinfer.models.text.__file__).parent / "built_in_templates"
    return [path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".jinja", ".txt")]


def run(data: bytes) -> None:
    """Write a conversation with it."""
    source = data.decode("utf-8", "replace")
    template = ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"}, limits=LIMITS)
    template.render(MESSAGES, tools=TOOLS)
