"""Types of setting values, and readers that convert text to them.

In: text, a TOML value or an already typed value. Out: the value. If there is none, a reader raises ValueError with what
it needs ("a number from 0 to 2"), and perhaps a hint. Knows no setting by name, and not where a value came from.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar, get_args

from edgeinfer.adapter_choice import adapter_choices, is_number
from edgeinfer.approximation import LEAST_BUDGET

T = TypeVar("T")

KVKind = Literal["f16", "q8", "q8q4", "q4"]
"""Numbers of the KV cache: float16, of 8 bits with a scale per 32, keys of 8 bits and values of 4, or of 4 bits with a
scale per 16.
"""
OLD_KV_KINDS: Mapping[str, KVKind] = MappingProxyType({"int8": "q8"})
"""Earlier spellings, which are still read."""

Spec = Literal["auto", "on", "off"] | int
"""When to draft: wherever output stays bit-identical, everywhere, nowhere, or in passes of this many tokens."""
MOST_DRAFTED = 64

SelfDraftBudget = Literal["auto", "off"] | int
"""Cached tokens that a model attends to when it drafts for itself: as many as usual, off, or a number."""

Mode = Literal["max", "balanced", "quiet", "battery"]
"""How to use the machine: everything, whatever does no harm, quietly, or with little energy."""

Thinking = Literal["auto", "on", "off"]
"""Whether a model thinks before it answers: as its chat template has it, or as the template is told."""

Race = Literal["never", "first", "after"]
"""When device "auto" is chosen by trying all devices: never, when a model is first used, or after its first answer."""

Reuse = Literal["exact", "shifted"]
"""What of earlier texts is not read again: the same beginning, or also text that stands elsewhere now."""

THEMES = (
    "textual-dark",
    "textual-light",
    "nord",
    "gruvbox",
    "catppuccin-mocha",
    "dracula",
    "tokyo-night",
    "monokai",
    "flexoki",
    "catppuccin-latte",
    "catppuccin-frappe",
    "catppuccin-macchiato",
    "solarized-light",
    "solarized-dark",
    "rose-pine",
    "rose-pine-moon",
    "rose-pine-dawn",
    "atom-one-dark",
    "atom-one-light",
    "ansi-dark",
    "ansi-light",
)
"""Colour themes of the terminal app, by Textual's names."""

SIZE_FORM = re.compile(r"\d+(\.\d+)?([kmgt]i?)?b?", re.IGNORECASE)
CLUSTER_FORM = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")
NONE_WORDS = {"", "none", "auto"}
CORES = "cores such as 0,2-5"
COSTS = f"TOKENS:COST such as 4:1.05,8:1.15, with tokens from 1 to {MOST_DRAFTED} and costs above 0"
KEYS = "COMMAND=KEY such as copy=ctrl+k, with spaces between several"
DEVICES = "auto alone, or device names with commas between them"


def number(
    *, at_least: float | None = None, at_most: float | None = None, above: float | None = None
) -> Callable[[object], float]:
    """A reader of real numbers in a range; `above` is exclusive."""
    wanted = _range(at_least, at_most, above)

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(wanted)
        try:
            result = float(value)
        except ValueError:
            raise ValueError(wanted) from None
        if result != result or result in (float("inf"), float("-inf")):
            raise ValueError(wanted)
        too_low = (at_least is not None and result < at_least) or (above is not None and result <= above)
        if too_low or (at_most is not None and result > at_most):
            raise ValueError(wanted)
        return result

    return read


def _range(at_least: float | None, at_most: float | None, above: float | None) -> str:
    """Describe a range of numbers in words."""
    if above is not None:
        return f"a number above {above:g}" + ("" if at_most is None else f", {at_most:g} at most")
    if at_least is not None and at_most is not None:
        return f"a number from {at_least:g} to {at_most:g}"
    return "a number" if at_least is None else f"a number from {at_least:g} up"


