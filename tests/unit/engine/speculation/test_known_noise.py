"""Drafts of sampled text: ranked with the noise known, counted by probabilities, and without effect on the text."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.drafting import Draft, Walk, walk
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.sampling import Distribution
from edgeinfer.engine.scheduler.batcher import Prompt
from edgeinfer.engine.scheduler.token_choice import Draws
from edgeinfer.engine.speculation.acceptance import AcceptanceEstimator
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.records import FIRST_NOISE, NOISE_STEP, NOISES
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from tests.unit.engine.speculation.drafting import N_VOCAB, SECONDS, logits_for, model_drafts

SHARES = np.array([0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
PROMPT = [5, 17, 60, 5, 18]
SEEDS = range(24)
PENALISED = {"temperature": 0.9, "repeat_penalty": 1.2, "presence_penalty": 0.2, "frequency_penalty": 0.1}
MESSAGES = [{"role": "user", "content": "the rain in the inn and the rain in the inn"}]


def law(token: int) -> Distribution:
    """What follows a token of the language that these tests speak: six tokens with the same shares each time."""
    tokens = (token * 7 + np.array([1, 3, 4, 9, 27, 31])) % N_VOCAB
    order = tokens.argsort()
    return Distribution(tokens[order], SHARES[order])


def spoken(noise: Noise, n: int) -> list[int]:
    """The prompt and the n tokens that are drawn after it."""
    text = list(PROMPT)
    for number in range(n):
        text.append(law(text[-1]).draw(noise, number))
    return text


def chosen(draft: Draft, draws: Draws, noise: Noise, n: int, node: int, before: list[int]) -> int:
    """The token that is drawn after a node, n draws and those before."""
    draws.append(drawn_from := law(int(draft.tokens[node])))
    return drawn_from.draw(noise, n + len(before))


def passes_of(session: SessionDrafts, drawn: Noise, known: Noise | None, n: int, most: int) -> int:
    """Speak n tokens with drafts of `most` tokens, ranked by the noise that is `known`; returns the passes it took."""
    text, n_passes = list(PROMPT), 0
    session.begin(text, known)
    while len(text) < len(PROMPT) + n:
        draft = session.draft(text, most, 16)
        n_passes += 1
        logits = logits_for([0] * len(draft.tokens))
        for node, token in enumerate(draft.tokens.tolist()):
            following = law(token)
            logits[node, following.tokens] = 30 + np.log(following.weights)
        session.look(draft, logits, None)
        draws = Draws()
        choose = partial(chosen, draft, draws, drawn, len(text) - len(PROMPT))
        walked = walk(draft, choose, (), draws)
        session.learn(draft, walked, SECONDS)
        text += walked.tokens
    assert text[: len(PROMPT) + n] == spoken(drawn, n)
    return n_passes


def test_known_noise_raises_how_many_drafted_tokens_are_right() -> None:
    n_tokens, passes = 1500, {}
    for name in ("unknown", "of another seed", "known"):
        noise = Noise.of(3)
        known = {"unknown": None, "of another seed": Noise.of(4), "known": noise}[name]
        session = model_drafts(fixed=4).session()
        passes_of(session, Noise.of(8), known and Noise.of(8), n_tokens, 4)  # learns the language
        passes[name] = passes_of(session, noise, known, n_tokens, 4)
    assert passes["known"] < 0.75 * passes["unknown"]
    assert passes["known"] < 0.75 * passes["of another seed"]
    assert passes["known"] < 0.45 * n_tokens


def test_with_more_tokens_nearly_every_one_is_foreseen() -> None:
    session = model_drafts(fixed=16).session()
    passes_of(session, Noise.of(8), Noise.of(8), 1000, 16)
    assert passes_of(session, Noise.of(3), Noise.of(3), 1000, 16) < 1000 / 4


def test_candidates_win_as_often_as_their_noise_says() -> None:
    """By the table: all candidates of the nodes that were reached, in classes of the estimate."""
    drafts = model_drafts(fixed=6)
    session, noise = drafts.session(), Noise.of(2)
    passes_of(session, Noise.of(8), Noise.of(8), 1000, 6)
    seen: list[tuple[float, bool]] = []
    learn = session.learn

    def watched(draft: Draft, walked: Walk, seconds: float | None) -> None:
        for node, token in zip(walked.path.tolist(), walked.tokens, strict=True):
            first, count = session._arrays["offers"][node]
            own = session._arrays["candidates"][first : first + count]
            n_drawn = session._n_drawn + int(session._arrays["depths"][node])
            gumbels = -np.log(noise.exponentials(n_drawn, own["token"].astype(np.int64)))
            wins = drafts.acceptance[True].win_chances(own["chance"].astype(float), gumbels)
            seen.extend(zip(wins.tolist(), (own["token"] == token).tolist(), strict=True))
        learn(draft, walked, seconds)

    session.learn = watched  # type: ignore[method-assign]
    passes_of(session, noise, noise, 2000, 6)
    won = np.array(seen)
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0)):
        chosen = won[(won[:, 0] >= low) & (won[:, 0] < high)]
        assert len(chosen) > 200
        assert chosen[:, 0].mean() == pytest.approx(chosen[:, 1].mean(), abs=0.06)


def ready(n: int) -> tuple[ModelDrafts, SessionDrafts, list[int]]:
    """A session that has spoken n tokens, and its text."""
    drafts = model_drafts(fixed=8)
    session, noise = drafts.session(), Noise.of(6)
    passes_of(session, noise, noise, n, 8)
    return drafts, session, spoken(noise, n)


def test_each_candidate_is_ranked_by_the_noise_of_its_own_draw_and_token() -> None:
    """Those of a node at depth d after n drawn tokens by draw n + d; against the noise that the sampler uses."""
    drafts, session, text = ready(200)
    noise = Noise.of(6)
    draft = session.draft(text, 8, 16)
    depths = session._arrays["depths"]
    candidates = session._arrays["candidates"][: int(session._fields["n_candidates"])]
    kept = candidates[candidates["node"] < len(draft.tokens)]
    assert set(depths[kept["node"]].tolist()) > {0, 1}
    for node in set(kept["node"].tolist()):
        own = kept[kept["node"] == node]
        gumbels = -np.log(noise.exponentials(200 + int(depths[node]), own["token"].astype(np.int64)))
        wanted = drafts.acceptance[True].win_chances(own["chance"].astype(float), gumbels)
        wanted *= min(1.0, 0.98 / wanted.sum())
        assert own["looked_up"] == pytest.approx(wanted, abs=0.03)
    assert np.ptp(kept["win"]) > 0.3


def test_counts_estimate_probabilities_whatever_was_drawn() -> None:
    """Candidates that were drafted for their lucky noise are counted by how likely they were without it."""
    _, session, text = ready(1200)
    session.draft(text, 8, 16)
    first = session._arrays["offers"][0]
    candidates = session._arrays["candidates"][first[0] : first[0] + first[1]]
    known = dict(zip(law(text[-1]).tokens.tolist(), law(text[-1]).weights.tolist(), strict=True))
    estimated = {int(each["token"]): float(each["chance"]) for each in candidates if int(each["token"]) in known}
    assert len(estimated) == len(known)
    assert [estimated[token] for token in known] == pytest.approx(list(known.values()), abs=0.08)


def test_of_exact_estimates_the_table_of_wins_is_the_formula() -> None:
    acceptance = AcceptanceEstimator([4])
    gumbels = np.linspace(FIRST_NOISE, FIRST_NOISE + NOISE_STEP * (NOISES - 1), 50)
    for p in (0.01, 0.2, 0.5, 0.9):
        wanted = np.exp(-np.exp(-gumbels) * (1 - p) / p)
        assert acceptance.win_chances(np.full(50, p), gumbels) == pytest.approx(wanted, abs=0.015)
    assert (np.diff(acceptance.wins, axis=0) >= 0).all()
    assert (np.diff(acceptance.wins, axis=1) >= 0).all()


@pytest.mark.parametrize("options", [{"temperature": 0.7}, PENALISED, {"temperature": 1.3, "top_k": 0, "min_p": 0.0}])
def test_a_seed_gives_the_same_text_with_drafts_and_without_alone_and_in_a_batch(
    tiny_model: Path, home: Path, options: dict[str, float]
) -> None:
    prompts = [Prompt(MESSAGES, {"seed": seed, "max_tokens": 40, **options}) for seed in SEEDS]  # type: ignore[typeddict-item]
    with load(tiny_model, threads=1, spec="off", n_sessions=4) as llm:
        plain = [llm.chat(MESSAGES, **prompt.options).read() for prompt in prompts]
        together = {answer.number: answer.text for answer in llm.batch(prompts, parallel=4)}
    assert [together[seed] for seed in SEEDS] == plain
    assert len(set(plain)) > len(plain) / 2
    n_accepted = 0
    with load(tiny_model, threads=1, spec=8, n_sessions=4) as llm:
        together = {answer.number: answer.text for answer in llm.batch(prompts, parallel=4)}
        for prompt, expected in zip(prompts, plain, strict=True):
            stream = llm.chat(MESSAGES, **prompt.options)
            assert stream.read() == expected
            assert stream.stats is not None
            assert stream.stats.draft is not None
            n_accepted += sum(source.accepted for source in stream.stats.draft.sources.values())
    assert [together[seed] for seed in SEEDS] == plain
    assert n_accepted > len(plain)  # drafts did take part
