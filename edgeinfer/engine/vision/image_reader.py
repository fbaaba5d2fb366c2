"""Images as rows of a language model: encodes them beside it, on the same workers.

In: a projector file, tiles of images that stand in a prompt. Out: their rows as `PromptRows`, and a `Sight`, which lets
prompts have images. The encoder's weights are read with the first image. Rows of the last images are kept, up to
KEPT_BYTES, by the names that they have in prompts.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence

from edgeinfer.engine.requests.image_prompts import NamedImage, NamedTile, Sight
from edgeinfer.engine.requests.prompt_rows import PromptRows
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.vision.open_encoder import OpenEncoder
from edgeinfer.graph.step import Floats
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.images.image import Image
from edgeinfer.models.projector_file import ProjectorFile
from edgeinfer.models.vision.encoder import Size, TileInput
from edgeinfer.steps import READING_IMAGES, Progress

KEPT_BYTES = 256 << 20
"""Most bytes of rows of images that were encoded before."""


class ImageReader:
    """Reads images for one language model. Usable from any thread. Close it."""

    def __init__(self, projector: ProjectorFile, fingerprint: str, pool: Pool) -> None:
        """`fingerprint`: of the projector file, which is closed with this. `pool`: of the language model."""
        self._encoder, self._projector, self._fingerprint = projector.encoder, projector, fingerprint
        self._pool = pool
        self._opened: OpenEncoder | None = None
        self._kept: OrderedDict[str, Floats] = OrderedDict()
        self._keeping = threading.Lock()
        self.n_encoded = 0
        """Tiles that were encoded so far."""

    @property
    def sight(self) -> Sight:
        """What lets prompts have images."""
        return Sight(re.compile(self._encoder.placeholder), self.named, self.rows)

    def named(self, image: Image) -> NamedImage:
        """An image's plan, from its size alone, and its tiles by name. Raises BadImage."""
        width, height = image.size
        plan, key = self._encoder.plan((height, width)), f"{self._fingerprint} {image.key}"
        tiles = enumerate(plan.tiles)
        return NamedImage(plan, tuple(NamedTile(image, number, tile, f"{key} {number}") for number, tile in tiles))

    def rows(self, tiles: Sequence[NamedTile], progress: Progress) -> list[PromptRows]:
        """The rows of tiles, encoded unless they are known. Raises BadImage, DoesNotFit, EngineClosed."""
        found: dict[str, Floats] = {}
        inputs: tuple[str, list[TileInput]] = "", []
        for number, tile in enumerate(tiles):
            rows = found.get(tile.key)
            rows = self._known(tile.key) if rows is None else rows
            if rows is None:
                if inputs[0] != tile.image.key:
                    size = tile.image.size[::-1]
                    inputs = tile.image.key, self._encoder.tiles(tile.image.pixels(), self._encoder.plan(size))
                progress(READING_IMAGES, number, len(tiles))
                rows = self._encoded(inputs[1][tile.number], tile.plan.grid)
                self._keep(tile.key, rows)
            found[tile.key] = rows
        whole = self._encoder.whole
        return [PromptRows(found[tile.key], tile.plan.axes, whole=whole, first_name=tile.names[0]) for tile in tiles]

    def _known(self, key: str) -> Floats | None:
        with self._keeping:
            rows = self._kept.get(key)
            if rows is not None:
                self._kept.move_to_end(key)
            return rows

    def _keep(self, key: str, rows: Floats) -> None:
        with self._keeping:
            self._kept[key] = rows
            while sum(each.nbytes for each in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)

    def _encoded(self, tile: TileInput, grid: Size) -> Floats:
        with self._pool.lock:
            self._pool.check_open()
            if self._opened is None:
                self._opened = OpenEncoder(self._projector, self._fingerprint, self._pool.executor.beside)
            self.n_encoded += 1
            return self._opened.encoded(tile, grid)

    def close(self) -> None:
        """Free the encoder's memory and close its file."""
        if self._opened is not None:
            self._opened.close()
        self._projector.close()


def image_reader(subject: Subject, pool: Pool) -> ImageReader | None:
    """What reads images for an open model; None if it has no projector."""
    projector = subject.projector
    return None if projector is None else ImageReader(projector, fingerprint(projector.file), pool)
