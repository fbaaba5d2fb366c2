"""Memory devices from built SMBIOS tables, whole, old, cut off and hostile."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.app.doctor.dmi import MOST_DEVICES, MemoryDevice, channel_of, memory_devices

GIB = 1 << 30
DIMM, SODIMM, ROW_OF_CHIPS = 0x09, 0x0D, 0x0B
DDR4, DDR5, LPDDR5 = 0x1A, 0x22, 0x23


def structure(kind: int, body: bytes, *texts: str) -> bytes:
    """A structure with its header and its texts."""
    ending = b"".join(text.encode() + b"\0" for text in texts) + b"\0"
    return struct.pack("<BBH", kind, 4 + len(body), 7) + body + (ending if texts else b"\0\0")


def memory_device(
    *,
    size: int = 0x4000,
    extended_mb: int = 0,
    form: int = DIMM,
    kind: int = DDR5,
    rated: int = 5600,
    configured: int = 5600,
    extended_rated: int = 0,
    places: tuple[str, str] = ("DIMM_A1", "BANK 0"),
    length: int = 0x5C,
) -> bytes:
    """A structure of type 17, cut to `length` as older versions of the specification have it."""
    body = bytearray(0x5C)
    struct.pack_into("<HHHHH", body, 0x04, 0x1000, 0xFFFE, 72, 64, size)
    struct.pack_into("<BBBBBHH", body, 0x0E, form, 0, 1, 2, kind, 0x80, rated)
    struct.pack_into("<IH", body, 0x1C, extended_mb, configured)
    struct.pack_into("<I", body, 0x54, extended_rated)
    return structure(17, bytes(body[4:length]), *places)


BIOS = structure(0, bytes(20), "A maker", "1.0")
END = structure(127, b"")


def test_two_modules_and_an_empty_slot() -> None:
    tables = (
        BIOS
        + memory_device()
        + memory_device(size=0, kind=2, rated=0, configured=0, places=("DIMM_A2", "BANK 1"))
        + memory_device(form=SODIMM, configured=4800, places=("ChannelB-DIMM0", "BANK 2"))
        + END
    )
    assert memory_devices(tables) == (
        MemoryDevice(16 * GIB, "DDR5", True, 64, "A", 5600, 5600),
        MemoryDevice(0, "", True, 64, "A", 0, 0),
        MemoryDevice(16 * GIB, "DDR5", True, 64, "B", 5600, 4800),
    )


@pytest.mark.parametrize(
    ("size", "extended_mb", "expected"),
    [
        (0x4000, 0, 16 * GIB),
        (0x7FFF, 65536, 64 * GIB),  # larger than the field can say
        (0x7FFF, 0x8000_0000 | 32768, 32 * GIB),  # the highest bit is reserved
        (0x8000 | 512, 0, 512 << 10),  # in kilobytes
        (0, 0, 0),
        (0xFFFF, 0, 0),  # unknown
    ],
)
def test_sizes(size: int, extended_mb: int, expected: int) -> None:
    assert memory_devices(memory_device(size=size, extended_mb=extended_mb))[0].size_bytes == expected


def test_speeds_beyond_sixteen_bits() -> None:
    assert memory_devices(memory_device(rated=0xFFFF, extended_rated=70000))[0].rated_mt_s == 70000


def test_soldered_memory_is_no_module() -> None:
    (device,) = memory_devices(memory_device(form=ROW_OF_CHIPS, kind=LPDDR5))
    assert (device.is_module, device.kind) == (False, "LPDDR5")


@pytest.mark.parametrize(("length", "rated", "configured"), [(0x15, 0, 0), (0x1B, 5600, 0), (0x22, 5600, 5600)])
def test_structures_of_older_versions_end_earlier(length: int, rated: int, configured: int) -> None:
    (device,) = memory_devices(memory_device(length=length))
    assert (device.size_bytes, device.rated_mt_s, device.configured_mt_s) == (16 * GIB, rated, configured)


def test_a_structure_too_short_for_a_memory_device_is_passed_over() -> None:
    assert len(memory_devices(memory_device(length=0x14) + memory_device())) == 1


def test_nothing_is_read_after_the_end() -> None:
    assert memory_devices(memory_device() + END + memory_device()) == memory_devices(memory_device())


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_length_below_the_header_ends_the_reading(length: int) -> None:
    assert memory_devices(bytes([17, length, 0, 0]) * 100) == ()


def test_texts_that_are_not_there_name_no_channel() -> None:
    body = bytearray(memory_device(places=("", "")))
    body[0x10] = body[0x11] = 200
    assert memory_devices(bytes(body))[0].channel == ""


def test_a_flood_of_structures_is_cut() -> None:
    assert len(memory_devices(memory_device() * (MOST_DEVICES + 5))) == MOST_DEVICES


def test_every_cut_gives_the_devices_before_it() -> None:
    whole = BIOS + memory_device() + memory_device(kind=DDR4)
    devices = memory_devices(whole)
    lengths = {len(memory_devices(whole[:end])) for end in range(len(whole))}
    assert lengths == {0, 1}
    assert all(memory_devices(whole[:end]) == devices[: len(memory_devices(whole[:end]))] for end in range(len(whole)))


@given(st.binary(max_size=600))
def test_any_bytes_are_read(tables: bytes) -> None:
    for device in memory_devices(tables):
        assert device.size_bytes >= 0
        assert 0 <= device.rated_mt_s < 1 << 31


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_does_no_harm(place: int, value: int) -> None:
    tables = bytearray(memory_device() + memory_device())
    tables[place % len(tables)] = value
    assert len(memory_devices(bytes(tables))) <= 2 + len(tables) // 0x15


@pytest.mark.parametrize(
    ("places", "channel"),
    [
        ("DIMM_A1 BANK 0", "A"),
        ("ChannelB-DIMM0 BANK 2", "B"),
        ("Controller1-ChannelA-DIMM0 BANK 0", "1A"),
        ("DIMM 0 P0 CHANNEL B", "0B"),
        ("P1-DIMMC1 BANK 0", "1C"),
        ("DIMM1 BANK 1", ""),
        ("", ""),
    ],
)
def test_channels_by_the_names_of_places(places: str, channel: str) -> None:
    assert channel_of(places) == channel