def whole(*, at_least: int) -> Callable[[object], int]:
    """A reader of whole numbers from `at_least` up."""
    wanted = f"a whole number from {at_least} up"

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(wanted)
        try:
            result = int(value)
        except ValueError:
            raise ValueError(wanted) from None
        if result < at_least:
            raise ValueError(wanted)
        return result

    return read


def text(value: object) -> str:
    """A reader of text."""
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def unset_or(read: Callable[[object], T]) -> Callable[[object], T | None]:
    """Wrap the reader `read` so that None, "", "none" and "auto" mean unset."""

    def read_unset(value: object) -> T | None:
        unset = value is None or (isinstance(value, str) and value.strip().lower() in NONE_WORDS)
        return None if unset else read(value)

    return read_unset


def core_list(value: object) -> tuple[int, ...]:
    """Read processor numbers: "0,2-5" or a list of whole numbers. The result is sorted, without duplicates."""
    if isinstance(value, list | tuple | range):
        parts = [str(part) for part in value]
    elif isinstance(value, str | int) and not isinstance(value, bool):
        parts = str(value).split(",")
    else:
        raise ValueError(CORES)
    cores: set[int] = set()
    for part in parts:
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(last) < int(first) or int(last) > 65535:
            raise ValueError(CORES)
        cores.update(range(int(first), int(last) + 1))
    return tuple(sorted(cores))


def one_of(words: tuple[T, ...]) -> Callable[[object], T]:
    """A reader that accepts one of these words."""
    *others, last = map(str, words)

    def read(value: object) -> T:
        for word in words:
            if value == word:
                return word
        raise ValueError(f"{', '.join(others)} or {last}")

    return read


def kv_kind(value: object) -> KVKind:
    """Read a KVKind, also by an earlier spelling."""
    known = OLD_KV_KINDS.get(value, value) if isinstance(value, str) else value
    return one_of(get_args(KVKind))(known)  # type: ignore[no-any-return]


def thinking_choice(value: object) -> Thinking:
    """Read a Thinking, also by the words of a switch."""
    if isinstance(value, bool) or value in ("true", "false"):
        value = "on" if switch(value) else "off"
    return one_of(get_args(Thinking))(value)  # type: ignore[no-any-return]


def self_draft_choice(value: object) -> SelfDraftBudget:
    """Read a SelfDraftBudget."""
    text = str(value).strip().lower()
    if text in ("auto", "true"):
        return "auto"
    if text in ("off", "false"):
        return "off"
    if text.isdecimal() and int(text) >= LEAST_BUDGET:
        return int(text)
    raise ValueError(f"auto, off, or a number of tokens from {LEAST_BUDGET} on")


def spec_choice(value: object) -> Spec:
    """Read a Spec."""
    text = str(value).strip().lower()
    if isinstance(value, bool):  # TOML's true and false
        return "on" if value else "off"
    words: tuple[Literal["auto", "on", "off"], ...] = ("auto", "on", "off")
    for word in words:
        if text == word:
            return word
    if text.isdecimal() and 1 <= int(text) <= MOST_DRAFTED:
        return int(text)
    raise ValueError(f"auto, on, off or a number from 1 to {MOST_DRAFTED}")


def cost_curve(value: object) -> Mapping[int, float]:
    """Read costs by number of tokens: "4:1.05,8:1.15"."""
    if isinstance(value, Mapping):
        value = ",".join(f"{size}:{cost}" for size, cost in value.items())
    costs: dict[int, float] = {}
    for part in str(value).split(","):
        size, _, cost = part.strip().partition(":")
        try:
            costs[int(size)] = float(cost)
        except ValueError:
            raise ValueError(COSTS) from None
        if not 1 <= int(size) <= MOST_DRAFTED or not 0 < float(cost) < float("inf"):
            raise ValueError(COSTS)
    return MappingProxyType(costs)


