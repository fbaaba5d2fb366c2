"""Measures what each draft source gives: accepted tokens per pass with and without it, on the same answers.

Run: `python scripts/replay_drafts.py MODEL QUESTIONS [--greedy] [--budget 8] [--questions 60] [--tokens 192]`.
QUESTIONS is a file of JSON lines with "turns". The model answers them once, as `chat` does by default, and all ways of
drafting are replayed beside it: wherever some of them begin a pass, one pass evaluates the nodes of all their trees
together, so every way sees exactly the logits that its own passes would have. Nothing depends on time. Ways: all draft
sources; each of them silenced; and without learning from rejected nodes, which shows what the model's guesses there are
worth.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgeinfer.app.bench.drafting import loop_start
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.drafting import Draft, Walk
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.requests.sampling import Distribution, Sampler, SamplingSettings
from edgeinfer.engine.speculation.drafters import draft_model, loop
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.priming import PACK
from edgeinfer.engine.speculation.records import BEST, MOST
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from edgeinfer.engine.speculation.win_counts import WinCounts
from edgeinfer.graph.step import Batch, Int32s

ALL, PATH_ONLY = "all", "learning from accepted nodes only"
SILENCE = loop("chain", "speak")
"""Proposes nothing if its chain is empty."""


@dataclass(slots=True)
class Trie:
    """The trees of all ways that begin a pass at the same token, joined: int32s by node, the root first."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    places: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, draft: Draft) -> list[int]:
        """The nodes of a draft in this tree."""
        nodes = [0]
        for token, parent in zip(draft.tokens[1:].tolist(), draft.parents[1:].tolist(), strict=True):
            key = nodes[parent], token
            if key not in self.places:
                self.places[key] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(nodes[parent])
            nodes.append(self.places[key])
        return nodes

    def parts(self) -> Iterator[list[int]]:
        """Nodes that fit a pass, each part with all their ancestors."""
        part = [0]
        for node in range(1, len(self.tokens)):
            missing, at = [], node
            while at not in part and at not in missing:
                missing.append(at)
                at = self.parents[at]
            if len(part) + len(missing) > MOST:
                yield sorted(part)
                part, at = [0], node
                while at:
                    part.append(at)
                    at = self.parents[at]
            else:
                part += missing
        yield sorted(part)


@dataclass(slots=True)
class Way:
    """One way of drafting, with what it has learned, and the pass it is in."""

    name: str
    drafts: ModelDrafts
    silenced: int | None = None
    passes: list[tuple[int, int]] = field(default_factory=list)
    """Of the current answer: tokens before each pass, and tokens it gave."""
    n_passes: int = 0
    n_tokens: int = 0
    session: SessionDrafts | None = None
    draft: Draft | None = None
    _nodes: list[int] = field(default_factory=list)
    _rows: Int32s = field(default_factory=lambda: np.zeros((0, BEST), np.int32))
    _path: list[int] = field(default_factory=list)
    _chosen: list[int] = field(default_factory=list)
    _draws: list[Distribution | None] = field(default_factory=list)
    _since: int = 0
    _empty: draft_model.Chain = field(default_factory=lambda: draft_model.Chain(WinCounts()))

    def open(self) -> None:
        """Begin a conversation."""
        self.session = session = self.drafts.session()
        if self.silenced is not None:
            session._draft_sources[self.silenced, :2] = self.drafts.library.address(SILENCE), self._empty.address

    def begin(self, history: Sequence[int], noise: Noise | None, settings: SamplingSettings) -> None:
        """Begin an answer. `noise`: that of its draws, if its tokens are drawn."""
        assert self.session is not None
        self.passes, self.draft = [], None
        self.session.begin(history, noise, settings)

    def start(self, history: Sequence[int], n_answered: int, n_left: int, trie: Trie) -> None:
        """Begin a pass."""
        assert self.session is not None
        self.draft = self.session.draft(history, MOST if n_left > 1 else 1, max(n_left - 1, 0))
        self._nodes, self._path, self._since = trie.add(self.draft), [0], n_answered
        self._chosen, self._draws = [], []

    def see(self, rows: Int32s) -> None:
        """Take the highest logits of all nodes of the joined tree."""
        self._rows = rows[self._nodes]

    def go_on(self, token: int, draw: Distribution | None, is_last: bool) -> None:
        """The text continues with a token: the pass goes on if it was drafted, else the way learns from it.

        `draw`: what the token was drawn from, if it was.
        """
        assert self.session is not None
        assert self.draft is not None
        self._chosen.append(token)
        self._draws += [] if draw is None else [draw]
        following = (self.draft.parents == self._path[-1]) & (self.draft.tokens == token)
        if following.any() and not is_last:
            self._path.append(int(following.argmax()))
            return
        draft, path, rows = self.draft, self._path, self._rows
        if self.name == PATH_ONLY:
            draft, rows, path = self.session.narrow(draft, path), rows[path], list(range(len(path)))
        self.session._arrays["rows"][: len(rows)] = rows
        self.session.learn(draft, Walk(self._chosen, np.array(path, np.int32), self._draws), None)
        self.passes.append((self._since, len(self._chosen)))
        self.draft = None

    def close(self) -> None:
        """End a conversation."""
        assert self.session is not None
        self.session.close()


