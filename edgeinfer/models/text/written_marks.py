"""Special tokens spelled in what users write: hidden until the text is tokenized, so that they stay text.

In: messages, tools and variables of a chat. Out: the same with another character, a stand-in, within every such mark;
the template and the tokenizer then find only the marks that the template writes, and the tokenizer puts the characters
back. A stand-in takes one character's place, the second, so that lengths, white space and what templates escape stay.
Knows no templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any

from edgeinfer.errors import BadSetting
from edgeinfer.models.text.message import Message
from edgeinfer.models.text.special_tokens import MarkMatcher

_MAX_DEPTH = 64
_CANDIDATES = (range(0xA000, 0xA48D), range(0x4E00, 0xA000))
"""Letters without case that no normal form changes and Python's notation shows as they are; rare ones first."""
_ESCAPE = re.compile(r"\\u([0-9a-f]{4})")
_NONE: Mapping[str, str] = MappingProxyType({})
_WRITTEN_BY_MODELS = frozenset({"content", "reasoning_content", "reasoning", "thinking"})


@dataclass(frozen=True, slots=True)
class StandIns:
    """The characters that stand for others, each with the one it stands for; false if there are none."""

    originals: Mapping[str, str] = field(default_factory=lambda: _NONE)

    def __bool__(self) -> bool:
        return bool(self.originals)

    def shown(self, text: str) -> str:
        """`text` as users wrote it; what a template wrote as JSON in ASCII counts as well."""
        for stand_in, original in self.originals.items():
            text = text.replace(stand_in, original)
            text = text.replace(_escaped(stand_in), json.dumps(original)[1:-1])
        return text


NO_STAND_INS = StandIns()


@dataclass(frozen=True, slots=True)
class HiddenChat:
    """A chat with its users' marks hidden."""

    messages: list[Message]
    tools: list[Any]
    variables: dict[str, Any]
    stand_ins: StandIns


class WrittenMarks:
    """Finds and hides the control tokens that are spelled in texts; one instance can be used by several threads."""

    def __init__(self, matcher: MarkMatcher) -> None:
        self._matcher = matcher

    def of(self, text: str) -> list[str]:
        """The marks in a text, each once, in order."""
        return list(dict.fromkeys(text[start:end] for start, end, _ in self._matcher.matches(text)))

    def split(self, text: str) -> Iterator[str | int]:
        """A text as stretches without marks, and the tokens of the marks between them."""
        done = 0
        for start, end, token in self._matcher.matches(text):
            if start > done:
                yield text[done:start]
            yield token
            done = end
        if done < len(text):
            yield text[done:]

    def hide(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        kept: Collection[str] = (),
    ) -> HiddenChat:
        """A chat with all marks hidden, but those of `kept` in what the assistant said or thought.

        Those are the marks of thoughts and calls, which mean to templates and models what they meant in the answer.
        Raises BadSetting for texts that have every character there is to stand in.
        """
        texts = [*chain.from_iterable(_texts(_fields(message)) for message in messages), *_texts(tools)]
        texts += _texts({name: item for name, item in variables.items() if not _is_token(name)})
        begun = {text[at] for text in texts for at in self._places(text, ())}
        if not begun:
            return HiddenChat(list(messages), list(tools), dict(variables), NO_STAND_INS)
        stand_ins = _unused(sorted(begun), texts)
        hider = _Hider(self, {original: stand_in for stand_in, original in stand_ins.originals.items()}, kept)
        return HiddenChat(
            [hider.message(message) for message in messages],
            [hider.value(tool) for tool in tools],
            {name: item if _is_token(name) else hider.value(item) for name, item in variables.items()},
            stand_ins,
        )

    def hidden(self, text: str, kept: Collection[str]) -> tuple[str, StandIns]:
        """One text of an assistant, as `hide` does it."""
        begun = {text[at] for at in self._places(text, kept)}
        stand_ins = _unused(sorted(begun), [text]) if begun else NO_STAND_INS
        instead = {original: stand_in for stand_in, original in stand_ins.originals.items()}
        return self.replaced(text, instead, kept), stand_ins

    def replaced(self, text: str, instead: Mapping[str, str], kept: Collection[str]) -> str:
        """`text` with one character of every mark replaced."""
        places = self._places(text, kept)
        if not places:
            return text
        characters = list(text)
        for at in places:
            characters[at] = instead[characters[at]]
        return "".join(characters)

    def _places(self, text: str, kept: Collection[str]) -> set[int]:
        """Where characters of marks are to be replaced, also of what another text may complete to a mark.

        A mark may lie within another: what is left of that must not be one.
        """
        places = set(self._tails(text))
        fresh = True
        while fresh:
            rest = _blanked(text, places)
            found = {
                _second(start, end) for start, end, _ in self._matcher.matches(rest) if rest[start:end] not in kept
            }
            fresh = bool(found - places)
            places |= found
        return places

    def _tails(self, text: str) -> Iterator[int]:
        """The same at the end of a text, with or without its last white space."""
        for end in {len(text), len(text.rstrip())}:
            for at in range(max(0, end - self._longest + 1), end):
                if text[at] in self._matcher.first_characters and text[at:end] in self._beginnings:
                    yield _second(at, end)

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(mark[:n] for mark in self._matcher.texts for n in range(1, len(mark)))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._matcher.texts), default=0)


