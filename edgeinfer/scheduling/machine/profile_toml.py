"""Profiles as TOML files that a person can read and edit: a measured machine, or an imagined one in twenty lines.

In: the path or the text of a file. Out: a `Profile`, to the bit what was written; BadSetting names the file, the key
and what would work. Numbers have their unit in the key (`read_gb_s`); a rate that depends on something is a list of
pairs `[[place, rate], …]`, a plain number is the rate everywhere. Measures nothing and believes every possible number.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.machine.profile import (
    CPU,
    AttentionRates,
    CoreRates,
    Curve,
    DeviceRates,
    Disk,
    Joining,
    Link,
    NodeRates,
    ProductRates,
    Profile,
)
from edgeinfer.scheduling.machine.profile_writing import profile_text as profile_text
from edgeinfer.scheduling.machine.quantities import (
    BYTES,
    BYTES_PER_WEIGHT,
    ELEMENT_RATE,
    GIGABYTES,
    MADDS,
    MEGABYTES,
    MICROSECONDS,
    MULTIPLY_ADDS,
    NANOSECONDS,
    READ_RATE,
    SHARE,
    SPEED,
    TOKENS,
    VERSION,
)
from edgeinfer.scheduling.machine.toml_table import Quantity, Table, decimal_or_infinite

LARGEST_FILE_BYTES = 4 << 20
LARGEST_NUMBER = 1 << 20
"""Of a core, a node, a depth, a head's width."""
MOST_CORES = 4096
"""That one table stands for."""


