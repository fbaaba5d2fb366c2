"""Prompts with modules: texts that were read once, alone, and stand in prompts without being read again.

In: modules, conversations and texts that name them. Out: prompts in the form in which they are compared with the cache,
where each token of a module has a negative number as its name, and where in them modules stand. A name is made of a
hash of the module's tokens and of how they were read, so equal names mean equal keys and values at equal places. What
an ordinary prompt reads never has such names, so the two share nothing. Source: Prompt Cache (Gim et al., arXiv
2311.04934); the prefix that all modules are read after, and the temperature: APE (Yang et al., arXiv 2502.05431).
Knows no cache and no device.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from types import MappingProxyType

import numpy as np

from edgeinfer.engine.requests.conversation import ASSISTANT
from edgeinfer.engine.requests.media_prompts import NamedTile
from edgeinfer.engine.requests.prompt_rows import HASH_BITS, NUMBER_BITS, Piece, PromptRows
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Message

MODULE_PART = "module"
"""The type of a part of a message that names a module."""
BREAK = "\n\n"
"""Stands after each module that an option places."""
HIGHEST = -1 - (1 << HASH_BITS + NUMBER_BITS)
"""Names of tokens of modules are this or lower; those of rows are higher."""
_OPEN, _CLOSE = "\ue000", "\ue001"
_NONE: Mapping[str, Module] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Module:
    """A text that is read once, after a prefix, and placed in prompts by its name.

    tokens       ids of the text
    prefix       ids that it is read after, the same for all modules: its first tokens then attract no more attention
                 than those of any text
    temperature  divides the scores that later tokens give to its tokens; 1: as if it had been read where it stands
    key          a hash of all of these
    first_name   the name of its first token in prompts; the others count down from it
    """

    name: str
    tokens: tuple[int, ...]
    prefix: tuple[int, ...] = ()
    temperature: float = 1.0
    key: str = field(init=False)
    first_name: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        told = f"module {len(self.prefix)} {float(self.temperature).hex()}".encode()
        digest = hashlib.blake2b(np.array(self.source, "<i4").tobytes(), digest_size=16, key=told)
        number = int.from_bytes(digest.digest(), "little") << NUMBER_BITS
        object.__setattr__(self, "key", digest.hexdigest())
        object.__setattr__(self, "first_name", HIGHEST - number)

    @property
    def source(self) -> tuple[int, ...]:
        """What is read: the prefix and the text."""
        return self.prefix + self.tokens

    @property
    def names(self) -> range:
        """The names of its tokens in prompts."""
        return range(self.first_name, self.first_name - len(self.tokens), -1)

    @property
    def mark(self) -> str:
        """What stands for it in texts until these are tokenized."""
        return f"{_OPEN}{self.key}{_CLOSE}"


Named = Callable[[str], Module]
"""The module of a name. Raises UnknownKey."""
PromptPiece = Piece | Module | NamedTile
"""A part of a prompt: a token id, rows, a module, or a tile of an image."""


def named_tokens(pieces: Iterable[PromptPiece]) -> list[int]:
    """The tokens of a prompt, as they are compared."""
    found: list[int] = []
    for piece in pieces:
        found += piece.names if isinstance(piece, PromptRows | Module | NamedTile) else (index(piece),)
    return found


def listed(names: object) -> Sequence[str]:
    """Names of modules as an option states them. Raises BadSetting."""
    if names is None:
        return ()
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise BadSetting(f"modules cannot be {names!r}: it must be a list of names")
    return names


@dataclass(frozen=True, slots=True)
class PlacedModules:
    """Where modules stand in a prompt: the place of each one's first token, increasing; and the prompt all in ids."""

    places: tuple[tuple[int, Module], ...]
    ids: tuple[int, ...]

    @classmethod
    def of(cls, prompt: Sequence[int], modules: Sequence[Module]) -> PlacedModules | None:
        """Find modules in a prompt; None if it has none. Raises BadSetting for a prompt that ends with one."""
        by_name = {module.first_name: module for module in modules}
        places = tuple((at, by_name[token]) for at, token in enumerate(prompt) if token in by_name)
        if not places:
            return None
        ids = list(prompt)
        for start, module in places:
            ids[start : start + len(module.tokens)] = module.tokens
        if prompt[-1] < 0:
            raise BadSetting(
                f"the prompt ends with the module {places[-1][1].name!r}; an answer needs a text after it, "
                "such as a question"
            )
        return cls(places, tuple(ids))

    @property
    def stop(self) -> int:
        """Where the last module ends."""
        start, module = self.places[-1]
        return start + len(module.tokens)

    @property
    def n_tokens(self) -> int:
        """Tokens of all modules."""
        return sum(len(module.tokens) for _, module in self.places)

    @property
    def remark(self) -> str:
        """What there is to tell of an answer to such a prompt."""
        names = ", ".join(dict.fromkeys(module.name for _, module in self.places))
        return f"the answer is approximate: what these modules say was read by itself ({names})"


@dataclass(frozen=True, slots=True)
class ModuleMarks:
    """The modules of a conversation, by what stands for them in its texts; `first`: the text of those to stand first.

    False if there are none.
    """

    modules: Mapping[str, Module] = field(default_factory=lambda: _NONE)
    first: str = ""

    def __bool__(self) -> bool:
        return bool(self.modules)

    def split(self, text: str) -> Iterator[str | Module]:
        """A text as stretches without modules, and the modules between them."""
        if not self.modules:
            yield text
            return
        for number, part in enumerate(re.split("(" + "|".join(map(re.escape, self.modules)) + ")", text)):
            if number % 2:
                yield self.modules[part]
            elif part or not number:
                yield part

    def placed_first(self, messages: Sequence[Message]) -> Sequence[Message]:
        """A conversation with the modules that an option names before its first question."""
        if not self.first:
            return messages
        chosen = next((at for at, message in enumerate(messages) if message.role == "user"), len(messages) - 1)
        return [
            message.with_text_before(self.first) if number == chosen else message
            for number, message in enumerate(messages)
        ]


NO_MODULES = ModuleMarks()


def marked(messages: Sequence[Message], first: object, named: Named) -> tuple[list[Message], ModuleMarks]:
    """A conversation with a mark in place of each part that names a module; and the modules.

    `first`: names of modules that are to stand before the first question that stays. Raises UnknownKey, BadSetting.
    """
    found: dict[str, Module] = {}

    def mark_of(name: object) -> str:
        if not isinstance(name, str):
            raise BadSetting(f"the name of a module cannot be {name!r}: it must be a text")
        module = named(name)
        found[module.mark] = module
        return module.mark

    told = [_marked(message, mark_of) for message in messages]
    return told, ModuleMarks(found, BREAK.join(mark_of(name) for name in listed(first)))


def _marked(message: Message, mark_of: Callable[[object], str]) -> Message:
    """A message with marks; one text if it has no parts of other kinds than texts and modules."""
    content = message.content
    if content is None or isinstance(content, str) or all(part.get("type") != MODULE_PART for part in content):
        return message
    if message.role == ASSISTANT:
        raise BadSetting("a message of the assistant cannot have modules; put them into messages of the user or system")
    parts = [
        {"type": "text", "text": mark_of(part.get("name"))} if part.get("type") == MODULE_PART else part
        for part in content
    ]
    if all(part.get("type", "text") == "text" for part in parts):
        return Message(message.role, "".join(str(part.get("text", "")) for part in parts), message.extra)
    return Message(message.role, parts, message.extra)
