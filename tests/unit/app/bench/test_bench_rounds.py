"""Rounds: who runs when, what is repeated, what is thrown away, and which runs are neighbours."""

from __future__ import annotations

from collections.abc import Iterator

from edgeinfer.app.bench import measurement
from edgeinfer.app.bench.request import Case
from edgeinfer.app.bench.rounds import REPEATS, Rounds, neighbours
from edgeinfer.app.bench.subject import BenchJob, BenchReply

DECODE = Case("decode", 16, 0, runs=3)


class Bench:
    """Executors that answer at once and note who was asked what; `idle` gives shares in turn, then 1.0."""

    def __init__(self, idle: list[float] | None = None, problems: dict[tuple[str, int], str] | None = None) -> None:
        self.asked: list[tuple[str, BenchJob]] = []
        self._idle: Iterator[float] = iter(idle or [])
        self._problems = problems or {}

    def run(self, name: str, job: BenchJob) -> BenchReply:
        """Take as many seconds as runs were asked for so far."""
        self.asked.append((name, job))
        problem = self._problems.get((name, job.seed))
        return (
            BenchReply(problem=problem) if problem else BenchReply({job.n: float(len(self.asked))}, turns=((0, 5, 3),))
        )

    def rounds(self) -> Rounds:
        return Rounds(self.run, lambda: next(self._idle, 1.0), lambda idle: idle < 0.9)

    def names(self, warm: bool) -> list[str]:
        return [name for name, job in self.asked if (job.seed == 0) == warm]


def quietly(name: str, number: int) -> None:
    """Nobody is told."""


def test_two_sides_alternate_after_a_warm_up_of_each() -> None:
    bench = Bench()
    measured = bench.rounds().measure(DECODE, "cpu", ["peer"], quietly)
    assert bench.names(warm=True) == ["cpu", "peer"]
    assert [sample.executor for sample in measured.samples] == ["cpu", "peer"] * 3
    assert [job.seed for _, job in bench.asked] == [0, 0, 1, 1, 2, 2, 3, 3]  # equal tokens for the two of a round


def test_ours_runs_before_each_other_so_that_every_ratio_is_of_neighbours() -> None:
    measured = Bench().rounds().measure(DECODE, "cpu", ["a", "b"], quietly)
    order = [sample.executor for sample in measured.samples]
    assert order == ["cpu", "a", "cpu", "b"] * 3
    for other in ("a", "b"):
        pairs = neighbours(measured.samples, "cpu", other)
        assert len(pairs) == 3
        assert all(measured.samples.index(two) - measured.samples.index(one) == 1 for one, two in pairs)


def test_alone_it_just_runs() -> None:
    measured = Bench().rounds().measure(DECODE, "cpu", [], quietly)
    assert [sample.executor for sample in measured.samples] == ["cpu"] * 3


def test_a_run_on_a_busy_machine_is_repeated_and_the_quiet_one_kept() -> None:
    bench = Bench(idle=[1.0, 0.5, 1.0, 1.0])  # before all, after the first run, after its repeats
    (sample, *_) = bench.rounds().measure(DECODE, "cpu", [], quietly).samples
    assert (sample.repeats, sample.busy) == (2, False)
    assert sample.reply.seconds == {16: 4.0}  # the warm-up was the first that was asked
    assert (sample.idle_before, sample.idle_after) == (1.0, 1.0)
    assert len({job.seed for _, job in bench.asked[:4]}) == 4  # no executor meets a prompt that it has just read


def test_a_machine_that_stays_busy_is_flagged_with_the_quietest_run() -> None:
    bench = Bench(idle=[0.2, 0.5, 0.6, 0.1])
    (sample, *_) = bench.rounds().measure(DECODE, "cpu", [], quietly).samples
    assert (sample.repeats, sample.busy) == (REPEATS, True)
    assert (sample.idle_before, sample.idle_after) == (0.5, 0.6)


def test_who_fails_is_left_out_from_there_on_and_nobody_else() -> None:
    bench = Bench(problems={("bad", 0): "cannot load", ("late", 2): "crashed (signal 11)"})
    measured = bench.rounds().measure(DECODE, "cpu", ["bad", "late"], quietly)
    assert {failure.executor: failure.problem for failure in measured.failures} == {
        "bad": "cannot load",
        "late": "crashed (signal 11)",
    }
    assert [sample.executor for sample in measured.samples] == ["cpu", "late", "cpu", "cpu"]
    assert [name for name, _ in bench.asked].count("bad") == 1


def test_a_start_has_no_warm_up_and_a_chat_is_replayed_by_its_lengths() -> None:
    bench = Bench()
    bench.rounds().measure(Case("start", 1, 0, runs=1), "cpu", ["peer"], quietly)
    assert bench.names(warm=True) == []
    bench.rounds().measure(Case("chat", 8, 0, runs=1), "cpu", ["peer"], quietly)
    assert [job.turns for name, job in bench.asked if name == "peer" and job.test == "chat"] == [((0, 5, 3),)] * 2


def test_progress_counts_all_runs_warm_ups_included() -> None:
    told: list[tuple[str, int, int]] = []
    todo = [Case("decode", 4, 0, runs=2), Case("start", 1, 0, runs=3, cold=True)]
    announcer = measurement._Announcer(todo, 2, lambda what, done, total: told.append((what, done, total)))
    for case, others in ((todo[0], ["a", "b"]), (todo[1], [])):
        Rounds(lambda name, job: BenchReply({1: 1.0}), lambda: 1.0, lambda idle: False).measure(
            case, "cpu", others, announcer.before(case)
        )
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert {total for _, _, total in told} == {len(told)}
    assert told[0][0] == "measuring · decode: cpu, getting ready"
    assert told[4][0] == "measuring · decode: a, run 1 of 2"
