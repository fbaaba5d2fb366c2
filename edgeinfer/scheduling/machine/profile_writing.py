"""A profile as the text of a TOML file, with its units in words.

In: a `Profile`. Out: text that `profile_toml` reads back to the bit. Leaves out what has its default.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgeinfer.scheduling.machine.profile import (
    AttentionRates,
    CoreRates,
    Curve,
    DeviceRates,
    Link,
    NodeRates,
    ProductRates,
    Profile,
)
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
from edgeinfer.scheduling.machine.toml_table import Quantity

if TYPE_CHECKING:
    from tomlkit.container import Container
    from tomlkit.items import AoT, Item
    from tomlkit.items import Table as WrittenTable

PREAMBLE = (
    "A machine as edgeinfer sees it: rates, measured or imagined.",
    "GB: 1e9 bytes, MB: 1e6 bytes, G: 1e9; madd: multiply-adds; us: microseconds; g_s: G a second.",
    "A rate is a number, or pairs [[place, rate], ...]: straight lines between, level before and beyond.",
)
PAIRS_OF_A_LINE = 6


def profile_text(profile: Profile) -> str:
    """The text of a profile's file."""
    import tomlkit

    document = tomlkit.document()
    for line in PREAMBLE:
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    document.add("version", tomlkit.item(VERSION))
    _add_text(document, name=profile.name, fingerprint=profile.fingerprint, measured=profile.measured)
    if profile.idle_share is not None:
        document.add("idle_share", _number(profile.idle_share, SHARE, "of the machine, while it was measured"))
    if profile.short:
        document.add("short", tomlkit.item(True).comment("only the quick part was measured"))
    if profile.assumptions:
        document.add("assumptions", tomlkit.item(list(profile.assumptions)).multiline(True))
    document.add("device", _tables(map(_device, profile.devices)))
    if profile.disk is not None:
        document.add("disk", _tables(_disk(*each) for each in sorted(profile.disk.by_depth.items())))
    return document.as_string()


def _device(device: DeviceRates) -> WrittenTable:
    import tomlkit

    table = tomlkit.table()
    _add_text(table, name=device.name, kind=device.kind)
    table.add("memory_gb", _number(device.memory_bytes, GIGABYTES))
    table.add("read_gb_s", _curve(device.read, READ_RATE, MEGABYTES, "by MB that are read in turns"))
    table.add("element_g_s", _curve(device.element_rate, ELEMENT_RATE, TOKENS, "numbers written by all other ops"))
    for key, seconds, what in (
        ("op_us", device.op_s, "what an op takes besides"),
        ("pass_us", device.pass_s, "what a pass takes outside of all ops"),
        ("token_us", device.token_s, "what each of its tokens does"),
    ):
        if seconds:
            table.add(key, _number(seconds, MICROSECONDS, what))
    if device.joining is not None:
        joining = tomlkit.inline_table()
        joining.add("tokens", tomlkit.item(device.joining.most_tokens))
        joining.add("madd_g", _number(device.joining.most_madds, MADDS))
        table.add("joining", joining.comment("a prompt's passes that are read as one, at most"))
    if device.link is not None:
        table.add("link", _link(device.link))
    products = tomlkit.table(is_super_table=True)
    for form, rates in device.products.items():
        products.add(form, _product(rates))
    table.add("product", products)
    table.add("attention", _tables(map(_attention, device.attention)))
    if device.nodes:
        table.add("node", _tables(map(_node, device.nodes)))
    if device.cores:
        table.add("core", _tables(map(_core, device.cores)))
    return table


def _product(rates: ProductRates) -> WrittenTable:
    import tomlkit

    table = tomlkit.table()
    table.add("bytes_per_weight", _number(rates.bytes_per_weight, BYTES_PER_WEIGHT))
    table.add("madd_g_s", _curve(rates.rate, MULTIPLY_ADDS, TOKENS, "by tokens of a pass, weights from memory"))
    if rates.cached is not None:
        table.add("cached_madd_g_s", _curve(rates.cached, MULTIPLY_ADDS, TOKENS, "weights from caches"))
    if rates.footprint:
        table.add("footprint_mb", _number(rates.footprint, MEGABYTES, "of weights read in turns when measured"))
    if rates.columns:
        table.add("columns", tomlkit.item(rates.columns).comment("of the matrices measured"))
    if rates.wide is not None:
        table.add("wide_madd_g_s", _curve(rates.wide, MULTIPLY_ADDS, TOKENS, "of matrices of wide_columns"))
    if rates.wide_columns:
        table.add("wide_columns", tomlkit.item(rates.wide_columns))
    return table


