"""Hostile files: one line of BadImage, soon, without memory, without warnings and without anything printed."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from edgeinfer import Image
from edgeinfer.errors import BadImage

MEASURED = """
import re, sys
from pathlib import Path
from edgeinfer import Image
from edgeinfer.errors import BadImage

def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

Image.of(sys.argv[1]).pixels()
before = peak_kib()
for path in sys.argv[2:]:
    try:
        Image.of(path).pixels()
        print("decoded", path)
    except BadImage as reason:
        print(str(reason))
print((peak_kib() - before) // 1024)
"""
"""Reads images in a process of its own: says why each is refused, and by how many MiB its memory grew."""


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, before: bytes = b"", pixels: bytes = b"", kind: int = 0) -> bytes:
    """A PNG of 8 bits per channel, with chunks before its pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", pixels) + chunk(b"IEND")


def zeros(n: int) -> bytes:
    """Many zeros, packed."""
    packer = zlib.compressobj(1)
    block = bytes(1 << 20)
    return (
        b"".join(packer.compress(block[: min(n - place, 1 << 20)]) for place in range(0, n, 1 << 20)) + packer.flush()
    )


def encoded(form: str, size: tuple[int, int] = (64, 48), **options: object) -> bytes:
    """A valid file."""
    file = io.BytesIO()
    random = np.random.default_rng(5).integers(0, 256, (size[1], size[0], 3), np.uint8)
    PIL.Image.fromarray(random).save(file, form, **options)
    return file.getvalue()


def tiff(tags: list[tuple[int, int, int, int]], data: bytes = b"") -> bytes:
    """A TIFF whose folder has these tags (tag, type, count, value or offset), followed by data from byte 8."""
    folder = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags)) + bytes(4)
    return b"II*\x00" + struct.pack("<I", 8 + len(data)) + data + folder


def tiff_image(width: int, height: int, *more: tuple[int, int, int, int], data: bytes = b"") -> bytes:
    """A grey TIFF of one strip."""
    tags = {256: (4, 1, width), 257: (4, 1, height), 258: (3, 1, 8), 259: (3, 1, 1), 262: (3, 1, 1), 277: (3, 1, 1)}
    tags |= {273: (4, 1, 8), 278: (4, 1, height), 279: (4, 1, len(data))}
    tags |= {tag: rest for tag, *rest in more}  # type: ignore[misc]
    return tiff([(tag, *rest) for tag, rest in tags.items()], data)


def overlapping_tags() -> bytes:
    """A TIFF with 60,000 tags, each of which is a megabyte, and the same one."""
    shared = bytes(1 << 20)
    tags = [(tag, 1, len(shared), 8) for tag in range(1000, 61_000)]
    return tiff_image(4, 4, *tags, data=shared)


def tiled(width: int, height: int) -> bytes:
    """A TIFF of 16 x 16 pixels in a tile of some size, deflated."""
    data = zeros(width * height)
    tags = [(322, 4, 1, width), (323, 4, 1, height), (324, 4, 1, 8), (325, 4, 1, len(data)), (259, 3, 1, 8)]
    whole = tiff_image(16, 16, *tags, data=data)
    return whole.replace(struct.pack("<HHI", 273, 4, 1), struct.pack("<HHI", 65_000, 4, 1))


def jpeg_of(*segments: bytes) -> bytes:
    """A JPEG with further segments at its start."""
    own = encoded("JPEG")
    return own[:2] + b"".join(segments) + own[2:]


def segment(marker: int, data: bytes) -> bytes:
    """A segment of a JPEG."""
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def exif_bomb() -> bytes:
    """EXIF of thousands of tags that share one block."""
    folder = b"".join(struct.pack("<HHII", tag, 1, 30_000, 30_000) for tag in range(2_000))
    return b"Exif\x00\x00II*\x00" + struct.pack("<IH", 8, 2_000) + folder + bytes(4) + bytes(36_000)


