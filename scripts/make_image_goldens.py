"""Makes the golden files of `tests/golden/data/images`: small images of many kinds, and what transformers gives.

Run from the repository root: `python scripts/make_image_goldens.py`. Needs torch, torchvision, transformers, Pillow.

NN.EXT        images of odd sizes, modes and orientations
results.npz   for each family, of all images: FAMILY.shapes int64[images, 2], FAMILY.samples float32[images, SAMPLES]
              at `places` of each result, FAMILY.sums uint32[images], CRC-32 of all of it. A result is float32[N, W]:
              patches, or tiles row by row (channels, rows, columns)
sizes.json    for each rule what it gives for sizes [height, width]
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.models.gemma4.image_processing_gemma4 import get_aspect_ratio_preserving_size
from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

DATA = Path(__file__).resolve().parent.parent / "tests" / "golden" / "data" / "images"
SAMPLES = 128
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def places(n: int) -> NDArray[np.int64]:
    """Where results of `n` numbers are sampled."""
    return np.sort(np.random.default_rng(n).integers(0, n, SAMPLES))


def picture(width: int, height: int, seed: int) -> Image.Image:
    """A picture of gradients, shapes and lines, which compresses well."""
    random = np.random.default_rng(seed)
    columns, rows = np.arange(width) * 255 // max(width - 1, 1), np.arange(height) * 255 // max(height - 1, 1)
    pixels = np.empty((height, width, 4), np.uint8)
    pixels[..., 0], pixels[..., 1], pixels[..., 2] = columns, rows[:, None], 255 - columns
    pixels[..., 3] = rows[:, None]
    image = Image.fromarray(pixels, "RGBA")
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y = sorted(random.integers(0, width, 2).tolist()), sorted(random.integers(0, height, 2).tolist())
        colour = tuple(random.integers(0, 256, 4).tolist())
        draw.ellipse((x[0], y[0], x[1], y[1]), fill=colour)
        draw.line((x[0], y[1], x[1], y[0]), fill=colour[::-1], width=1 + int(random.integers(3)))
    return image


def write_images() -> None:
    """Write the images."""
    for number, (kind, mode, size, options) in enumerate(IMAGES):
        image = picture(*size, number)
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 251 + 7)
        elif mode == "LAB":
            image = Image.frombytes("LAB", size, image.convert("RGB").tobytes())
        else:
            image = (image if mode.endswith("A") else image.convert("RGB")).convert(mode)
        own = dict(options)
        if "orientation" in own:
            own["exif"] = Image.Exif()
            own["exif"][274] = own.pop("orientation")
        if own.pop("animated", False):
            own |= {"save_all": True, "append_images": [ImageOps.invert(image.convert("RGB"))]}
        image.save(DATA / f"{number:02}.{kind}", **own)


IMAGES: tuple[tuple[str, str, tuple[int, int], dict[str, Any]], ...] = (
    ("png", "RGB", (23, 37), {}),
    ("png", "RGB", (1, 1), {}),
    ("png", "RGB", (200, 3), {}),
    ("png", "RGB", (5, 97), {}),
    ("png", "RGB", (512, 512), {}),
    ("png", "L", (75, 100), {}),
    ("png", "L", (75, 101), {"transparency": 128}),
    ("png", "1", (47, 61), {}),
    ("png", "LA", (90, 33), {}),
    ("png", "P", (121, 80), {}),
    ("png", "P", (90, 123), {"transparency": bytes(range(256))}),
    ("png", "RGBA", (141, 77), {}),
    ("png", "I;16", (89, 55), {}),
    ("png", "RGB", (64, 40), {"orientation": 6}),
    *(("jpg", "RGB", (151, 101), {"orientation": orientation, "quality": 80}) for orientation in range(2, 9)),
    ("jpg", "L", (333, 251), {"quality": 60}),
    ("jpg", "CMYK", (97, 211), {"quality": 70}),
    ("jpg", "RGB", (1281, 853), {"quality": 30}),
    ("jpg", "RGB", (2003, 151), {"quality": 40, "progressive": True}),
    ("jpg", "RGB", (251, 1407), {"quality": 40}),
    ("jpg", "YCbCr", (449, 447), {"quality": 50, "subsampling": 2}),
    ("webp", "RGBA", (160, 90), {"lossless": True}),
    ("webp", "RGB", (66, 44), {"lossless": True, "animated": True}),
    ("gif", "P", (57, 99), {"animated": True}),
    ("gif", "P", (57, 35), {"transparency": 3}),
    ("bmp", "RGB", (41, 29), {}),
    ("tif", "RGB", (130, 70), {"compression": "tiff_lzw", "orientation": 8}),
    ("tif", "CMYK", (60, 80), {"compression": "tiff_adobe_deflate"}),
    ("tif", "LAB", (33, 35), {}),
)


def tiles(found: Any) -> NDArray[np.float32]:
    """Tiles of a result: [N, 3 * H * W], from the last three axes."""
    values = np.stack([np.asarray(each) for each in found]) if isinstance(found, list) else np.asarray(found)
    return values.reshape(-1, math.prod(values.shape[-3:]))


def channels_first(patches: NDArray[np.float32], patch: int) -> NDArray[np.float32]:
    """Patches of (row, column, channel) as (channel, row, column)."""
    return patches.reshape(-1, patch, patch, 3).transpose(0, 3, 1, 2).reshape(len(patches), -1)


def gemma4(found: Any) -> NDArray[np.float32]:
    """The patches of Gemma 4 that are not padding."""
    return channels_first(np.asarray(found["pixel_values"][0])[: int(found["num_soft_tokens_per_image"][0]) * 9], 16)


def lfm2(found: Any) -> NDArray[np.float32]:
    """The patches of all tiles of LFM2-VL that are not padding."""
    own = zip(np.asarray(found["pixel_values"]), np.asarray(found["spatial_shapes"]).prod(axis=1), strict=True)
    return channels_first(np.concatenate([rows[:n] for rows, n in own]), 16)


def minicpm(found: Any) -> NDArray[np.float32]:
    """The patches of all tiles of MiniCPM-V."""
    values = np.asarray(found["pixel_values"])[0]
    return values.reshape(3, 14, -1, 14).transpose(2, 0, 1, 3).reshape(-1, 3 * 14 * 14)


Result = Callable[[Any], NDArray[np.float32]]
FAMILIES: dict[str, tuple[str, dict[str, Any], Result]] = {
    "clip": ("CLIPImageProcessor", {"size": {"shortest_edge": 336}, "crop_size": 336}, lambda x: tiles(x.pixel_values)),
    "gemma3": ("Gemma3ImageProcessor", {}, lambda x: tiles(x.pixel_values)),
    "gemma4": ("Gemma4ImageProcessor", {}, gemma4),
    "idefics3": (
        "Idefics3ImageProcessor",
        {"size": {"longest_edge": 512}, "max_image_size": {"longest_edge": 128}},
        lambda x: tiles(x.pixel_values),
    ),
    "internvl": (
        "GotOcr2ImageProcessor",
        {"size": {"height": 112, "width": 112}, "crop_to_patches": True},
        lambda x: tiles(x.pixel_values),
    ),
    "lfm2": ("Lfm2VlImageProcessor", {}, lfm2),
    "llava": (
        "LlavaImageProcessor",
        {"do_pad": True, "size": {"height": 336, "width": 336}, "do_center_crop": False},
        lambda x: tiles(x.pixel_values),
    ),
    "llava_next": (
        "LlavaNextImageProcessor",
        {"size": {"shortest_edge": 336}, "crop_size": 336, "image_grid_pinpoints": PINPOINTS},
        lambda x: tiles(x.pixel_values),
    ),
    "minicpm": ("MiniCPMV4_6ImageProcessor", {}, minicpm),
    "mistral3": (
        "PixtralImageProcessor",
        {"size": {"longest_edge": 616}, "patch_size": {"height": 28, "width": 28}},
        lambda x: tiles(x.pixel_values),
    ),
    "qwen3": (
        "Qwen2VLImageProcessor",
        {
            "patch_size": 16,
            "size": {"shortest_edge": 65536, "longest_edge": 400_000},
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
        lambda x: np.asarray(x.pixel_values).reshape(len(x.pixel_values), 3, 2, -1)[:, :, 0].reshape(-1, 3 * 16 * 16),
    ),
}


def write_results() -> None:
    """Write what the processors make of the images; where one refuses an image, its shape is 0 x 0."""
    found: dict[str, NDArray[Any]] = {}
    files = sorted(path for path in DATA.iterdir() if path.stem.isdecimal())
    for family, (name, options, result_of) in FAMILIES.items():
        processor = getattr(transformers, name)(**options)
        shapes, samples, sums = [], [], []
        for path in files:
            with Image.open(path) as file:
                image = ImageOps.exif_transpose(file)
            try:
                result = np.ascontiguousarray(result_of(processor(image, return_tensors="pt", do_convert_rgb=True)))
            except (RuntimeError, ValueError) as reason:
                print(f"{family} refuses {path.name}: {str(reason).splitlines()[0]}")
                result = np.zeros((0, 0), np.float32)
            assert result.dtype == np.float32
            shapes.append(result.shape)
            samples.append(result.reshape(-1)[places(result.size)] if result.size else np.zeros(SAMPLES, np.float32))
            sums.append(zlib.crc32(result.tobytes()))
        found[f"{family}.shapes"], found[f"{family}.samples"] = np.array(shapes), np.array(samples)
        found[f"{family}.sums"] = np.array(sums, np.uint32)
    np.savez_compressed(DATA / "results.npz", **found)


def refused(rule: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """A rule that gives None where it refuses."""

    def found(height: int, width: int) -> Any:
        try:
            return rule(height, width)
        except (ValueError, ZeroDivisionError):
            return None

    return found


def rules() -> dict[str, Callable[[int, int], Any]]:
    """The rules of transformers, each of a height and a width."""
    lfm2_processor = transformers.Lfm2VlImageProcessor()
    minicpm_processor = transformers.MiniCPMV4_6ImageProcessor()
    idefics = transformers.Idefics3ImageProcessor(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
    limits = {"downsample_factor": 2, "max_image_tokens": 256, "encoder_patch_size": 16}

    def blank(height: int, width: int) -> Any:
        return torch.empty((3, height, width), device="meta")

    def lfm2_rule(height: int, width: int) -> Any:
        size = lfm2_processor.smart_resize(height, width, min_image_tokens=64, **limits)[::-1]
        large = lfm2_processor._is_image_too_large(height, width, max_pixels_tolerance=2.0, **limits)
        return [*size, *(lfm2_processor._get_grid_layout(height, width, 2, 10, 512)[1::-1] if large else (1, 1))]

    def minicpm_rule(height: int, width: int) -> Any:
        grid = minicpm_processor.get_sliced_grid((height, width), 9, 448)
        whole = minicpm_processor.find_best_resize((height, width), 448, 14, "16x", allow_upscale=grid is None)
        if grid is None:
            return [*whole, 0, 0, 0, 0]
        refined = minicpm_processor.get_refine_size((height, width), grid, 448, 14, "16x", allow_upscale=True)
        return [*whole, *grid, refined[0] // grid[0], refined[1] // grid[1]]

    def idefics_rule(height: int, width: int) -> Any:
        sized: list[Any] = []
        module = transformers.models.idefics3.image_processing_idefics3
        sized += module.get_resize_output_image_size(blank(height, width), 2048)
        spy = SimpleNamespace(resize=lambda image, size, resample: sized.extend((size.height, size.width)))
        type(idefics).resize_for_vision_encoder(spy, blank(*sized), 512)
        return sized

    return {
        "qwen": lambda h, w: smart_resize(h, w, 32, 65536, 16777216),
        "qwen2": lambda h, w: smart_resize(h, w),
        "gemma4": lambda h, w: get_aspect_ratio_preserving_size(h, w, 16, 280 * 9, 3),
        "mistral3": lambda h, w: get_resize_output_image_size(blank(h, w), 1540, 28),
        "clip": lambda h, w: transformers.image_transforms.get_resize_output_image_size(
            blank(h, w), 336, default_to_square=False, input_data_format="channels_first"
        ),
        "internvl": lambda h, w: get_optimal_tiled_canvas((h, w), (448, 448), 1, 12)[::-1],
        "lfm2": lfm2_rule,
        "minicpm": minicpm_rule,
        "idefics3": idefics_rule,
        "llava_next": lambda h, w: [
            *select_best_resolution((h, w), PINPOINTS),
            *get_patch_output_size(blank(h, w), select_best_resolution((h, w), PINPOINTS), "channels_first"),
        ],
    }


def write_sizes() -> None:
    """Write what the rules give for usual sizes, for odd ones and at their limits."""
    random = np.random.default_rng(39)
    sizes = [(1, 1), (1, 200), (201, 1), (1080, 1920), (3024, 4032), (8064, 6048), (448, 448), (1024, 1280)]
    sizes += [(4096, 4096), (896, 896), (512, 512), (1, 5000), (9000, 31), (725, 724), (2048, 2047), (150, 900)]
    sizes += [(336, 1008)]
    sizes += [tuple(np.exp(random.uniform(np.log(3), np.log(6000), 2)).astype(int).tolist()) for _ in range(60)]
    told = {name: [refused(rule)(*size) for size in sizes] for name, rule in rules().items()}
    told = {name: [None if each is None else [int(n) for n in each] for each in found] for name, found in told.items()}
    text = json.dumps({"sizes": sizes, **told}, separators=(",", ":"))
    (DATA / "sizes.json").write_text(text.replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    DATA.mkdir(parents=True, exist_ok=True)
    write_images()
    write_results()
    write_sizes()
