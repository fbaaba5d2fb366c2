"""Images of all formats that are read."""

from __future__ import annotations

import io

from PIL import Image as Pillow

from edgeinfer.models.images.image import Image


def seeds() -> list[bytes]:
    """A small picture in each format, some animated."""
    picture = Pillow.effect_noise((40, 30), 60).convert("RGB")
    found = []
    for form in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"):
        kept = io.BytesIO()
        picture.save(kept, form)
        found.append(kept.getvalue())
    kept = io.BytesIO()
    picture.save(kept, "GIF", save_all=True, append_images=[picture.rotate(90)])
    return [*found, kept.getvalue()]


def run(data: bytes) -> None:
    """Read its header, and its pixels."""
    Image.of(data).pixels()
