"""Single loops against plain Python: the highest logits, n-grams, the suffix automaton, trigrams, chances."""

from __future__ import annotations

import ctypes
import itertools
import random

import numpy as np
import pytest

from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES
from edgeinfer.engine.speculation.acceptance import AcceptanceEstimator, start
from edgeinfer.engine.speculation.drafters.suffix import Automaton, joined_texts, split_texts
from edgeinfer.engine.speculation.drafts import LAYOUT_VERSION, loops_library
from edgeinfer.engine.speculation.priming import PACK
from edgeinfer.engine.speculation.records import BEST, FIRST_BUCKET, MOST_GAP, NO_TOKEN, TOKEN_BITS
from edgeinfer.jit.library import KernelLibrary
from tests.unit.engine.speculation.drafting import follow, model_drafts, repeating


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return loops_library()


def peaks_of(rows: np.ndarray) -> np.ndarray:
    """What `base.Peaked` says of rows of logits."""
    count, n_vocab = rows.shape
    blocks = np.full((count, -(-n_vocab // PEAK_BLOCK) * PEAK_BLOCK), -3e38, np.float32)
    blocks[:, :n_vocab] = np.where(np.isfinite(rows), rows, np.nan)
    return blocks.reshape(count, -1, PEAK_BLOCK // PEAK_LANES, PEAK_LANES).max(2).reshape(count, -1)


def packed(library: KernelLibrary, logits: np.ndarray, peaked: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and gaps of the highest logits of rows."""
    rows = np.ascontiguousarray(logits, np.float32)
    out, peaks = np.zeros((len(rows), BEST), np.int32), peaks_of(rows)
    where = (peaks.ctypes.data, peaks.strides[0]) if peaked else (0, 0)
    pack = library.function(PACK)
    assert pack(rows.ctypes.data, rows.strides[0], *where, len(rows), rows.shape[1], out.ctypes.data) == len(rows)
    return out & ((1 << TOKEN_BITS) - 1), out >> TOKEN_BITS


@pytest.mark.parametrize("n_vocab", [8, 9, 63, 64, 65, 268, 1000, 49152])
def test_the_highest_logits_in_order(library: KernelLibrary, n_vocab: int) -> None:
    draw = np.random.default_rng(n_vocab)
    for logits in (
        draw.normal(0, 3, (4, n_vocab)),
        draw.integers(0, 6, (4, n_vocab)),
        -draw.random((4, n_vocab)) * 1e4,
    ):
        rows = logits.astype(np.float32)
        tokens, gaps = packed(library, rows)
        wanted = np.argsort(-rows, axis=1, kind="stable")[:, :BEST]
        assert (tokens == wanted).all()
        values = np.take_along_axis(rows, wanted, 1)
        below = np.where(np.arange(BEST) == 0, values[:, :1] - values[:, 1:2], values[:, :1] - values)
        assert (gaps == np.minimum(below * 16, MOST_GAP).astype(int)).all()


@pytest.mark.parametrize("n_vocab", [8, 9, 268, 511, 512, 513, 1000, 49152])
def test_the_highest_logits_by_their_peaks(library: KernelLibrary, n_vocab: int) -> None:
    draw = np.random.default_rng(n_vocab)
    for logits in (draw.normal(0, 3, (4, n_vocab)), -draw.random((4, n_vocab)) * 1e4):
        rows = logits.astype(np.float32)
        for found, wanted in zip(packed(library, rows, peaked=True), packed(library, rows), strict=True):
            assert (found == wanted).all()
    rows = draw.integers(0, 6, (4, n_vocab)).astype(np.float32)
    tokens, _ = packed(library, rows, peaked=True)
    assert (np.take_along_axis(rows, tokens, 1) == -np.sort(-rows, axis=1)[:, :BEST]).all()
    assert all(len(set(row)) == BEST for row in tokens.tolist())


def test_the_likeliest_token_is_told_where_it_is_certain() -> None:
    drafts = model_drafts(fixed=8, n_vocab=1000)
    session, text = drafts.session(), repeating(200)
    session.begin(text)
    draft = session.draft(text, 8, 8)
    n_nodes = len(draft.tokens)
    assert n_nodes > 4
    rows = np.random.default_rng(2).normal(0, 1, (n_nodes, 1024)).astype(np.float32)
    rows[0, 700], rows[1, 3], rows[2, [40, 900]], rows[3, 5], rows[3, 77] = 30, 30, 30, 30, np.nan
    rows[4, 1010] = 50  # a token that the tokenizer does not know
    rows[4, 999] = 30
    assert session.look(draft, rows, peaks_of(rows))[:5] == [700, 3, NO_TOKEN, NO_TOKEN, 999]
    assert session.look(draft, rows, None) == [NO_TOKEN] * n_nodes


@pytest.mark.parametrize("peaked", [False, True])
def test_logits_that_are_no_numbers_do_no_harm(library: KernelLibrary, peaked: bool) -> None:
    rows = np.zeros((3, 300), np.float32)
    rows[0], rows[1, ::2], rows[2, 7] = np.nan, -np.inf, np.inf
    tokens, _ = packed(library, rows, peaked)
    assert ((tokens >= 0) & (tokens < 1 << TOKEN_BITS)).all()
    assert peaked or tokens[2, 0] == 7


def automaton_of(library: KernelLibrary, texts: list[np.ndarray]) -> Automaton:
    found = Automaton(100, library)
    found.read(texts, files=False)
    return found


def edges_of(automaton: Automaton) -> dict[tuple[int, int], int]:
    edges = automaton._edges[: int(automaton._fields["n_edges"])]
    found = {(int(edge["source"]), int(edge["token"])): int(edge["target"]) for edge in edges}
    assert len(found) == len(edges)
    return found


@pytest.mark.parametrize(("n_tokens", "n_letters", "n_texts"), [(60, 3, 20), (300, 2, 3), (400, 1, 2), (50, 40, 30)])
def test_the_automaton_knows_every_string_and_how_often_it_came(
    library: KernelLibrary, n_tokens: int, n_letters: int, n_texts: int
) -> None:
    draw = random.Random(n_tokens)
    texts = [np.array([draw.randrange(n_letters) for _ in range(n_tokens)], np.int32) for _ in range(n_texts)]
    automaton = automaton_of(library, texts)
    edges, states = edges_of(automaton), automaton._states
    times: dict[tuple[int, ...], int] = {}
    for text in texts:
        for begin in range(n_tokens):
            for stop in range(begin + 1, min(n_tokens, begin + 6) + 1):
                string = tuple(text[begin:stop].tolist())
                times[string] = times.get(string, 0) + 1

    def state_of(string: tuple[int, ...]) -> int | None:
        state: int | None = 0
        for token in string:
            state = None if state is None else edges.get((state, token))
        return state

    wrong = 0
    for string, count in times.items():
        state = state_of(string)
        assert state is not None
        wrong += states["times"][state] != count
    assert wrong == 0 or n_letters == 1  # the counts of strings within long runs of one token are cut short
    if n_letters < 4:
        for length in range(1, 6):
            for string in itertools.product(range(n_letters), repeat=length):
                assert (state_of(string) is not None) == (string in times)
    assert int(automaton._fields["n_states"]) <= 2 * n_tokens * n_texts + 1


def test_an_automaton_grows_with_what_it_reads_and_stops_at_its_limit(library: KernelLibrary) -> None:
    draw = np.random.default_rng(0)
    text = draw.integers(0, 5000, 20000).astype(np.int32)
    automaton = automaton_of(library, [text])
    assert int(automaton._fields["n_edges"]) == len(edges_of(automaton))
    before = automaton.nbytes
    for _ in range(40):
        automaton.read([draw.integers(0, 5000, 20000).astype(np.int32)], files=False)
    assert automaton.nbytes < 20 * before
    edges_of(automaton)


def test_texts_are_kept_apart_and_the_latest_survive() -> None:
    texts = [np.arange(n, n + 5, dtype=np.int32) for n in range(4)]
    assert [text.tolist() for text in split_texts(joined_texts(texts))] == [text.tolist() for text in texts]
    long = [np.full(30000, n, np.int32) for n in range(4)]
    assert [text[0] for text in split_texts(joined_texts(long))] == [2, 3]
    assert split_texts(joined_texts([])) == []


def test_acceptance_come_near_what_is_seen() -> None:
    """Drafts of a text whose tokens follow each other with known odds: what was estimated is what came true."""
    draw = random.Random(3)
    text = [1]
    for _ in range(6000):
        text.append((text[-1] * 7 + 1) % 50 + 1 if draw.random() < 0.6 else draw.randrange(1, 51))
    session = model_drafts(fixed=6).session()
    learn, seen = session.learn, []

    def watched(draft, walked, seconds):  # type: ignore[no-untyped-def]
        path = set(walked.path.tolist())
        for node, parent in enumerate(draft.parents.tolist()):
            if node and parent in path:
                seen.append((float(session.reaches[node] / session.reaches[parent]), node in path))
        learn(draft, walked, seconds)

    session.learn = watched  # type: ignore[method-assign]
    follow(session, text, 1000)
    acceptance = np.array(seen)
    for low, high in ((0.0, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 1.0)):
        chosen = acceptance[(acceptance[:, 0] >= low) & (acceptance[:, 0] < high)]
        if len(chosen) > 200:
            assert chosen[:, 0].mean() == pytest.approx(chosen[:, 1].mean(), abs=0.08)


def test_starting_counts_belong_to_the_draft_sources_that_they_were_made_with() -> None:
    drafts = model_drafts()
    whole = drafts.acceptance[False]
    assert (whole.counts["seen"] > 0).sum() > 50
    assert (whole.joint["seen"] > 0).sum() > 50
    draft_sources = {"new": 7, **dict(reversed(drafts.buckets.items()))}
    other = AcceptanceEstimator(list(draft_sources.values()))
    start(other, draft_sources, LAYOUT_VERSION, "greedy")
    for place, name in enumerate(draft_sources):
        own = other.counts[other.starts[place] : other.starts[place] + FIRST_BUCKET + draft_sources[name]]
        if name == "new":
            assert not own["seen"].any()
            continue
        known = list(drafts.buckets).index(name)
        first = whole.starts[known]
        assert (own == whole.counts[first : first + len(own)]).all()
        assert other.weights[place] == whole.weights[known]
    assert not other.joint["seen"].any()
    fresh = AcceptanceEstimator(list(draft_sources.values()))
    start(fresh, draft_sources, LAYOUT_VERSION + 1, "greedy")
    assert not fresh.counts["seen"].any()


def test_records_are_read_where_they_lie() -> None:
    drafts = model_drafts()
    session = drafts.session()
    session.begin(repeating(50))
    session.draft(repeating(50), 8, 8)
    root = ctypes.c_int32.from_address(int(session._fields["tokens"])).value
    assert root == repeating(50)[-1]