def path_list(value: object) -> tuple[str, ...]:
    """Read paths: one, several joined by the system's path separator, or a list."""
    parts = value.split(os.pathsep) if isinstance(value, str) else [value] if isinstance(value, Path) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str | Path) for part in parts):
        raise ValueError("paths")
    return tuple(str(part) for part in parts if str(part).strip())


def path_text(value: object) -> str:
    """Read a path."""
    if not isinstance(value, str | Path):
        raise ValueError("a path")
    return str(value)


def adapter_list(value: object) -> tuple[str, ...]:
    """Read adapters, FILE or FILE:SCALE each: one, several joined by the system's path separator, or a list.

    The separator may be the colon that also comes before a scale: a number belongs to the file before it.
    """
    found: list[str] = []
    for part in path_list(value):
        if found and is_number(part):
            found[-1] += f":{part}"
        else:
            found.append(part)
    adapter_choices(found)
    return tuple(found)


def key_list(value: object) -> tuple[str, ...]:
    """Read key bindings by command: "copy=ctrl+k new=f5", or a list of such texts."""
    parts = value.split() if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(KEYS)
    found = tuple(part.strip().strip(",") for part in parts if part.strip(", "))
    for part in found:
        name, equals, key = part.partition("=")
        if not (name.strip() and equals and key.strip()):
            raise ValueError(KEYS)
    return found


def nearest_of(kind: str, words: tuple[str, ...]) -> Callable[[object], str]:
    """A reader of one word out of many of a kind, which suggests the nearest one for an unknown word."""

    def read(value: object) -> str:
        text = str(value).strip().lower()
        if text in words:
            return text
        near = difflib.get_close_matches(text, words, n=1, cutoff=0.5)
        raise ValueError(kind, f"did you mean {near[0]}?" if near else f"there are: {', '.join(words)}")

    return read


def disk_space(value: object) -> str:
    """Read a size such as "1GB" or "500MiB"; 0 and off mean no bytes."""
    text = str(value).strip() if isinstance(value, str | int) and value is not False else "0"
    if text.lower() in ("0", "off", "none"):
        return "0"
    if value is True or not SIZE_FORM.fullmatch(text):
        raise ValueError("a size such as 1GB, or 0")
    return text


def memory_budget(value: object) -> str:
    """Read an amount of memory: a size such as "3GB", or a share of the available memory such as "60%"."""
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    share = text.removesuffix("%").strip()
    try:
        is_share = text.endswith("%") and 0 < float(share) <= 100
    except ValueError:
        is_share = False
    is_size = SIZE_FORM.fullmatch(text) and any(digit in text for digit in "123456789")
    if not is_share and not is_size:
        raise ValueError("a size such as 3GB, or a share of available memory such as 60%")
    return text


def memory_size(value: object) -> str:
    """Read an amount of memory such as "500MB", or a number of bytes."""
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not SIZE_FORM.fullmatch(text) or not any(digit in text for digit in "123456789"):
        raise ValueError("a size such as 500MB")
    return text


def switch(value: object) -> bool:
    """Read yes or no."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError("true or false")


def device_names(value: object) -> str:
    """Read device names: "auto", "cpu" or "cpu,onnx", or a list of them. Order is kept and duplicates are dropped."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(DEVICES)
    names = tuple(dict.fromkeys(part.strip().lower() for part in parts if part.strip()))
    if not names or ("auto" in names and len(names) > 1):
        raise ValueError(DEVICES)
    return ",".join(names)


def cluster_address(value: object) -> str | None:
    """Read where Ray runs: auto, local, or HOST:PORT; off means nowhere."""
    text = "off" if value in (None, False) else str(value).strip()
    if text.lower() in ("", "none", "off"):
        return None
    if text.lower() in ("auto", "local"):
        return text.lower()
    if not CLUSTER_FORM.fullmatch(text):
        raise ValueError("an address such as 10.0.0.5:6379, auto (what runs here, else a new one) or local (a new one)")
    return text
