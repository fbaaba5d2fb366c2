"""Drafts for one session: a best-first tree for each pass, grown as far as it pays, learned from afterwards.

In: a session's tokens, and what sessions of a model share. Out: drafts; it is a `Speculator`. Nothing here can change a
text.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.engine.requests.drafting import Draft, DraftReport, DraftRequest, DraftRoom, RowReader, SourceCount, Walk
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.speculation.acceptance import AcceptanceEstimator
from edgeinfer.engine.speculation.draft_followers import Follower
from edgeinfer.engine.speculation.draft_rounds import DraftRounds, NextDraws, Offer
from edgeinfer.engine.speculation.drafters import SessionTables, TokenLog
from edgeinfer.engine.speculation.drafters import draft_model as draft_model_drafter
from edgeinfer.engine.speculation.drafters.suffix import AutomatonCursor, split_texts
from edgeinfer.engine.speculation.draw_ranking import LEARN_AVERAGES, penalty_of
from edgeinfer.engine.speculation.records import (
    BEST,
    CANDIDATE,
    DRAFT_SOURCES,
    DRAW,
    EACH,
    MOST,
    MOST_CHAINED,
    PROPOSED,
    SUFFIX,
    TREE,
    offset_of,
)
from edgeinfer.engine.speculation.worth import Worth
from edgeinfer.graph.step import Floats, Int32s

if TYPE_CHECKING:
    from edgeinfer.engine.speculation.drafts import ModelDrafts

DRAFT_MODEL = "draft_model"
"""Key of the drafter that is used only if there is a draft model; its draft source is the last."""
LOGITS, LOGITS_AT = struct.Struct("=4q"), offset_of(TREE, "logits")
"""Fields logits, logits_stride, peaks and peaks_stride of a tree: one call is faster than four assignments;"""
WANTED, WANTED_AT = struct.Struct("=5q"), offset_of(TREE, "n_log")
"""fields n_log, n_vocab, most, deepest and n_pages;"""
N_NODES, N_NODES_AT = struct.Struct("=q"), offset_of(TREE, "n_nodes")
NOISE, NOISE_AT = struct.Struct("=Qq"), offset_of(TREE, "noise")
"""fields noise and n_drawn;"""
N_PATH, N_PATH_AT = struct.Struct("=q"), offset_of(TREE, "n_path")
EXPECTED, EXPECTED_AT = struct.Struct("=d"), offset_of(TREE, "expected")
TREE_ARRAYS = (
    ("tokens", (MOST,), "i4"),
    ("parents", (MOST,), "i4"),
    ("depths", (MOST,), "i4"),
    ("reaches", (MOST,), "f4"),
    ("sources", (MOST,), "i4"),
    ("offers", (MOST, 2), "i4"),
    ("suffix", (SUFFIX,), "i4"),
    ("proposals", (PROPOSED, 2), "i4"),
    ("rows", (MOST, BEST), "i4"),
    ("likeliest", (MOST,), "i4"),
    ("candidates", (MOST * EACH,), CANDIDATE),
    ("heap", (MOST * EACH, 2), "i4"),
    ("path", (MOST,), "i4"),
    ("chosen", (MOST,), "i4"),
    ("draws", (MOST,), DRAW),
    ("tally", (DRAFT_SOURCES, 2), "i8"),
)


class SessionDrafts:
    """Drafts for a session, for one text after another."""

    writer = None

    def __init__(self, shared: ModelDrafts) -> None:
        self._shared = shared
        self.costs = shared.costs
        self._arrays = {name: np.zeros(shape, kind) for name, shape, kind in TREE_ARRAYS}
        self._tree = np.zeros(1, TREE)
        self._fields = self._tree[0]
        self._bytes = self._tree.view(np.uint8).data
        for name, array in self._arrays.items():
            self._fields[name] = array.ctypes.data
        self._fields["chain"] = not shared.branches
        self.address = int(self._tree.ctypes.data)
        """Of the session's tree."""
        self._tables = {key: tables.session() for key, tables in shared.tables.items()}
        reading = self._tables["suffix"]
        assert isinstance(reading, AutomatonCursor)
        self._reading = reading
        self._introduce(self._tables)
        self._acceptance, self._with_model = shared.acceptance[False], shared.with_model[False]
        self._uses_chain = False
        self._noise: Noise | None = None
        self._settings: SamplingSettings | None = None
        self._n_begun = self._n_drawn = 0
        chain = self._tables.get(DRAFT_MODEL)
        self._chain = chain if isinstance(chain, draft_model_drafter.Chain) else None
        self._follower: Follower | None = None if shared.draft_model is None else shared.draft_model.session()
        self._log = TokenLog(partial(_follow, self._fields, self._tables))
        self._worth = Worth() if shared.may_rest else None
        self._begin_report()

    @property
    def reaches(self) -> Floats:
        """Estimated probability that the accepted path reaches each node of the last tree."""
        return self._arrays["reaches"]

    def texts(self) -> list[Int32s]:
        """The texts that the session has seen."""
        return split_texts(self._log.tokens[: self._log.n_tokens])

    @property
    def n_unread(self) -> int:
        """Tokens of the session that the automaton has not read, plus room for the answer."""
        return self._reading.n_unread(self._log.n_tokens)

    def restart(self) -> None:
        """Called when the automaton was rebuilt."""
        self._reading.restart(self._log.n_tokens)

    def close(self) -> None:
        """Called when the session is over."""
        self._shared.leave(self)
        if self._follower is not None:
            self._follower.close()

    def _introduce(self, tables: dict[str, SessionTables]) -> None:
        """Give the loops the addresses of draft sources, readers and learners, and of their tables."""
        starts, library = self._shared.with_model[False].starts, self._shared.library
        draft_sources: list[tuple[int, int, int]] = []
        readers: list[tuple[int, int]] = []
        learners: list[tuple[int, int]] = []
        for key, drafter in self._shared.drafters.items():
            for draft_source in drafter.draft_sources:
                draft_sources.append(
                    (library.address(draft_source.speak), tables[key].address, starts[len(draft_sources)])
                )
            if drafter.learn is not None:
                learners.append((library.address(drafter.learn), tables[key].address))
            if drafter.read is not None:
                readers.append((library.address(drafter.read), tables[key].address))
        if self._shared.ranking is not None:
            learners.append((library.address(LEARN_AVERAGES), self._shared.ranking.address))
        self._draft_sources = np.array(draft_sources, np.int64).reshape(-1, 3)
        self._readers = np.array(readers, np.int64).reshape(-1, 2)
        self._learners = np.array(learners, np.int64).reshape(-1, 2)
        self._fields["draft_sources"] = self._draft_sources.ctypes.data
        self._fields["n_draft_sources"] = self._shared.n_usual
        self._fields["readers"], self._fields["n_readers"] = self._readers.ctypes.data, len(readers)
        self._fields["learners"], self._fields["n_learners"] = self._learners.ctypes.data, len(learners)

    def begin(
        self, history: Sequence[int], noise: Noise | None = None, settings: SamplingSettings | None = None
    ) -> None:
        """Start a text to continue, any part of which may be known already."""
        self._noise, self._settings, self._n_begun = noise, settings, len(history)
        self._fields["n_penalised"], self._fields["penalty"] = penalty_of(settings)
        self._log.begin(history)
        if self._follower is not None:
            self._follower.begin(history)
        self._shared.make_room(self)
        for tables in self._tables.values():
            tables.reserve(self._log.n_tokens)
        self._acceptance = self._shared.acceptance[noise is not None]
        self._with_model = self._shared.with_model[noise is not None]
        self._use(self._acceptance, self._shared.n_usual)
        self._shared.costs.begin()
        if self._worth is not None:
            self._worth.begin()
        self._begin_report()

    @property
    def rests(self) -> bool:
        """Whether the next pass should have no draft if this text is alone in it."""
        return self._worth is not None and self._worth.rests

    def timed(self, n_tokens: int, seconds: float, *, drafted: bool) -> None:
        """A pass of this text alone gave so many tokens and took so long."""
        if self._worth is not None:
            self._worth.note(n_tokens, seconds, drafted=drafted)

    @property
    def row_reader(self) -> RowReader | None:
        """What is given the model's hidden rows, if the draft model is a head that reads them."""
        return None if self._follower is None else self._follower.row_reader

    @property
    def expected(self) -> float:
        """Tokens that a pass over the last tree should give."""
        found: float = EXPECTED.unpack_from(self._bytes, EXPECTED_AT)[0]
        return found

    @property
    def drafter(self) -> ModelDrafts:
        """What drafts for this session, along with others of a pass."""
        return self._shared

    def draft(self, history: Sequence[int], most: int, deepest: int) -> Draft:
        """Draft for this session alone: up to `most` tokens, up to `deepest` after the root."""
        (draft,) = self._shared.draft([DraftRequest(self, history, most, deepest)], DraftRoom(most, 0))
        return draft

    def follow(self, asked: DraftRequest, most: int) -> None:
        """Set what the next tree may be, at most `most` nodes, after a text that may have grown."""
        log = self._log
        log.follow(asked.history)
        if self._chain is not None:
            self._chain.clear()
        if self._uses_chain:
            self._use(self._acceptance, self._shared.n_usual)
        sizes = log.n_tokens, self._shared.n_vocab, min(asked.most, most), asked.deepest, asked.n_pages
        WANTED.pack_into(self._bytes, WANTED_AT, *sizes)
        self._n_drawn = len(asked.history) - self._n_begun
        NOISE.pack_into(self._bytes, NOISE_AT, *((0, -1) if self._noise is None else (self._noise.key, self._n_drawn)))

    def drafted(self, seconds: float) -> Draft:
        """The tree that was grown; `seconds`: this session's share of the time that took."""
        (n_nodes,) = N_NODES.unpack_from(self._bytes, N_NODES_AT)
        self._seconds += seconds
        return Draft(self._arrays["tokens"][:n_nodes].copy(), self._arrays["parents"][:n_nodes].copy())

    def reach(self, asked: DraftRequest, most: int) -> int:
        """How many tokens the draft model may add to the tree, at most `most`."""
        assert self._follower is not None
        return self._follower.reach(asked.text, min(most, asked.most - 1, asked.deepest, MOST_CHAINED))

    def use_chain(self) -> None:
        """Let the tree grow from what the draft model proposes too, if it was run for this text."""
        if self._chain is not None and self._chain.n_rows:
            self._use(self._with_model, len(self._shared.draft_sources))

    def _use(self, acceptance: AcceptanceEstimator, n_draft_sources: int) -> None:
        """Grow trees from the first draft sources, by what is known of their candidates."""
        self._fields["acceptance"], self._fields["n_draft_sources"] = acceptance.address, n_draft_sources
        self._uses_chain = acceptance is not self._acceptance

    def offer(self, rounds: DraftRounds, asked: DraftRequest, most: int) -> Offer:
        """What the tree without the draft model gives, for the draft model to add up to `most` tokens to."""
        assert self._follower is not None
        assert self._chain is not None
        own = self._follower, self._chain, asked.history, most, asked.n_pages
        draws = NextDraws(self._with_model, self._noise, self._n_drawn, self._settings)
        return Offer(*own, self.expected, self.drafted(0.0), *rounds.chances(draws), draws)

    def narrow(self, draft: Draft, nodes: Sequence[int]) -> Draft:
        """Reduce the last tree to these nodes."""
        kept, arrays = np.array(nodes), self._arrays
        places = np.zeros(len(draft.tokens), np.int32)
        places[kept] = np.arange(len(kept))
        parents = draft.parents[kept]
        for name in ("tokens", "depths", "reaches", "sources", "offers"):
            arrays[name][: len(kept)] = arrays[name][kept]
        arrays["parents"][: len(kept)] = np.where(parents < 0, parents, places[parents])
        self._fields["n_nodes"] = len(kept)
        EXPECTED.pack_into(self._bytes, EXPECTED_AT, float(arrays["reaches"][: len(kept)].sum()))
        return Draft(arrays["tokens"][: len(kept)].copy(), arrays["parents"][: len(kept)].copy())

    def look(self, draft: Draft, logits: Floats, peaks: Floats | None) -> list[int]:
        """Find the highest logits of all nodes."""
        started = time.perf_counter()
        where = (0, 0) if peaks is None else (peaks.ctypes.data, peaks.strides[0])
        LOGITS.pack_into(self._bytes, LOGITS_AT, logits.ctypes.data, logits.strides[0], *where)
        self._shared.look(self.address)
        likeliest: list[int] = self._arrays["likeliest"][: len(draft.tokens)].tolist()
        self._seconds += time.perf_counter() - started
        return likeliest

    def learn(self, draft: Draft, walked: Walk, seconds: float | None) -> None:
        """Count which candidates were right, and store the highest logits of all nodes."""
        started = time.perf_counter()
        arrays = self._arrays
        n_path, n_nodes = len(walked.path), len(draft.tokens)
        arrays["path"][:n_path] = walked.path
        arrays["chosen"][:n_path] = walked.tokens
        for place, draw in enumerate(walked.draws):
            arrays["draws"][place] = (0, 0, 0, 0.0) if draw is None else draw.record
        N_PATH.pack_into(self._bytes, N_PATH_AT, n_path)
        self._shared.learn(self.address)
        if self._chain is not None:
            self._chain.learn(walked.tokens, walked.draws)
        if seconds is not None:
            self._shared.observe(n_nodes, seconds)
        self._shared.shared_worth.learnt(len(walked.tokens))
        self._n_passes += 1
        self._n_single += n_nodes == 1
        self._n_expected += self.expected
        self._seconds += time.perf_counter() - started

    def sources(self, path: Int32s) -> list[str | None]:
        """The draft source credited with each node of a path, without the root."""
        draft_sources, sources = self._shared.draft_sources, self._arrays["sources"]
        return [
            draft_sources[draft_source].name if draft_source >= 0 else None
            for draft_source in sources[path[1:]].tolist()
        ]

    def take_notices(self) -> tuple[str, ...]:
        """Notices about the draft model since the last call."""
        model = self._shared.draft_model
        return () if model is None else model.take_notices()

    def report(self) -> DraftReport:
        """The report on the text since `begin`."""
        counts = self._arrays["tally"].tolist()
        sources = {
            draft_source.name: SourceCount(proposed, accepted)
            for draft_source, (proposed, accepted) in zip(self._shared.draft_sources, counts, strict=False)
        }
        return DraftReport(
            sources, self._seconds, self._n_passes, self._n_single, self._n_expected, self._shared.costs.single_s
        )

    def _begin_report(self) -> None:
        self._arrays["tally"].fill(0)
        self._seconds, self._n_passes, self._n_single, self._n_expected = 0.0, 0, 0, 0.0


def _follow(tree: np.void, tables: Mapping[str, SessionTables], log: TokenLog) -> None:
    """Set the log of a tree, and of all tables. Knows no session: one that its log knew would stay in memory."""
    tree["log"] = log.address
    for each in tables.values():
        each.follow(log)