def gif_of(width: int, height: int, blocks: bytes = b"", frame: tuple[int, int] = (1, 1)) -> bytes:
    """A GIF whose first frame may be larger than itself."""
    header = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    image = b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x44\x01\x00"
    return header + blocks + image + b";"


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    """A WebP file of chunks."""
    body = b"WEBP" + b"".join(
        kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for kind, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def run_length_bmp() -> bytes:
    """A BMP of 36 million pixels, each a run of one."""
    side = 6_000
    row = b"\x01\x00" * side + b"\x00\x00"
    data = row * 2_000
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(data), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 1024 + len(data), 0, 0, 54 + 1024) + header + bytes(1024) + data


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "a web page called .jpg": (lambda: b"\n<!DOCTYPE html><html>404</html>", "is a web page; what can be read is PNG"),
    "svg": (lambda: b'<svg xmlns="http://www.w3.org/2000/svg"/>', "is SVG; what"),
    "xml": (lambda: b'<?xml version="1.0"?><svg/>', "is XML, maybe SVG"),
    "pdf": (lambda: b"%PDF-1.7 ...", "is PDF"),
    "heic": (lambda: b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(64), "is HEIC or a video"),
    "text": (lambda: b"hello", "is no known image"),
    "postscript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no known image"),
    "one byte of png": (lambda: b"\x89PNG\r\n\x1a\n", "cannot be decoded"),
    "png of 100 megapixels": (
        lambda: png(10_000, 10_000, pixels=zeros(10_001 * 10_000)),
        "100 million; such",
    ),
    "png of 2^31 pixels along an edge": (lambda: png(2**31 - 1, 2**31 - 1), "cannot be decoded|million"),
    "png of one long row": (lambda: png(2_000_000, 1), "65535 along an edge"),
    "png without height": (lambda: png(7, 0), "no pixels|cannot be decoded"),
    "png of 180 megapixels": (lambda: png(13_500, 13_500), "million"),
    "png whose pixels are missing": (lambda: png(7_000, 7_000), "cannot be decoded"),
    "png with packed text": (
        lambda: png(4, 4, chunk(b"zTXt", b"a\x00\x00" + zeros(1 << 26)) * 40),
        "cannot be decoded",
    ),
    "png with a packed profile": (
        lambda: png(4, 4, chunk(b"iCCP", b"a\x00\x00" + zeros(1 << 26))),
        "cannot be decoded",
    ),
    "png with 60 MB of text": (lambda: png(4, 4, chunk(b"tEXt", b"a\x00" + bytes(60 << 20))), "too many or too large"),
    "png of a million chunks": (lambda: png(4, 4, chunk(b"teSt") * 1_000_000), "too many or too large"),
    "png of a million chunks of pixels": (
        lambda: png(4, 4).replace(chunk(b"IEND"), chunk(b"IDAT") * 1_000_000),
        "too many or too large|cannot be decoded",
    ),
    "half a jpeg": (lambda: encoded("JPEG", (640, 480))[:20_000], "image file is truncated"),
    "jpeg of 65,000 x 65,000": (
        lambda: encoded("JPEG").replace(struct.pack(">HH", 48, 64), struct.pack(">HH", 65_000, 65_000), 1),
        "too many pixels; images may have up to 50 million",
    ),
    "jpeg of a million segments": (lambda: jpeg_of(segment(0xFE, b"") * 1_000_000), "too many or too large"),
    "jpeg with 60 MB of segments": (lambda: jpeg_of(segment(0xE5, bytes(65_533)) * 900), "too many or too large"),
    "jpeg with 60 MB of exif": (
        lambda: jpeg_of(segment(0xE1, b"Exif\x00\x00" + bytes(65_000)) * 900),
        "too many or too large",
    ),
    "gif with a frame of 4 gigapixels": (lambda: gif_of(1, 1, frame=(65_535, 65_535)), "too many pixels"),
    "gif with a frame of 100 megapixels": (lambda: gif_of(1, 1, frame=(10_000, 10_000)), "100 million"),
    "gif with 60 MB of comments": (
        lambda: gif_of(9, 9, b"!\xfe" + (b"\xff" + bytes(255)) * 240_000 + b"\x00"),
        "too many or too large",
    ),
    "gif of a million extensions": (lambda: gif_of(9, 9, b"!\xfe\x01a\x00" * 1_000_000), "too many or too large"),
    "webp of 268 megapixels": (lambda: riff((b"VP8L", b"\x2f" + b"\xff" * 64)), "million|cannot be decoded"),
    "webp canvas of 2^48 pixels": (
        lambda: riff((b"VP8X", b"\x02\x00\x00\x00" + b"\xff" * 6), (b"ANIM", bytes(6))),
        "million|cannot be decoded",
    ),
    "bmp of 2^31 rows": (
        lambda: b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 2**31 - 1, 2**31 - 1, 1, 24, *[0] * 6),
        "too many pixels",
    ),
    "bmp of runs of one": (run_length_bmp, "too many or too large"),
    "tiff of 60,000 overlapping tags": (overlapping_tags, "too many or too large|cannot be decoded"),
    "tiff of 16 million strips": (
        lambda: tiff_image(4, 4, (273, 4, 15_000_000, 8), data=bytes(60 << 20)),
        "too many or too large",
    ),
    "tiff of a tile of 67 megapixels": (lambda: tiled(8_192, 8_192), "tiles of 8192 x 8192"),
    "tiff of 100 megapixels": (lambda: tiff_image(10_000, 10_000, data=b"1"), "100 million"),
    "tiff that is its own folder": (lambda: b"II*\x00\x00\x00\x00\x00", "cannot be decoded"),
    "tiff of 65,535 samples": (lambda: tiff_image(4, 4, (277, 3, 1, 65_535), data=bytes(16)), "cannot be decoded"),
    "avif without an image": (
        lambda: b"\x00\x00\x00\x18ftypavif\x00\x00\x00\x00mif1avif" + bytes(99),
        "cannot be decoded",
    ),
    "more than 64 MB": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(80 << 20), "has 84 MB; images may have up to 67 MB"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files, named by number."""
    folder = tmp_path_factory.mktemp("hostile")
    for number, (make, _) in enumerate(FILES.values()):
        (folder / f"{number}.jpg").write_bytes(make())
    (folder / "plain.png").write_bytes(encoded("PNG"))
    return folder


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_one_line(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = folder / f"{list(FILES).index(name)}.jpg"
    with pytest.raises(BadImage, match=FILES[name][1]) as caught:
        Image.of(path).pixels()
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    assert len(str(caught.value)) < 300
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory of Linux")
def test_hostile_files_take_no_memory(folder: Path) -> None:
    paths = [str(folder / f"{number}.jpg") for number in range(len(FILES))]
    command = [sys.executable, "-W", "error", "-c", MEASURED, str(folder / "plain.png"), *paths]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    told = ran.stdout.splitlines()
    assert len(told) == len(FILES) + 1
    assert not [line for line in told if line.startswith("decoded")]
    assert ran.stderr == ""
    assert int(told[-1]) < 200


def test_harmless_oddities_are_read() -> None:
    assert Image.of(jpeg_of(segment(0xE1, exif_bomb()))).pixels().shape == (48, 64, 3)
    assert Image.of(jpeg_of(segment(0xE1, b"Exif\x00\x00II*\x00\xff\xff\xff\xff"))).size == (64, 48)
    assert Image.of(png(4, 4, pixels=zlib.compress(bytes(20)))).pixels().shape == (4, 4, 3)
    assert Image.of(gif_of(1, 1, b"!\xfe\x01a\x00" * 100)).size == (1, 1)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match="is no file"):
        Image.of(tmp_path)
    with pytest.raises(BadImage, match=r"none\.png cannot be read: No such file"):
        Image.of(tmp_path / "none.png")
    with pytest.raises(BadImage, match="cannot be read"):
        Image.of("a\0b.png")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo.png")
        with pytest.raises(BadImage, match="is no file"):
            Image.of(tmp_path / "fifo.png")
    if Path("/dev/zero").exists():
        with pytest.raises(BadImage, match="is no file"):
            Image.of("/dev/zero")
