"""Drafts that are wrong on purpose: drafters with a script in place of a model's drafts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.engine.requests.drafting import ROOT, Draft, DraftReport, DraftRequest, DraftRoom, SourceCount, Walk
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.graph.step import Floats, Int32s

Nodes = list[tuple[int, int]]
"""Tokens after the root, each with its parent."""
Script = Callable[["ScriptedSpeculator", Sequence[int], int, int], Nodes]
"""What a speculator drafts for a text, up to so many tokens and so deep."""


class ScriptedDrafts:
    """Takes the place of a model's drafts. `known`: what follows each prompt, as far as anything is known."""

    def __init__(self, script: Script, known: dict[tuple[int, ...], Sequence[int]], seed: int = 0) -> None:
        self.script, self.known, self.chance = script, known, random.Random(seed)
        self.opened: list[ScriptedSpeculator] = []
        self.n_together = 0
        """Most texts that were drafted for in one pass."""

    draft_model = None

    def session(self) -> ScriptedSpeculator:
        self.opened.append(ScriptedSpeculator(self))
        return self.opened[-1]

    def draft(self, requests: Sequence[DraftRequest], room: DraftRoom) -> list[Draft]:
        found = []
        for asked in requests:
            assert isinstance(asked.speculator, ScriptedSpeculator)
            found.append(asked.speculator.draft_for(asked))
        self.n_together = max(self.n_together, sum(len(draft.tokens) > 1 for draft in found))
        return found

    def observe(self, n_tokens: int, seconds: float) -> None:
        assert n_tokens > 1

    def close(self) -> None:
        """Nothing is held."""


class ScriptedSpeculator:
    """Drafts for one text after another, as its script says."""

    expected, row_reader, writer = 1.0, None, None

    def __init__(self, drafts: ScriptedDrafts) -> None:
        self.drafter, self.n_proposed, self.n_accepted = drafts, 0, 0

    def begin(
        self, history: Sequence[int], noise: Noise | None = None, settings: SamplingSettings | None = None
    ) -> None:
        self.n_prompt, self.n_proposed, self.n_accepted = len(history), 0, 0
        self.answer = list(self.drafter.known.get(tuple(history), ()))

    def draft_for(self, asked: DraftRequest) -> Draft:
        nodes = self.drafter.script(self, asked.history, asked.most, asked.deepest)
        tokens, parents = zip((asked.history[-1], ROOT), *nodes, strict=True)
        return Draft(np.array(tokens, np.int64).astype(np.int32), np.array(parents, np.int32))

    def narrow(self, draft: Draft, nodes: Sequence[int]) -> Draft:
        places = {node: place for place, node in enumerate(nodes)}
        parents = [places.get(int(draft.parents[node]), ROOT) for node in nodes]
        return Draft(draft.tokens[list(nodes)], np.array(parents, np.int32))

    def look(self, draft: Draft, logits: Floats, peaks: Floats | None) -> Sequence[int]:
        assert len(logits) == len(draft.tokens)
        return ()

    def sources(self, path: Int32s) -> list[str | None]:
        return ["script"] * (len(path) - 1)

    def learn(self, draft: Draft, walked: Walk, seconds: float | None) -> None:
        self.n_proposed += len(draft.tokens) - 1
        self.n_accepted += len(walked.path) - 1

    def report(self) -> DraftReport:
        return DraftReport({"script": SourceCount(self.n_proposed, self.n_accepted)}, 0.0, 0, 0, 0.0)

    def take_notices(self) -> tuple[str, ...]:
        return ()

    @property
    def rests(self) -> bool:
        return False

    def timed(self, n_tokens: int, seconds: float, *, drafted: bool) -> None:
        assert seconds > 0

    def close(self) -> None:
        """Nothing is held."""


def right(speculator: ScriptedSpeculator, history: Sequence[int], most: int, deepest: int) -> Nodes:
    """What is known to follow, each with a wrong sibling before it, and on beyond where the answer ends."""
    nodes, parent = Nodes(), 0
    for token in [*speculator.answer[len(history) - speculator.n_prompt :], 2, 0, 7][:4]:
        nodes += [((token + 1) % 200, parent), (token, parent)]
        parent = len(nodes)
    return nodes


def off_by_one(speculator: ScriptedSpeculator, history: Sequence[int], most: int, deepest: int) -> Nodes:
    """What is known to follow one token later: right tokens at wrong places."""
    ahead = speculator.answer[len(history) - speculator.n_prompt + 1 :][:6]
    return [(token, place) for place, token in enumerate(ahead)]


def forked(speculator: ScriptedSpeculator, history: Sequence[int], most: int, deepest: int) -> Nodes:
    """The right beginning and a wrong end, after the same beginning with another one."""
    ahead = [*speculator.answer[len(history) - speculator.n_prompt :]][:3]
    nodes, ends = Nodes(), Nodes()
    for wrong in (5, 6):
        parent = 0
        for token in ahead[: speculator.drafter.chance.randint(0, 3)]:
            nodes.append((token, parent))  # a twin of what the other one has
            parent = len(nodes)
        ends.append((wrong, parent))
    return nodes + ends


def ends(speculator: ScriptedSpeculator, history: Sequence[int], most: int, deepest: int) -> Nodes:
    """That the answer ends now, and goes on after that."""
    return [(0, 0), (2, 0), (9, 1), (2, 3), (9, 2)]


def wild(speculator: ScriptedSpeculator, history: Sequence[int], most: int, deepest: int) -> Nodes:
    """Random trees, unknown tokens, parents that are not there, far more than was asked for."""
    chance = speculator.drafter.chance
    low, high = chance.choice([(0, 8), (0, 300), (-5, 1 << 30)])
    count = chance.choice([0, 1, 5, most, 4 * most])
    return [(chance.randint(low, high), chance.randint(-2, max(number, 1))) for number in range(count)]


SCRIPTS: dict[str, Script] = {each.__name__: each for each in (right, off_by_one, forked, ends, wild)}
