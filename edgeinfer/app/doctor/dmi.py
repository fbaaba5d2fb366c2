"""Memory modules, from the tables that firmware leaves: SMBIOS structures of type 17, "memory device".

In: the bytes of /sys/firmware/dmi/tables/DMI. Out: a record per slot. The bytes are the firmware's word, so anything
may be wrong with them: what is cut off or makes no sense ends the reading or counts as unknown.
Source: DMTF DSP0134, System Management BIOS Reference Specification 3.7, sections 6.1 and 7.18.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

MEMORY_DEVICE, END_OF_TABLE = 17, 127
MOST_DEVICES = 1024
"""No machine has more slots."""
KINDS = MappingProxyType(
    {
        0x18: "DDR3",
        0x1A: "DDR4",
        0x1D: "LPDDR3",
        0x1E: "LPDDR4",
        0x20: "HBM",
        0x21: "HBM2",
        0x22: "DDR5",
        0x23: "LPDDR5",
    }
)
MODULES = (0x09, 0x0D)
"""Form factors of one channel: DIMM, SODIMM. A CAMM has several, and what is soldered is described in many ways."""
UNKNOWN, EXTENDED_SIZE, IN_KILOBYTES = 0xFFFF, 0x7FFF, 0x8000
_CHANNEL = re.compile(r"channel[ _-]*([a-z\d])|dimm[ _-]?([a-h])\d?\b", re.IGNORECASE)
_CONTROLLER = re.compile(r"(?:controller|\bp|\bcpu|\bnode)[ _-]*(\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MemoryDevice:
    """A slot, or memory that is soldered. `size_bytes` is 0 if it is empty or unknown, speeds in transfers per second.

    `kind`: "DDR5"; "" for what is no memory of a real machine. `channel`: what its place is called after, "" if the
    firmware's names tell of none.
    """

    size_bytes: int
    kind: str
    is_module: bool
    data_bits: int
    channel: str
    rated_mt_s: int
    configured_mt_s: int


def memory_devices(tables: bytes) -> tuple[MemoryDevice, ...]:
    """The memory devices of a table, in order."""
    devices = []
    for kind, body, texts in _structures(tables):
        if kind == MEMORY_DEVICE and len(body) >= 0x15:
            devices.append(_device(body, texts))
            if len(devices) == MOST_DEVICES:
                break
    return tuple(devices)


def _structures(tables: bytes) -> Iterator[tuple[int, bytes, Sequence[str]]]:
    """Type, formatted part and texts of each structure, up to the first that is cut off."""
    start = 0
    while start + 4 <= len(tables):
        kind, length = tables[start], tables[start + 1]
        end = tables.find(b"\0\0", start + length)
        if length < 4 or end < 0 or kind == END_OF_TABLE:
            return
        texts = tables[start + length : end].decode("ascii", errors="replace").split("\0")
        yield kind, tables[start : start + length], texts
        start = end + 2


def _device(body: bytes, texts: Sequence[str]) -> MemoryDevice:
    bits = _number(body, 0x0A, "<H")
    places = " ".join(_text(body, at, texts) for at in (0x10, 0x11))
    return MemoryDevice(
        size_bytes=_size_bytes(body),
        kind=KINDS.get(body[0x12], ""),
        is_module=body[0x0E] in MODULES,
        data_bits=0 if bits == UNKNOWN else bits,
        channel=channel_of(places),
        rated_mt_s=_speed(body, 0x15, 0x54),
        configured_mt_s=_speed(body, 0x20, 0x58),
    )


def channel_of(places: str) -> str:
    """The channel that names of a place tell of: "ChannelA-DIMM0", "DIMM_A1", "P0 CHANNEL A"; "" if they do not."""
    found = _CHANNEL.search(places)
    if found is None:
        return ""
    controller = _CONTROLLER.search(places)
    letter = next(group for group in found.groups() if group)
    return f"{controller[1] if controller else ''}{letter.upper()}"


def _size_bytes(body: bytes) -> int:
    size = _number(body, 0x0C, "<H")
    if size == UNKNOWN:
        return 0
    if size == EXTENDED_SIZE:
        return (_number(body, 0x1C, "<I") & 0x7FFF_FFFF) << 20
    return (size & ~IN_KILOBYTES) << (10 if size & IN_KILOBYTES else 20)


def _speed(body: bytes, at: int, extended_at: int) -> int:
    speed = _number(body, at, "<H")
    return _number(body, extended_at, "<I") & 0x7FFF_FFFF if speed == UNKNOWN else speed


def _number(body: bytes, at: int, form: str) -> int:
    """A field; 0 where the structure is of an older version and ends before it."""
    if at + struct.calcsize(form) > len(body):
        return 0
    return int(struct.unpack_from(form, body, at)[0])


def _text(body: bytes, at: int, texts: Sequence[str]) -> str:
    """The text that a field numbers from 1; 0 is none."""
    return texts[body[at] - 1] if 0 < body[at] <= len(texts) else ""
