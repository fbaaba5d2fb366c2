"""A model that says what a test wants, as fast or as slowly as it wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from edgeinfer.engine.model_info import ModelInfo
from edgeinfer.engine.requests.conversation import FittedPrompt, Messages, fit
from edgeinfer.engine.requests.named_modules import NamedModules
from edgeinfer.engine.requests.request import NO_VARIABLES, Options
from edgeinfer.engine.scheduler.stats import RequestProgress, Stats
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.images.image import Image
from edgeinfer.models.sounds.sound import Sound
from edgeinfer.models.text import Message, Tokenizer
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import THOUGHT_FORMATS
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from edgeinfer.models.text.tools import ToolCall, ToolReader
from edgeinfer.steps import READING_IMAGES
from tests.app.tui.scripted_beside import ScriptedMapped, ScriptedSeveral

IMAGE_TOKENS, SOUND_TOKENS = 40, 25
FACTS = ModelInfo(
    name="scripted",
    path=Path("scripted.gguf"),
    fingerprint="scripted",
    architecture="llama",
    device="cpu",
    n_context=1000,
    n_context_trained=1000,
    kv="f16",
    n_threads=2,
    mode="balanced",
    load_s=0.1,
    resident_bytes=1_000_000,
    notices=(),
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A run of drafted text, or not."""

    n_characters: int
    source: str | None


