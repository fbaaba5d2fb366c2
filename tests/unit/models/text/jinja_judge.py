"""Jinja's own sandbox, set up for chat templates as `transformers` sets it up: no budgets, no guards.

`from_json` is llama.cpp's; transformers lacks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TODAY = datetime(2024, 7, 26)


class Generation(Extension):
    """`{% generation %}` marks what is trained on and writes nothing itself."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Judge(ImmutableSandboxedEnvironment):
    """With the methods that change lists, which llama.cpp has and published templates call on lists of their own."""

    def is_safe_attribute(self, value: Any, name: str, attribute: Any) -> bool:
        return (isinstance(value, list) and name in ("append", "pop")) or super().is_safe_attribute(
            value, name, attribute
        )

    def is_safe_callable(self, value: Any) -> bool:
        return True


def render_unguarded(source: str, **variables: Any) -> str:
    """What `source` renders with `variables`."""
    environment = Judge(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    environment.filters["tojson"] = _to_json
    environment.filters["from_json"] = json.loads
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = TODAY.strftime
    return environment.from_string(source).render(**variables)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    value = list(value) if isinstance(value, Iterator) else value  # llama.cpp writes what `map` made
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
