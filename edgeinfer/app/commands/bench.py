"""`edgeinfer bench`: this engine measured beside others, in runs by turns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.misuse import flags_read
from edgeinfer.app.command_line.options import Command, Given, Json, takes_settings
from edgeinfer.app.plain_text import echo
from edgeinfer.errors import BadSetting, EdgeInferError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeinfer.app.bench.report import BenchModel
    from edgeinfer.app.bench.request import BenchExecutor, BenchRequest
    from edgeinfer.app.bench.subject import Conditions
    from edgeinfer.settings import Settings

Against = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="NAMES",
        help="Compare with llama-cpp-python, openvino-genai, onnxruntime-genai:FOLDER, python:FILE, or devices "
        "(such as onnx, or cpu+openvino for both together).",
    ),
]


@dataclass(frozen=True, slots=True)
class BenchFlags:
    """What the command line asks to measure, and how often; in the order of the help."""

    tests: Annotated[
        str,
        typer.Option("--tests", metavar="NAMES", help="Tests to run: prefill, decode, verify, chat, start."),
    ] = "prefill,decode,verify"
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", min=1, help="Prompt length in tokens.")
    ] = 512
    gen: Annotated[
        int, typer.Option("--gen", metavar="N", min=1, help="Number of tokens to generate; for chat, the maximum.")
    ] = 128
    depth: Annotated[
        str, typer.Option("--depth", metavar="LIST", help="Number of tokens already in the KV cache, such as 0,2048.")
    ] = "0"
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="Number of runs of each test.")] = 5
    against: Against = ""
    questions: Annotated[
        Path | None,
        typer.Option("--questions", metavar="FILE", help='For chat: one {"category": "…", "turns": ["…"]} per line.'),
    ] = None
    chart: Annotated[
        Path | None,
        typer.Option("--chart", metavar="FILE.svg", help="Draw the figures: speed, cost of passes, memory."),
    ] = None
    kept: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE.json", help="With --chart: draw what --json printed; measure nothing."),
    ] = None
    temp: Annotated[
        float,
        typer.Option(
            "--temp",
            metavar="NUMBER",
            min=0,
            max=2,
            help="For chat: a temperature to measure at, beside the settings of edgeinfer chat.",
        ),
    ] = 0.0


@takes_settings("model", "threads", "cores", "device", "schedule", "kv", "ram", "approx", "spec", "verify_cost")
def bench(given: Given, flags: BenchFlags, as_json: Json = False) -> None:
    """Measure speed, alone or against other engines.

    Every engine has a process of its own with the model loaded; runs alternate, each ratio is of neighbours, and a run
    on a busy machine is repeated, then flagged. Chat alone compares answers with drafts and without.
    """
    from edgeinfer.app.bench.measurement import measure
    from edgeinfer.app.bench.origin import origin_of
    from edgeinfer.app.bench.report import report_json, report_lines
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.settings import load_settings

    with flags_read():
        _check_chart(flags)
    if flags.kept is not None:
        _draw_kept(flags)
        return
    settings = load_settings(given)
    with flags_read():
        request = _request(flags)
        first, others = _executors(settings, flags.against)
    conditions, facts = _conditions(settings, request, first, flags.temp)
    with ProgressLine() as progress:
        record = measure(request, first, others, conditions, progress)
    result = report_json(record, facts, origin_of((first, *others)))
    if as_json:
        echo(json.dumps(result, ensure_ascii=False))
    else:
        for line in report_lines(record, facts):
            echo(line)
    if record.drafting is None and not any(sample.executor == first.name for sample in record.samples):
        problems = [row.problem for row in record.rows if row.executor == first.name and row.problem is not None]
        raise EdgeInferError(f"{first.name} could not be measured: {problems[0]}")
    if flags.chart is not None:
        _draw(result, flags.chart)


def _check_chart(flags: BenchFlags) -> None:
    """Raises BadSetting for a chart that could not be written, before anything is measured."""
    from edgeinfer.app.charts.page import check_chart

    if flags.chart is not None:
        check_chart(flags.chart)
    elif flags.kept is not None:
        raise BadSetting(f"--from {flags.kept} draws kept figures: say into which file with --chart FILE.svg")


def _draw_kept(flags: BenchFlags) -> None:
    """Draw what was kept in a file. Raises BadSetting."""
    from edgeinfer.app.bench.chart import bench_page
    from edgeinfer.app.bench.kept import read_bench
    from edgeinfer.app.charts.page import write_chart

    assert flags.chart is not None
    assert flags.kept is not None
    write_chart(bench_page(read_bench(flags.kept)), flags.chart)
    echo(f"wrote {flags.chart}", err=True)


def _draw(result: Mapping[str, object], path: Path) -> None:
    """Draw what was measured, from the same JSON that is printed and kept. Raises BadSetting."""
    from edgeinfer.app.bench.chart import bench_page
    from edgeinfer.app.bench.kept import kept_bench
    from edgeinfer.app.charts.page import write_chart

    write_chart(bench_page(kept_bench(json.loads(json.dumps(result)))), path)
    echo(f"wrote {path}", err=True)


def _request(flags: BenchFlags) -> BenchRequest:
    """What is asked for. Raises BadSetting."""
    from edgeinfer.app.bench.request import BenchRequest, read_depths, read_questions, read_tests

    names = read_tests(flags.tests)
    if "chat" in names and flags.questions is None:
        raise BadSetting('the test chat needs --questions FILE with lines of {"category": "…", "turns": ["…"]}')
    questions = read_questions(flags.questions) if flags.questions is not None and "chat" in names else ()
    return BenchRequest(names, flags.prompt_tokens, flags.gen, read_depths(flags.depth), flags.runs, questions)


def _executors(settings: Settings, against: str) -> tuple[BenchExecutor, tuple[BenchExecutor, ...]]:
    """Our device, and whom it is compared with. Raises UnknownKey, BadSetting, DeviceUnavailable."""
    from edgeinfer.app.bench.request import ours, read_against
    from edgeinfer.engine.opening.evaluator import approximate_on
    from edgeinfer.engine.run.executor import AUTO_DEVICE

    load = settings.load
    key = AUTO_DEVICE if load.device == "auto" else approximate_on(load.device, load.approximation)
    return ours(key), read_against(against, key)


def _conditions(
    settings: Settings, request: BenchRequest, first: BenchExecutor, temp: float
) -> tuple[Conditions, BenchModel]:
    """What is equal for all, and the model. Raises ModelNotFound, DoesNotFit and what opening a model raises."""
    from edgeinfer.app.bench.report import BenchModel
    from edgeinfer.app.bench.subject import Conditions
    from edgeinfer.app.opening.model_choice import choose_file
    from edgeinfer.app.plans.fit import plan_for
    from edgeinfer.engine.kv.limits import weights_bytes
    from edgeinfer.models.download.header import file_header
    from edgeinfer.models.file_facts import quant_name
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.scheduling.cost.memory import require_fit
    from edgeinfer.scheduling.machine.topology import usable_cores

    local = choose_file(settings, "bench", "edgeinfer run --stats answers with it and says how fast")
    load = settings.load
    ram_bytes = None if load.ram_bytes is None else weights_bytes(load.ram_bytes)
    n_threads = load.threads or len(load.cores or usable_cores())
    with GGUFFile.open(local.path) as file:
        if ram_bytes is None:
            planned = plan_for(file, device=first.key, n_context=request.n_context, kv=load.kv)[1]
            require_fit(planned.need, planned.available_bytes)
        file_bytes = file.nbytes
    facts = BenchModel(
        local.name,
        str(local.path),
        quant_name(file_header(local.path)),
        file_bytes,
        load.kv,
        load.approximation.threshold,
        load.approximation.kv,
        load.approximation.prefill,
    )
    conditions = Conditions(
        local.path.resolve(),
        n_threads,
        request.n_context,
        load.core_numbers,
        kv=load.kv,
        spec=load.spec,
        verify_cost=load.verify_cost or {},
        temp=temp,
        generation=settings.generation,
        schedule=load.schedule,
        ram_bytes=ram_bytes,
        approx=load.approximation,
    )
    return conditions, facts


COMMAND = Command(bench)