def read_profile(path: str | Path) -> Profile:
    """The profile in a file. Raises BadSetting."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as reason:
        raise BadSetting(f"the machine file {path} cannot be read: {reason.strerror or reason}") from None
    if len(raw) > LARGEST_FILE_BYTES:
        raise BadSetting(f"{path} is larger than {LARGEST_FILE_BYTES >> 20} MiB: no file about a machine is")
    try:
        return parse_profile(raw.decode("utf-8"), str(path))
    except UnicodeDecodeError as reason:
        raise BadSetting(f"{path} is not valid TOML: {reason}") from None


def parse_profile(text: str, where: str) -> Profile:
    """The profile in a text that stands in `where`. Raises BadSetting."""
    try:
        values: object = tomllib.loads(text, parse_float=decimal_or_infinite)
    except (ValueError, RecursionError) as reason:
        raise BadSetting(f"{where} is not valid TOML: {reason}") from None
    known = ("version", "name", "fingerprint", "measured", "idle_share", "short", "assumptions", "device", "disk")
    table = Table(where, values, known)
    if table.whole("version", LARGEST_NUMBER) != VERSION:
        raise table.refusal("version", table.value("version", ""), f"this edgeinfer reads version {VERSION}")
    return Profile(
        name=table.text("name"),
        devices=_devices(table),
        disk=_disk(table) if "disk" in table else None,
        fingerprint=table.text_or("fingerprint", ""),
        measured=table.text_or("measured", ""),
        idle_share=table.number("idle_share", SHARE) if "idle_share" in table else None,
        short=table.switch("short"),
        assumptions=_assumptions(table),
    )


def _assumptions(table: Table) -> tuple[str, ...]:
    lines = table.entries("assumptions", "lines of text")
    for line in lines:
        if not isinstance(line, str):
            raise table.refusal("assumptions", line, "lines of text are wanted")
    return tuple(str(line) for line in lines)


def _devices(table: Table) -> tuple[DeviceRates, ...]:
    found = [
        _device(value, f"{table.where}: device {number}", is_cpu=number == 1)
        for number, value in enumerate(table.entries("device", "[[device]] tables"), start=1)
    ]
    if not found:
        raise BadSetting(f"{table.where}: device is missing: a [[device]] called {CPU!r} is wanted first")
    names = [device.name for device in found]
    if names[0] != CPU or len(set(names)) < len(names):
        raise BadSetting(
            f"{table.where}: devices are called {', '.join(names)[:200]}; "
            f"{CPU!r} is wanted first, and every name only once"
        )
    return tuple(found)


def _device(value: object, where: str, is_cpu: bool) -> DeviceRates:
    known = ["name", "kind", "memory_gb", "read_gb_s", "element_g_s", "op_us", "pass_us", "token_us", "joining"]
    known += ["product", "attention", *(("core", "node") if is_cpu else ("link",))]
    table = Table(where, value, known)
    return DeviceRates(
        name=table.text("name"),
        kind=table.text("kind"),
        memory_bytes=int(table.number("memory_gb", GIGABYTES)),
        read=_curve(table, "read_gb_s", READ_RATE, MEGABYTES),
        products=_products(table),
        attention=_attention(table),
        element_rate=_curve(table, "element_g_s", ELEMENT_RATE, TOKENS),
        op_s=table.number_or("op_us", MICROSECONDS, 0.0),
        pass_s=table.number_or("pass_us", MICROSECONDS, 0.0),
        token_s=table.number_or("token_us", MICROSECONDS, 0.0),
        joining=_joining(table) if "joining" in table else None,
        link=_link(table) if "link" in table else None,
        cores=_cores(table),
        nodes=_nodes(table),
    )


def _products(table: Table) -> dict[str, ProductRates]:
    wanted = 'a table for each format is wanted, or one for all: [device.product."*"]'
    value = table.value("product", wanted)
    if not isinstance(value, dict) or not value:
        raise table.refusal("product", value, wanted)
    return {form: _product(rates, f"{table.where}: product {form[:80]!r}") for form, rates in value.items()}


def _product(value: object, where: str) -> ProductRates:
    known = (
        "bytes_per_weight",
        "madd_g_s",
        "cached_madd_g_s",
        "footprint_mb",
        "columns",
        "wide_madd_g_s",
        "wide_columns",
    )
    table = Table(where, value, known)
    rates = ProductRates(
        bytes_per_weight=table.number("bytes_per_weight", BYTES_PER_WEIGHT),
        rate=_curve(table, "madd_g_s", MULTIPLY_ADDS, TOKENS),
        cached=_curve(table, "cached_madd_g_s", MULTIPLY_ADDS, TOKENS) if "cached_madd_g_s" in table else None,
        footprint=table.number_or("footprint_mb", MEGABYTES, 0.0),
        columns=table.whole_or("columns", LARGEST_NUMBER, 0),
        wide=_curve(table, "wide_madd_g_s", MULTIPLY_ADDS, TOKENS) if "wide_madd_g_s" in table else None,
        wide_columns=table.whole_or("wide_columns", LARGEST_NUMBER, 0),
    )
    if rates.wide is not None and rates.wide_columns <= rates.columns:
        raise table.refusal("wide_columns", rates.wide_columns, f"more than columns ({rates.columns}) are wanted")
    return rates


def _attention(table: Table) -> tuple[AttentionRates, ...]:
    found = []
    for number, value in enumerate(table.entries("attention", "[[device.attention]] tables"), start=1):
        known = ("head_width", "madd_g_s", "call_us", "row_ns", "cached_only")
        own = Table(f"{table.where}: attention {number}", value, known)
        rate = _curve(own, "madd_g_s", MULTIPLY_ADDS, TOKENS)
        width = own.whole("head_width", LARGEST_NUMBER, at_least=1)
        row_s = _curve(own, "row_ns", NANOSECONDS, TOKENS) if "row_ns" in own else None
        call_s = own.number_or("call_us", MICROSECONDS, 0.0)
        found.append(AttentionRates(width, rate, call_s, row_s, own.switch("cached_only")))
    if not found:
        raise BadSetting(f"{table.where}: attention is missing: a [[device.attention]] with head_width is wanted")
    return tuple(found)


def _link(table: Table) -> Link:
    value = table.value("link", "a table with to_device_gb_s, from_device_gb_s, latency_us is wanted")
    own = Table(f"{table.where}: link", value, ("to_device_gb_s", "from_device_gb_s", "latency_us", "host_us"))
    return Link(
        own.number("to_device_gb_s", READ_RATE),
        own.number("from_device_gb_s", READ_RATE),
        own.number("latency_us", MICROSECONDS),
        own.number_or("host_us", MICROSECONDS, 0.0),
    )


def _joining(table: Table) -> Joining:
    value = table.value("joining", "a table with tokens, madd_g is wanted")
    own = Table(f"{table.where}: joining", value, ("tokens", "madd_g"))
    return Joining(own.whole("tokens", LARGEST_NUMBER, at_least=1), own.number("madd_g", MADDS))


def _cores(table: Table) -> tuple[CoreRates, ...]:
    found = []
    for number, value in enumerate(table.entries("core", "[[device.core]] tables"), start=1):
        own = Table(f"{table.where}: core {number}", value, ("number", "count", "kind", "node", "read_gb_s", "speed"))
        first = CoreRates(
            own.whole("number", LARGEST_NUMBER),
            own.text_or("kind", ""),
            own.whole_or("node", LARGEST_NUMBER, 0),
            own.number("read_gb_s", READ_RATE),
            own.number_or("speed", SPEED, 1.0),
        )
        count = own.whole_or("count", MOST_CORES, 1)
        found += [replace(first, number=first.number + place) for place in range(count)]
    _require_distinct(table, "core", [core.number for core in found])
    return tuple(found)


def _nodes(table: Table) -> tuple[NodeRates, ...]:
    values = table.entries("node", "[[device.node]] tables")
    found = [_node(value, f"{table.where}: node {number}") for number, value in enumerate(values, start=1)]
    _require_distinct(table, "node", [node.number for node in found])
    for node in found:
        if len(node.remote_bytes_s) not in {0, len(found)}:
            rule = f"as many rates as there are nodes ({len(found)}) are wanted, or none"
            raise table.refusal("remote_gb_s", list(node.remote_bytes_s), rule)
    return tuple(found)


def _node(value: object, where: str) -> NodeRates:
    own = Table(where, value, ("number", "memory_gb", "read_gb_s", "remote_gb_s"))
    remote = []
    for rate in own.entries("remote_gb_s", "rates"):
        try:
            remote.append(READ_RATE.read(rate))
        except ValueError as rule:
            raise own.refusal("remote_gb_s", rate, rule) from None
    return NodeRates(
        own.whole("number", LARGEST_NUMBER),
        int(own.number("memory_gb", GIGABYTES)),
        own.number("read_gb_s", READ_RATE),
        tuple(remote),
    )


def _require_distinct(table: Table, key: str, numbers: list[int]) -> None:
    for number in numbers:
        if numbers.count(number) > 1:
            raise BadSetting(f"{table.where}: two tables {key} have number {number}; every number is wanted once")


def _disk(table: Table) -> Disk:
    by_depth = {}
    for number, value in enumerate(table.entries("disk", "[[disk]] tables"), start=1):
        own = Table(f"{table.where}: disk {number}", value, ("depth", "read_gb_s"))
        depth = own.whole("depth", LARGEST_NUMBER, at_least=1)
        if depth in by_depth:
            raise own.refusal("depth", depth, "every depth is wanted once")
        by_depth[depth] = _curve(own, "read_gb_s", READ_RATE, BYTES)
    if not by_depth:
        raise BadSetting(f"{table.where}: disk is empty: leave it out, or give a [[disk]] with depth and read_gb_s")
    return Disk(by_depth)


def _curve(table: Table, key: str, quantity: Quantity, place: Quantity) -> Curve:
    """A rate that is a number, or pairs of a place and the rate there."""
    rule = f"{quantity.rule}, or pairs [[{place.unit}, {quantity.unit}], …] by increasing {place.unit}"
    value = table.value(key, rule)
    try:
        if not isinstance(value, list):
            return Curve.level(quantity.read(value))
        pairs = [pair for pair in table.entries(key, "pairs") if isinstance(pair, list) and len(pair) == 2]
        if len(pairs) < len(value):
            raise ValueError
        return Curve(tuple(place.read(at) for at, _ in pairs), tuple(quantity.read(rate) for _, rate in pairs))
    except ValueError:
        raise table.refusal(key, value, rule) from None
