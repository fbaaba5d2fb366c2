"""Images and sound as rows of a language model: encodes them beside it, on the same workers.

In: a projector file, tiles of images and chunks of sounds that stand in a prompt. Out: their rows as `LateRows`, and
`Modalities`, which let prompts have them. A tile is encoded when the pass comes that reads its rows: never if the cache
has them. An encoder's weights are read with the first image or sound. Rows of the last ones are kept, up to KEPT_BYTES,
by the names that they have in prompts.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from edgeinfer.engine.media.open_encoder import OpenEncoder
from edgeinfer.engine.requests.media_prompts import (
    IMAGE_PART,
    SOUND_PART,
    Medium,
    Modalities,
    NamedMedia,
    NamedTile,
    kind_of,
)
from edgeinfer.engine.requests.prompt_rows import LateRows
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.pool import Pool
from edgeinfer.graph.step import Floats
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.images.image import Image
from edgeinfer.models.projector_file import ProjectorFile
from edgeinfer.models.vision.encoder import Encoder, MediaPlan, TileInput
from edgeinfer.steps import READING_IMAGES, READING_SOUND, Progress

KEPT_BYTES = 256 << 20
"""Most bytes of rows of images and sounds that were encoded before."""
_STEPS = {IMAGE_PART: READING_IMAGES, SOUND_PART: READING_SOUND}


class MediaReader:
    """Reads images and sound for one language model. Usable from any thread. Close it."""

    def __init__(self, projector: ProjectorFile, fingerprint: str, pool: Pool) -> None:
        """`fingerprint`: of the projector file, which is closed with this. `pool`: of the language model."""
        self._projector, self._fingerprint, self._pool = projector, fingerprint, pool
        self._images, self._sound = projector.encoders.images, projector.encoders.sound
        self._opened: dict[str, OpenEncoder] = {}
        self._kept: OrderedDict[str, Floats] = OrderedDict()
        self._keeping = threading.Lock()
        self.n_encoded = 0
        """Tiles that were encoded so far."""

    @property
    def modalities(self) -> Modalities:
        """What lets prompts have images and sound."""
        encoders = {IMAGE_PART: self._images, SOUND_PART: self._sound}
        placeholders = {
            kind: re.compile(encoder.placeholder) for kind, encoder in encoders.items() if encoder is not None
        }
        return Modalities(placeholders, self.named, self.rows)

    def named(self, medium: Medium) -> NamedMedia:
        """The plan of an image or a sound, from its size alone, and its tiles by name. Raises BadImage, BadSound."""
        plan, key = self._plan(medium), f"{self._fingerprint} {medium.key}"
        tiles = enumerate(plan.tiles)
        named = tuple(NamedTile(medium, number, tile, f"{key} {number}") for number, tile in tiles)
        return NamedMedia(kind_of(medium), plan, named)

    def rows(self, tiles: Sequence[NamedTile], progress: Progress) -> list[LateRows]:
        """The rows of tiles, which are encoded when they are read.

        Raises BadImage, BadSound for what cannot be decoded. `progress` is called before a tile is encoded.
        """
        found = []
        inputs: tuple[str, list[TileInput]] = "", []
        for number, tile in enumerate(tiles):
            medium = tile.medium
            if inputs[0] != medium.key and self._known(tile.key) is None:
                inputs = medium.key, self._inputs(medium)
            own = inputs[1][tile.number] if inputs[0] == medium.key else None
            told, ends = partial(progress, _STEPS[kind_of(medium)], number, len(tiles)), number + 1 == len(tiles)
            late = _LateTile(self, tile, own, told, ends=ends)
            plan, encoder = tile.plan, self._encoder(medium)
            found.append(LateRows(tile.names, encoder.width, late.rows, plan.axes, encoder.whole))
        return found

    def _encoder(self, medium: Medium) -> Encoder:
        encoder = self._images if isinstance(medium, Image) else self._sound
        assert encoder is not None
        return encoder

    def _plan(self, medium: Medium) -> MediaPlan:
        if isinstance(medium, Image):
            assert self._images is not None
            return self._images.plan(medium.size[::-1])
        assert self._sound is not None
        return self._sound.plan(medium.n_samples)

    def _inputs(self, medium: Medium) -> list[TileInput]:
        plan = self._plan(medium)
        if isinstance(medium, Image):
            assert self._images is not None
            return self._images.tiles(medium.source(), plan)
        assert self._sound is not None
        return self._sound.tiles(medium.samples(), plan)

    def encoded(self, tile: NamedTile, own: TileInput | None, progress: Callable[[], None]) -> Floats:
        """The rows of a tile; call with the lock of the pool held. `own`: its input, if it is at hand.

        Raises BadImage, BadSound, DoesNotFit.
        """
        rows = self._known(tile.key)
        if rows is None:
            progress()
            encoder, kind = self._encoder(tile.medium), kind_of(tile.medium)
            if kind not in self._opened:
                own_file = self._projector, self._fingerprint
                self._opened[kind] = OpenEncoder(*own_file, self._pool.executor.beside, encoder)
            own = self._inputs(tile.medium)[tile.number] if own is None else own
            rows = self._opened[kind].encoded(own, tile.plan.grid)
            self.n_encoded += 1
            self._keep(tile.key, rows)
        return rows

    def rest(self) -> None:
        """Give back what encoding needs besides weights, until the next image; call with the lock of the pool held."""
        for opened in self._opened.values():
            opened.give_back()

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
        """Free the memory of encoders and close their file."""
        for encoder in self._opened.values():
            encoder.close()
        self._projector.close()


class _LateTile:
    """A tile whose input waits to be encoded, once. `ends`: whether no other one of the prompt follows."""

    def __init__(
        self, reader: MediaReader, tile: NamedTile, own: TileInput | None, progress: Callable[[], None], *, ends: bool
    ) -> None:
        self._reader, self._tile, self._own, self._progress = reader, tile, own, progress
        self._ends = ends

    def rows(self) -> Floats:
        """The rows, or those of the part that is asked for; the tile is encoded unless its rows are known."""
        found, tile = self._reader.encoded(self._tile, self._own, self._progress), self._tile
        self._own = None
        if self._ends:
            self._reader.rest()
        return found[tile.first : tile.first + tile.plan.n_rows]


def media_reader(subject: Subject, pool: Pool) -> MediaReader | None:
    """What reads images and sound for an open model; None if it has no projector."""
    projector = subject.projector
    return None if projector is None else MediaReader(projector, fingerprint(projector.file), pool)