class _Hider:
    """Copies the parts of one chat with their marks hidden."""

    def __init__(self, marks: WrittenMarks, instead: Mapping[str, str], kept: Collection[str]) -> None:
        self._marks, self._instead, self._kept = marks, instead, kept

    def message(self, message: Message) -> Message:
        """A message; the assistant's own words may have the marks that are kept."""
        said = _fields(message)
        if message.role != "assistant":
            return Message.of(self.value(said))
        own = {name: self.value(item, self._kept) for name, item in said.items() if name in _WRITTEN_BY_MODELS}
        rest = {name: item for name, item in said.items() if name not in _WRITTEN_BY_MODELS}
        return Message.of({**self.value(rest), **own})

    def value(self, value: Any, kept: Collection[str] = (), depth: int = 0) -> Any:
        """A value; what is nested too deeply for templates stays, and is refused later."""
        if isinstance(value, str):
            return self._marks.replaced(value, self._instead, kept)
        if depth > _MAX_DEPTH:
            return value
        if isinstance(value, Mapping):
            return {
                self.value(name, kept, depth + 1): self.value(item, kept, depth + 1) for name, item in value.items()
            }
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return [self.value(item, kept, depth + 1) for item in value]
        return value


def _is_token(variable: str) -> bool:
    """Whether a variable names a special token of the template: bos_token, …"""
    return variable.endswith("_token")


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    """All texts in plain data."""
    if isinstance(value, str):
        yield value
    elif depth > _MAX_DEPTH or isinstance(value, bytes | bytearray):
        return
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(name, depth + 1)
            yield from _texts(item, depth + 1)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item, depth + 1)


def _fields(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content, **message.extra}


def _unused(originals: Sequence[str], texts: Sequence[str]) -> StandIns:
    """A stand-in for each of these characters: one that no text has, neither as itself nor as JSON in ASCII."""
    taken = set().union(*texts)
    taken |= {chr(int(code, 16)) for text in texts for code in _ESCAPE.findall(text)}
    free = (chr(code) for code in chain(*_CANDIDATES) if chr(code) not in taken)
    stand_ins = dict(zip(free, originals, strict=False))
    if len(stand_ins) < len(originals):
        raise BadSetting("the conversation has every rare letter there is, so that no mark in it can be read as text")
    return StandIns(stand_ins)


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def _second(start: int, end: int) -> int:
    return min(start + 1, end - 1)


def _blanked(text: str, places: Collection[int]) -> str:
    if not places:
        return text
    characters = list(text)
    for at in places:
        characters[at] = "\0"
    return "".join(characters)
