"""Images as rows of a language model: encodes them beside it, on the same workers.

In: an image encoder, the file with its weights, images. Out: for each tile of an image its rows as `PromptRows`, with
names that say which image, tile and encoder they come from, so that a prompt can be made and compared before anything
is encoded. The encoder is opened with the first image. Rows of the last images are kept, up to KEPT_BYTES.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.engine.requests.prompt_rows import NUMBER_BITS, PromptRows
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.vision.open_encoder import OpenEncoder
from edgeinfer.graph.step import Floats
from edgeinfer.models.images.image import Image
from edgeinfer.models.projector_file import ProjectorFile
from edgeinfer.models.vision.encoder import ImagePlan, Size, TileInput, TilePlan
from edgeinfer.steps import Progress, no_progress

KEPT_BYTES = 256 << 20
"""Most bytes of rows of images that were encoded before."""


@dataclass(frozen=True, slots=True)
class NamedTile:
    """A tile of an image that stands in a prompt: its plan, and the key that its rows are named by."""

    image: Image
    number: int
    plan: TilePlan
    key: str

    @property
    def names(self) -> range:
        """The names of its rows in prompts."""
        first = first_name(self.key)
        return range(first, first - self.plan.n_rows, -1)


def first_name(key: str) -> int:
    """The name of the first row of a tile; the others count down from it."""
    digest = hashlib.blake2b(key.encode(), digest_size=16)
    return -1 - (int.from_bytes(digest.digest(), "little") << NUMBER_BITS)


class ImageReader:
    """Reads images for one language model. Usable from any thread. Close it."""

    def __init__(self, projector: ProjectorFile, fingerprint: str) -> None:
        """`fingerprint`: of the projector file, which is closed with this."""
        self.encoder, self._projector, self._fingerprint = projector.encoder, projector, fingerprint
        self._opened: OpenEncoder | None = None
        self._kept: OrderedDict[str, Floats] = OrderedDict()

    def plan(self, image: Image) -> ImagePlan:
        """What an image becomes, from its size alone. Raises BadImage."""
        width, height = image.size
        return self.encoder.plan((height, width))

    def named(self, image: Image) -> tuple[ImagePlan, list[NamedTile]]:
        """An image's plan and its tiles. Raises BadImage."""
        plan = self.plan(image)
        key = f"{self._fingerprint} {image.key} "
        return plan, [NamedTile(image, number, tile, f"{key}{number}") for number, tile in enumerate(plan.tiles)]

    def rows(self, pool: Pool, tiles: Sequence[NamedTile], progress: Progress = no_progress) -> list[PromptRows]:
        """The rows of tiles, encoded unless they are known. Raises BadImage, DoesNotFit, EngineClosed."""
        found: dict[str, Floats] = {}
        inputs: dict[str, list[TileInput]] = {}
        for number, tile in enumerate(tiles):
            if tile.key in found:
                continue
            kept = self._kept.get(tile.key)
            if kept is None:
                if tile.image.key not in inputs:
                    inputs = {tile.image.key: self.encoder.tiles(tile.image.pixels(), self.plan(tile.image))}
                progress("reading the image", number, len(tiles))
                kept = self._encoded(pool, inputs[tile.image.key][tile.number], tile.plan.grid)
            found[tile.key] = kept
            self._keep(tile.key, kept)
        return [PromptRows(found[tile.key], tile.plan.axes, first_name=tile.names[0]) for tile in tiles]

    def _keep(self, key: str, rows: Floats) -> None:
        self._kept[key] = rows
        self._kept.move_to_end(key)
        while sum(each.nbytes for each in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)

    def _encoded(self, pool: Pool, tile: TileInput, grid: Size) -> Floats:
        with pool.lock:
            pool.check_open()
            if self._opened is None:
                self._opened = OpenEncoder(self._projector, self._fingerprint, pool.executor.beside)
            return self._opened.encoded(tile, grid)

    def close(self) -> None:
        """Free the encoder's memory and close its file."""
        if self._opened is not None:
            self._opened.close()
        self._projector.close()
