"""A JSON settings file written by another program: values by their path, each checked for its type.

In: a path. Out: texts, numbers, lists of numbers; None for values that are missing or of another type. Independent of
the keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import UnsupportedModel

MOST_BYTES = 64 << 20
"""Most bytes of a settings file: more than any has, except tokenizers of a million tokens."""


@dataclass(frozen=True, slots=True)
class JsonConfig:
    """The settings of one file; all are missing if the file does not exist."""

    path: Path
    values: object

    @classmethod
    def read(cls, path: Path) -> JsonConfig:
        """Read a file if it exists. Raises UnsupportedModel if it cannot be read or is not a JSON object."""
        if not path.is_file():
            return cls(path, {})
        try:
            if path.stat().st_size > MOST_BYTES:
                raise UnsupportedModel(f"{path} has {path.stat().st_size} bytes, far more than settings take")
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as reason:
            raise UnsupportedModel(f"{path} cannot be read as JSON: {str(reason)[:200]}; fetch it again") from None
        if not isinstance(values, dict):
            raise UnsupportedModel(f"{path} holds no JSON object; fetch it again")
        return cls(path, values)

    def text(self, *keys: str) -> str | None:
        """The string at a path of keys."""
        found = self._at(keys)
        return found if isinstance(found, str) else None

    def integer(self, *keys: str) -> int | None:
        """The integer at a path of keys."""
        return _whole(self._at(keys))

    def integers(self, *keys: str) -> tuple[int, ...]:
        """The integers at a path of keys: a list of them, or a single one; () if there are none."""
        found = self._at(keys)
        listed = found if isinstance(found, list) else [found]
        return tuple(number for item in listed if (number := _whole(item)) is not None)

    def flag(self, *keys: str) -> bool | None:
        """The boolean at a path of keys."""
        found = self._at(keys)
        return found if isinstance(found, bool) else None

    def objects(self, *keys: str) -> tuple[JsonConfig, ...]:
        """The objects of a list at a path of keys, each as its own settings."""
        found = self._at(keys)
        listed = found if isinstance(found, list) else []
        return tuple(JsonConfig(self.path, item) for item in listed if isinstance(item, dict))

    def has(self, *keys: str) -> bool:
        """Whether there is anything at a path of keys."""
        return self._at(keys) is not None

    def _at(self, keys: tuple[str, ...]) -> object:
        found = self.values
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