class Script:
    """What the model says, answer after answer. `hold()` makes it wait before each piece until `step` or `go`."""

    def __init__(self, *answers: str | Sequence[str] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[list[Message]] = []
        self.options: list[Options] = []
        self.kept: list[int] = []
        self.reading: tuple[int, int] | None = None
        """Parts of images or sounds that are read, and their total, of a reading that goes on until it is stopped."""
        self.reading_what = READING_IMAGES
        self._gate = threading.Semaphore(0)
        self.held = False

    def hold(self) -> None:
        """Let nothing through from now on but what is allowed."""
        self.held = True

    def step(self, count: int = 1) -> None:
        """Let so many pieces through."""
        self._gate.release(count)

    def go(self) -> None:
        """Let everything through."""
        self.held = False
        self._gate.release()

    def pieces(self) -> Sequence[str]:
        """Of the next answer. Raises what stands in its place."""
        answer = self.answers.pop(0) if self.answers else "Again."
        if isinstance(answer, Exception):
            raise answer
        return [*answer.replace(" ", " \0").split("\0")] if isinstance(answer, str) else answer

    def wait(self, stopped: threading.Event) -> None:
        """Until the next piece may come, or nobody wants it."""
        while self.held and not stopped.is_set():
            if self._gate.acquire(timeout=0.01):
                return


class ScriptedStream:
    """One answer."""

    def __init__(self, script: Script, n_prompt: int, n_cached: int, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._script = script
        self._names = frozenset(tool["function"]["name"] for tool in tools)
        self._pieces = script.pieces()
        self._stopped = threading.Event()
        self._n_prompt = n_prompt
        self._n_cached = n_cached
        self._said: list[str] = []
        self.stats: Stats | None = None

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            self._script.wait(self._stopped)
            if self._stopped.is_set():
                break
            if piece == "<fail>":
                raise EdgeInferError("the device broke down")
            self._said.append(piece)
            yield piece
        self.stats = Stats(
            n_prompt=self._n_prompt,
            n_cached=self._n_cached,
            n_generated=len(self._said),
            finish_reason="cancelled" if self._stopped.is_set() else "stop",
            truncated=False,
            notices=(),
            ttft_s=0.1,
            prefill_tok_s=100.0,
            decode_tok_s=50.0,
            steps=len(self._said),
            accepted_per_step=1.0,
            seed=1,
            policy="balanced",
        )

    @property
    def text(self) -> str:
        return "".join(self._said)

    @property
    def reader(self) -> AnswerReader | None:
        if not self._names:
            return None
        return AnswerReader(THOUGHT_FORMATS.get("think"), ToolReader(TOOL_FORMATS.get("hermes"), self._names))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return () if (reader := self._read()) is None else tuple(reader[0].calls)

    @property
    def content(self) -> str:
        return self.text if (read := self._read()) is None else read[1]

    @property
    def reasoning(self) -> str:
        return "" if (read := self._read()) is None else read[0].thoughts

    def _read(self) -> tuple[AnswerReader, str] | None:
        if (reader := self.reader) is None:
            return None
        content = reader.push(self.text)
        return reader, content + (reader.finish() if self.stats is not None else "")

    @property
    def live(self) -> RequestProgress:
        n_said = len(self._said)
        return RequestProgress(self._n_prompt, self._n_cached, self._n_prompt, n_said, n_said, 0.1, 100.0, 50.0, 1.0)

    @property
    def marks(self) -> tuple[Mark, ...]:
        return tuple(Mark(len(piece), "ngram" if index % 2 else None) for index, piece in enumerate(self._said))

    def stop(self) -> None:
        self._stopped.set()


class ScriptedSession:
    """Counts words as tokens."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tokens: tuple[int, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        return self._tokens

    def chat(self, messages: Messages, **options: Unpack[Options]) -> ScriptedStream:
        chat = [Message.of(message) for message in messages]
        self._script.asked.append(chat)
        self._script.options.append(options)
        while (reading := self._script.reading) is not None:
            options["progress"](self._script.reading_what, *reading)
            time.sleep(0.01)
        n_prompt = len(self.render(chat).split())
        tools = options.get("tools", ()) if options.get("tool_choice") != "none" else ()
        stream = ScriptedStream(self._script, n_prompt, min(len(self._tokens), n_prompt - 1), tools)
        self._tokens = tuple(range(n_prompt))
        return stream

    def render(self, messages: Messages) -> str:
        return ScriptedPrompts().render(messages)

    @property
    def saved_bytes(self) -> int | None:
        return 8

    def save(self, path: str | Path) -> None:
        Path(path).write_text(str(len(self._tokens)))

    def restore(self, path: str | Path) -> None:
        self._tokens = tuple(range(int(Path(path).read_text())))

    def close(self) -> None:
        self._tokens = ()


class ScriptedPrompts:
    """Words are tokens here."""

    def render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        chat = [Message.of(message) for message in messages]
        told = "".join(f"<|tool|> {tool['function']['name']}\n" for tool in tools or ())
        return told + "".join(f"<|{message.role}|> {self._content(message)}\n" for message in chat)

    def _content(self, message: Message) -> str:
        parts = [] if isinstance(message.content, str) else message.content or ()
        images = "[image] " * (IMAGE_TOKENS * sum(part["type"] == "image" for part in parts))
        return images + "[audio] " * (SOUND_TOKENS * sum(part["type"] == "audio" for part in parts)) + message.text

    def n_image_tokens(self, image: Image) -> int:
        return IMAGE_TOKENS

    def n_sound_tokens(self, sound: Sound) -> int:
        return SOUND_TOKENS

    def n_tokens(self, messages: Messages, options: Options | None = None) -> int:
        return len(self.render(messages, (options or {}).get("tools")).split())

    def fitted(self, messages: Messages, max_tokens: int | None = None) -> FittedPrompt:
        return fit(messages, lambda kept: range(self.n_tokens(kept)), FACTS.n_context, max_tokens)


class WordTokenizer(Tokenizer):
    """Words are tokens here, too."""

    def __init__(self) -> None:
        """Has no vocabulary."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return list(range(len(text.split())))


class ScriptedModel:
    """A `Model` of the app."""

    def __init__(self, script: Script, name: str = "scripted", **reads: bool) -> None:
        """`reads`: what of ModelInfo's `reads_images` and `reads_sound` is true."""
        from dataclasses import replace

        self._script = script
        self.info = replace(FACTS, name=name, **reads)
        self.closed = False
        self.prompts = ScriptedPrompts()
        self.read: list[str] = []
        """Names of the modules that were read."""
        self.modules = NamedModules(
            WordTokenizer(),
            FACTS.n_context,
            tuple,
            lambda each, _: self.read.append(each.name),
            lambda _: None,
            lambda _: "",
        )

    def session(self) -> ScriptedSession:
        return ScriptedSession(self._script)

    def several(self, prompt: Messages, n: int, *, pick: str = "vote", **options: Unpack[Options]) -> ScriptedSeveral:
        return ScriptedSeveral([self.session().chat(prompt, **options) for _ in range(n)], pick)

    def map(
        self,
        instruction: str,
        items: Sequence[str],
        *,
        system: str | None = None,
        parallel: int = 16,
        **options: Unpack[Options],
    ) -> ScriptedMapped:
        head = [Message("system", system)] if system else []
        return ScriptedMapped(
            items, lambda item: self.session().chat([*head, Message("user", f"{instruction}\n\n{item}")], **options)
        )

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return list(range(len(text.split())))

    def stop(self) -> None:
        self._script.go()

    def close(self) -> None:
        self.closed = True
