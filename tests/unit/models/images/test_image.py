"""`Image`: what it is made from, its name and key, its size before decoding, its pixels upright and in RGB."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

import edgeinfer
from edgeinfer import Image
from edgeinfer.errors import BadImage, BadSetting
from edgeinfer.models.images.resizing import resized

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16")


def noise(height: int = 37, width: int = 23, channels: int = 3) -> np.ndarray:
    """Random numbers: uint8[height, width, channels]."""
    return np.random.default_rng(height * width).integers(0, 256, (height, width, channels), np.uint8)


def encoded(image: PIL.Image.Image, form: str = "PNG", **options: object) -> bytes:
    """The file of an image."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def over_white(image: PIL.Image.Image) -> np.ndarray:
    """An image in RGB over white."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        own = image.convert("RGBA")
        image = PIL.Image.alpha_composite(PIL.Image.new("RGBA", own.size, "white"), own)
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_file_is_upright_and_its_size_is_known_before(form: str, orientation: int) -> None:
    exif = PIL.Image.Exif()
    exif[274] = orientation
    options = {} if form in ("GIF", "BMP") else {"exif": exif}
    data = encoded(PIL.Image.fromarray(noise()), form, **options)
    with PIL.Image.open(io.BytesIO(data)) as stored:
        upright = np.asarray(PIL.ImageOps.exif_transpose(stored).convert("RGB"))
    image = Image.of(data)
    assert (image.format, image.name, image.data) == (form, "image", data)
    assert image.size == upright.shape[1::-1]
    assert np.array_equal(image.pixels(), upright)
    source = image.source()
    assert source.shape == upright.shape
    for rows in (slice(3, 11), slice(0, 1), slice(len(upright) - 2, len(upright) + 5), slice(4, 4)):
        assert np.array_equal(source[rows], upright[rows])
    assert np.array_equal(resized(source, (9, 7), "bicubic"), resized(upright, (9, 7), "bicubic"))


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_becomes_rgb_as_pillow_converts_it(mode: str) -> None:
    source = PIL.Image.fromarray(noise(channels=4), "RGBA")
    if mode in ("I", "F", "I;16"):
        source = PIL.Image.fromarray(noise(channels=1)[..., 0].astype({"I": "i4", "F": "f4", "I;16": "u2"}[mode]))
    elif mode == "LAB":
        source = PIL.Image.frombytes("LAB", (23, 37), noise().tobytes())
    else:
        source = (source if mode.endswith("A") else source.convert("RGB")).convert(mode)
    assert source.mode == mode
    assert np.array_equal(Image.of(source).pixels(), over_white(source))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_png_of_a_mode_becomes_rgb_over_white(mode: str) -> None:
    if mode == "I;16":
        source = PIL.Image.fromarray(noise(channels=1)[..., 0].astype("u2") * 257)
    else:
        source = PIL.Image.fromarray(noise(channels=4), "RGBA")
        source = (source if mode.endswith("A") else source.convert("RGB")).convert(mode)
    transparency = {
        "P": {"transparency": bytes(range(200))},
        "L": {"transparency": 7},
        "RGB": {"transparency": (1, 2, 3)},
    }
    data = encoded(source, "PNG", **transparency.get(mode, {}))
    with PIL.Image.open(io.BytesIO(data)) as stored:
        assert np.array_equal(Image.of(data).pixels(), over_white(stored))


def test_a_large_image_is_converted_like_a_small_one() -> None:
    source = PIL.Image.fromarray(noise(1400, 900, 4), "RGBA")
    assert np.array_equal(Image.of(encoded(source, compress_level=1)).pixels(), over_white(source))


def test_the_first_frame_of_an_animation_counts() -> None:
    frames = [PIL.Image.new("RGB", (9, 5), colour) for colour in ("red", "green", "blue")]
    for form in ("GIF", "WEBP", "PNG", "TIFF", "AVIF"):
        image = Image.of(encoded(frames[0], form, save_all=True, append_images=frames[1:]))
        assert image.size == (9, 5)
        assert np.abs(image.pixels().astype(int) - (255, 0, 0)).max() < 8, form


def test_the_orientation_may_stand_behind_the_pixels_or_in_xmp() -> None:
    source = PIL.Image.fromarray(noise())
    exif = PIL.Image.Exif()
    exif[274] = 6
    data = encoded(source, exif=exif)
    start = data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4], "big")
    late = data[:start] + data[end:-12] + data[start:end] + data[-12:]
    turned = np.asarray(source.transpose(PIL.Image.Transpose.ROTATE_270))
    assert np.array_equal(Image.of(late).pixels(), turned)
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'
    file = encoded(source, "JPEG", xmp=xmp)
    assert Image.of(file).size == (37, 23)


def test_a_file_is_named_and_keyed_by_its_content(tmp_path: Path) -> None:
    data = encoded(PIL.Image.fromarray(noise()))
    path = tmp_path / "A photo.png"
    path.write_bytes(data)
    image, same, other = Image.of(str(path)), Image.of(data, "B"), Image.of(encoded(PIL.Image.fromarray(noise(9))))
    assert (image.name, same.name) == ("A photo.png", "B")
    assert image == same == Image.of(path) == Image.of(memoryview(data))
    assert image.key == same.key != other.key
    assert len({image, same, other}) == 2
    assert Image.of(image) is image
    assert repr(image) == f"Image(key='{image.key}', name='A photo.png', format='PNG', size=(23, 37))"


def test_an_array_is_copied_and_keyed_by_its_pixels() -> None:
    array = noise()
    image, same = Image.of(array), Image.of(PIL.Image.fromarray(array))
    assert image == same
    assert image != Image.of(array.reshape(23, 37, 3))
    before, array[:] = array.copy(), 0
    assert np.array_equal(image.pixels(), before)
    assert (image.size, image.format) == ((23, 37), "pixels")
    assert not image.pixels().flags.writeable


def test_arrays_of_one_and_four_channels() -> None:
    grey, clear = noise(channels=1), noise(channels=4)
    assert np.array_equal(Image.of(grey).pixels(), np.repeat(grey, 3, axis=2))
    assert np.array_equal(Image.of(grey[..., 0]).pixels(), np.repeat(grey, 3, axis=2))
    difference = Image.of(clear).pixels().astype(int) - over_white(PIL.Image.fromarray(clear, "RGBA"))
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((4, 4, 3), np.float32), r"image is float32\[4, 4, 3\]; images are uint8"),
        (np.zeros((4, 4, 2), np.uint8), r"uint8\[4, 4, 2\]"),
        (np.zeros((0, 4, 3), np.uint8), "image has no pixels"),
        (
            np.broadcast_to(np.uint8(0), (10_000, 10_000, 3)),
            "100 million; such images may have up to 50",
        ),
        (PIL.Image.new("1", (10_000, 10_000)), "100 million"),
        (7, "int is no image: give a path, bytes"),
        ("https://a.org/b.png", "https://a.org/b.png is an address, and nothing is fetched; give a path"),
        (f"data:image/png;base64,{'A' * 10_000}", "data:image/png;base64,A{38} is an address"),
        (None, "NoneType is no image"),
    ],
)
def test_what_is_no_image_is_refused(value: object, told: str) -> None:
    with pytest.raises(BadImage, match=told):
        Image.of(value)  # type: ignore[arg-type]


def test_base64_that_is_taken_for_a_path_is_not_repeated_whole() -> None:
    with pytest.raises(BadImage, match="cannot be read") as refused:
        Image.of("iVBORw0KGgo" * 10_000)
    assert len(str(refused.value)) < 200


def test_without_pillow_files_are_refused_and_arrays_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(PIL.Image.fromarray(noise()))
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(BadSetting, match=r"images need Pillow: pip install 'edgeinfer\[vision\]'"):
        Image.of(data)
    assert Image.of(noise()).size == (23, 37)


def test_pillow_is_loaded_with_the_first_file() -> None:
    code = "import sys, edgeinfer; edgeinfer.Image; print('PIL' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
    assert issubclass(edgeinfer.BadImage, edgeinfer.EdgeInferError)


def test_threads_decode_at_once_and_leave_the_filters_of_warnings() -> None:
    data = encoded(PIL.Image.fromarray(noise(300, 200)), "JPEG")
    expected, before = Image.of(data).pixels(), list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: Image.of(data).pixels(), range(64)))
    assert all(np.array_equal(each, expected) for each in found)
    assert warnings.filters == before
