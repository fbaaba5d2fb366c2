"""The scripts that measure long contexts, on models with random weights."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.approximation import LEAST_BUDGET
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.step import PAGE
from scripts import measure_attention_recall, measure_long_context
from scripts.long_context.modes import USUAL, Mode, Opening
from scripts.long_context.reader import Reader
from scripts.long_context.texts import article_text, encoded, needles, pieces
from tests.unit.scripts.conftest import N_TOKENS

WINDOW = 4 * PAGE


@pytest.fixture(scope="module")
def reader(model: Path) -> Iterator[Reader]:
    with Reader(model, N_TOKENS + 64, Opening()) as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "kv", "threshold", "budgets", "is_window"),
    [
        ("exact", "f16", None, (0, None), False),
        ("q8q4", "q8q4", None, (0, None), False),
        ("0.1", "f16", 0.1, (0, None), False),
        ("kv=20%", "f16", None, (400, None), False),
        ("window=1024", "f16", None, (1024, None), True),
        ("kv=1%", "f16", None, (LEAST_BUDGET, None), False),
        ("q8,0.05,kv=512", "q8", 0.05, (512, None), False),
        ("prefill=20%,kv=10%", "f16", None, (200, 400), False),
    ],
)
def test_modes(name: str, kv: str, threshold: float | None, budgets: tuple[int, int | None], is_window: bool) -> None:
    mode = Mode.parse(name)
    assert (mode.opening.kv, mode.opening.threshold) == (kv, threshold)
    assert (mode.budget(2000), mode.opening.block_budget(2000), mode.is_window) == (*budgets, is_window)


@pytest.mark.parametrize("name", ["q9", "kv=", "kv=a%", "prefill=x", "kv=512,window=512", "-1", ""])
def test_what_is_no_mode(name: str) -> None:
    with pytest.raises(ValueError):
        Mode.parse(name)


def test_texts(questions: Path, reader: Reader) -> None:
    text = article_text(questions)
    assert "7 times 8" not in text
    assert "Summarize" not in text
    tokens = encoded(reader.tokenizer, text)
    one, other = pieces(tokens, 100, 2)
    assert one + other == tokens[:200]
    with pytest.raises(ValueError, match="are more than"):
        pieces(tokens, len(tokens), 2)
    found = list(needles(reader.tokenizer, 4))
    assert [needle.depth for needle in found] == [0.875, 0.625, 0.375, 0.125]
    for needle in found:
        assert reader.tokenizer.decode(needle.answer).strip() in reader.tokenizer.decode(needle.fact)
    with pytest.raises(ValueError, match="no questions"):
        article_text(_written(questions.parent / "other.jsonl", {"category": "math", "turns": ["7"]}))


def _written(path: Path, line: object) -> Path:
    path.write_text(json.dumps(line))
    return path


def test_a_window_has_the_size_of_a_budget_and_sees_its_chunks_alone(reader: Reader) -> None:
    draw = np.random.default_rng(1)
    tokens = draw.integers(10, 250, N_TOKENS + 4).tolist()
    text, after = tokens[:N_TOKENS], tokens[N_TOKENS:]
    exact, budget, window = (Mode.parse(name) for name in ("exact", f"kv={WINDOW}", f"window={WINDOW}"))
    reader.read(text)
    before = {mode: reader.decoded(after, mode) for mode in (exact, budget, window)}
    assert np.array_equal(reader.decoded(after, Mode.parse("kv=100%")), before[exact])
    assert not np.array_equal(before[budget], before[window])
    pages = reader._executor.capabilities.pages
    assert pages is not None
    first, stop = 1, N_TOKENS // PAGE + 2 - WINDOW // PAGE  # the token's own page is the one after the text
    kept = pages.read(reader._sequence, first, stop)
    pages.write(reader._sequence, first, np.repeat(kept[:1], len(kept), axis=0))
    for mode in (exact, budget, window):
        assert np.array_equal(reader.decoded(after, mode), before[mode]) is (mode is window)
    pages.write(reader._sequence, stop, pages.read(reader._sequence, 2, 3))
    assert not np.array_equal(reader.decoded(after, window), before[window])


def test_what_texts_have_in_common_is_read_once(reader: Reader) -> None:
    draw, exact = np.random.default_rng(2), Mode.parse("exact")
    one, other = draw.integers(10, 250, (2, 300)).tolist()
    reader.read([*one, *other])
    whole = reader.decoded([5, 6], exact)
    reader.read([*one, *one], 0)
    reader.read([*one, *other], len(one))
    assert np.array_equal(reader.decoded([5, 6], exact), whole)


def called(monkeypatch: pytest.MonkeyPatch, script: object, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
    script.main()  # type: ignore[attr-defined]


def test_perplexity_divergence_and_facts(
    model: Path, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (
        model,
        questions,
        "kv=100%",
        "kv=256",
        "window=256",
        "q8",
        "prefill=256",
        "--tokens",
        N_TOKENS,
        "--texts",
        2,
    )
    given += ("--scored", 16, "--depths", 2)
    called(monkeypatch, measure_long_context, *given, "--json")
    records = {record["mode"]: record for record in json.loads(capsys.readouterr().out)}
    assert list(records) == ["exact", "kv=100%", "kv=256", "window=256", "q8", "prefill=256"]
    for name, record in records.items():
        assert (record["n_tokens"], record["n_scored"], len(record["facts"])) == (N_TOKENS, 32, 2)
        assert (record["mean_kl"] == 0) is (name in ("exact", "kv=100%"))
        assert record["mean_kl"] > -1e-6
    assert 0 < records["q8"]["mean_kl"] < min(records[name]["mean_kl"] for name in ("window=256", "prefill=256"))
    with edgeinfer.load(model, device="cpu", spec="off") as llm:
        text = encoded(llm._tokenizer, article_text(questions))
        told = [llm.logprobs(piece).logprobs[-16:] for piece in pieces(text, N_TOKENS, 2)]
    expected = math.exp(-np.mean([each.logprob for part in told for each in part]))
    assert records["exact"]["perplexity"] == pytest.approx(expected, rel=1e-4)
    called(monkeypatch, measure_long_context, *given)
    heading = capsys.readouterr().out.splitlines()[1]
    assert heading.split() == ["mode", "sees", "perplexity", "mean", "KL", "99", "%", "facts", "log", "prob."]
    with pytest.raises(SystemExit):
        called(monkeypatch, measure_long_context, model, questions, "q9")
    assert "kv=1024" in capsys.readouterr().err
    assert [Mode.parse(name).name for name in USUAL] == list(USUAL)


def test_recall(
    model: Path, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (model, questions, "--tokens", N_TOKENS, "--texts", 1, "--scored", 4, "--sizes", "100%,320,192")
    called(monkeypatch, measure_attention_recall, *given, "--json")
    records = json.loads(capsys.readouterr().out)
    assert [(each["layer"], each["size"]) for each in records] == [
        (layer, size) for layer in (0, 1) for size in ("100%", "320", "192")
    ]
    for each in records:
        ways = {way: each[way] for way in measure_attention_recall.WAYS}
        if each["size"] == "100%":
            assert ways == pytest.approx(dict.fromkeys(ways, 1.0), abs=1e-6)
        else:
            assert min(ways.values()) > 0.05
            assert max(ways["budget"], ways["window"]) <= ways["ideal"] + 1e-6 < 1
    called(monkeypatch, measure_attention_recall, *given)
    assert capsys.readouterr().out.splitlines()[-1].startswith("lowest")


def test_the_mass_of_chunks_is_that_of_the_softmax() -> None:
    draw = np.random.default_rng(3)
    op = Attention("q", "out", 0, heads=4, kv_heads=2, key_width=8, value_width=8, scale=0.3)
    query, keys = draw.normal(size=(2, 2, 8)).astype(np.float32), draw.normal(size=(150, 2, 8)).astype(np.float32)
    found = measure_attention_recall.chunk_masses(op, query, keys)
    powers = np.exp([[query[head // 2, head % 2] @ key[head // 2] for key in keys] for head in range(4)])
    shares = powers / powers.sum(axis=1, keepdims=True)
    expected = [[share[first : first + PAGE].sum() for first in (0, 64, 128)] for share in shares]
    assert found.reshape(4, 3) == pytest.approx(np.array(expected), rel=1e-4)
