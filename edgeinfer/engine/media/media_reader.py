"""Images as rows of a language model: encodes them beside it, on the same workers.

In: a projector file, tiles of images that stand in a prompt. Out: their rows as `LateRows`, and a `Sight`, which lets
prompts have images. A tile is encoded when the pass comes that reads its rows: never if the cache has them. The
encoder's weights are read with the first image. Rows of the last images are kept, up to KEPT_BYTES, by the names that
they have in prompts.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from edgeinfer.engine.media.open_encoder import OpenEncoder
from edgeinfer.engine.requests.media_prompts import NamedMedia, NamedTile, Sight
from edgeinfer.engine.requests.prompt_rows import LateRows
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.pool import Pool
from edgeinfer.graph.step import Floats
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.images.image import Image
from edgeinfer.models.projector_file import ProjectorFile
from edgeinfer.models.vision.encoder import TileInput
from edgeinfer.steps import READING_IMAGES, Progress

KEPT_BYTES = 256 << 20
"""Most bytes of rows of images that were encoded before."""


class MediaReader:
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

    def named(self, image: Image) -> NamedMedia:
        """An image's plan, from its size alone, and its tiles by name. Raises BadImage."""
        width, height = image.size
        plan, key = self._encoder.plan((height, width)), f"{self._fingerprint} {image.key}"
        tiles = enumerate(plan.tiles)
        return NamedMedia(plan, tuple(NamedTile(image, number, tile, f"{key} {number}") for number, tile in tiles))

    def rows(self, tiles: Sequence[NamedTile], progress: Progress) -> list[LateRows]:
        """The rows of tiles, which are encoded when they are read. Raises BadImage for what cannot be decoded.

        `progress` is called before a tile is encoded.
        """
        found = []
        inputs: tuple[str, list[TileInput]] = "", []
        for number, tile in enumerate(tiles):
            if inputs[0] != tile.image.key and self._known(tile.key) is None:
                inputs = tile.image.key, self._inputs(tile.image)
            own = inputs[1][tile.number] if inputs[0] == tile.image.key else None
            late = _LateTile(self, tile, own, partial(progress, READING_IMAGES, number, len(tiles)))
            plan = tile.plan
            found.append(LateRows(tile.names, self._encoder.width, late.rows, plan.axes, self._encoder.whole))
        return found

    def _inputs(self, image: Image) -> list[TileInput]:
        return self._encoder.tiles(image.pixels(), self._encoder.plan(image.size[::-1]))

    def encoded(self, tile: NamedTile, own: TileInput | None, progress: Callable[[], None]) -> Floats:
        """The rows of a tile; call with the lock of the pool held. `own`: its pixels, if they are at hand.

        Raises BadImage, DoesNotFit.
        """
        rows = self._known(tile.key)
        if rows is None:
            progress()
            if self._opened is None:
                self._opened = OpenEncoder(self._projector, self._fingerprint, self._pool.executor.beside)
            own = self._inputs(tile.image)[tile.number] if own is None else own
            rows = self._opened.encoded(own, tile.plan.grid)
            self.n_encoded += 1
            self._keep(tile.key, rows)
        return rows

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

    def close(self) -> None:
        """Free the encoder's memory and close its file."""
        if self._opened is not None:
            self._opened.close()
        self._projector.close()


class _LateTile:
    """A tile whose pixels wait to be encoded, once."""

    def __init__(
        self, reader: MediaReader, tile: NamedTile, own: TileInput | None, progress: Callable[[], None]
    ) -> None:
        self._reader, self._tile, self._own, self._progress = reader, tile, own, progress

    def rows(self) -> Floats:
        """The rows, or those of the part that is asked for; the tile is encoded unless its rows are known."""
        found, tile = self._reader.encoded(self._tile, self._own, self._progress), self._tile
        self._own = None
        return found[tile.first : tile.first + tile.plan.n_rows]


def media_reader(subject: Subject, pool: Pool) -> MediaReader | None:
    """What reads images for an open model; None if it has no projector."""
    projector = subject.projector
    return None if projector is None else MediaReader(projector, fingerprint(projector.file), pool)
