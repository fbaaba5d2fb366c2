"""How a model would read images: with which projector, and what an image of a usual size takes.

In: a model and the header of its projector, a plan. Out: `PlannedImages`, as text and as JSON. Reads no image and no
weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgeinfer.app.plain_text import counted, harmless, seconds_text
from edgeinfer.errors import EdgeInferError
from edgeinfer.scheduling.cost.images import EncoderWork
from edgeinfer.scheduling.machine.profile import CPU
from edgeinfer.scheduling.workers.shared_rates import with_cores
from edgeinfer.text_values import size_text

if TYPE_CHECKING:
    from edgeinfer.app.plans.planning import Planned
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.models.projector_file import ProjectorFacts
    from edgeinfer.models.store import LocalModel
    from edgeinfer.models.vision.encoder import Encoder, MediaPlan
    from edgeinfer.scheduling.cost.memory import MemoryNeed
    from edgeinfer.settings import Settings

WIDTH, HEIGHT = 1024, 768
"""Pixels of the image that plans are made for."""
LONGEST_TITLE = 60


@dataclass(frozen=True, slots=True)
class PlannedImages:
    """What an image of WIDTH x HEIGHT takes.

    encoder_bytes      weights of the encoder in memory
    n_tiles, n_rows    tiles that are encoded, and rows that they become
    n_tokens           tokens that the image takes in a prompt: its rows, and texts around them
    encode_s           seconds of encoding it, once per conversation; None where the machine was not measured
    read_s             seconds of reading its tokens
    refused            why images cannot be read, "" if they can
    """

    projector: ProjectorFacts | None
    encoder_bytes: int = 0
    n_tiles: int = 0
    n_rows: int = 0
    n_tokens: int = 0
    encode_s: float | None = None
    read_s: float | None = None
    refused: str = ""

    @property
    def line(self) -> str:
        """The result as text."""
        if self.projector is None or self.refused:
            return f"images    {self.refused}"
        return (
            f"images    {projector_text(self.projector, self.encoder_bytes)}; {WIDTH}x{HEIGHT}: "
            f"{counted(self.n_tiles, 'tile')}, {self.n_tokens} tokens{spent_text(self.encode_s, self.read_s)}"
        )

    @property
    def record(self) -> dict[str, object]:
        """The result as JSON; keys may be added, never renamed."""
        projector = self.projector
        return {
            "projector": None if projector is None else projector.file_name,
            "type": None if projector is None else projector.kind,
            "encoder_bytes": self.encoder_bytes,
            "width": WIDTH,
            "height": HEIGHT,
            "n_tiles": self.n_tiles,
            "n_rows": self.n_rows,
            "n_tokens": self.n_tokens,
            "encode_s": self.encode_s,
            "read_s": self.read_s,
            "refused": self.refused or None,
        }


def projector_text(projector: ProjectorFacts, encoder_bytes: int) -> str:
    """A projector by its file, name, type and weights."""
    title = " ".join(harmless(projector.title).split())[:LONGEST_TITLE]
    title = f"{title} ({projector.kind})" if title else projector.kind
    return f"{harmless(projector.file_name)}: {title}, {size_text(encoder_bytes)} of weights"


def spent_text(encode_s: float | None, read_s: float | None) -> str:
    """Seconds as the end of a line; "" where they are not known."""
    spent = "" if encode_s is None else f", {seconds_text(encode_s)} to encode"
    return spent + ("" if read_s is None else f", {seconds_text(read_s)} to read")


@dataclass(frozen=True, slots=True)
class FoundProjector:
    """The projector of a model. `unread`: why images cannot be read, though a file beside the model looks like one.

    `n_around`: tokens of the texts around the rows of an image of WIDTH x HEIGHT.
    """

    facts: ProjectorFacts | None = None
    unread: str = ""
    n_around: int = 0


NO_PROJECTOR = FoundProjector()


def found_projector(file: GGUFFile, local: LocalModel, settings: Settings) -> tuple[FoundProjector, Settings]:
    """The projector with which a model would be opened, and settings in which "auto" is the device for that.

    Raises BadSetting, BadGGUF, UnsupportedModel, ModelNotFound for a projector that settings name.
    """
    from edgeinfer.engine.opening.seeing import projector_facts

    facts, notices = projector_facts(local.path, file, settings.load, local.source)
    n_around = 0 if facts is None else _n_around(facts, file)
    found = FoundProjector(facts, notices[0].removeprefix("images ") if notices else "", n_around)
    if facts is None or settings.load.device != "auto":
        return found, settings
    return found, replace(settings, load=replace(settings.load, device=CPU))


def _n_around(projector: ProjectorFacts, file: GGUFFile) -> int:
    """Tokens of the texts that stand around an image's rows; none where the model's tokenizer is not known."""
    from edgeinfer.models.text import Tokenizer

    images = projector.encoders.images
    texts = [] if images is None else [part for part in images.plan((HEIGHT, WIDTH)).parts if isinstance(part, str)]
    try:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    except EdgeInferError:
        return 0
    return sum(len(tokenizer.encode(text, add_special=False, parse_special=True)) for text in texts)


def planned_images(projector: FoundProjector, need: MemoryNeed, planned: Planned | None) -> PlannedImages | None:
    """What images take with a model; None for a model without a projector, or with one that only hears.

    `planned`: None where nothing is known of the machine.
    """
    facts = projector.facts
    if facts is None:
        return PlannedImages(None, refused=projector.unread) if projector.unread else None
    if facts.encoders.images is None:
        return None
    if planned is not None and planned.decode.placement.devices != (CPU,):
        devices = ", ".join(planned.decode.placement.devices)
        return PlannedImages(facts, refused=f"are read on the cpu alone, not with {devices} (--schedule cpu)")
    plan = facts.encoder.plan((HEIGHT, WIDTH))
    sizes = need.encoder_bytes, len(plan.tiles), plan.n_rows, plan.n_rows + projector.n_around
    if planned is None:
        return PlannedImages(facts, *sizes)
    return PlannedImages(facts, *sizes, *seconds_of(facts, facts.encoder, plan, sizes[-1], planned))


def seconds_of(
    facts: ProjectorFacts, encoder: Encoder, plan: MediaPlan, n_tokens: int, planned: Planned
) -> tuple[float, float]:
    """Seconds of encoding an image or a sound, and of reading its tokens."""
    machine = planned.profile if planned.cores is None else with_cores(planned.profile, planned.cores.prefill.cores)
    encode_s = EncoderWork.of(encoder, facts.tensors).seconds(machine, plan) / planned.duty
    return encode_s, n_tokens / planned.prefill_tok_s
