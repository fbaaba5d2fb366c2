"""Profiles as TOML files that a person can read and edit: a measured machine, or an assumed one in twenty lines.

In: the path or the text of a file, or a `Profile`. Out: a `Profile`, bit-exact after a round trip, or the text.
BadSetting names the file, the key and what would work. Numbers have their unit in the key (`read_gb_s`); a rate that
depends on something is a list of pairs `[[place, rate], …]`, a plain number is the rate everywhere. Measures nothing
and accepts every possible number.
"""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

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
from edgeinfer.scheduling.machine.toml_records import (
    SWITCH,
    TEXT,
    Key,
    Kind,
    Quantity,
    RecordKeys,
    decimal_or_infinite,
    listed,
    quoted,
    whole,
)

VERSION = 1
"""Version of the file's layout."""
LARGEST_FILE_BYTES = 4 << 20
PREAMBLE = """\
# A machine as edgeinfer sees it: rates, measured or imagined.
# GB: 1e9 bytes, MB: 1e6 bytes, G: 1e9; madd: multiply-adds; us: microseconds; g_s: G a second.
# A rate is a number, or pairs [[place, rate], ...]: straight lines between, level before and beyond.
"""

GIGABYTES = Quantity("GB", 9, 1e6)
MEGABYTES = Quantity("MB", 6, 1e9, zero=True)
BYTES = Quantity("bytes", 0, 1e12, zero=True)
READ_RATE = Quantity("GB/s", 9, 1e5)
MULTIPLY_ADD_RATE = Quantity("G multiply-adds/s", 9, 1e8)
MULTIPLY_ADDS = Quantity("G multiply-adds", 9, 1e12)
ELEMENT_RATE = Quantity("G elements/s", 9, 1e6)
MICROSECONDS = Quantity("µs", -6, 1e7, zero=True)
NANOSECONDS = Quantity("ns", -9, 1e9)
BYTES_PER_WEIGHT = Quantity("bytes a weight", 0, 16)
TOKENS = Quantity("tokens", 0, 1e7)
SHARE = Quantity("1", 0, 1, zero=True)
SPEED = Quantity("times the fastest core's speed", 0, 100)
NUMBER = whole(1 << 20)
COUNT = whole(1 << 20, at_least=1)
CORES = whole(4096, at_least=1)


def _curve(value: Quantity, place: Quantity) -> Kind:
    """A rate that is a number, or pairs of a place and the rate there."""
    rule = f"{value.rule}, or pairs [[{place.unit}, {value.unit}], …] by increasing {place.unit}"

    def read_pair(pair: object) -> tuple[float, float]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(rule)
        return place.read(pair[0]), value.read(pair[1])

    pairs = listed(rule, read_pair, lambda pair: f"[{place.text(pair[0])}, {value.text(pair[1])}]")

    def read(given: object) -> Curve:
        if not isinstance(given, list):
            return Curve.level(value.read(given))
        known = pairs.read(given)
        return Curve(tuple(at for at, _ in known), tuple(rate for _, rate in known))

    def text(curve: Curve) -> str:
        if curve == Curve.level(curve.values[0]):
            return value.text(curve.values[0])
        return pairs.text(list(zip(curve.at, curve.values, strict=True)))

    return Kind(pairs.rule, read, text)


