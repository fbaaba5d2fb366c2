"""What the app needs of a model: the seam between screens and the engine, where tests put a scripted one.

`edgeinfer.engine.llm.LLM` is an `EngineModel`, its sessions are `ModelSession`s. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack

from edgeinfer.app.context_use import PromptMaker
from edgeinfer.app.opening_face import WatchedFace
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.readings.records import Cores, DraftingReading, Energy, MemoryReading, PlanStrip, Roofline
    from edgeinfer.engine.model_info import ModelInfo
    from edgeinfer.engine.racing.afterwards import Compared
    from edgeinfer.engine.requests.conversation import Messages
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stats import RequestProgress, Stats

Runs = tuple[tuple[int, str | None], ...]
"""A text in runs: so many characters, and who drafted them; None for what was not drafted."""


class Marked(Protocol):
    """A run of an answer's text."""

    @property
    def n_characters(self) -> int: ...

    @property
    def source(self) -> str | None: ...


class AnswerStream(Protocol):
    """A running request."""

    def __iter__(self) -> Iterator[str]: ...

    @property
    def text(self) -> str: ...

    @property
    def stats(self) -> Stats | None: ...

    @property
    def marks(self) -> Sequence[Marked]: ...

    @property
    def live(self) -> RequestProgress | None: ...

    def stop(self) -> None: ...


class ModelSession(Protocol):
    """One line of conversation, which keeps what it has read."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    def chat(self, messages: Messages, **options: Unpack[Options]) -> AnswerStream: ...

    @property
    def saved_bytes(self) -> int | None: ...

    def save(self, path: str | Path) -> None: ...

    def restore(self, path: str | Path) -> None: ...

    def close(self) -> None: ...


class ReadingsOfModel(Protocol):
    """What the machine does while a model runs: `app.readings.service.Readings`, or one that asks another process."""

    def plan(self) -> PlanStrip: ...
    def roofline(self) -> Roofline: ...
    def cores(self) -> Cores: ...
    def memory(self) -> MemoryReading: ...
    def drafting(self) -> DraftingReading: ...
    def energy(self) -> Energy: ...
    def taken(self) -> tuple[int, int | None]: ...
    def answered(self, stats: Stats) -> None: ...

    @property
    def can_time_stages(self) -> bool: ...

    def time_stages(self) -> bool: ...


class EngineModel(Protocol):
    """A loaded model."""

    @property
    def prompts(self) -> PromptMaker: ...

    @property
    def info(self) -> ModelInfo: ...

    def session(self) -> ModelSession: ...

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that was opened, and what goes with it.

    readings  what the machine does while it runs, where somebody reads that
    note      called after each answer, with what hears of a faster device; None where whoever runs it takes note itself
    """

    model: EngineModel
    readings: ReadingsOfModel | None = None
    note: Callable[[Stats, Callable[[Compared], None]], None] | None = None


Opening = Callable[[Settings, WatchedFace], LoadedModel]
"""Opens the model that settings ask for, shown on a face."""


def runs_of(marks: Sequence[Marked], n_before: int) -> Runs:
    """Who drafted what of an answer, of which so many characters were there before."""
    before: Runs = ((n_before, None),) if n_before else ()
    return (*before, *((mark.n_characters, mark.source) for mark in marks))
