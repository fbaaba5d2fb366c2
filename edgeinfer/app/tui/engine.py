"""Protocols of the model as the app uses it: the boundary between screens and engine, where tests use a fake model.

`edgeinfer.engine.llm.LLM` is an `EngineModel`, its sessions are `ModelSession`s. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack

from edgeinfer.app.chat.context import PromptMaker
from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.readings.records import Cores, DraftingReading, Energy, MemoryReading, PlanStrip, Roofline
    from edgeinfer.engine.model_info import ModelInfo
    from edgeinfer.engine.opening.comparison import Compared
    from edgeinfer.engine.requests.conversation import Messages
    from edgeinfer.engine.requests.named_modules import NamedModules
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stats import RequestProgress, Stats
    from edgeinfer.models.text.answer_reader import AnswerReader
    from edgeinfer.models.text.tools import ToolCall

Runs = tuple[tuple[int, str | None], ...]
"""A text as runs: the number of characters and their draft source, None if they were not drafted."""


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

    @property
    def reader(self) -> AnswerReader | None: ...

    @property
    def tool_calls(self) -> Sequence[ToolCall]: ...

    @property
    def content(self) -> str: ...

    @property
    def reasoning(self) -> str: ...

    def stop(self) -> None: ...


class WrittenPiece(Protocol):
    """A piece of text of one of several answers."""

    @property
    def number(self) -> int: ...

    @property
    def text(self) -> str: ...


class AnswerChoice(Protocol):
    """The answer that is kept of several, why, what each says, and those that were ended early."""

    @property
    def number(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def votes(self) -> tuple[Hashable, ...]: ...

    @property
    def left(self) -> tuple[int, ...]: ...


class SeveralStreams(Protocol):
    """Several answers to one question that are being written side by side."""

    def __iter__(self) -> Iterator[WrittenPiece]: ...

    @property
    def answers(self) -> Sequence[AnswerStream]: ...

    @property
    def choice(self) -> AnswerChoice | None: ...

    def stop(self) -> None: ...


class MappedStreams(Protocol):
    """One answer for each of many items, written side by side."""

    def __iter__(self) -> Iterator[WrittenPiece]: ...

    @property
    def errors(self) -> Mapping[int, Exception]: ...

    def stream(self, number: int) -> AnswerStream | None: ...

    def stop(self) -> None: ...


class ModelSession(Protocol):
    """A conversation with the model that keeps its KV cache."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    def chat(self, messages: Messages, **options: Unpack[Options]) -> AnswerStream: ...

    @property
    def saved_bytes(self) -> int | None: ...

    def save(self, path: str | Path) -> None: ...

    def restore(self, path: str | Path) -> None: ...

    def close(self) -> None: ...


class ReadingSource(Protocol):
    """A source of readings for the machine screen. All calls are fast except `time_stages`."""

    def plan(self) -> PlanStrip: ...
    def roofline(self) -> Roofline: ...
    def cores(self) -> Cores: ...
    def memory(self) -> MemoryReading: ...
    def drafting(self) -> DraftingReading: ...
    def energy(self) -> Energy: ...

    @property
    def can_time_stages(self) -> bool: ...

    def time_stages(self) -> bool:
        """Time a pass op by op. Returns False if that was not possible."""
        ...


class ReadingsOfModel(ReadingSource, Protocol):
    """Readings of a running model: `app.readings.service.Readings`, or an implementation that asks another process."""

    def taken(self) -> tuple[int, int | None]: ...
    def answered(self, stats: Stats) -> None: ...


class EngineModel(Protocol):
    """A loaded model."""

    @property
    def prompts(self) -> PromptMaker: ...

    @property
    def info(self) -> ModelInfo: ...

    @property
    def modules(self) -> NamedModules: ...

    def session(self) -> ModelSession: ...

    def several(
        self, prompt: Messages, n: int, *, pick: str = "vote", **options: Unpack[Options]
    ) -> SeveralStreams: ...

    def map(
        self,
        instruction: str,
        items: Sequence[str],
        *,
        system: str | None = None,
        parallel: int = 16,
        **options: Unpack[Options],
    ) -> MappedStreams: ...

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An open model with its readings and callback.

    readings  measurements of the running model, None if nothing reads them
    note      called after each answer with its statistics and a callback for a faster device; None if the process that
              runs the model does this itself
    """

    model: EngineModel
    readings: ReadingsOfModel | None = None
    note: Callable[[Stats, Callable[[Compared], None]], None] | None = None


Opening = Callable[[Settings, WatchedFace], LoadedModel]
"""Opens the model that the settings ask for, reporting progress to a face."""


def runs_of(marks: Sequence[Marked], n_before: int) -> Runs:
    """The draft sources of an answer, `n_before` of whose characters existed before."""
    before: Runs = ((n_before, None),) if n_before else ()
    return (*before, *((mark.n_characters, mark.source) for mark in marks))
