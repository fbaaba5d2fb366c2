"""Reads the JSON of `edgeinfer bench --json`, as it was kept in a file.

In: text, of this version of edgeinfer or an earlier one, or written down by hand from a published table. Out: a
`KeptBench`; what is not in the file is None or empty. Raises BadSetting for anything else, and says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from edgeinfer.errors import BadSetting

MOST_BYTES = 64_000_000
"""Of a file; a result has some hundred kilobytes."""
EXPECTED = "expected what edgeinfer bench --json prints"


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A row with figures: tokens per second, or seconds of a start; least and most are None where not kept."""

    test: str
    executor: str
    n: int
    depth: int
    value: float
    low: float | None
    high: float | None
    cost: float | None
    cold: bool
    busy_runs: int


@dataclass(frozen=True, slots=True)
class KeptRatio:
    """How many times as fast the first executor is as `against`."""

    test: str
    against: str
    n: int
    depth: int
    median: float
    cold: bool


@dataclass(frozen=True, slots=True)
class KeptBench:
    """A benchmark. `source`: the page that figures were written down from, "" if they are the bench's own JSON.

    `note`: what a reader has to know of them.
    """

    model: str
    quant: str
    file_bytes: int | None
    cpu: str
    cores: int | None
    isa: str
    read_gb_s: float | None
    threads: int | None
    rows: tuple[KeptRow, ...]
    ratios: tuple[KeptRatio, ...] = ()
    memory: tuple[tuple[str, int], ...] = ()
    """Most bytes of memory by executor."""
    speedups: tuple[tuple[str, float], ...] = ()
    """What drafting gains, by group of questions."""
    command: str = ""
    date: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    source: str = ""
    note: str = ""
    idle: tuple[float, float] | None = None

    @property
    def executors(self) -> tuple[str, ...]:
        """In the order of the rows: the one that was measured, then those it was compared with."""
        return tuple(dict.fromkeys(row.executor for row in self.rows))


class KeptFormat(ValueError):
    """A file is not what it should be; the message says where."""


def read_bench(path: Path) -> KeptBench:
    """Read a kept result. Raises BadSetting."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadSetting(f"{path} is too large for a result; {EXPECTED}")
        return kept_bench(json.loads(path.read_text(encoding="utf-8")))
    except OSError as reason:
        raise BadSetting(f"{path} cannot be read: {reason.strerror or reason}") from None
    except KeptFormat as reason:
        raise BadSetting(f"{path}: {reason}; {EXPECTED}") from None
    except (ValueError, RecursionError):
        raise BadSetting(f"{path} is not JSON; {EXPECTED}") from None


def kept_bench(data: object) -> KeptBench:
    """A result from its JSON. Raises KeptFormat."""
    whole = _Fields(data, "the file")
    machine, model = _Fields(whole.get("machine"), "machine"), _Fields(whole.get("model"), "model")
    idle = whole.number("idle_before"), whole.number("idle_after")
    return KeptBench(
        model=model.text("name"),
        quant=model.text("quant"),
        file_bytes=model.count("file_bytes"),
        cpu=machine.text("cpu"),
        cores=machine.count("cores"),
        isa=machine.text("isa"),
        read_gb_s=machine.number("read_gb_s"),
        threads=whole.count("threads"),
        rows=tuple(row for fields in whole.each("rows") for row in _row(fields)),
        ratios=tuple(ratio for fields in whole.each("ratios") for ratio in _ratio(fields)),
        memory=tuple(
            (fields.text("executor"), most)
            for fields in whole.each("memory")
            if (most := fields.count("peak_rss_bytes")) is not None
        ),
        speedups=_speedups(whole),
        command=whole.text("command"),
        date=whole.text("date"),
        versions=_Fields(whole.get("versions"), "versions").texts,
        source=whole.text("source"),
        note=whole.text("note"),
        idle=None if idle[0] is None or idle[1] is None else (idle[0], idle[1]),
    )


def _row(fields: _Fields) -> Iterable[KeptRow]:
    test, is_start = fields.text("test"), fields.text("test") == "start"
    spread = _Fields(fields.get("seconds" if is_start else "tok_s"), "tok_s")
    value = spread.number("median")
    if value is not None and value > 0:
        place = fields.text("executor"), fields.count("n") or 0, fields.count("depth") or 0
        bounds = spread.number("min"), spread.number("max"), fields.number("cost")
        yield KeptRow(test, *place, value, *bounds, fields.get("cold") is True, fields.count("busy_runs") or 0)


def _ratio(fields: _Fields) -> Iterable[KeptRatio]:
    median = fields.number("median")
    if median is not None:
        n, depth = fields.count("n") or 0, fields.count("depth") or 0
        yield KeptRatio(fields.text("test"), fields.text("against"), n, depth, median, fields.get("cold") is True)


def _speedups(whole: _Fields) -> tuple[tuple[str, float], ...]:
    """Gains of drafting as `edgeinfer chat` samples, warm."""
    found = []
    for fields in _Fields(whole.get("drafting"), "drafting").each("rows"):
        gain = fields.number("speedup")
        if gain is not None and fields.text("way") == "warm" and fields.text("sampling") in ("chat", ""):
            found.append((fields.text("group"), gain))
    return tuple(found)


class _Fields:
    """An object of JSON, read by the kind of each value; `name` says where it stands."""

    def __init__(self, data: object, name: str) -> None:
        if data is not None and not isinstance(data, Mapping):
            raise KeptFormat(f"{name} is no object of JSON")
        self._data: Mapping[str, object] = data or {}
        self._name = name

    def get(self, key: str) -> object:
        """A value as it stands; None if it is not there."""
        return self._data.get(key)

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """All values that are texts."""
        return tuple((key, value) for key, value in self._data.items() if isinstance(value, str))

    def text(self, key: str) -> str:
        """A text, "" if it is null or missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise KeptFormat(f"{key} of {self._name} is no text")
        return value or ""

    def number(self, key: str) -> float | None:
        """A finite number, or None."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise KeptFormat(f"{key} of {self._name} is no number")
        return float(value)

    def count(self, key: str) -> int | None:
        """A whole number from zero on, or None."""
        value = self.number(key)
        if value is not None and (value < 0 or value != int(value)):
            raise KeptFormat(f"{key} of {self._name} is no whole number")
        return None if value is None else int(value)

    def each(self, key: str) -> list[_Fields]:
        """The objects of a list; none if it is missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise KeptFormat(f"{key} of {self._name} is no list")
        return [_Fields(one, key) for one in value or ()]
