"""`edgeinfer run`: one answer."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from edgeinfer.app.answer_record import AnswerReads, answer_record, peak_rss_bytes
from edgeinfer.app.command_line.options import Command, Given, Json, takes_settings
from edgeinfer.app.command_line.outline_answers import OutlineFlag, Reporting, answer_by_outline, check_outline
from edgeinfer.app.command_line.question import Question, read_question, read_text_file
from edgeinfer.app.command_line.several_answers import AnswerCount, Budget, Enough, LeadName, PickName, VoteForm
from edgeinfer.app.plain_text import echo
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.app.command_line.several_answers import WantedAnswers
    from edgeinfer.app.mcp.answering import Begin, Show
    from edgeinfer.app.mcp.toolbox import Toolbox, ToolResult
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.opening.comparison import Compared
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.engine.several.several import Several
    from edgeinfer.models.images.image import Image
    from edgeinfer.models.sounds.sound import Sound
    from edgeinfer.settings import Settings


CallRecord: TypeAlias = dict[str, object]
"""A call of a tool in JSON: `name`, `arguments`, `result`, `failed`."""


@takes_settings("model", "generation", "load")
def run(
    given: Given,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUESTION",
            help="Prompt, with or without quotes. Standard input is used if omitted, or goes before it, as a text, "
            "an image or a sound. Everything after -- is part of the prompt.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="Put a text file, an image or a sound before the question, with --raw a text after it; repeatable.",
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Complete the prompt without a chat template.")] = False,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Stop before this text; repeatable.")
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            metavar="NAME=FILE",
            help="Put a text file before the question, read by itself, so that later runs can have it in any order; "
            "the answer is approximate. Repeatable.",
        ),
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            "--mcp", metavar="NAME", help="Let the answer use the tools of this MCP server, or of all; repeatable."
        ),
    ] = None,
    answers: AnswerCount = None,
    pick: PickName = None,
    vote_by: VoteForm = None,
    enough: Enough = None,
    lead: LeadName = None,
    budget: Budget = None,
    outline: OutlineFlag = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print statistics to stderr.")] = False,
    as_json: Json = False,
) -> None:
    """Answer one question: edgeinfer run why is the sky blue

    Only the answer is printed to standard output, as it is generated; Ctrl-C stops it. Options may appear before,
    between or after the words of the question.
    """
    from edgeinfer.app.command_line.several_answers import wanted_answers
    from edgeinfer.settings import load_settings

    several = wanted_answers(answers, pick, vote_by, enough, budget, lead)
    _check(raw=raw, system="system" in given, mcp=mcp, several=several, outline=outline, modules=module)
    modules = _module_texts(module or ())
    question = read_question(" ".join(prompt) if prompt else None, file or [], raw=raw)
    _note_model_asked(() if "model" in given else prompt or ())
    shown = _RunOutput(raw=raw, as_json=as_json, as_text=stats, modules=modules, several=several, outline=outline)
    _answer(question, load_settings(given), tuple(stop or ()), shown, mcp or ())


def _note_model_asked(words: Sequence[str]) -> None:
    """Note that a question begins with a model's name, as `run` of other programs takes it."""
    from edgeinfer.models.store import ModelStore

    first, *others = " ".join(words).split() or [""]
    if not re.search(r"\d", first):  # names have numbers, and few questions begin with one
        return
    asked = f" {shlex.quote(' '.join(others))}" if others else ""
    for model in ModelStore().models():
        if model.name.lower() == first.lower():
            said = f"{model.name} is taken for the question; edgeinfer run -m {model.name}{asked} asks that model"
            echo(f"note: {said}", err=True)


@dataclass(frozen=True, slots=True)
class _RunOutput:
    """How a prompt is taken, and what is printed besides or instead of the answer.

    `modules`: texts to stand before it, by name. `several`: how one of several answers is kept; None: there is one.
    `outline`: it is answered by its outline.
    """

    raw: bool
    as_json: bool
    as_text: bool
    modules: Mapping[str, str]
    several: WantedAnswers | None = None
    outline: bool = False


