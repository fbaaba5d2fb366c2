"""A loaded model, ready to answer: the object that `edgeinfer.load` returns.

In: a model's name or path and the device to run it on. Out: an `LLM` that creates text streams and sessions. It owns
the open file, the executor and all sessions, and releases them in `close()`. No network, no signal handlers, no
printing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Unpack

from edgeinfer.engine.embedding import TextReader
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.saved_state import n_saved_checkpoints
from edgeinfer.engine.media.media_reader import media_reader
from edgeinfer.engine.model_info import FORMER, ModelInfo, renamed
from edgeinfer.engine.opening.comparison import Comparison
from edgeinfer.engine.prefixes.kept import disk_prefixes
from edgeinfer.engine.requests.adapters import AdapterScales, LoadedAdapters
from edgeinfer.engine.requests.conversation import Messages, conversation_of
from edgeinfer.engine.requests.drafting import ClosingSpeculator
from edgeinfer.engine.requests.media_prompts import IMAGE_PART, SOUND_PART
from edgeinfer.engine.requests.module_prompts import Module, PromptPiece
from edgeinfer.engine.requests.named_modules import NamedModules
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.running import OpenModel, RunningNote
from edgeinfer.engine.scheduler.batcher import Batcher, BatchStream, Prompt
from edgeinfer.engine.scheduler.module_places import ModulePlaces
from edgeinfer.engine.scheduler.retained import Prefixes
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.scoring import TextScorer
from edgeinfer.engine.session import Session, read_cache, write_cache
from edgeinfer.engine.several.asking import SeveralAsker
from edgeinfer.engine.several.parts_asking import PartsAsker
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.priming import IdlePriming
from edgeinfer.engine.speculation.setup import LaterDrafts, ModelDrafting, prime_all, priming_of
from edgeinfer.engine.telemetry import Telemetry
from edgeinfer.engine.two_models.two_models import TwoModels
from edgeinfer.errors import BadSetting, EdgeInferError, UnsupportedModel
from edgeinfer.foreign_names import OF_MODELS
from edgeinfer.graph.key_turns import key_turns
from edgeinfer.graph.step import IDS_ONLY, PAGE
from edgeinfer.models.author_sampling import author_sampling
from edgeinfer.models.ollama_params import ollama_params
from edgeinfer.models.text import ChatTemplate, Tokenizer
from edgeinfer.scheduling.allotment import Priority
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES
from edgeinfer.setting_values import Reuse
from edgeinfer.steps import Progress, no_progress

RECENT = 16
"""How many recent answers are remembered, so that one of them can be continued from its own tokens."""
PARALLEL = 8
"""Default number of requests of a batch that run at the same time."""


class LLM(TextReader, TextScorer, SeveralAsker, PartsAsker):
    """A loaded model. `info` describes it, `telemetry` reports what it is doing, `prompts` renders and counts messages.

        with edgeinfer.load("SmolLM2-135M-Instruct") as llm:
            print(llm.chat("Why is the sky blue?", max_tokens=50))

    Answers of `chat` and `complete` are independent of each other. A `session()` remembers what it has read. Usable
    from any thread; `close()`, or the end of `with`, frees memory and threads.
    """

    def __init__(
        self,
        subject: Subject,
        pool: Pool,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        info: ModelInfo,
        drafting: ModelDrafting,
        *,
        parallel: int | None = None,
        comparison: Comparison | None = None,
        prefix_bytes: int = 0,
        reuse: tuple[Reuse, str] = ("exact", ""),
        two_models: TwoModels | None = None,
    ) -> None:
        """`parallel`: requests that run at the same time; None: as many as a pass has outputs.

        `prefix_bytes`: disk space for prefixes; 0: none are kept there. `reuse`: what requests may use of the cache if
        they do not say, and why it cannot be more than the same beginning, if it cannot. `two_models`: a small model
        that writes in its place.
        """
        self._media = media_reader(subject, pool)
        self._subject = subject
        self._pool = pool
        self._driver = StepDriver(Scheduler(pool, parallel))
        admission = self._driver.scheduler.admission
        admission.on_disk = disk_prefixes(subject, pool, prefix_bytes, lambda: admission.is_busy)
        self._tokenizer = tokenizer
        inputs = IDS_ONLY if subject.spec is None else subject.spec.inputs
        ollama = ollama_params(subject.file.path, subject.source)
        sampling = {**author_sampling(subject.file.metadata), **ollama.sampling}
        stated = pool.executor.capabilities.scales
        self.adapters: LoadedAdapters = LoadedAdapters.of(subject.file, takes_scales=bool(stated))
        """The LoRA adapters loaded with the model, and the scales of requests that state none."""
        limits = pool.executor.limits
        own = tokenizer, template, limits.n_context, inputs, sampling
        self._module_places = admission.modules = ModulePlaces(pool, tokenizer, admission.give_up)
        own_modules = tokenizer, limits.n_context, lambda: self.prompts.beginning
        self.modules: NamedModules = NamedModules(
            *own_modules, self._read_module, self._drop_module, self._why_no_module
        )
        """Texts that are read once, alone, and placed in prompts by name."""
        named = self.modules.__getitem__
        modalities = None if self._media is None else self._media.modalities
        told = ollama.stops, ollama.system, limits.kv_budget > 0
        self.prompts: Prompts = Prompts(*own, self.adapters, *told, *reuse, named, modalities)
        self.drafts: ModelDrafts | None = drafting.drafts
        self.later_drafts: LaterDrafts | None = drafting.later
        self._primes, self._two_models = drafting.primes, two_models
        self._recent: deque[ScheduledSequence] = deque(maxlen=RECENT)
        self._idle_priming: IdlePriming | None = None
        keeps = admission.on_disk is not None
        kinds = () if modalities is None else tuple(modalities.placeholders)
        sees, hears = IMAGE_PART in kinds, SOUND_PART in kinds
        self.info: ModelInfo = replace(info, keeps_prefixes=keeps, reads_images=sees, reads_sound=hears)
        self.telemetry: Telemetry = Telemetry(self._driver.scheduler, subject, self.info)
        self._note = RunningNote(OpenModel(info.name, info.path))
        self.comparison: Comparison | None = comparison
        """A comparison of devices that has not been made yet; None: there is nothing to compare."""
        self._use_drafts()

    def _use_drafts(self) -> None:
        """Find likely tokens with their code, and compute the missing rows of the successor table in idle time."""
        drafts = self.drafts
        if drafts is not None:
            self._pool.finder = drafts.finder()
        if drafts is not None and self._primes and drafts.n_primed < drafts.n_vocab:
            priming = priming_of(self._pool.executor, self._tokenizer, drafts)
            self._idle_priming = IdlePriming(priming, drafts.n_primed, self._pool.lock, self._idle_s, drafts.prime)

    if not TYPE_CHECKING:  # a type checker sees only the names of this version

        def __getattr__(self, name: str) -> object:
            return renamed(self, name, FORMER, OF_MODELS)

        def __new__(cls, *parts: object, **more: object) -> LLM:
            if len(parts) < 2 and "subject" not in more:
                raise TypeError("a model is opened by its name or path: edgeinfer.load(name)")
            return super().__new__(cls)

    def __repr__(self) -> str:
        """Name, architecture, device and context, or that it is closed."""
        info = self.info
        about = f"{info.architecture} on {self.telemetry.device}, {info.n_context} tokens of context"
        return f"<LLM {info.name}: {'closed' if self._pool.is_closed else about}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a model cannot be copied or pickled: it owns memory and threads; load it in each process")

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def set_adapters(self, scales: AdapterScales) -> None:
        """Set the scales of LoRA adapters, by number or name, for later requests that state none; 0 for the others.

        Raises BadSetting.
        """
        with self._pool.lock:
            self.adapters.set_scales(scales)
            self._pool.scales = self.adapters.scales

    def begin_drafting(self, progress: Progress = no_progress) -> None:
        """Compile the drafting code, if loading deferred that, and start drafting with the next answer.

        Raises EngineClosed, and whatever `progress` raises.
        """
        if (later := self.later_drafts) is not None:
            later.compile(progress)
            with self._pool.lock:
                self._pool.check_open()
                self.drafts, self.later_drafts = later.drafts(), None
            self._use_drafts()

    def session(self) -> Session:
        """Open a session, which remembers a conversation. All sessions share the model. Raises EngineClosed."""
        return self.session_with(lambda: self.drafts)

    def session_with(self, drafts: Callable[[], ModelDrafts | None]) -> Session:
        """Open a session that drafts from the given drafts, or not at all; for measurements. Raises EngineClosed."""
        own = self._pool.open(), self.prompts, drafts
        kv_bytes = None if self._subject.spec is None else self._kv_bytes
        opens = None if self._two_models is None else self._two_models.session
        return Session(*own, kv_bytes=kv_bytes, driver=self._driver, opens=opens)

    def _kv_bytes(self, n_tokens: int) -> int:
        """Bytes of keys and values of `n_tokens` tokens of a sequence, in whole pages, and of its states."""
        spec, limits = self._subject.spec, self.telemetry.limits
        assert spec is not None
        numbers, windows = 0, limits.windows
        for layer in spec.kv:
            n_pages = pages_for(n_tokens)
            if windows is not None and windows.limit(layer):
                n_pages = min(n_pages, 1 + pages_for(windows.tokens))
            numbers += n_pages * PAGE * layer.numbers
        most = min(limits.state_slots(spec.states), 1 + n_saved_checkpoints(spec.state_bytes))
        n_states = min(1 + (n_tokens - 1) // PAGE, most)
        return round(numbers * KV_ELEMENT_BYTES[self.info.kv]) + n_states * spec.state_bytes

    def chat(
        self,
        messages: str | Messages,
        *,
        system: str | None = None,
        priority: Priority = "interactive",
        **options: Unpack[Options],
    ) -> TextStream:
        """Answer a conversation, or a text, which is the user's only message; may be called from any thread.

            llm.chat("Why is the sky blue?").read()
            llm.chat([{"role": "user", "content": "Hi"}], temperature=0, max_tokens=50)

        Pass a conversation whole: answers are independent of each other, and what one has read no other reads again.
        `system`: a system message to come first. All else is as in `Session.chat`.
        """
        return self._answer(self.prompts.chat(conversation_of(messages, system), options, self._known), priority)

    def complete(
        self,
        text: str | Sequence[PromptPiece],
        *,
        priority: Priority = "interactive",
        **options: Unpack[Options],
    ) -> TextStream:
        """Continue a text, or tokens with rows or modules among them, as `Session.complete` does.

            llm.complete("Once upon a time", max_tokens=20, seed=1).read()

        Independent of other answers, as in `chat`.
        """
        return self._answer(self.prompts.text(text, options), priority)

    def _answer(self, request: Request, priority: Priority) -> TextStream:
        self._pool.check_open()
        own = self._pool.reserve(), self._tokenizer, request
        sequence = ScheduledSequence(*own, opens=self._opened_drafts, priority=priority, shares_prefix=True)
        self._recent.append(sequence)
        return TextStream(sequence, self._driver)

    def _opened_drafts(self) -> ClosingSpeculator | None:
        """Drafts for an answer that begins now, or the small model that writes it; None if nothing is drafted."""
        if self._two_models is not None:
            return self._two_models.session()
        drafts = self.drafts
        return None if drafts is None else drafts.session()

    def _read_module(self, module: Module, progress: Progress) -> None:
        """Read a module now, unless it is in memory."""
        with self._pool.lock:
            self._pool.check_open()
            reading = self._module_places.reading(module, self.adapters.scales, progress)
        if reading is not None:
            TextStream(reading, self._driver).read()

    def _drop_module(self, module: Module) -> None:
        with self._pool.lock:
            self._module_places.forget(module)

    def _why_no_module(self, module: Module) -> str:
        """Why this model cannot have a module; "" if it can."""
        executor, spec = self._pool.executor, self._subject.spec
        try:
            turns = () if spec is None else key_turns(spec)
        except UnsupportedModel as reason:
            return str(reason)
        if executor.capabilities.shifted is None or spec is None:
            return f"{executor.device} cannot move cached keys to other positions: use --device cpu"
        widths = [0 if turn.table is None else turn.table.rotary_width for turn in turns]
        if module.temperature != 1 and widths != [layer.key_width for layer in spec.kv]:
            return f"modules of {spec.architecture} have no temperature: not all columns of its keys are rotated"
        return ""

    def _known(self, head: Sequence[int]) -> Sequence[int]:
        """The tokens of the most recent answer whose conversation begins with `head`."""
        tokens = tuple(head)
        histories = (each.history for each in reversed(tuple(self._recent)))
        return next((each for each in histories if each[: len(tokens)] == tokens), ())

    def save_prefix(self, tokens: Sequence[int], path: str | Path, lora: AdapterScales | None = None) -> int:
        """Save what is cached of the beginning of a text, whatever answers read it; returns its number of tokens.

        `lora`: the scales with which they did. A text that is too short to stay cached is read again. Writes the whole
        file, or none if nothing is cached. Raises EdgeInferError.
        """
        scales = self.adapters.scales_of(lora)
        with self._pool.lock:
            cached = self._pool.open()
            try:
                self._prefixes.copy(cached, tokens, scales)
                found, state = cached.save() if cached.n_cached else ((), b"")
            finally:
                cached.close()
        if found:
            write_cache(Path(path), found, state, scales, len(found))
        return len(found)

    def restore_prefix(self, path: str | Path) -> tuple[tuple[int, ...], AdapterScales | None]:
        """Cache what `save_prefix`, or a session, has saved, for answers that begin with it.

        Returns its tokens, and the scales with which they were read (None: the model has no adapters). Other prefixes
        give up their memory if need be. Raises EdgeInferError if the file is damaged or from another model or kind of
        device.
        """
        tokens, state, scales, n_exact, _ = read_cache(Path(path))
        with self._pool.lock:
            self._prefixes.restore(tokens, state, scales, n_exact)
        return tuple(tokens), dict(enumerate(scales)) or None

    def drop_prefix(self, tokens: Sequence[int], lora: AdapterScales | None = None) -> int:
        """Free what finished answers have left of a text in the cache; returns how many tokens that was."""
        with self._pool.lock:
            return self._prefixes.drop(tokens, self.adapters.scales_of(lora))

    @property
    def _prefixes(self) -> Prefixes:
        """What finished answers have left. Raises EdgeInferError where answers share nothing."""
        self._pool.check_open()
        return self._driver.scheduler.admission.shared_prefixes

    def batch(
        self, prompts: Iterable[str | Messages | Prompt], *, parallel: int = PARALLEL, **options: Unpack[Options]
    ) -> BatchStream:
        """Answer many prompts, up to `parallel` at a time in one pass. Yields numbered answers as they finish.

            for answer in llm.batch(["Once upon a time", "Far away"], max_tokens=20):
                print(answer.number, answer.text)

        A prompt is a text to continue, a conversation to answer as `chat` does, or a `Prompt` with its own options.
        Prompts are taken from the iterable as they are needed, and all answers wait while the iterable produces one. If
        `batch_invariant`, each answer is the same as when it runs alone. An invalid prompt does not stop the batch: the
        error is in the `error` of its answer. Raises BadSetting, EngineClosed.
        """
        if parallel < 1:
            raise BadSetting(f"parallel cannot be {parallel}: it must be 1 or more")
        return BatchStream([self.batcher(parallel)], prompts, self.prompts, options)

    def batcher(self, parallel: int) -> Batcher:
        """A batcher that runs up to `parallel` answers at a time on this model."""
        return Batcher(self._driver, self._tokenizer, parallel, self._opened_drafts)

    def prime(self, progress: Progress = no_progress) -> None:
        """Compute the table of likely successors of every token, which drafts use, and store it with the model.

        Without this call the table is computed in idle time. Raises EdgeInferError if drafting is off.
        """
        if self.drafts is None:
            raise EdgeInferError(
                "nothing is drafted with this model, so there is no table to prime; load it with spec auto"
            )
        prime_all(self.drafts, priming_of(self._pool.executor, self._tokenizer, self.drafts), self._pool.lock, progress)

    def _idle_s(self) -> float:
        """Seconds that were available for idle work: nothing was being generated or measured."""
        measures = self.comparison is not None and self.comparison.runs
        return self._pool.idle_s if self.telemetry.policy.idle_work and not measures else 0.0

    def stop(self) -> None:
        """End every request, running or waiting, within one step; may be called from any thread."""
        self._driver.scheduler.stop()
        self._pool.stop()

    def close(self) -> None:
        """Stop, close all sessions and free their memory (Python frees the vocabulary later); may be called twice."""
        self._note.remove()
        self._pool.stop()
        self._driver.scheduler.keep_prefixes()
        self._driver.close()
        if self._idle_priming is not None:
            self._idle_priming.close()
            self._idle_priming = None
            if self.drafts is not None:
                self.drafts.keep_primed()
        if self._media is not None:
            self._media.close()
        self._pool.close()
        if self._two_models is not None:
            self._two_models.close()
        if self.drafts is not None:
            self.drafts.close()
        self._subject.file.close()