class Replay:
    """A model that answers, and ways of drafting beside it."""

    def __init__(self, llm: LLM, ways: Sequence[Way], n_answer: int) -> None:
        assert llm.drafts is not None
        self._llm, self._ways, self._n_answer = llm, ways, n_answer
        self._executor = llm._pool.executor
        self._n_vocab = llm.drafts.n_vocab
        self._pack = llm.drafts.library.function(PACK)

    def lead(self, turns: Sequence[str], options: Options) -> None:
        """Answer a conversation."""
        messages: list[dict[str, str]] = []
        for way in self._ways:
            way.open()
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            answer = self._answer(self._llm.prompts.chat(messages, options))
            n_kept = loop_start(answer)
            for way in self._ways:
                given = [n_given for before, n_given in way.passes if before < n_kept]
                way.n_passes, way.n_tokens = way.n_passes + len(given), way.n_tokens + sum(given)
            messages.append({"role": "assistant", "content": self._llm.detokenize(answer)})
        for way in self._ways:
            way.close()

    def _answer(self, request: Request) -> list[int]:
        """The tokens of an answer, until it ends or loops, without the token that ends it."""
        history, vocabulary = list(request.prompt), self._llm.prompts.tokenizer.vocabulary
        ends, sampler = vocabulary.end_of_generation, Sampler(request.sampling, vocabulary.suppressed)
        for way in self._ways:
            way.begin(history, sampler.noise if request.sampling.temperature else None, request.sampling)
        sequence = self._executor.create()
        try:
            answer = [sampler.choose(self._read(sequence, history), history, 0)]
            while answer[-1] not in ends and len(answer) < self._n_answer and loop_start(answer) == len(answer):
                trie = Trie([answer[-1]])
                history = [*request.prompt, *answer]
                starting = [way for way in self._ways if way.draft is None]
                for way in starting:
                    way.start(history, len(answer), self._n_answer - len(answer), trie)
                rows, logits = self._evaluate(sequence, trie, len(history) - 1)
                for way in starting:
                    way.see(rows)
                answer.append(sampler.choose(logits, history, len(answer)))
                for way in self._ways:
                    way.go_on(answer[-1], sampler.drawn_from, answer[-1] in ends)
                self._executor.commit(sequence, np.zeros(1, np.int32))
        finally:
            self._executor.free(sequence)
        return [token for token in answer if token not in ends]

    def _read(self, sequence: int, prompt: Sequence[int]) -> np.ndarray:
        """Read a prompt; the logits after it, float32[V]."""
        logits, most = np.zeros((0, 0), np.float32), self._executor.limits.max_tokens
        for first in range(0, len(prompt), most):
            tokens = np.array(prompt[first : first + most], np.int32)
            order = np.arange(len(tokens), dtype=np.int32)
            sequences = np.full(len(tokens), sequence, np.int32)
            logits = self._executor.evaluate(Batch(tokens, sequences, order + np.int32(first), order - 1, order[-1:]))
            self._executor.commit(sequence, order)
        return logits[0]

    def _evaluate(self, sequence: int, trie: Trie, position: int) -> tuple[Int32s, np.ndarray]:
        """Evaluate a joined tree: the highest logits of its nodes, int32[N, BEST], and the root's, float32[V]."""
        rows, depths = np.zeros((len(trie.tokens), BEST), np.int32), [0] * len(trie.tokens)
        for node in range(1, len(depths)):
            depths[node] = depths[trie.parents[node]] + 1
        logits = np.zeros((0, 0), np.float32)
        for part in trie.parts():
            self._executor.truncate(sequence, position)
            places = {node: place for place, node in enumerate(part)}
            parents = np.array([places.get(trie.parents[node], -1) for node in part], np.int32)
            tokens = np.array(trie.tokens, np.int32)[part]
            positions = np.array(depths, np.int32)[part] + np.int32(position)
            order = np.arange(len(part), dtype=np.int32)
            logits = self._executor.evaluate(
                Batch(tokens, np.full(len(part), sequence, np.int32), positions, parents, order)
            )
            found, peaks = np.zeros((len(part), BEST), np.int32), self._executor.peaks
            where = (0, 0) if peaks is None else (peaks.ctypes.data, peaks.strides[0])
            self._pack(logits.ctypes.data, logits.strides[0], *where, len(part), self._n_vocab, found.ctypes.data)
            rows[part] = found
        return rows, logits[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--greedy", action="store_true", help="without sampling")
    parser.add_argument("--budget", type=int, default=8, help="tokens of every pass")
    parser.add_argument("--questions", type=int, default=60, dest="n_questions", help="conversations, evenly spread")
    parser.add_argument("--tokens", type=int, default=192, help="most tokens of an answer")
    parser.add_argument("--threads", type=int, help="worker threads")
    given = parser.parse_args()
    led = [json.loads(line)["turns"] for line in given.questions.read_text(encoding="utf-8").splitlines()]
    led = led[:: max(1, len(led) // given.n_questions)][: given.n_questions]
    options: Options = {"max_tokens": given.tokens, "seed": 1}
    if given.greedy:
        options["temperature"] = 0.0
    with load(given.model, spec=given.budget, n_context=4096, history=False, threads=given.threads) as llm:
        assert llm.drafts is not None
        if not llm.drafts.n_primed:
            llm.prime()
        names = [each.name for each in llm.drafts.draft_sources]
        ways = [Way(ALL, llm.drafts.twin()), Way(PATH_ONLY, llm.drafts.twin())]
        ways += [Way(f"without {name}", llm.drafts.twin(), number) for number, name in enumerate(names)]
        replay = Replay(llm, ways, given.tokens)
        with llm._pool.lock:
            for number, turns in enumerate(led):
                replay.lead(turns, options)
                print(f"{number + 1} of {len(led)} conversations", file=sys.stderr)
    print(f"{'greedy' if given.greedy else 'sampled'}, {given.budget} tokens a pass, {len(led)} conversations")
    print("| way | accepted per pass | of all | passes |\n|---|---|---|---|")
    usual = ways[0].n_tokens / ways[0].n_passes
    for way in ways:
        rate = way.n_tokens / way.n_passes
        print(f"| {way.name} | {rate:.3f} | {rate / usual - 1:+.2%} | {way.n_passes} |")


if __name__ == "__main__":
    main()
