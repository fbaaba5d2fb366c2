"""Modules in requests: the fields that name them, and their texts, which outlive the model that reads them.

In: bodies of requests; open models. Out: contents of messages; modules in models that were closed and opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel
    from edgeinfer.engine.requests.module_prompts import Module

MODULE = "module"
"""The type of a part of a message that names a module."""
ModuleName = Annotated[str, Field(min_length=1, max_length=100)]
ModuleNames = Annotated[list[ModuleName], Field(max_length=256)]


def content_with_modules(parts: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """The content of a message of texts and modules, each on lines of its own; [] if there are no modules.

    `parts`: types, and texts or names.
    """
    content: list[dict[str, str]] = []
    if all(kind != MODULE for kind, _ in parts):
        return content
    for kind, value in parts:
        content += [{"type": "text", "text": "\n"}] if content else []
        content.append({"type": kind, "name" if kind == MODULE else "text": value})
    return content


@dataclass(frozen=True, slots=True)
class ModuleText:
    """A module as it was put."""

    text: str
    temperature: float
    prefix: str | None


@dataclass(slots=True)
class KeptModules:
    """The modules that were put, by the names of models and their own."""

    texts: dict[str, dict[str, ModuleText]] = field(default_factory=dict)

    async def put(self, pooled: PooledModel, name: str, text: ModuleText) -> Module:
        """Let a model read a module, and keep its text. Raises as `NamedModules.add`."""
        module = await asyncio.to_thread(_add, pooled, name, text, reads=True)
        self.texts.setdefault(pooled.name, {})[name] = text
        return module

    async def remove(self, pooled: PooledModel, name: str) -> None:
        """Forget a module. Raises UnknownKey."""
        self.texts.get(pooled.name, {}).pop(name, None)
        await asyncio.to_thread(pooled.llm.modules.remove, name)

    async def put_back(self, pooled: PooledModel) -> None:
        """Give a model that was closed meanwhile its modules again; they are read when they are needed."""
        if not self.texts:
            return
        kept = self.texts.get(pooled.name, {})
        for name in [name for name in kept if name not in pooled.llm.modules]:
            await asyncio.to_thread(_add, pooled, name, kept[name], reads=False)


def _add(pooled: PooledModel, name: str, text: ModuleText, *, reads: bool) -> Module:
    return pooled.llm.modules.add(name, text.text, temperature=text.temperature, prefix=text.prefix, reads=reads)
