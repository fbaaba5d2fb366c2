"""What tests of drafting share: drafts without a model, and texts that repeat themselves."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from edgeinfer.engine.requests.drafting import Draft, Walk
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.drafts import ModelDrafts, loops_library
from edgeinfer.engine.speculation.records import NO_TOKEN
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from edgeinfer.graph.step import Floats

N_VOCAB = 300
SECONDS = 0.001
FLAT: Mapping[int, float] = {2: 1.0, 64: 1.0}
"""Passes that cost the same whatever they check."""


def model_drafts(costs: Mapping[int, float] = FLAT, fixed: int | None = None, n_vocab: int = N_VOCAB) -> ModelDrafts:
    return ModelDrafts(loops_library(), n_vocab, Costs(costs, corrected=False), fixed)


def repeating(n: int, seed: int = 0, period: int = 23) -> list[int]:
    """Tokens of a text made of a few sentences in random order."""
    draw = random.Random(seed)
    sentences = [[draw.randrange(1, N_VOCAB) for _ in range(draw.randrange(4, period))] for _ in range(4)]
    text: list[int] = []
    while len(text) < n:
        text += draw.choice(sentences)
    return text[:n]


def logits_for(tokens: Sequence[int], n_vocab: int = N_VOCAB, seed: int = 0) -> Floats:
    """Random logits float32[len(tokens), V] whose highest are the given tokens'."""
    logits = np.random.default_rng(seed).normal(0, 1, (len(tokens), n_vocab)).astype(np.float32)
    logits[np.arange(len(tokens)), list(tokens)] = 20
    return logits


def follow(session: SessionDrafts, text: Sequence[int], n_known: int, most: int = 8) -> list[Draft]:
    """Draft for a text that goes on as it does, as a generation would; the drafts."""
    drafts, done = [], n_known
    session.begin(text[:done])
    while done < len(text) - 1:
        draft = session.draft(text[:done], most, 16)
        drafts.append(draft)
        path = [0]
        while done + len(path) < len(text):
            wanted = text[done + len(path) - 1]
            child = [
                node
                for node in range(path[-1] + 1, len(draft.tokens))
                if draft.parents[node] == path[-1] and draft.tokens[node] == wanted
            ]
            if not child:
                break
            path.append(child[0])
        chosen = text[done : done + len(path)]
        after = logits_for([1] * len(draft.tokens))
        for node, token in zip(path, chosen, strict=True):
            after[node, token] = 30
        likeliest = session.look(draft, after, None)
        assert set(likeliest) == {NO_TOKEN}  # without peaks nothing is certain
        session.learn(draft, Walk(list(chosen), np.array(path, np.int32)), SECONDS)
        done += len(path)
    return drafts