def _answer(
    question: Question, settings: Settings, stop: tuple[str, ...], shown: _RunOutput, tool_servers: Sequence[str]
) -> None:
    """Load, answer and print. Raises KeyboardInterrupt for an answer that was interrupted."""
    if shown.outline:
        answer_by_outline(question, settings, stop, Reporting(shown.as_json, shown.as_text))
        return
    from edgeinfer.app.answer_output import print_answer, print_notices, print_thoughts_note
    from edgeinfer.app.disk_reading import read_since
    from edgeinfer.app.opening.first_look import look_once
    from edgeinfer.app.opening.loading import answer_options, open_llm, record_speed
    from edgeinfer.app.progress import ProgressLine

    opened = partial(open_llm, n_sessions=2) if shown.modules else open_llm  # modules as they were read, and placed
    several: Several | None = None
    if shown.several is not None:
        from edgeinfer.app.opening.batch_loading import open_for_answers

        opened = partial(open_for_answers, n=shown.several.n + bool(shown.modules))
    with _tools(tool_servers) as toolbox, opened(settings) as llm, ProgressLine() as progress:
        print_notices(llm.info.notices)
        wanted = answer_options(settings) | {"stop": stop, "progress": progress}
        for name, said in shown.modules.items():
            llm.modules.add(name, said, progress=progress)
        wanted |= {"modules": list(shown.modules)} if shown.modules else {}
        started, before = time.perf_counter(), llm.telemetry.weight_reads
        show = partial(print_answer, quiet=shown.as_json, progress=progress)
        calls: list[CallRecord] = []
        messages = question.messages(settings.generation.system)
        if shown.several is not None:
            several, interrupted = _several(llm, question.text if shown.raw else messages, wanted, shown, progress)
            assert several.chosen is not None
            stream = several.chosen
        elif toolbox is None:
            stream = llm.complete(question.text, **wanted) if shown.raw else llm.chat(messages, **wanted)
            interrupted = show(stream)
        else:
            begin = partial(_begin, llm, wanted)
            stream, interrupted = _with_tools(toolbox, messages, begin, show, calls)
        assert stream.stats is not None
        read = AnswerReads(read_since(before, llm.telemetry.weight_reads), time.perf_counter() - started)
        print_notices(stream.stats.notices)
        print_thoughts_note(stream)
        told = _Told(calls, _image_records(llm, question.images), _sound_records(llm, question.sounds), several)
        _report(llm, stream, settings, read, shown, told)
        found: list[Compared] = []
        looking = None
        if several is None:
            record_speed(llm, stream.stats)
            looking = None if interrupted else look_once(llm, progress, found.append)
        if looking is not None:
            looking.join()
            print_notices(tuple(each.notice for each in found))
    if interrupted:
        raise KeyboardInterrupt


def _tools(names: Sequence[str]) -> AbstractContextManager[Toolbox | None]:
    """The tools of these MCP servers until the context ends; None if there are no names."""
    if not names:
        return nullcontext()
    from edgeinfer.app.mcp.servers import chosen, read_servers
    from edgeinfer.app.mcp.terminal import open_tools

    return open_tools(chosen(read_servers(), names))


def _begin(
    llm: LLM, wanted: Mapping[str, Any], conversation: list[dict[str, Any]], further: Mapping[str, Any]
) -> TextStream:
    """Begin an answer to a conversation, with further options."""
    return llm.chat(conversation, **{**wanted, **further})


def _with_tools(
    toolbox: Toolbox, messages: list[dict[str, Any]], begin: Begin, show: Show, calls: list[CallRecord]
) -> tuple[TextStream, bool]:
    """Answer with the tools of a toolbox: the last answer, and whether it was interrupted. Notes the calls made."""
    from edgeinfer.app.mcp.answering import ToolAnswering, ToolFace
    from edgeinfer.app.mcp.terminal import ask_at_terminal, tell_at_terminal, waiting_at_terminal

    def tell(name: str, arguments: str, result: ToolResult) -> None:
        calls.append({"name": name, "arguments": arguments, "result": result.text, "failed": result.failed})
        tell_at_terminal(name, arguments, result)

    face = ToolFace(begin, show, ask_at_terminal, tell, waiting=waiting_at_terminal)
    found = ToolAnswering(toolbox, face).answer(messages)
    return found.stream, found.interrupted


@dataclass(frozen=True, slots=True)
class _Told:
    """What the model was told besides the text: results of tools, images and sounds; and the other answers, if any."""

    calls: Sequence[CallRecord]
    images: Sequence[Mapping[str, object]]
    sounds: Sequence[Mapping[str, object]]
    several: Several | None = None


