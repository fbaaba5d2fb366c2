"""Validates settings whose values name registry entries, which the settings themselves do not know.

In: a setting's name, a text. Out: its value. The registries are listed for these settings only, and no entry is
imported.
"""

from __future__ import annotations

from edgeinfer.errors import BadSetting
from edgeinfer.settings import read_value


def read_checked(name: str, text: str, called: str = "") -> object:
    """Parse the value of a setting. Raises BadSetting, saying what would work."""
    value = read_value(name, text, called)
    if name == "device":
        from edgeinfer.backends.base import DEVICES

        _require(
            [str(part).partition(":")[0] for part in str(value).split(",")],
            ("auto", *DEVICES.keys()),
            "a device",
            called or name,
        )
    elif name == "schedule":
        from edgeinfer.scheduling.batch.schedules import NAMES
        from edgeinfer.scheduling.placement.schedules import SCHEDULES

        _require([str(value)], tuple(dict.fromkeys((*SCHEDULES, *NAMES))), "a schedule", called or name)
    return value


def _require(names: list[str], known: tuple[str, ...], kind: str, called: str) -> None:
    for name in names:
        if name not in known:
            raise BadSetting(f"{called} needs {kind}, not {name!r}; there are: {', '.join(known)}")
