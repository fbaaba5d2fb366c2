"""`edgeinfer batch`: many prompts, several of them in every pass."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.misuse import flag_bytes
from edgeinfer.app.command_line.options import Command, Given, takes_settings
from edgeinfer.app.plain_text import counted, echo
from edgeinfer.errors import BadSetting, EdgeInferError

if TYPE_CHECKING:
    from typing import TextIO

    from edgeinfer.app.batch_files import BatchEntry
    from edgeinfer.app.cluster.batches import ClusterAnswers
    from edgeinfer.app.opening.batch_loading import BatchSettings
    from edgeinfer.approximation import Approximation
    from edgeinfer.engine.replicas import Replicas
    from edgeinfer.engine.scheduler.batcher import BatchStream
    from edgeinfer.settings import Settings

PARALLEL = 8
ANSWERING = "answering prompts"
NOT_FOR_BATCHES = ("isolate",)
"""Settings that say nothing to a batch, whose passes cannot be isolated."""
PromptFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="One prompt per line, as text or a JSON object; - reads standard input."),
]
ReplicaCount = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        metavar="N",
        help="Copies of the model side by side, each on its own cores. Default: one per NUMA node where that is "
        "predicted to be faster.",
        min=1,
    ),
]


@takes_settings("model", "generation", "load", "cluster", without=NOT_FOR_BATCHES)
def batch(
    given: Given,
    prompts: PromptFile,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Append answers to this file; prompts already answered in it are skipped."
        ),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", help="Maximum number of concurrent prompts.", min=1)
    ] = PARALLEL,
    replicas: ReplicaCount = None,
    vram: Annotated[
        str | None, typer.Option("--vram", metavar="SIZE", help="Limit of accelerator memory. Default: all of it.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print the speed on standard error.")] = False,
    other_bits: Annotated[
        bool,
        typer.Option(
            "--other-bits",
            help="With --ray: nodes that compute other bits answer too; their lines say so under computed_by.",
        ),
    ] = False,
) -> None:
    """Answer the prompts of a file, printing JSON lines.

    Answers are printed in order of completion. A line of FILE is a question, or an object with prompt, messages or
    text, and id, system, max_tokens, temp, …; images and sounds are paths, beginning where FILE is, or data URLs.
    """
    from edgeinfer.app.batch_files import read_entries
    from edgeinfer.app.opening.batch_loading import BatchSettings
    from edgeinfer.settings import load_settings

    vram_bytes = None if vram is None else flag_bytes(vram)
    settings = load_settings(given)
    folder = None if str(prompts) == "-" else prompts.parent
    entries = read_entries(_lines(prompts), settings.generation.system, folder)
    if not entries:
        raise BadSetting(f"{prompts} has no prompts; give one a line")
    left = _unanswered(entries, out)
    if not left:
        echo(f"note: {out} has {'the answer' if len(entries) == 1 else f'all {len(entries)} answers'}", err=True)
        return
    wanted = BatchSettings(min(parallel, len(left)), replicas, vram_bytes)
    if settings.cluster.ray is not None:
        if vram_bytes is not None:
            raise BadSetting("--vram and --ray do not go together: nodes answer with one device")
        _answer_on_cluster(left, settings, out, wanted, settings.cluster.ray, lets_in=other_bits, shows_stats=stats)
        return
    _answer(left, settings, out, wanted, shows_stats=stats)


def _unanswered(entries: list[BatchEntry], out: Path | None) -> list[BatchEntry]:
    """The entries that a file of answers lacks."""
    from edgeinfer.app.batch_files import answered

    done = set() if out is None else answered(out, entries)
    return [each for each in entries if each.index not in done]


def _answer(
    entries: list[BatchEntry], settings: Settings, out: Path | None, wanted: BatchSettings, *, shows_stats: bool
) -> None:
    """Answer what is left of a batch."""
    from edgeinfer.app.answer_output import print_notices, rounding_notices, stopping
    from edgeinfer.app.opening.batch_loading import open_replicas
    from edgeinfer.app.opening.loading import answer_options

    with ExitStack() as opened:
        target: TextIO = sys.stdout if out is None else opened.enter_context(_appended(out))
        models = opened.enter_context(open_replicas(settings, wanted))
        print_notices(models.llms[0].info.notices + rounding_notices(models.llms[0], wanted.parallel))
        prompts = (each.prompt for each in entries)
        stream = models.batch(prompts, parallel=wanted.parallel, **answer_options(settings))
        with stopping(stream.stop) as interrupted:
            n_failed = _write_all(stream, entries, target, out, settings.load.approximation)
        if shows_stats:
            for line in (_summary(stream, models), *_drafted(stream), *_schedules(models)):
                echo(line, err=True)
    if interrupted.is_set():
        raise KeyboardInterrupt
    if n_failed:
        raise EdgeInferError(f"{n_failed} of {len(entries)} prompts could not be answered; their lines say why")


def _answer_on_cluster(
    entries: list[BatchEntry],
    settings: Settings,
    out: Path | None,
    wanted: BatchSettings,
    address: str,
    *,
    lets_in: bool,
    shows_stats: bool,
) -> None:
    """Answer what is left of a batch on the nodes of a Ray cluster."""
    from edgeinfer.app.cluster.ray_session import ray_session, require_ray

    require_ray()
    from edgeinfer.app.cluster.batches import ClusterAnswers, ClusterBatch
    from edgeinfer.app.cluster.quiet import quiet_start
    from edgeinfer.app.opening.loading import check_template
    from edgeinfer.app.opening.model_choice import open_chosen

    check_template(settings.load)
    model = open_chosen(settings, lambda found: found)
    batch = ClusterBatch(settings, wanted.parallel, wanted.n_replicas, lets_in)
    with ExitStack() as opened:
        target: TextIO = sys.stdout if out is None else opened.enter_context(_appended(out))
        opened.enter_context(redirect_stdout(sys.stderr))  # what Ray says of nodes that end
        with quiet_start():
            opened.enter_context(ray_session(address))
        began = time.perf_counter()
        answers = ClusterAnswers(model, entries, batch)
        n_failed, n_tokens = _write_cluster(answers, len(entries), target)
        if shows_stats:
            seconds, counts = time.perf_counter() - began, answers.counts
            told = f"{counted(n_tokens, 'token')} in {seconds:.1f} s, {n_tokens / seconds:.1f} tok/s"
            echo(
                f"{told} | {counted(len(counts.lines_by_node), 'node')} | {counted(counts.n_rounds, 'round')}", err=True
            )
    if n_failed:
        raise EdgeInferError(f"{n_failed} of {len(entries)} prompts could not be answered; their lines say why")


def _write_cluster(answers: ClusterAnswers, n_entries: int, target: TextIO) -> tuple[int, int]:
    """Write answers of a cluster as they come, and notes; how many prompts have none, and tokens of all."""
    from edgeinfer.app.answer_output import print_notices
    from edgeinfer.app.batch_files import write_line
    from edgeinfer.app.progress import ProgressLine

    n_done = n_failed = n_tokens = n_told = 0
    with ProgressLine() as progress:
        progress(ANSWERING, 0, n_entries)
        for line in answers:
            progress.make_way()
            write_line(target, line)
            print_notices(tuple(answers.counts.notes[n_told:]))
            n_told = len(answers.counts.notes)
            n_done, n_failed = n_done + 1, n_failed + ("error" in line)
            n_tokens += int(str(line.get("n_generated", 0)))
            progress(ANSWERING, n_done, n_entries)
    return n_failed, n_tokens


def _write_all(
    stream: BatchStream, entries: list[BatchEntry], target: TextIO, out: Path | None, approx: Approximation
) -> int:
    """Write answers as they come, and tell what happened to the devices; how many prompts have no answer."""
    from edgeinfer.app.answer_output import print_notices
    from edgeinfer.app.batch_files import is_kept, record, write_line
    from edgeinfer.app.progress import ProgressLine

    n_done = n_failed = 0
    with ProgressLine() as progress:
        progress(ANSWERING, 0, len(entries))
        for answer in stream:
            line = record(entries[answer.number], answer, approx)
            progress.make_way()
            if is_kept(line, out):
                write_line(target, line)
            print_notices(() if answer.stats is None else answer.stats.notices)
            n_done, n_failed = n_done + 1, n_failed + (answer.error is not None)
            progress(ANSWERING, n_done, len(entries))
    return n_failed


def _summary(stream: BatchStream, models: Replicas) -> str:
    """What the batch did, in a line for people."""
    counts = stream.counts
    rate = counts.n_generated / counts.seconds if counts.seconds else 0.0
    each = counts.n_evaluated / counts.passes if counts.passes else 0.0
    return (
        f"{counted(counts.n_generated, 'token')} in {counts.seconds:.1f} s, {rate:.1f} tok/s | "
        f"{counted(counts.passes, 'pass', 'passes')} of {each:.1f} tokens | "
        f"{counted(len(models.llms), 'replica')} on {models.llms[0].telemetry.device}"
    )


def _drafted(stream: BatchStream) -> list[str]:
    """What came of drafting, if anything was drafted."""
    counts = stream.counts
    if not counts.n_drafted:
        return []
    share = counts.draft_s / counts.seconds if counts.seconds else 0.0
    return [
        f"{counted(counts.n_accepted, 'token')} of {counts.n_drafted} drafted were right, "
        f"{counts.n_drafted / counts.passes:.1f} drafted a pass; drafting took {share:.1%} of the time"
    ]


def _schedules(models: Replicas) -> list[str]:
    """What each schedule did, where two devices shared the sequences."""
    return [
        f"schedule {name}: {counted(tally.n_passes, 'pass', 'passes')} of "
        f"{1e3 * tally.seconds / tally.n_passes:.2f} ms (predicted {1e3 * tally.predicted_s / tally.n_passes:.2f}), "
        f"{tally.n_tokens / tally.n_passes:.2f} tokens each (predicted {tally.predicted_tokens / tally.n_passes:.2f})"
        for name, tally in models.llms[0].telemetry.passes_by_schedule.items()
    ]


def _lines(prompts: Path) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if str(prompts) == "-" else prompts.read_bytes()
        return data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as reason:
        raise EdgeInferError(f"{prompts} is not UTF-8 at byte {reason.start}; convert it to UTF-8 first") from None
    except OSError as reason:
        raise EdgeInferError(f"{prompts} cannot be read: {reason.strerror or reason}") from None


@contextmanager
def _appended(path: Path) -> Iterator[TextIO]:
    """A file to add lines to, each of which is written at once."""
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as reason:
        raise EdgeInferError(f"{path} cannot be written: {reason.strerror or reason}") from None
    try:
        yield file
    finally:
        with suppress(OSError):  # told when a line was written
            file.close()


COMMAND = Command(run=batch)