def _report(
    llm: LLM, stream: TextStream, settings: Settings, read: AnswerReads, shown: _RunOutput, told: _Told
) -> None:
    """The numbers of an answer: JSON on standard output, text on standard error."""
    from edgeinfer.app.answer_output import stats_text
    from edgeinfer.app.disk_reading import reading_lines, skipped_lines
    from edgeinfer.app.plans.expectation import expectation_lines, expected_of, timeline_lines, worker_lines
    from edgeinfer.app.plans.fit import memory_line

    telemetry = llm.telemetry
    assert stream.stats is not None
    is_told = (shown.as_json or shown.as_text) and told.several is None  # of one among several nothing was predicted
    expected = expected_of(llm, stream.stats) if is_told else None
    several: tuple[dict[str, object], list[str]] = {}, []
    if told.several is not None and shown.several is not None:
        from edgeinfer.app.command_line.several_answers import several_report

        several = several_report(llm, told.several, str(shown.several.arguments["pick"]))
    if shown.as_json:
        record = answer_record(llm, stream, settings, read, expected)
        record |= {"calls": list(told.calls), "images": list(told.images), "sounds": list(told.sounds), **several[0]}
        echo(json.dumps(record, ensure_ascii=False))
    if shown.as_text:
        echo(stats_text(stream.stats), err=True)
        media = ["{name}: {width} × {height}, {n_tokens} tokens".format_map(each) for each in told.images]
        media += ["{name}: {seconds:.1f} s, {n_tokens} tokens".format_map(each) for each in told.sounds]
        predicted: list[str] = []
        whole = telemetry.policy.idle_work and telemetry.device == llm.info.device  # with all cores, all the time
        if whole and told.several is None:
            predicted = expectation_lines(expected, stream.stats, llm.info.device, llm.info.cores)
        disk = reading_lines(read.reading, read.seconds) + skipped_lines(read.reading, llm.info.approx)
        memory = [] if llm.info.need is None else [memory_line(llm.info.need, peak_rss_bytes())]
        timing = *worker_lines(telemetry.affinity), *timeline_lines(llm)
        for line in (*several[1], *media, *memory, *timing, *disk, *predicted):
            echo(line, err=True)


def _several(
    llm: LLM, prompt: str | list[dict[str, Any]], options: Mapping[str, Any], shown: _RunOutput, progress: ProgressLine
) -> tuple[Several, bool]:
    """Write several answers and print the one that is kept; returns them, and whether that was interrupted."""
    from edgeinfer.app.answer_output import print_notices, print_whole
    from edgeinfer.app.command_line.several_answers import begun, kept_notice, write_all

    assert shown.several is not None
    several = begun(llm, prompt, shown.several, options)
    interrupted = write_all(several, progress)
    assert several.chosen is not None
    if not shown.as_json:
        print_whole(several.chosen)
    print_notices((kept_notice(several),))
    return several, interrupted


def _check(*, raw: bool, system: bool, mcp: object, several: object, outline: bool, modules: object) -> None:
    """Raise BadSetting for options that exclude each other; those that are empty or None were not given."""
    if several and mcp:
        raise BadSetting("several answers cannot use tools; leave out --mcp or --answers")
    if raw and mcp:
        raise BadSetting("--raw uses no chat template, so that the model cannot be told of tools; leave out --mcp")
    if raw and system:
        raise BadSetting("--raw uses no chat template, so --system has no place in it; put the text into the prompt")
    if outline:
        check_outline(raw=raw, mcp=bool(mcp), several=bool(several), modules=bool(modules))


def _module_texts(given: Sequence[str]) -> dict[str, str]:
    """Texts of modules by name. Raises BadSetting, EdgeInferError."""
    texts: dict[str, str] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or not name or not path:
            raise BadSetting(f"--module cannot be {each!r}: give a name and a file, such as --module manual=manual.txt")
        if name in texts:
            raise BadSetting(f"--module names {name} twice; each needs a name of its own")
        texts[name] = read_text_file(Path(path).expanduser(), "--module")
    return texts


def _image_records(llm: LLM, images: Sequence[Image]) -> list[dict[str, object]]:
    """The images of a question: names, sizes in pixels, and the tokens of the prompt that each takes."""
    sizes = [(image.name, *image.size, llm.prompts.n_image_tokens(image)) for image in images]
    return [dict(zip(("name", "width", "height", "n_tokens"), each, strict=True)) for each in sizes]


def _sound_records(llm: LLM, sounds: Sequence[Sound]) -> list[dict[str, object]]:
    """The sounds of a question: names, seconds, and the tokens of the prompt that each takes."""
    lengths = [(sound.name, sound.seconds, llm.prompts.n_sound_tokens(sound)) for sound in sounds]
    return [dict(zip(("name", "seconds", "n_tokens"), each, strict=True)) for each in lengths]


COMMAND = Command(run)
