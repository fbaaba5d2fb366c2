"""The prompts of a batch, one per line: a plain question or a JSON object with its own options.

In: lines of text. Out: `BatchEntry`s, or why a line cannot be used, with its line number. Knows no models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.batcher import Prompt

CONTENTS = ("prompt", "messages", "text")
"""A question, a conversation, or a text to continue verbatim."""
NUMBERS: Mapping[str, str] = {
    "temp": "temperature",
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
WHOLE: Mapping[str, str] = {"top_k": "top_k", "seed": "seed", "max_tokens": "max_tokens"}
KEYS = (*CONTENTS, "id", "system", "stop", *NUMBERS, *WHOLE)


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One line of a batch: its index from 0, its name (the number, if it has none), and its prompt."""

    index: int
    name: str | int
    prompt: Prompt


def read_entries(lines: Iterable[str], system: str | None) -> list[BatchEntry]:
    """Parse all lines that are not blank. `system`: system prompt for questions without their own.

    Raises BadSetting for the first line that cannot be used, with its number.
    """
    entries: list[BatchEntry] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                entries.append(_entry(len(entries), line, system))
            except BadSetting as reason:
                raise BadSetting(f"line {number}: {reason}") from None
    return entries


def _entry(index: int, line: str, system: str | None) -> BatchEntry:
    from edgeinfer.engine.scheduler.batcher import Prompt

    if not line.lstrip().startswith("{"):
        return BatchEntry(index, index, Prompt(_question(line.strip(), system)))
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as reason:
        raise BadSetting(f"it begins like a JSON object and is none ({reason})") from None
    for key in found:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadSetting(f"there is no key {key!r}{hint} There are: {', '.join(KEYS)}")
    name = found.get("id", index)
    if not isinstance(name, str | int):
        raise BadSetting(f"id must be a text or a whole number, not {name!r}")
    return BatchEntry(index, name, Prompt(_content(found, system), _options(found)))


def _content(found: Mapping[str, object], system: str | None) -> str | list[Mapping[str, object]]:
    given = [key for key in CONTENTS if key in found]
    if len(given) != 1:
        raise BadSetting(f"give one of {', '.join(CONTENTS)}, not {' and '.join(given) or 'none of them'}")
    content = found[given[0]]
    if given[0] == "messages":
        if not isinstance(content, list) or not all(isinstance(each, dict) for each in content) or not content:
            raise BadSetting('messages must be a list: [{"role": "user", "content": "…"}]')
        return content
    if not isinstance(content, str) or not content:
        raise BadSetting(f"{given[0]} must be a text")
    if given[0] == "text":
        return content
    own = found.get("system", system)
    if own is not None and not isinstance(own, str):
        raise BadSetting(f"system must be a text, not {own!r}")
    return _question(content, own)


def _question(text: str, system: str | None) -> list[Mapping[str, object]]:
    instructions: list[Mapping[str, object]] = [{"role": "system", "content": system}] if system else []
    return [*instructions, {"role": "user", "content": text}]


def _options(found: Mapping[str, object]) -> Options:
    wanted: dict[str, object] = {}
    for key, name in (*NUMBERS.items(), *WHOLE.items()):
        value = found.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if key in WHOLE else int | float):
            raise BadSetting(f"{key} must be a {'whole number' if key in WHOLE else 'number'}, not {value!r}")
        try:
            wanted[name] = value if key in WHOLE else float(value)
        except OverflowError:
            raise BadSetting(f"{key} is too large") from None
    stop = found.get("stop")
    if stop is not None:
        texts = [stop] if isinstance(stop, str) else stop
        if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
            raise BadSetting(f"stop must be a text or a list of texts, not {stop!r}")
        wanted["stop"] = tuple(texts)
    return wanted  # type: ignore[return-value]
