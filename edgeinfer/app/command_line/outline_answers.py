"""An answer by its outline on the command line: the option, writing it, and what is told of it.

In: a question, settings. Out: the answer on standard output, which way was taken on standard error, numbers in either.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeinfer.app.plain_text import counted, echo
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.app.answer_record import AnswerReads
    from edgeinfer.app.command_line.question import Question
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.several.outlined import Outlined
    from edgeinfer.settings import Settings

CONTEXTS = 4
"""Contexts of full length that there is KV cache for: the points share most of theirs."""
OutlineFlag = Annotated[
    bool,
    typer.Option(
        "--outline",
        help="Write an outline first, then all of its points side by side, if the question suits that. The points do "
        "not see one another.",
    ),
]


@dataclass(frozen=True, slots=True)
class Reporting:
    """What is printed instead of the answer, or besides it."""

    as_json: bool
    as_text: bool


def check_outline(*, raw: bool, mcp: bool, several: bool, modules: bool) -> None:
    """Raises BadSetting for options that do not go with an outline."""
    others = {"--raw": raw, "--mcp": mcp, "--answers": several, "--module": modules}
    if clashing := next((name for name, is_given in others.items() if is_given), None):
        raise BadSetting(f"--outline and {clashing} do not go together; leave one of them out")


def answer_by_outline(question: Question, settings: Settings, stop: tuple[str, ...], wanted: Reporting) -> None:
    """Load, answer and print. Raises KeyboardInterrupt for an answer that was interrupted."""
    from edgeinfer.app.answer_output import print_notices, print_outlined, rounding_notices
    from edgeinfer.app.answer_record import AnswerReads
    from edgeinfer.app.disk_reading import read_since
    from edgeinfer.app.opening.batch_loading import open_for_answers
    from edgeinfer.app.opening.loading import answer_options
    from edgeinfer.app.progress import ProgressLine

    if question.media:
        raise BadSetting("--outline is for questions in text; leave it out, or the images and sounds")
    with open_for_answers(settings, CONTEXTS) as llm, ProgressLine() as progress:
        print_notices(llm.info.notices)
        options = answer_options(settings) | {"stop": stop, "progress": progress}
        started, before = time.perf_counter(), llm.telemetry.weight_reads
        with llm.by_outline(question.messages(settings.generation.system), **options) as outlined:
            interrupted = print_outlined(outlined, quiet=wanted.as_json, progress=progress)
        read = AnswerReads(read_since(before, llm.telemetry.weight_reads), time.perf_counter() - started)
        rounding = rounding_notices(llm, len(outlined.parts) or 1)
        print_notices((way_text(outlined), *rounding, *_own_notices(outlined)))
        if wanted.as_json and outlined.streams:
            echo(json.dumps(outlined_record(llm, outlined, settings, read), ensure_ascii=False))
        if wanted.as_text:
            for line in outlined_lines(outlined):
                echo(line, err=True)
    if interrupted:
        raise KeyboardInterrupt


def way_text(outlined: Outlined) -> str:
    """Which way was taken, and why."""
    from edgeinfer.engine.several.outlined import LABEL

    if not outlined.fallback and outlined.outline is None:
        return "interrupted before there was an outline"
    if outlined.fallback:
        return f"one ordinary answer, not by an outline: {outlined.fallback}"
    return f"an answer by its outline ({outlined.suiting.reason}): {LABEL}"


def _own_notices(outlined: Outlined) -> tuple[str, ...]:
    """Notices of all streams, each once."""
    told = [notice for each in outlined.streams if each.stats is not None for notice in each.stats.notices]
    return tuple(dict.fromkeys(told))


def outlined_lines(outlined: Outlined) -> list[str]:
    """A table of the parts, and what they took; or the numbers of the ordinary answer."""
    from edgeinfer.app.answer_output import stats_text
    from edgeinfer.app.plain_text import table_lines

    lines: list[str] = []
    if outlined.ordinary is not None and outlined.ordinary.stats is not None:
        lines.append(stats_text(outlined.ordinary.stats))
    rows = [["", "tokens", "cached", "end", "point"]]
    named = [("outline", "", outlined.outline_stream)] if outlined.outline_stream is not None else []
    points = () if outlined.outline is None else outlined.outline.points
    named += [(str(n), point, part) for n, (point, part) in enumerate(zip(points, outlined.parts, strict=False), 1)]
    for name, point, stream in named:
        if stream.stats is not None:
            cached = f"{stream.stats.n_cached} of {stream.stats.n_prompt}"
            rows.append([name, str(stream.stats.n_generated), cached, stream.stats.finish_reason, point])
    if len(rows) > 1:
        lines += table_lines(rows)
    rate = outlined.n_generated / outlined.seconds if outlined.seconds else 0.0
    first = "" if outlined.first_s is None else f", first text after {outlined.first_s:.3f} s"
    total = f"{counted(outlined.n_generated, 'token')} in {outlined.seconds:.2f} s, {rate:.1f} tok/s together{first}"
    return [*lines, total]


def outlined_record(llm: LLM, outlined: Outlined, settings: Settings, read: AnswerReads) -> dict[str, object]:
    """An answer by its outline in JSON: the keys of one answer, and `outline`; keys may be added, never renamed.

    Counts are of all that was written, the outline too; what is measured of one answer alone is null for parts.
    """
    from edgeinfer.app.answer_record import answer_record

    parts = [stream for stream in outlined.parts if stream.stats is not None]
    stream = outlined.ordinary or outlined.streams[0]
    record = answer_record(llm, stream, settings, read, None)
    record |= {"calls": [], "images": [], "sounds": [], "outline": _way_record(outlined)}
    if outlined.ordinary is not None:
        return record
    every = [each.stats for each in outlined.streams if each.stats is not None]
    ends = {part.stats.finish_reason for part in parts if part.stats is not None} or {"cancelled"}
    return record | {
        "text": outlined.text,
        "reasoning": "",
        "tokens": [token for part in parts for token in part.tokens],
        "n_prompt": sum(stats.n_prompt for stats in every),
        "n_cached": sum(stats.n_cached for stats in every),
        "n_from_disk": sum(stats.n_from_disk for stats in every),
        "n_generated": outlined.n_generated,
        "finish_reason": next(end for end in ("cancelled", "length", "stop") if end in ends),
        "truncated": any(stats.truncated for stats in every),
        "notices": [*llm.info.notices, *_own_notices(outlined)],
        "ttft_s": outlined.first_s,
        **dict.fromkeys(ALONE),
        "draft": {},
    }


ALONE = (
    *("prefill_tok_s", "decode_tok_s", "plain_tok_s", "predicted", "steps", "accepted_per_step", "draft_s"),
    *("joules", "joules_per_token"),
)
"""Keys of what is measured of an answer alone."""


def _way_record(outlined: Outlined) -> dict[str, Any]:
    """Which way was taken, and the parts."""
    points = () if outlined.outline is None else outlined.outline.points
    parts = [
        {
            "point": point,
            "text": part.text,
            "n_generated": part.stats.n_generated,
            "finish_reason": part.stats.finish_reason,
            "seed": part.stats.seed,
        }
        for point, part in zip(points, outlined.parts, strict=False)
        if part.stats is not None
    ]
    return {
        "taken": outlined.outline is not None,
        "reason": outlined.fallback or outlined.suiting.reason,
        "parts_see_one_another": None if outlined.outline is None else False,
        "points": list(points),
        "parts": parts,
        "seconds": outlined.seconds,
    }
