"""Several answers to one question on the command line: the options, writing them, and what is told of them.

In: options, an open model, what to begin. Out: the answer that is kept, as a stream that is over; a record for JSON,
lines for people. A check is a command that gets an answer as its standard input and passes it by ending with 0.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeinfer.app.command_line.misuse import Misuse
from edgeinfer.app.plain_text import counted
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.steps import DETAIL

if TYPE_CHECKING:
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.several.several import Several

CHECK = "check:"
CHECK_S = 60.0
"""Seconds that a check may take; an answer whose check takes longer has not passed."""
SHOWN = 40
TOLD_S = 0.1
"""Seconds between two reports of how far the answers are."""

AnswerCount = Annotated[
    int | None,
    typer.Option(
        "--answers", metavar="N", help="Write N answers side by side and keep one, as --pick says.", min=1, max=64
    ),
]
PickName = Annotated[
    str | None,
    typer.Option(
        "--pick",
        metavar="HOW",
        help="Which of several answers is kept: vote (default), weighted, shortest, first, likely, medoid, or "
        "check:COMMAND, which gets an answer as standard input and ends with 0 if it is right.",
    ),
]
VoteForm = Annotated[
    str | None,
    typer.Option(
        "--vote-by",
        metavar="FORM",
        help="What of an answer counts as a vote: auto (default), text, number, json, json:FIELD, regex:PATTERN.",
    ),
]
Enough = Annotated[
    str | None,
    typer.Option(
        "--enough",
        metavar="M|P%",
        help="Decide as soon as M answers are finished (3), or once the leader of a vote is that likely to stay ahead "
        "(95%).",
    ),
]
LeadName = Annotated[
    str | None,
    typer.Option(
        "--lead",
        metavar="HOW",
        help="Which answers are written: independent (default), uncertain (forks of one where the model is unsure), "
        "cut (from its thoughts, cut at several places) or particles (the likelier ones go on more than once); options "
        "follow a colon, as in uncertain:entropy=1.5,others=2.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option("--budget", metavar="LIMIT", help="Limit of all answers together, in tokens or seconds: 2000, 30s."),
]


@dataclass(frozen=True, slots=True)
class WantedAnswers:
    """How many answers are wanted, and how one is kept. `arguments`: those of `LLM.several`."""

    n: int
    arguments: Mapping[str, Any]


def wanted_answers(
    answers: int | None,
    pick: str | None,
    form: str | None,
    enough: str | None,
    budget: str | None,
    lead: str | None = None,
) -> WantedAnswers | None:
    """What options ask for; None for one answer alone. Raises Misuse, BadSetting."""
    if answers is None:
        if any(each is not None for each in (pick, form, enough, budget, lead)):
            options = "--pick, --vote-by, --enough, --budget and --lead"
            raise Misuse(f"{options} are about several answers; give --answers N, too")
        return None
    from edgeinfer.engine.several.answer_forms import form_of
    from edgeinfer.scheduling.several.picks import PICKS

    arguments: dict[str, Any] = {"pick": pick or "vote", "answer": form or "auto", **_stopping(enough)}
    form_of(arguments["answer"])
    if lead is not None:
        from edgeinfer.engine.several.leading import planned
        from edgeinfer.engine.several.strategies import STRATEGIES

        planned(STRATEGIES.get, lead, None)
        arguments["lead"] = lead
    if pick is not None and pick.startswith(CHECK):
        arguments |= {"pick": "check", "check": checker(pick.removeprefix(CHECK))}
    elif pick is not None and (pick == "check" or pick not in PICKS):
        known = ", ".join(name for name in PICKS.keys() if name != "check")  # noqa: SIM118  # a registry is no mapping
        raise BadSetting(f"--pick cannot be {pick}; there are: {known}, check:COMMAND")
    return WantedAnswers(answers, arguments | _limits(budget))


def _stopping(enough: str | None) -> dict[str, Any]:
    """When to decide. Raises BadSetting."""
    if enough is None:
        return {}
    number, is_share = enough.removesuffix("%"), enough.endswith("%")
    try:
        value = float(number) / 100 if is_share else int(number)
    except ValueError:
        value = 0
    if not (0 < value <= 1 if is_share else value >= 1):
        raise BadSetting(f"--enough cannot be {enough}: it is a number of answers, or a probability, such as 3 or 95%")
    return {"confidence": value} if is_share else {"enough": value}


def _limits(budget: str | None) -> dict[str, Any]:
    """The limits that a budget states. Raises BadSetting."""
    if budget is None:
        return {}
    number, is_time = budget.removesuffix("s"), budget.endswith("s")
    try:
        value = float(number) if is_time else int(number)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise BadSetting(f"--budget cannot be {budget}: it is a number of tokens, or of seconds, such as 2000 or 30s")
    return {"most_s": value} if is_time else {"most_tokens": value}


class checker:  # noqa: N801  # it is called as a function
    """Checks answers by a command. Raises BadSetting if there is no such command."""

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as reason:
            raise BadSetting(f"--pick check: {command!r} is no command: {reason}") from None
        if not self._words or shutil.which(self._words[0]) is None:
            named = self._words[0] if self._words else ""
            raise BadSetting(f"--pick check: there is no command {named!r}; such as: --pick 'check:python3 test.py'")

    def __call__(self, answer: str) -> bool:
        try:
            done = subprocess.run(
                self._words,
                input=answer.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=CHECK_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        except OSError as reason:
            raise EdgeInferError(f"the check {self._words[0]} cannot be run: {reason.strerror or reason}") from None
        return done.returncode == 0


def write_all(several: Several, progress: ProgressLine) -> bool:
    """Write all answers, telling how many are done; return whether that was interrupted."""
    from edgeinfer.app.answer_output import stopping

    next_s = 0.0
    with stopping(several.stop) as interrupted:
        for _ in several:
            if time.monotonic() < next_s:
                continue  # counting takes longer than a piece of text
            n_answers = len(several.answers)
            n_over = sum(answer.stats is not None for answer in several.answers)
            progress(f"writing {n_answers} answers{DETAIL}{counted(several.n_generated, 'token')}", n_over, n_answers)
            next_s = time.monotonic() + TOLD_S
    progress.clear()
    return interrupted.is_set()


def kept_notice(several: Several) -> str:
    """Which answer is kept, and why."""
    assert several.choice is not None
    return f"answer {several.choice.number + 1} of {len(several.answers)} is kept: {several.choice.reason}"


def several_report(llm: LLM, several: Several, pick: str) -> tuple[dict[str, object], list[str]]:
    """What is told of answers that are over, in JSON and in lines, with the seconds that were predicted."""
    from edgeinfer.app.plans.expected_answers import (
        expected_answers_lines,
        expected_answers_s,
        note_answers_for_calibration,
    )
    from edgeinfer.app.several_record import several_record

    stats = [answer.stats for answer in several.answers if answer.stats is not None]
    expected_s = None if any(several.forks) else expected_answers_s(llm, stats)  # forks begin later
    if expected_s is not None:
        note_answers_for_calibration(llm, stats, several.seconds)
    record: dict[str, object] = {"several": several_record(several, pick) | {"predicted_s": expected_s}}
    return record, [*several_lines(several), *expected_answers_lines(expected_s, several.seconds, len(stats))]


def several_lines(several: Several) -> list[str]:
    """A table of the answers, and what they took together."""
    from edgeinfer.app.plain_text import harmless, table_lines

    choice = several.choice
    assert choice is not None
    is_forked = any(choice.forks)
    rows = [["", "answer", *(["from"] if is_forked else []), "tokens", "end", "seed", "says"]]
    for number, (answer, said) in enumerate(zip(several.answers, choice.votes, strict=True)):
        assert answer.stats is not None
        shown = "" if said is None else harmless(str(said)).replace("\n", " ")
        end = "not needed" if number in choice.left else answer.stats.finish_reason
        mark = "*" if number == choice.number else ""
        fork = choice.forks[number]
        origin = [] if not is_forked else ["" if fork is None else f"answer {fork.parent + 1} at token {fork.n_tokens}"]
        own = [str(number + 1), *origin, str(answer.stats.n_generated), end, str(answer.stats.seed)]
        rows.append([mark, *own, shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"])
    rate = several.n_generated / several.seconds if several.seconds else 0.0
    total = f"{counted(several.n_generated, 'token')} in {several.seconds:.2f} s, {rate:.1f} tok/s together"
    return [*table_lines(rows), total]


def begun(llm: LLM, prompt: str | Sequence[Mapping[str, Any]], wanted: WantedAnswers, options: Any) -> Several:
    """Begin several answers."""
    return llm.several(prompt, wanted.n, **wanted.arguments, **options)
