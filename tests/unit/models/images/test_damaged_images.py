"""Damaged files: cut anywhere and with any bytes changed they give BadImage or an image, and nothing else."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest

from edgeinfer import Image
from edgeinfer.errors import BadImage

N_DAMAGED = 60


def valid_files() -> dict[str, bytes]:
    """Files of all formats, some with palettes, transparency, orientation and several frames."""
    random = np.random.default_rng(11)
    image = PIL.Image.fromarray(random.integers(0, 256, (24, 40, 4), np.uint8), "RGBA")
    frames = {"save_all": True, "append_images": [image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT).convert("RGB")]}
    exif = PIL.Image.Exif()
    exif[274], exif[271] = 6, "a camera of some make"
    kinds: dict[str, tuple[str, str, dict[str, object]]] = {
        "png": ("PNG", "RGBA", {"exif": exif, "compress_level": 1}),
        "png of a palette": ("PNG", "P", {"transparency": 3}),
        "apng": ("PNG", "RGB", frames),
        "jpeg": ("JPEG", "RGB", {"exif": exif, "dpi": (72, 72), "icc_profile": bytes(99)}),
        "progressive jpeg": ("JPEG", "CMYK", {"progressive": True}),
        "webp": ("WEBP", "RGB", {"exif": exif}),
        "lossless webp": ("WEBP", "RGBA", {"lossless": True}),
        "animated webp": ("WEBP", "RGB", frames),
        "gif": ("GIF", "P", {"transparency": 3, "comment": b"a" * 300}),
        "animated gif": ("GIF", "RGB", frames),
        "bmp": ("BMP", "RGB", {}),
        "bmp of a palette": ("BMP", "P", {}),
        "tiff": ("TIFF", "RGB", {"exif": exif}),
        "lzw tiff": ("TIFF", "RGBA", {"compression": "tiff_lzw"}),
        "jpeg tiff": ("TIFF", "RGB", {"compression": "jpeg"}),
        "packed tiff": ("TIFF", "CMYK", {"compression": "packbits"}),
        "fax tiff": ("TIFF", "1", {"compression": "group4"}),
        "avif": ("AVIF", "RGB", {"exif": exif, "speed": 10}),
    }
    files = {}
    for name, (form, mode, options) in kinds.items():
        file = io.BytesIO()
        (image if mode == "RGBA" else image.convert("RGB")).convert(mode).save(file, form, **options)
        files[name] = file.getvalue()
    return files


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """A file cut, with some bytes changed, mostly near its start, or with a part moved."""
    changed = bytearray(data)
    kind = random.integers(4)
    if kind == 0:
        return data[: int(random.integers(len(data)))]
    if kind == 1:
        start, end = sorted(random.integers(0, len(data), 2))
        return data[:start] + data[end:]
    most = len(data) if kind == 2 else min(len(data), 120)
    for _ in range(int(random.integers(1, 5))):
        changed[int(random.integers(most))] = int(random.choice([0, 1, 0x7F, 0x80, 0xFF, int(random.integers(256))]))
    return bytes(changed)


FILES = valid_files()


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_an_image_or_bad(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(len(FILES[name]))
    assert Image.of(FILES[name]).pixels().size == 24 * 40 * 3
    told = []
    for _ in range(N_DAMAGED):
        try:
            image = Image.of(damaged(FILES[name], random))
            assert image.pixels().shape == (image.size[1], image.size[0], 3)
        except BadImage as reason:
            told.append(str(reason))
    assert told
    assert not any("\n" in line for line in told)
    assert capfd.readouterr() == ("", "")
