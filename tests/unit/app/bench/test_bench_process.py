"""Children: loaded once, idle between jobs, and a crash is an answer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from edgeinfer.app.bench.request import BenchExecutor
from edgeinfer.app.bench.runners import BenchChild, ChildRunner, runner_for, seconds_to_output
from edgeinfer.app.bench.subject import BenchConversation, BenchJob, BenchOpening, BenchReply, Conditions
from tests.waiting import rests

CONTEXT = 128


@pytest.fixture(scope="module")
def child(tiny_model: Path) -> Iterator[BenchChild]:
    with closing(BenchChild(BenchOpening("reference", Conditions(tiny_model, 1, CONTEXT)))) as opened:
        assert opened.opened == BenchReply()
        yield opened


def test_a_child_measures_passes(child: BenchChild) -> None:
    for job in (BenchJob("prefill", 8), BenchJob("decode", 3, depth=5), BenchJob("prefill", 4, depth=5)):
        reply = child.run(job)
        assert reply.problem is None
        assert list(reply.seconds) == [job.n]
        assert reply.seconds[job.n] > 0
    verified = child.run(BenchJob("verify", 4, depth=6, counts=(1, 2, 4)))
    assert list(verified.seconds) == [1, 2, 4]
    replayed = child.run(BenchJob("chat", 8, turns=((0, 6, 3), (8, 4, 2))))
    assert list(replayed.seconds) == [5]


def test_what_cannot_be_measured_is_said_and_the_child_goes_on(child: BenchChild) -> None:
    assert "no test 'dance'" in str(child.run(BenchJob("dance", 1)).problem)
    assert "context" in str(child.run(BenchJob("prefill", 8, depth=CONTEXT)).problem)
    assert child.run(BenchJob("prefill", 8)).problem is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_waiting_child_computes_nothing(child: BenchChild) -> None:
    child.run(BenchJob("prefill", 8))
    process = psutil.Process(child.pid)
    assert rests(lambda: sum(process.cpu_times()[:2]))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_crash_is_an_answer_and_the_runner_starts_anew(tiny_model: Path) -> None:
    conditions = Conditions(tiny_model, 1, CONTEXT)
    with closing(ChildRunner(BenchExecutor("reference", "ours", "reference"), conditions)) as runner:
        assert runner.run(BenchJob("prefill", 4)).problem is None
        child = runner._child
        assert child is not None
        os.kill(child.pid, signal.SIGSEGV)  # the runner may see that it has ended, and start another one at once
        assert str(child.run(BenchJob("prefill", 4)).problem).startswith("crashed (signal 11, SIGSEGV)")
        assert runner.run(BenchJob("prefill", 4)).problem is None


def test_a_model_that_cannot_be_opened_is_asked_for_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    conditions = Conditions(broken, 1, CONTEXT)
    with closing(ChildRunner(BenchExecutor("reference", "ours", "reference"), conditions)) as runner:
        first = runner.run(BenchJob("prefill", 4))
        assert "broken.gguf" in str(first.problem)
        assert runner.run(BenchJob("decode", 4)) is first


def test_a_child_that_does_not_answer_is_ended(tiny_model: Path) -> None:
    with closing(BenchChild(BenchOpening("reference", Conditions(tiny_model, 1, CONTEXT)), limit_s=0.001)) as child:
        assert "no answer within" in str(child.opened.problem)


def test_answers_of_ours_count_what_was_read_and_answered(tiny_model: Path) -> None:
    opening = BenchOpening("reference", Conditions(tiny_model, 1, CONTEXT), purpose="answers")
    with closing(BenchChild(opening)) as child:
        reply = child.run(
            BenchJob(
                "chat", 6, questions=(BenchConversation("a", ("the rain", "an inn")), BenchConversation("b", ("he",)))
            )
        )
        assert reply.problem is None
        assert [turn[2] for turn in reply.turns] == [6, 6, 6]  # greedy answers of this model never end
        assert list(reply.seconds) == [18]
        assert reply.turns[0][0] == reply.turns[2][0] == 0
        assert reply.turns[1][0] > 0  # the second turn found the first in the cache
        assert reply.accepted_per_step == 1.0
        assert set(reply.categories) == {"a", "b"}


def script_runner(tmp_path: Path, text: str) -> BenchReply:
    script = tmp_path / "peer.py"
    script.write_text(text)
    executor = BenchExecutor("python:peer.py", "script", "python", script)
    return runner_for(executor, Conditions(Path("/m.gguf"), 3, CONTEXT)).run(BenchJob("decode", 16, depth=7))


def test_a_script_is_told_what_to_measure_and_its_last_line_is_the_rate(tmp_path: Path) -> None:
    reply = script_runner(
        tmp_path,
        "import sys\nassert sys.argv[1:] == ['/m.gguf', 'decode', '16', '7', '3'], sys.argv\nprint('x')\nprint(32.0)\n",
    )
    assert reply == BenchReply({16: 0.5})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("print('fast')", "printed 'fast' where tokens per second"),
        ("print(-3)", "printed '-3'"),
        ("", "printed ''"),
        ("raise SystemExit('no such model')", "ended with exit code 1: no such model"),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "crashed (signal 11, SIGSEGV)",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="signals"),
        ),
    ],
)
def test_a_script_that_fails_is_a_problem(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in str(script_runner(tmp_path, text).problem)


def test_a_start_ends_with_the_first_byte() -> None:
    reply = seconds_to_output([sys.executable, "-c", "print('x')"], dict(os.environ))
    assert reply.problem is None
    assert reply.seconds[1] > 0
    failed = seconds_to_output([sys.executable, "-c", "raise SystemExit('no')"], dict(os.environ))
    assert failed.problem == "ended with exit code 1: no"