def _attention(rates: AttentionRates) -> WrittenTable:
    import tomlkit

    table = tomlkit.table()
    table.add("head_width", tomlkit.item(rates.head_width))
    table.add("madd_g_s", _curve(rates.rate, MULTIPLY_ADDS, TOKENS, "by tokens of a pass"))
    if rates.call_s:
        table.add("call_us", _number(rates.call_s, MICROSECONDS))
    if rates.row_s is not None:
        table.add("row_ns", _curve(rates.row_s, NANOSECONDS, TOKENS, "what a token's query head takes besides"))
    if rates.cached_only:
        table.add("cached_only", tomlkit.item(True).comment("of what is cached; the rest is in element_g_s"))
    return table


def _link(link: Link) -> WrittenTable:
    import tomlkit

    table = tomlkit.table()
    table.add("to_device_gb_s", _number(link.to_device_bytes_s, READ_RATE))
    table.add("from_device_gb_s", _number(link.from_device_bytes_s, READ_RATE))
    table.add("latency_us", _number(link.latency_s, MICROSECONDS, "of a message either way"))
    if link.host_s:
        table.add("host_us", _number(link.host_s, MICROSECONDS, "of it the CPU is busy"))
    return table


def _core(core: CoreRates) -> WrittenTable:
    import tomlkit

    table = tomlkit.table()
    table.add("number", tomlkit.item(core.number))
    _add_text(table, kind=core.kind)
    if core.node:
        table.add("node", tomlkit.item(core.node))
    table.add("read_gb_s", _number(core.read_bytes_s, READ_RATE, "alone"))
    if core.speed != 1:
        table.add("speed", _number(core.speed, SPEED, "of the fastest core"))
    return table


def _node(node: NodeRates) -> WrittenTable:
    import tomlkit

    table = tomlkit.table()
    table.add("number", tomlkit.item(node.number))
    table.add("memory_gb", _number(node.memory_bytes, GIGABYTES))
    table.add("read_gb_s", _number(node.read_bytes_s, READ_RATE, "by its own cores"))
    if node.remote_bytes_s:
        rates = tomlkit.array()
        for rate in node.remote_bytes_s:
            rates.append(_number(rate, READ_RATE))
        table.add("remote_gb_s", rates.comment("by its cores, from the memory of each node"))
    return table


def _disk(depth: int, curve: Curve) -> WrittenTable:
    import tomlkit

    table = tomlkit.table()
    table.add("depth", tomlkit.item(depth).comment("requests in flight"))
    table.add("read_gb_s", _curve(curve, READ_RATE, BYTES, "by bytes of a request"))
    return table


def _tables(tables: Iterable[WrittenTable]) -> AoT:
    import tomlkit

    array = tomlkit.aot()
    for table in tables:
        array.append(table)
    return array


def _add_text(table: Container | WrittenTable, **texts: str) -> None:
    import tomlkit

    for key, text in texts.items():
        if text:
            table.add(key, tomlkit.item(text))


def _number(plain: float, quantity: Quantity, comment: str = "") -> Item:
    """A number in the units of `quantity`, with every digit that reading it back needs."""
    from tomlkit.items import Float, Integer, Trivia

    text = quantity.text(plain)
    item: Item = Float(float(text), Trivia(), text) if "." in text else Integer(int(text), Trivia(), text)
    return item.comment(comment) if comment else item


def _curve(curve: Curve, quantity: Quantity, place: Quantity, comment: str) -> Item:
    """A plain number if the curve is level everywhere, else its pairs."""
    import tomlkit

    if curve == Curve.level(curve.values[0]):
        return _number(curve.values[0], quantity)
    pairs = tomlkit.array()
    for at, value in zip(curve.at, curve.values, strict=True):
        pair = tomlkit.array()
        pair.append(_number(at, place))
        pair.append(_number(value, quantity))
        pairs.append(pair)
    return pairs.multiline(len(curve.at) > PAIRS_OF_A_LINE).comment(comment)
