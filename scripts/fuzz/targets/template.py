"""Chat templates, which come with models, with messages, which come from clients: nothing of them is trusted."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from json_changes import changed
from mutation import mutated as mutated_bytes

import edgeinfer.models.text
from edgeinfer.models.text import ChatTemplate
from edgeinfer.models.text.chat_template import TemplateLimits

USUAL_BYTES = 8000
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": "1"},
    {"role": "user", "content": [{"type": "text", "text": "And?"}]},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
LIMITS = TemplateLimits(seconds=0.05)
BOMBS = (
    "{% for a in range(10**9) %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% set ns = namespace(a='x') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}",
    "{{ ('%(' * 300000) % messages }}",
    "{{ ('{' * 300000).format(1) }}",
    "{{ messages | tojson(indent=10**6) }}",
    "{{ '%s' * 99999 % ([messages] * 99999) }}",
    "{{ ('a' * 100000).replace('a', 'b' * 1000) }}",
    "{{ [[0] * 1000] * 1000 | list | string }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ '%0999999999d' % 1 }}",
    "{{ ('a ' * 200000).split() | unique | sort | join(',') }}",
    "{{ (messages | string | list | batch(1) | list) | map('join') | join }}",
    "{{ ('ab' * 200000) | wordcount }}{{ ('<' * 200000) | escape }}{{ ('a' * 200000) | title }}",
    "{{ ('[' * 99999) | fromjson }}",
    "{{ cycler }}{{ self }}{{ ''.__class__.__mro__ }}{{ messages.append(1) }}{{ joiner() }}",
    "{{ ('&' * 200000) | striptags }}{{ ('a@b.c ' * 50000) | urlize }}{{ ('%' * 200000) | urlencode }}",
    "{{ (' ' * 300000 ~ 'x') | trim }}{{ ('x' ~ ' ' * 300000) | indent(4) }}{{ ('a\\n' * 99999) | indent(99) }}",
    "{{ strftime_now('%' * 99999) }}{{ ('9' * 5000) | int }}{{ ('9' * 99999) | float }}{{ '1e999' | float | int }}",
    "{{ ('x' * 99999) | truncate(9, true, 'y' * 99999) }}{{ ('a' * 999 ~ ' ') * 99 | wordwrap(1) }}",
)
"""Templates that take time or memory without end, where they are let."""


@cache
def built_in() -> Sequence[bytes]:
    """The built-in templates."""
    folder = Path(edgeinfer.models.text.__file__).parent / "built_in_templates"
    return [path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".jinja", ".txt")]


def seeds() -> list[bytes]:
    """The built-in templates, and those that must be stopped, each with messages after a zero byte."""
    messages = b"\0" + json.dumps(MESSAGES).encode()
    return [template + messages for template in (*built_in(), *(bomb.encode() for bomb in BOMBS))]


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """A changed template, or changed messages, or both; now and then a template with another one in it."""
    template = rng.choice(built_in())
    bomb = rng.choice(BOMBS).encode()
    if rng.random() < 0.1:
        template = bomb if rng.random() < 0.5 else template[: rng.randint(0, len(template))] + bomb
    if rng.random() < 0.7:
        template = mutated_bytes([template], rng, limit)
    messages = changed(MESSAGES, rng) if rng.random() < 0.6 else json.dumps(MESSAGES).encode()
    return template + b"\0" + messages


def run(data: bytes) -> None:
    """Write a conversation with it."""
    source, _, told = data.partition(b"\0")
    try:
        messages = json.loads(told)
    except (ValueError, RecursionError):
        messages = MESSAGES
    messages = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else MESSAGES
    template = ChatTemplate(
        {"default": source.decode("utf-8", "replace")}, {"bos_token": "<s>", "eos_token": "</s>"}, limits=LIMITS
    )
    template.render(messages, tools=TOOLS)