def _line(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _product(**rates: Any) -> ProductRates:
    made = ProductRates(**rates)
    if made.wide is not None and made.wide_columns <= made.columns:
        raise ValueError(f"wide_columns cannot be {made.wide_columns}: use more than columns ({made.columns})")
    return made


def _cores(count: int, **core: Any) -> tuple[CoreRates, ...]:
    """Equal cores, numbered consecutively."""
    first = CoreRates(**core)
    return tuple(replace(first, number=first.number + place) for place in range(count))


def _node(memory_bytes: float, **rates: Any) -> NodeRates:
    return NodeRates(memory_bytes=int(memory_bytes), **rates)


def _device(cores: tuple[tuple[CoreRates, ...], ...], memory_bytes: float, **rates: Any) -> DeviceRates:
    made = DeviceRates(cores=sum(cores, ()), memory_bytes=int(memory_bytes), **rates)
    is_cpu, n_nodes = made.name == CPU, len(made.nodes)
    for key, value in (
        ("link", is_cpu and made.link),
        ("core", not is_cpu and cores),
        ("node", not is_cpu and n_nodes),
    ):
        if value:
            raise ValueError(f"{key!r} cannot belong to the device {made.name!r}; leave it out")
    _require_distinct("core", [core.number for core in made.cores])
    _require_distinct("node", [node.number for node in made.nodes])
    if (other := next((node for node in made.nodes if len(node.remote_bytes_s) not in {0, n_nodes}), None)) is not None:
        raise ValueError(
            f"remote_gb_s of node {other.number}: use as many rates as there are nodes ({n_nodes}), or none"
        )
    return made


def _require_distinct(table: str, numbers: list[int]) -> None:
    if (double := next((number for number in numbers if numbers.count(number) > 1), None)) is not None:
        raise ValueError(f"two tables {table} have {double}; use every number once")


def _profile(
    version: int, devices: tuple[DeviceRates, ...], disk: tuple[tuple[int, Curve], ...], **own: Any
) -> Profile:
    if version != VERSION:
        raise ValueError(f"version cannot be {version}: this edgeinfer reads version {VERSION}")
    names = [device.name for device in devices]
    if names[0] != CPU or len(set(names)) < len(names):
        called = ", ".join(names)[:200]
        raise ValueError(f"devices are called {called}; the first must be {CPU!r}, and every name another")
    _require_distinct("disk", [depth for depth, _ in disk])
    return Profile(devices=devices, disk=Disk(dict(disk)) if disk else None, **own)


MADD_CURVE = _curve(MULTIPLY_ADD_RATE, TOKENS)
_PRODUCT = RecordKeys(
    _product,
    (
        Key("bytes_per_weight", "bytes_per_weight", BYTES_PER_WEIGHT),
        Key("madd_g_s", "rate", MADD_CURVE, comment="by tokens of a pass, weights from memory"),
        Key("cached_madd_g_s", "cached", MADD_CURVE, None, "weights from caches"),
        Key("footprint_mb", "footprint", MEGABYTES, 0.0, "of weights read in turns when measured"),
        Key("columns", "columns", NUMBER, 0, "of the matrices measured"),
        Key("wide_madd_g_s", "wide", MADD_CURVE, None, "of matrices of wide_columns"),
        Key("wide_columns", "wide_columns", NUMBER, 0),
    ),
)
_ATTENTION = RecordKeys(
    AttentionRates,
    (
        Key("head_width", "head_width", COUNT),
        Key("madd_g_s", "rate", MADD_CURVE, comment="by tokens of a pass"),
        Key("call_us", "call_s", MICROSECONDS, 0.0),
        Key("row_ns", "row_s", _curve(NANOSECONDS, TOKENS), None, "what a token's query head takes besides"),
        Key("cached_only", "cached_only", SWITCH, False, "of what is cached; the rest is in element_g_s"),
        Key("whole", "whole", SWITCH, False, "every token attends to all of its text, at high precision"),
    ),
)
_JOINING = RecordKeys(Joining, (Key("tokens", "most_tokens", COUNT), Key("madd_g", "most_madds", MULTIPLY_ADDS)))
_LINK = RecordKeys(
    Link,
    (
        Key("to_device_gb_s", "to_device_bytes_s", READ_RATE),
        Key("from_device_gb_s", "from_device_bytes_s", READ_RATE),
        Key("latency_us", "latency_s", MICROSECONDS, comment="of a message either way"),
        Key("host_us", "host_s", MICROSECONDS, 0.0, "of it the CPU is busy"),
    ),
)
_NODE = RecordKeys(
    _node,
    (
        Key("number", "number", NUMBER),
        Key("memory_gb", "memory_bytes", GIGABYTES),
        Key("read_gb_s", "read_bytes_s", READ_RATE, comment="by its own cores"),
        Key(
            "remote_gb_s",
            "remote_bytes_s",
            listed(READ_RATE.rule, READ_RATE.read, READ_RATE.text),
            (),
            "by its cores, from the memory of each node",
        ),
    ),
)
_CORE = RecordKeys(
    _cores,
    (
        Key("number", "number", NUMBER),
        Key("count", "count", CORES, 1, "alike, numbered on"),
        Key("kind", "kind", TEXT, ""),
        Key("node", "node", NUMBER, 0),
        Key("read_gb_s", "read_bytes_s", READ_RATE, comment="alone"),
        Key("speed", "speed", SPEED, 1.0, "of the fastest core"),
    ),
)
_DEVICE = RecordKeys(
    _device,
    (
        Key("name", "name", TEXT),
        Key("kind", "kind", TEXT),
        Key("memory_gb", "memory_bytes", GIGABYTES),
        Key("read_gb_s", "read", _curve(READ_RATE, MEGABYTES), comment="by MB that are read in turns"),
        Key("element_g_s", "element_rate", _curve(ELEMENT_RATE, TOKENS), comment="numbers written by all other ops"),
        Key("op_us", "op_s", MICROSECONDS, 0.0, "what an op takes besides"),
        Key("pass_us", "pass_s", MICROSECONDS, 0.0, "what a pass takes outside of all ops"),
        Key("token_us", "token_s", MICROSECONDS, 0.0, "what each of its tokens does"),
        Key("joining", "joining", _JOINING, None),
        Key("link", "link", _LINK, None),
        Key("product", "products", _PRODUCT, tables="by name"),
        Key("attention", "attention", _ATTENTION, tables="list"),
        Key("node", "nodes", _NODE, (), tables="list"),
        Key("core", "cores", _CORE, (), tables="list"),
    ),
)
_DISK = RecordKeys(
    lambda depth, rate: (depth, rate),
    (
        Key("depth", "depth", COUNT, comment="requests in flight"),
        Key("read_gb_s", "rate", _curve(READ_RATE, BYTES), comment="by bytes of a request"),
    ),
)
_PROFILE = RecordKeys(
    _profile,
    (
        Key("version", "version", NUMBER),
        Key("name", "name", TEXT),
        Key("fingerprint", "fingerprint", TEXT, ""),
        Key("measured", "measured", TEXT, ""),
        Key("idle_share", "idle_share", SHARE, None, "of the machine, while it was measured"),
        Key("short", "short", SWITCH, False, "only the quick part was measured"),
        Key("assumptions", "assumptions", listed("use lines of text", _line, quoted, most_of_a_line=0), ()),
        Key("device", "devices", _DEVICE, tables="list"),
        Key("disk", "disk", _DISK, (), tables="list"),
    ),
)


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
    """The profile in a text; `where` names its source in errors. Raises BadSetting."""
    try:
        values: object = tomllib.loads(text, parse_float=decimal_or_infinite)
    except (ValueError, RecursionError) as reason:
        raise BadSetting(f"{where} is not valid TOML: {reason}") from None
    profile: Profile = _PROFILE.read(values, where)
    return profile


def profile_text(profile: Profile) -> str:
    """The text of a profile's file; default values are left out."""
    by_depth = profile.disk.by_depth if profile.disk is not None else {}
    disk = tuple({"depth": depth, "rate": rate} for depth, rate in sorted(by_depth.items()))
    values = {field.name: getattr(profile, field.name) for field in fields(profile)}
    return "\n".join([PREAMBLE, *_PROFILE.lines({**values, "version": VERSION, "disk": disk}), ""])
