"""From settings to a loaded model, and from settings to the options of an answer.

In: settings, and a face that shows the opening. Out: an `LLM`, and `Options`. Shared by all interfaces that generate;
prints nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeinfer.app.opening.terminal_face import TerminalFace
from edgeinfer.load_options import LoadOptions
from edgeinfer.setting_groups import GenerationSettings
from edgeinfer.setting_values import Race
from edgeinfer.settings import Settings
from edgeinfer.steps import Progress, no_progress

if TYPE_CHECKING:
    from edgeinfer.app.opening.face import OpeningFace
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.opening.comparison import Compared
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.models.store import LocalModel


def open_llm(settings: Settings, face: OpeningFace | None = None, n_sessions: int = 1) -> LLM:
    """Choose the model (pulling it if needed) and load it, shown on `face` (None: stderr). Raises EdgeInferError.

    `n_sessions`: conversations of full length that its KV cache holds.
    """
    from edgeinfer.app.opening.first_look import looks_after_answers
    from edgeinfer.app.opening.model_choice import open_chosen

    _check_schedule(settings)
    check_template(settings.load)
    shown = face or TerminalFace()
    race: Race = "after" if looks_after_answers() else "first"

    def load(model: LocalModel) -> LLM:
        shown.found(model.path, settings)
        return load_model(model, settings, shown, n_sessions, race=race)

    return open_chosen(settings, load, shown)


def _check_schedule(settings: Settings) -> None:
    """Raises UnknownKey."""
    name = settings.load.schedule
    if name == LoadOptions().schedule:  # a start reads no schedules that it does not use
        return
    from edgeinfer.errors import UnknownKey
    from edgeinfer.scheduling.placement.schedules import SCHEDULES

    if name not in SCHEDULES:
        raise UnknownKey(f"no schedule is called {name!r}; edgeinfer has: {', '.join(SCHEDULES)}")


def check_template(load: LoadOptions) -> None:
    """Raises BadSetting and BadTemplate for a mistake in the chosen chat template, before a model is downloaded."""
    if load.chat_template is not None or load.chat_template_file is not None:
        from edgeinfer.engine.requests.texts import chosen_template

        chosen_template(load)


def load_model(
    model: LocalModel,
    settings: Settings,
    face: OpeningFace,
    n_sessions: int = 1,
    parallel: int | None = None,
    race: Race = "first",
    listening: Progress = no_progress,
) -> LLM:
    """Load a model as configured, shown on `face`. `race`: when devices are compared. Raises EdgeInferError.

    `listening` is told of the progress too.
    """
    from edgeinfer.engine.loading import load_with

    _check_schedule(settings)
    with face.loading() as shown:

        def progress(what: str, done: int, total: int) -> None:
            shown(what, done, total)
            listening(what, done, total)

        progress("loading the model", 0, 0)
        load = load_options(settings)
        return load_with(model, replace(load, n_sessions=n_sessions, parallel=parallel, race=race, progress=progress))


def without_prefixes(settings: Settings) -> Settings:
    """The settings for texts of which nothing is kept."""
    return replace(settings, load=replace(settings.load, prefix_cache=False))


def load_options(settings: Settings) -> LoadOptions:
    """How a model is loaded: as configured. Without history there are no prefixes on disk, unless asked for."""
    load = settings.load
    wants_none = not load.history and settings.origins.get("prefix_cache", "default") == "default"
    return replace(load, prefix_cache=False) if wants_none else load


def answer_options(settings: Settings) -> Options:
    """Answer options from the settings; what is unset is left to the model's author."""
    return generation_options(settings.generation)


def generation_options(wanted: GenerationSettings) -> Options:
    """Answer options from the settings of generation."""
    options: Options = {"seed": wanted.seed, "max_tokens": wanted.max_tokens}
    if wanted.temp is not None:
        options["temperature"] = wanted.temp
    if wanted.top_p is not None:
        options["top_p"] = wanted.top_p
    if wanted.top_k is not None:
        options["top_k"] = wanted.top_k
    if wanted.min_p is not None:
        options["min_p"] = wanted.min_p
    if wanted.repeat_penalty is not None:
        options["repeat_penalty"] = wanted.repeat_penalty
    if wanted.max_thought_tokens is not None:
        options["max_thought_tokens"] = wanted.max_thought_tokens
    if wanted.parse_special:
        options["parse_special"] = True
    if wanted.enable_thinking != "auto" or wanted.reasoning_effort is not None:
        from edgeinfer.engine.requests.request import thinking_variables

        thinks = None if wanted.enable_thinking == "auto" else wanted.enable_thinking == "on"
        options["template_variables"] = thinking_variables(thinks, wanted.reasoning_effort)
    return options


def note_answer(llm: LLM, stats: Stats, found: Callable[[Compared], None] | None = None) -> None:
    """Record how fast an answer was, for predictions; measure the machine and compare devices if not yet done.

    `found` receives the result of the device comparison, in another thread.
    """
    from edgeinfer.app.opening.first_look import look_once

    record_speed(llm, stats)
    look_once(llm, found=found)


def record_speed(llm: LLM, stats: Stats) -> None:
    """Record how fast an answer was, if it was long enough and the power limiter allows idle work."""
    from edgeinfer.app.plans.expectation import note_for_calibration
    from edgeinfer.app.plans.measured import TOKENS_MIN, SpeedLog
    from edgeinfer.scheduling.prediction import MeasuredSpeeds

    facts = llm.info
    if llm.telemetry.device != facts.device or not facts.approximation.is_exact:
        return  # an answer from two devices measures neither; an approximate one measures another model
    if stats.draft is not None and stats.draft.shared_writing is not None:
        return  # two models wrote it
    note_for_calibration(llm, stats)
    if llm.telemetry.streamed is not None:
        return  # the measured speeds in a plan are those of models in memory
    if stats.n_generated >= TOKENS_MIN and llm.telemetry.policy.idle_work:
        _note_device(llm, stats)
        n_read = stats.n_prompt - stats.n_cached
        prefill_tok_s = stats.prefill_tok_s if n_read >= TOKENS_MIN and stats.read_alone else None
        measured = MeasuredSpeeds(prefill_tok_s, stats.decode_tok_s, stats.ttft_s, n_read, stats.plain_tok_s)
        SpeedLog().record(facts.fingerprint, facts.device, facts.n_threads, kv=facts.kv, measured=measured)


def _note_device(llm: LLM, stats: Stats) -> None:
    """Compare a short answer with the speed found for another device; a choice that looks wrong is made again."""
    from edgeinfer.engine.opening.device_choice import N_COMPARED, note_speed
    from edgeinfer.scheduling.machine.topology import read_topology

    facts, decode_tok_s = llm.info, stats.plain_tok_s
    if decode_tok_s is None or stats.n_prompt + stats.n_generated > N_COMPARED:
        return  # at large depths every device is slower
    note_speed(facts.fingerprint, facts.device, read_topology(), facts.kv, facts.cores, decode_tok_s)
