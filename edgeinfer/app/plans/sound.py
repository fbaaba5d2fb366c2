"""How a model would read sound: with which projector, and what SECONDS of it take.

In: a model and the header of its projector, a plan. Out: `PlannedSound`, as text and as JSON. Reads no sound and no
weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.app.plain_text import counted
from edgeinfer.app.plans.images import projector_text, seconds_of, spent_text
from edgeinfer.scheduling.machine.profile import CPU

if TYPE_CHECKING:
    from edgeinfer.app.plans.images import FoundProjector
    from edgeinfer.app.plans.planning import Planned
    from edgeinfer.models.projector_file import ProjectorFacts
    from edgeinfer.scheduling.cost.memory import MemoryNeed

SECONDS = 30
"""Length of the sound that plans are made for."""
RATE = 16000


@dataclass(frozen=True, slots=True)
class PlannedSound:
    """What SECONDS of sound take; fields are as in `PlannedImages`. `n_chunks`: chunks that are encoded."""

    projector: ProjectorFacts
    encoder_bytes: int = 0
    n_chunks: int = 0
    n_rows: int = 0
    encode_s: float | None = None
    read_s: float | None = None
    refused: str = ""

    @property
    def line(self) -> str:
        """The result as text."""
        if self.refused:
            return f"sound     {self.refused}"
        return (
            f"sound     {projector_text(self.projector, self.encoder_bytes)}; {SECONDS} s: "
            f"{counted(self.n_chunks, 'chunk')}, {self.n_rows} tokens{spent_text(self.encode_s, self.read_s)}"
        )

    @property
    def record(self) -> dict[str, object]:
        """The result as JSON; keys may be added, never renamed."""
        return {
            "projector": self.projector.file_name,
            "type": self.projector.kind,
            "encoder_bytes": self.encoder_bytes,
            "seconds": SECONDS,
            "n_chunks": self.n_chunks,
            "n_rows": self.n_rows,
            "encode_s": self.encode_s,
            "read_s": self.read_s,
            "refused": self.refused or None,
        }


def planned_sound(projector: FoundProjector, need: MemoryNeed, planned: Planned | None) -> PlannedSound | None:
    """What sound takes with a model; None for a model without an encoder of sound.

    `planned`: None where nothing is known of the machine.
    """
    facts = projector.facts
    if facts is None or (facts.encoders.sound is None and not facts.encoders.no_sound):
        return None
    encoder = facts.encoders.sound
    if encoder is None:
        return PlannedSound(facts, refused=f"cannot be read: {facts.encoders.no_sound}")
    if planned is not None and planned.decode.placement.devices != (CPU,):
        devices = ", ".join(planned.decode.placement.devices)
        return PlannedSound(facts, refused=f"is read on the cpu alone, not with {devices} (--schedule cpu)")
    plan = encoder.plan(SECONDS * RATE)
    sizes = need.encoder_bytes, len(plan.tiles), plan.n_rows
    if planned is None:
        return PlannedSound(facts, *sizes)
    return PlannedSound(facts, *sizes, *seconds_of(facts, encoder, plan, plan.n_rows, planned))
