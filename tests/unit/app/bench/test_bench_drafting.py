"""What speculation is worth: loops found, figures from runs, and conversations led each way by turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.bench.draft_figures import draft_figures, draft_json, draft_lines
from edgeinfer.app.bench.drafting import LOOP_TOKENS, SEED, DraftingBench, Shown, loop_start
from edgeinfer.app.bench.subject import (
    AS_CHAT,
    BenchConversation,
    BenchJob,
    BenchOpening,
    Conditions,
    DraftRun,
    NotMeasurable,
)
from edgeinfer.app.opening.loading import answer_options
from edgeinfer.settings import load_settings

WAYS = ("off", "cold", "warm")
QUESTION = BenchConversation("qa", ("the rain in the inn", "and then"))


def run_of(category: str, way: str, seconds: float, **fields: object) -> DraftRun:
    values = {"n_tokens": 100, "n_kept": 90, "n_passes": 90 if way == "off" else 45, "cost": 60.0, "drafting_s": 0.01}
    sources = {} if way == "off" else {"ngram": (80, 45)}
    return DraftRun(category, way, 0, seconds=seconds, sizes={"4": 45}, sources=sources, **{**values, **fields})  # type: ignore[arg-type]


def test_a_loop_begins_with_its_second_time() -> None:
    start, period = list(range(1000, 1050)), list(range(30))
    assert loop_start(start) == 50
    assert loop_start([*start, *period, *period]) == 110
    assert loop_start([*start, *period * 3]) == 50 + LOOP_TOKENS
    assert loop_start([7] * 100) == LOOP_TOKENS
    assert loop_start([7] * 20) == 20
    assert loop_start([]) == 0


def test_what_comes_before_a_loop_took_its_own_time() -> None:
    shown = Shown([(1.0, 2), (1.5, 6), (4.0, 9), (4.25, 10)])
    assert shown.seconds("ab") == 0
    assert shown.seconds("abcd") == 0.5
    assert shown.seconds("abcdef") == 0.5
    assert shown.seconds(None) == 3.25
    assert shown.seconds("longer than what was shown") == 3.25
    assert Shown.read([]).seconds(None) == 0
    pieces = Shown.read(["one", " two"])
    assert [n_chars for _, n_chars in pieces.moments] == [3, 7, 8]
    assert 0 <= pieces.seconds("one t") <= pieces.seconds(None)


def test_figures_of_groups_and_of_all() -> None:
    led = [
        [run_of("writing", "off", 1.0), run_of("writing", "cold", 0.5), run_of("writing", "warm", 0.4)],
        [run_of("coding", "off", 1.0), run_of("coding", "cold", 1.25, looped=True), run_of("coding", "warm", 0.4)],
        [run_of("qa", "off", 2.0), run_of("qa", "cold", 2.0, same=False), run_of("qa", "warm", 0.8)],
    ]
    rows = {(row.group, row.way): row for row in draft_figures(led).rows}
    assert set(rows) == {(group, way) for group in ("mt_bench", "qa", "all") for way in ("cold", "warm")}
    cold = rows["mt_bench", "cold"]
    assert (cold.n_questions, cold.n_looped, cold.n_differing) == (2, 1, 0)
    assert cold.speedup == pytest.approx(2 / 1.75)
    assert cold.slowest == pytest.approx(0.8)
    assert cold.modelled == pytest.approx(1.5)
    assert cold.accepted_per_step == pytest.approx(2)
    assert cold.sources == {"model": pytest.approx(0.55), "ngram": pytest.approx(0.45)}
    assert cold.sizes == {4: 1.0}
    assert rows["qa", "cold"].n_differing == 1
    assert rows["all", "warm"].speedup == pytest.approx(4 / 1.6)


def test_speedups_are_of_medians_over_repeats() -> None:
    times = {"off": (1.0, 9.0, 1.1), "cold": (0.5, 0.55, 7.0), "warm": (0.5, 0.5, 0.5)}
    led = [[run_of("qa", way, seconds) for way, each in times.items() for seconds in each]]
    (row,) = [row for row in draft_figures(led).rows if row.way == "cold"]
    assert row.speedup == pytest.approx(2)


def test_tables_and_json_show_every_group() -> None:
    figures = draft_figures(
        [[run_of("qa", way, 1.0, calibration=((3.0, 1.5, 2.0),)) for way in ("off", "cold", "warm")]]
    )
    text = "\n".join(draft_lines(figures))
    assert "qa" in text
    assert "ngram 45%" in text
    assert draft_json(figures)["rows"]
    assert figures.calibration["cold"] == ((3, 0.5, pytest.approx(2 / 3)),)


def test_conversations_are_led_each_way_with_the_same_answers(tiny_model: Path, home: Path) -> None:
    subject = DraftingBench(BenchOpening("cpu", Conditions(tiny_model, 1, 512, spec=4)))
    try:
        reply = subject.run(BenchJob("drafting", 24, seed=1, questions=(QUESTION,), repeats=2))
        assert [(run.sampling, run.way, run.repeat) for run in reply.drafting] == [
            (sampling, way, repeat)
            for sampling in (AS_CHAT, "greedy")
            for repeat, ways in enumerate((("cold", "warm", "off"), ("warm", "off", "cold")))
            for way in ways
        ]
        assert all(run.same for run in reply.drafting)
        for sampling in (AS_CHAT, "greedy"):
            assert len({run.n_kept for run in reply.drafting if run.sampling == sampling}) == 1
        for run in reply.drafting:
            assert (run.n_passes == run.n_kept) == (run.way == "off" or not any(a for _, a in run.sources.values()))
            assert run.seconds > 0
            assert (run.cost > 0) == (run.way == "off")  # nobody measures what passes of one size cost
        again = subject.run(BenchJob("drafting", 24, questions=(QUESTION,), repeats=1))
        for sampling in (AS_CHAT, "greedy"):
            own = {run.way: run for run in again.drafting if run.sampling == sampling}
            cold = own["cold"]
            assert own["warm"].n_passes < cold.n_passes  # it has led this conversation before
        assert sum(n for n, _, _ in cold.calibration) >= sum(cold.sizes.values())
        with pytest.raises(NotMeasurable, match="no test"):
            subject.run(BenchJob("prefill", 8))
    finally:
        subject.close()


def test_one_sampling_is_exactly_that_of_the_chat_command(tiny_model: Path, home: Path) -> None:
    """Against what the command sets for its answers: the user's settings, the model's where there are none."""
    (home / "config.toml").parent.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text('temp = 0.35\nrepeat_penalty = 1.25\nsystem = "Answer in rhymes."\n')
    settings = load_settings({})
    wanted = {**answer_options(settings), "seed": SEED}
    subject = DraftingBench(BenchOpening("cpu", Conditions(tiny_model, 1, 512, spec=4, generation=settings.generation)))
    try:
        chat, other = subject._samplings
        assert (chat.name, chat.options, chat.system) == (AS_CHAT, wanted, "Answer in rhymes.")
        assert (chat.options["temperature"], chat.options["repeat_penalty"]) == (0.35, 1.25)
        assert "top_k" not in chat.options  # left to the model
        assert (other.name, other.options["temperature"], other.system) == ("greedy", 0.0, None)
        _, answers = subject._lead(QUESTION, chat, 12, None)
        messages = [{"role": "system", "content": chat.system}, {"role": "user", "content": QUESTION.turns[0]}]
        with subject._llm.session() as session:
            answer = session.chat(messages, **{**wanted, "max_tokens": 12})  # type: ignore[arg-type]
            answer.read()
        assert answers[0] == answer.tokens
    finally:
        subject.close()


def test_rows_with_the_settings_of_chat_lead() -> None:
    led = [
        [run_of(category, way, 1.0, sampling=sampling) for sampling in (AS_CHAT, "greedy") for way in WAYS]
        for category in ("qa", "writing")
    ]
    figures = draft_figures(led)
    assert [(row.sampling, row.group, row.way) for row in figures.rows[:3]] == [
        (AS_CHAT, "all", "cold"),
        (AS_CHAT, "all", "warm"),
        (AS_CHAT, "qa", "cold"),
    ]
    assert {row.sampling for row in figures.rows} == {AS_CHAT, "greedy"}
    lines = list(draft_lines(figures))
    assert lines[1].startswith("chat, all")
    assert set(figures.calibration) == {"cold", "warm", "greedy cold", "greedy warm"}


def test_nothing_is_measured_where_nothing_is_drafted(tiny_model: Path, home: Path) -> None:
    with pytest.raises(NotMeasurable, match="nothing is drafted"):
        DraftingBench(BenchOpening("cpu", Conditions(tiny_model, 1, 512, spec="off")))
