"""`edgeinfer map`: one instruction for each line of a text, several of them in every pass."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.misuse import Misuse
from edgeinfer.app.command_line.options import Command, Given, Json, takes_settings
from edgeinfer.app.plain_text import counted, echo, harmless
from edgeinfer.errors import BadSetting, EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.several.mapping import Mapped

PARALLEL = 16


@takes_settings("model", "generation", "load")
def map_lines(
    given: Given,
    instruction: Annotated[
        str | None,
        typer.Argument(metavar="INSTRUCTION", help="What to do with each line.", show_default=False),
    ] = None,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="One item a line, answered by a line each, in order; blank lines stay. Default: standard input.",
            show_default=False,
        ),
    ] = Path("-"),
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", help="Maximum number of lines at the same time.", min=1)
    ] = PARALLEL,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Stop each answer before this text; repeatable.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print the speed on standard error.")] = False,
    as_json: Json = False,
) -> None:
    """Follow an instruction for each line: edgeinfer map "Translate to French:" lines.txt

    Prints one line for each, in their order, as soon as it and those before it are done; blank lines stay. Line breaks
    in answers become spaces, --json keeps them. The lines do not see one another: each answer is what the instruction
    and that line give alone.
    """
    from edgeinfer.app.answer_output import print_notices, rounding_notices, stopping
    from edgeinfer.app.opening.batch_loading import open_for_answers
    from edgeinfer.app.opening.loading import answer_options
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.settings import load_settings

    if instruction is None or not instruction.strip():
        raise Misuse('there is no instruction; such as: edgeinfer map "Translate to French:" lines.txt')
    items, settings = _lines(file), load_settings(given)
    n_asked = sum(1 for item in items if item.strip())
    with open_for_answers(settings, min(parallel, n_asked)) as llm, ProgressLine() as progress:
        print_notices(llm.info.notices + rounding_notices(llm, min(parallel, n_asked)))
        options = answer_options(settings) | {"stop": tuple(stop or ())}
        mapped = llm.map(instruction, items, system=settings.generation.system, parallel=parallel, **options)
        with mapped, stopping(mapped.stop) as interrupted:
            _print_all(mapped, progress, as_json=as_json)
        if stats:
            echo(_summary(mapped, llm, min(parallel, n_asked)), err=True)
    if interrupted.is_set():
        raise KeyboardInterrupt
    if mapped.errors:
        raise EdgeInferError(f"{len(mapped.errors)} of {counted(n_asked, 'line')} could not be answered")


def _print_all(mapped: Mapped, progress: ProgressLine, *, as_json: bool) -> None:
    """Print answers in order, each when it and those before it are done; what was interrupted comes last."""
    n_printed = 0

    def print_done() -> int:
        n_done = n_printed
        while n_done < len(mapped.items) and mapped.is_over(n_done):
            _print(mapped, n_done, progress, as_json=as_json)
            n_done += 1
        return n_done

    for _ in mapped:
        n_printed = print_done()
        progress("answering lines", n_printed, len(mapped.items))
    print_done()
    progress.clear()


def _print(mapped: Mapped, number: int, progress: ProgressLine, *, as_json: bool) -> None:
    """Print the answer of a line; one that was interrupted before it began has none."""
    from edgeinfer.app.answer_output import print_notices

    stream, error = mapped.stream(number), mapped.errors.get(number)
    if stream is None and error is None and mapped.items[number].strip():
        return
    progress.make_way()
    if error is not None:
        print_notices((f"line {number + 1} has no answer: {error}",))
    if as_json:
        sys.stdout.write(json.dumps(map_record(mapped, number), ensure_ascii=False) + "\n")
    else:
        text = " ".join(mapped.text(number).split("\n")).strip().replace("\r", " ")
        sys.stdout.write((harmless(text) if sys.stdout.isatty() else text) + "\n")
    sys.stdout.flush()


def map_record(mapped: Mapped, number: int) -> dict[str, object]:
    """The answer of a line in JSON; keys may be added, never renamed. Indices begin at 0."""
    found: dict[str, object] = {"index": number, "item": mapped.items[number], "text": mapped.text(number)}
    stream, error = mapped.stream(number), mapped.errors.get(number)
    if error is not None:
        return found | {"error": str(error)}
    if stream is None or stream.stats is None:
        return found
    stats = stream.stats
    return found | {
        "reasoning": stream.reasoning,
        "tokens": list(stream.tokens),
        "n_prompt": stats.n_prompt,
        "n_cached": stats.n_cached,
        "n_generated": stats.n_generated,
        "finish_reason": stats.finish_reason,
        "truncated": stats.truncated,
        "notices": list(stats.notices),
        "seed": stats.seed,
    }


def _summary(mapped: Mapped, llm: LLM, parallel: int) -> str:
    """What the lines took, in a line for people."""
    rate = mapped.n_generated / mapped.seconds if mapped.seconds else 0.0
    n_read = sum(stats.n_prompt - stats.n_cached for stats in mapped.stats if stats is not None)
    n_prompt = sum(stats.n_prompt for stats in mapped.stats if stats is not None)
    return (
        f"{counted(len(mapped.answers), 'line')}, {parallel} at a time | {counted(mapped.n_generated, 'token')} in "
        f"{mapped.seconds:.2f} s, {rate:.1f} tok/s together | {n_read} of {n_prompt} prompt tokens were read, the "
        f"others are shared | {llm.telemetry.device}"
    )


def _lines(file: Path) -> tuple[str, ...]:
    """The lines of a file. Raises BadSetting, EdgeInferError."""
    name = "standard input" if str(file) == "-" else str(file)
    if str(file) == "-" and sys.stdin.isatty():
        raise Misuse("there are no lines; name a file, or give them on standard input")
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise EdgeInferError(f"{name} is not UTF-8 text at byte {reason.start}; convert it to UTF-8 first") from None
    except OSError as reason:
        raise EdgeInferError(f"{name} cannot be read: {reason.strerror or reason}") from None
    if "\0" in text:
        raise EdgeInferError(f"{name} is no text: it has a zero byte at {data.index(0)}")
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if not any(line.strip() for line in lines):
        raise BadSetting(f"{name} has no lines to work on; give one item a line")
    return tuple(lines)


COMMAND = Command(map_lines)
