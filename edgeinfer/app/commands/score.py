"""`edgeinfer score`: how likely options are after a prompt, or how likely a text is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edgeinfer.app.command_line.misuse import Misuse
from edgeinfer.app.command_line.options import Command, Given, Json, argument_or_stdin, takes_settings
from edgeinfer.errors import BadSetting, EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.scoring import Score
    from edgeinfer.settings import Settings
    from edgeinfer.steps import Progress

Measure = Literal["total", "token", "byte"]
FIELDS = {"total": "logprob", "token": "per_token", "byte": "per_byte"}


@takes_settings("model", "system", "load")
def score(
    given: Given,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT] [OPTION]...", help="A prompt, and what may follow it.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="Further options, one a line; or lines of JSON with prompt and options each. - reads standard input.",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="Print the perplexity of a text; - reads standard input."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a question in the chat template, options are answers.")
    ] = False,
    between: Annotated[
        str | None,
        typer.Option(
            "--between",
            metavar="TEXT",
            help="Put this between prompt and option. Default: a space, unless white space is there or with --chat.",
        ),
    ] = None,
    by: Annotated[
        Measure, typer.Option("--by", help="Choose the option with the best log probability in total, or by each.")
    ] = "total",
    as_json: Json = False,
) -> None:
    """Score given texts: edgeinfer score "The capital of France is" Paris London

    Prints how likely the model finds each option after the prompt, in natural logarithms, and marks the best. The
    prompt is read once. share: the probability of an option if it must be one of these.
    """
    from edgeinfer.app.answer_output import print_notices
    from edgeinfer.app.opening.loading import open_llm
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.settings import load_settings

    if text is not None and (words or file is not None):
        raise Misuse("--text scores a whole text; leave the prompt, the options and --file out")
    settings = load_settings(given)
    if "system" in given and not chat:
        raise BadSetting("--system has its place in a chat template; add --chat, or put the text into the prompt")
    whole = None if text is None else _read(text)
    tasks = [] if text is not None else _tasks(words or [], file)
    with open_llm(settings) as llm, ProgressLine() as progress:
        print_notices(llm.info.notices)
        if whole is not None:
            _print_text(llm, whole, str(text), progress, as_json=as_json)
            return
        for task in tasks:
            scores = _scores(llm, task, settings, between, progress, chat=chat)
            progress.clear()
            _print_scores(llm, task, scores, by, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt with its options."""

    prompt: str
    options: Sequence[str]


def _tasks(words: list[str], file: Path | None) -> list[Task]:
    """The prompts with their options. Raises Misuse if there are none, BadSetting for a line that cannot be used."""
    lines = [] if file is None else [line for line in _read(file).splitlines() if line.strip()]
    if not words and lines:
        return [_task(number, line) for number, line in enumerate(lines, 1)]
    if len(words) + len(lines) < 2 or not words:
        raise Misuse('there is nothing to score; such as: edgeinfer score "The sky is" blue green, or --text FILE')
    return [Task(words[0], [*words[1:], *lines])]


def _task(number: int, line: str) -> Task:
    try:
        record = json.loads(line)
        prompt, options = record["prompt"], record["options"]
    except (ValueError, KeyError, TypeError, RecursionError):
        prompt, options = None, ()
    is_usable = isinstance(prompt, str) and isinstance(options, list) and options
    if not is_usable or not all(isinstance(option, str) for option in options):
        raise BadSetting(
            f'line {number} is no task, such as {{"prompt": "The sky is", "options": ["blue", "green"]}}; beside a '
            "prompt as an argument each line is an option"
        )
    assert isinstance(prompt, str)
    return Task(prompt, options)


def _scores(
    llm: LLM, task: Task, settings: Settings, between: str | None, progress: Progress, *, chat: bool
) -> list[Score]:
    """The scores of a task's options, with what stands between prompt and option put before each."""
    if chat:
        system = settings.generation.system
        messages = [{"role": "system", "content": system}] if system else []
        question = [*messages, {"role": "user", "content": task.prompt}]
        return llm.score(question, [(between or "") + option for option in task.options], progress=progress)
    options = [_joint(task.prompt, option, between) + option for option in task.options]
    return llm.score(task.prompt, options, progress=progress)


def _joint(prompt: str, option: str, between: str | None) -> str:
    """What stands between a prompt and an option."""
    if between is not None:
        return between
    return "" if prompt[-1:].isspace() or option[:1].isspace() or not prompt else " "


def _print_scores(llm: LLM, task: Task, scores: Sequence[Score], by: Measure, *, as_json: bool) -> None:
    from edgeinfer.app.plain_text import table_lines
    from edgeinfer.engine.scoring import shares

    values = [getattr(each, FIELDS[by]) for each in scores]
    best, parts = values.index(max(values)), shares([each.logprob for each in scores])
    if as_json:
        found = [
            {"option": option, **_record(each), "share": share}
            for option, each, share in zip(task.options, scores, parts, strict=True)
        ]
        record = {"model": llm.info.name, "prompt": task.prompt, "by": by, "best": best, "scores": found}
        typer.echo(json.dumps(record, ensure_ascii=False))
        return
    rows = [["", "logprob", "per token", "per byte", "share", "option"]]
    for number, (option, each, share) in enumerate(zip(task.options, scores, parts, strict=True)):
        numbers = (f"{each.logprob:.4f}", f"{each.per_token:.4f}", f"{each.per_byte:.4f}", f"{share:.1%}")
        rows.append(["*" if number == best else "", *numbers, option])
    for line in table_lines(rows):
        typer.echo(line)


def _print_text(llm: LLM, whole: str, name: str, progress: ProgressLine, *, as_json: bool) -> None:
    """The perplexity of a text."""
    if not whole.strip():
        raise BadSetting(f"{name} has no text to score")
    found = llm.logprobs(whole, progress=progress)
    progress.clear()
    if as_json:
        record = {"model": llm.info.name, "file": name, "n_context": llm.info.n_context, **_record(found)}
        typer.echo(json.dumps(record | {"perplexity": found.perplexity}, ensure_ascii=False))
        return
    typer.echo(
        f"perplexity {found.perplexity:.4f} over {len(found.logprobs)} tokens, context {llm.info.n_context}: "
        f"{found.per_token:.4f} a token, {found.per_byte:.4f} a byte"
    )


def _record(scored: Score) -> dict[str, Any]:
    """A score in JSON; keys may be added, never renamed."""
    return {
        "logprob": scored.logprob,
        "per_token": scored.per_token,
        "per_byte": scored.per_byte,
        "tokens": [each.token for each in scored.logprobs],
        "token_logprobs": [each.logprob for each in scored.logprobs],
    }


def _read(path: Path) -> str:
    if str(path) == "-":
        return argument_or_stdin(None)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as reason:
        raise EdgeInferError(f"{path} is not UTF-8 at byte {reason.start}; convert it to UTF-8 first") from None
    except OSError as reason:
        raise EdgeInferError(f"{path} cannot be read: {reason.strerror or reason}") from None


COMMAND = Command(score)
