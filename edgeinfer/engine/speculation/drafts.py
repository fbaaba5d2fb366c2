"""Drafting with all drafters at once: one best-first tree, grown as far as it pays, learned from after every pass.

In: a session's tokens. Out: drafts. `ModelDrafts` holds what sessions of a model share: compiled loops, successor
tables, acceptance counts, costs. `SessionDrafts` is a `Speculator`. Nothing here can change a text.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import base
from edgeinfer.engine.requests import noise
from edgeinfer.engine.requests.drafting import Draft, DraftRequest, DraftRoom
from edgeinfer.engine.speculation.acceptance import AcceptanceEstimator, fill, start
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.draft_model import DraftModel
from edgeinfer.engine.speculation.draft_rounds import DraftRounds
from edgeinfer.engine.speculation.drafters import DRAFTERS, LOOPS, Drafter, Tables, self_draft
from edgeinfer.engine.speculation.drafters import draft_model as draft_model_drafter
from edgeinfer.engine.speculation.drafters.recycling import SuccessorTable
from edgeinfer.engine.speculation.drafters.suffix import Automaton, joined_texts, latest_texts, split_texts
from edgeinfer.engine.speculation.draw_ranking import LEARN_AVERAGES, DrawRanking
from edgeinfer.engine.speculation.files import LEARNT, PRIMED, DraftFolder
from edgeinfer.engine.speculation.likeliest import LIKELIEST_LOOP, LikeliestTokens
from edgeinfer.engine.speculation.pass_trees import PassTrees
from edgeinfer.engine.speculation.priming import PACK
from edgeinfer.engine.speculation.records import BEST, MOST
from edgeinfer.engine.speculation.session_drafts import DRAFT_MODEL, SessionDrafts
from edgeinfer.engine.speculation.worth import SharedWorth
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.code import CodeSource, CompiledFunction
from edgeinfer.jit.library import KernelLibrary, open_library
from edgeinfer.steps import Progress, no_progress

MODES = MappingProxyType({False: "greedy", True: "sampled"})
LAYOUT_VERSION = 3
"""Increment when buckets or stored arrays change their meaning."""
Kind = TypeVar("Kind")
GROW = CompiledFunction("grow", CodeSource(LOOPS, "growth", "grow"), 1)
LOOK = CompiledFunction("look", CodeSource(LOOPS, "learning", "look"), 1)
LEARN = CompiledFunction("learn", CodeSource(LOOPS, "learning", "learn"), 1)


def loop_sources() -> tuple[Path, ...]:
    """The sources of speculation loops, apart from the kernels', because each changes without the other."""
    here = Path(__file__).parent
    return here, here / "loops", Path(base.__file__), Path(noise.__file__)


def loops_library() -> KernelLibrary:
    """The library of compiled speculation loops."""
    return open_library(*loop_sources())


def loops_of(drafters: Mapping[str, Drafter]) -> list[CompiledFunction]:
    """All functions that must be compiled for drafting."""
    own = [GROW, LOOK, LEARN, LEARN_AVERAGES, PACK, LIKELIEST_LOOP, *self_draft.DRAFTER.functions]
    found = [*own, *(each for drafter in drafters.values() for each in drafter.functions)]
    return list({each.name: each for each in found}.values())


class ModelDrafts:
    """What all sessions of a model share. `close()` saves what was learned, if there is a folder for it."""

    def __init__(
        self,
        library: KernelLibrary,
        n_vocab: int,
        costs: Costs,
        fixed: int | None = None,
        progress: Progress = no_progress,
        draft_model: DraftModel | None = None,
        *,
        branches: bool = True,
        may_rest: bool = False,
    ) -> None:
        """`branches`: whether several drafted tokens may follow one token; if not, drafts are chains.

        `may_rest`: passes do without drafts while these do not pay by the clock.
        """
        self.library = library
        self.n_vocab = n_vocab
        self.costs = costs
        self.fixed, self.branches, self.may_rest = fixed, branches, may_rest
        self.draft_model = draft_model
        is_occasional = draft_model is not None and draft_model.is_occasional
        self.drafters: dict[str, Drafter] = DRAFTERS.entries()
        if draft_model is not None:
            self.drafters[DRAFT_MODEL] = draft_model.drafter
        self.draft_sources = [
            draft_source for drafter in self.drafters.values() for draft_source in drafter.draft_sources
        ]
        self.n_usual = len(self.draft_sources) - is_occasional
        """How many draft sources, the first ones, every pass has."""
        library.prepare(loops_of(self.drafters), os.cpu_count() or 1, progress)
        self.look, self.learn = library.function(LOOK), library.function(LEARN)
        self._trees = PassTrees(library.function(GROW), costs, fixed=fixed is not None)
        self.shared_worth = SharedWorth()
        self._is_measured = True
        """Whether the last pass had only texts of this."""
        self.tables: dict[str, Tables] = {key: drafter.open(n_vocab, library) for key, drafter in self.drafters.items()}
        self._suffix, self._recycling = _of_kind(self.tables, Automaton), _of_kind(self.tables, SuccessorTable)
        self.acceptance = {sampled: self._estimator(self.n_usual, MODES[sampled]) for sampled in MODES}
        self.with_model = self.acceptance
        """What is known of the candidates of passes in which the draft model takes part."""
        if is_occasional:
            n_sources = len(self.draft_sources)
            self.with_model = {sampled: self._estimator(n_sources, MODES[sampled]) for sampled in MODES}
        self.ranking = DrawRanking(list(self.buckets), n_vocab) if draft_model is None or is_occasional else None
        """Ranks candidates of drawn text; it knows nothing of a draft model's."""
        if self.ranking is not None:
            self.acceptance[True].rank_by(self.ranking.address)
        self._rounds: DraftRounds | None = None
        if draft_model is not None:
            for acceptance in self.with_model.values():
                likely = draft_model.likely_acceptance, draft_model_drafter.ASSUMED_SEEN
                acceptance.assume(len(self.draft_sources) - 1, 0, *likely)
            draft_model.prepare(library)
            first_bucket = self.with_model[False].starts[-1]
            self._rounds = DraftRounds(draft_model, costs, first_bucket, is_fixed=fixed is not None)
        self._folder: DraftFolder | None = None
        self._keeps_texts = False
        self._sessions: list[SessionDrafts] = []
        self._texts: list[Int32s] = []
        self._files: list[Int32s] = []
        self._primed = np.zeros((0, BEST), np.int32)

    def finder(self) -> LikeliestTokens:
        """What finds likely tokens for those who choose from them; its code is compiled with that of drafts."""
        return LikeliestTokens(self.library)

    def _estimator(self, n_sources: int, mode: str) -> AcceptanceEstimator:
        """Counts of the first draft sources, as every model starts with them."""
        buckets = {each.name: each.n_buckets for each in self.draft_sources[:n_sources]}
        acceptance = AcceptanceEstimator(list(buckets.values()))
        start(acceptance, buckets, LAYOUT_VERSION, mode)
        return acceptance

    @property
    def buckets(self) -> dict[str, int]:
        """Number of buckets of each draft source that every pass has."""
        return {each.name: each.n_buckets for each in self.draft_sources[: self.n_usual]}

    @property
    def layout(self) -> str:
        """A key for everything that the meaning of the counts depends on."""
        return f"{LAYOUT_VERSION} " + " ".join(f"{name}:{count}" for name, count in self.buckets.items())

    def session(self) -> SessionDrafts:
        """Open drafts for one more session."""
        session = SessionDrafts(self)
        self._sessions.append(session)
        return session

    def draft(self, requests: Sequence[DraftRequest], room: DraftRoom) -> list[Draft]:
        """Draft for sessions of this model that share a pass, the likeliest tokens of all of them first."""
        started, n_texts, costs = time.perf_counter(), len(requests), self.costs
        sessions = [_session_of(each) for each in requests]
        costs.move(sum(len(each.history) for each in requests) // n_texts - 1, n_texts, room.n_prompt)
        self._is_measured = not room.n_others and not room.n_prompt
        if not self._is_measured:
            costs.begin()
        # a text alone in its pass judges for itself
        rests = self.may_rest and self.shared_worth.begin(n_texts, judged=self._is_measured and n_texts > 1)
        if self.fixed is None and (rests or (self._is_measured and costs.wants_single)):
            room = replace(room, n_tokens=n_texts)
        most = MOST if self.fixed is None else self.fixed
        self._suffix.reserve_ahead(n_texts)
        for session, each in zip(sessions, requests, strict=True):
            session.follow(each, most)
        self._trees.set([session.address for session in sessions], room)
        self._trees.grow()
        if self._rounds is not None:
            self._ask(self._rounds, requests, room, min(most, room.n_tokens - n_texts + 1) - 1)
        seconds = (time.perf_counter() - started) / n_texts
        return [session.drafted(seconds) for session in sessions]

    def _ask(self, rounds: DraftRounds, requests: Sequence[DraftRequest], room: DraftRoom, most: int) -> None:
        """Let the draft model add up to `most` tokens to each tree where that pays."""
        rounds.begin()
        sessions = [_session_of(each) for each in requests]
        reached = [session.reach(each, most) for session, each in zip(sessions, requests, strict=True)]
        if not any(reached):
            return
        given = zip(sessions, requests, reached, strict=True)
        if rounds.ask([session.offer(rounds, each, n_tokens) for session, each, n_tokens in given], room):
            for session in sessions:
                session.use_chain()
            self._trees.grow()

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn how long a pass over all tokens of the last drafts took, drafting included."""
        if self._is_measured:
            self.shared_worth.ran()
            self.costs.observe(n_tokens, seconds - (0.0 if self._rounds is None else self._rounds.seconds))

    def remember(self, folder: DraftFolder, *, texts: bool) -> None:
        """Load the primed table and, if `texts`, what was learned before, and save both later.

        Call before any session.
        """
        self._folder, self._keeps_texts = folder, texts
        rows = folder.read(PRIMED).get("rows")
        learnt = folder.read(LEARNT) if texts else {}
        if rows is not None and rows.ndim == 2 and rows.shape[1] == BEST and rows.dtype == np.int32:
            self.prime(0, rows[: self.n_vocab])
        for name, arrays in self._arrays_by_owner():
            fill(arrays, learnt, f"{name}.")
        self._recall(split_texts(learnt["texts"]) if "texts" in learnt else [])

    def _recall(self, texts: list[Int32s]) -> None:
        """Add earlier texts."""
        self._texts = texts
        self._suffix.read(texts, files=False)

    def read_files(self, files: Sequence[Int32s]) -> None:
        """Add the user's files. Call before any session, and before `remember`."""
        self._files = list(files)
        self._suffix.read(files, files=True)

    def make_room(self, session: SessionDrafts) -> None:
        """Called before a session continues: if the automaton is too full for it, drop old texts of all sessions."""
        if not self._suffix.has_room(session.n_unread):
            self._suffix.renew(self._texts, self._files)
            for each in {session, *self._sessions}:
                each.restart()

    @property
    def n_primed(self) -> int:
        """Number of tokens whose successors are primed."""
        return len(self._primed)

    def prime(self, first: int, rows: Int32s) -> None:
        """Store successors of the tokens from `first` on; all tokens before must be primed."""
        self._recycling.prime(first, rows)
        self._primed = np.concatenate([self._primed[:first], rows])

    def keep_primed(self) -> None:
        """Save the primed successors, if there is a folder."""
        if self._folder is not None and len(self._primed):
            self._folder.write(PRIMED, {"rows": self._primed})

    def twin(self, *, learnt: bool = False) -> ModelDrafts:
        """Drafts for the same model that know no texts, or with `learnt` all that these know; they save nothing."""
        given = self.library, self.n_vocab, self.costs, self.fixed, no_progress, self.draft_model
        twin = ModelDrafts(*given, branches=self.branches, may_rest=self.may_rest)
        twin.prime(0, self._primed)
        if learnt:
            for (_, own), (_, other) in zip(self._arrays_by_owner(), twin._arrays_by_owner(), strict=True):
                fill(other, own, "")
            twin._recall([*self._texts, *(text for session in self._sessions for text in session.texts())])
        return twin

    def leave(self, session: SessionDrafts) -> None:
        """Called when a session is over; its texts stay."""
        if session in self._sessions:
            self._sessions.remove(session)
            self._texts = latest_texts([*self._texts, *session.texts()])

    def close(self) -> None:
        """Save what was learned, and close the draft model; may be called twice."""
        if self.draft_model is not None:
            self.draft_model.close()
        for session in tuple(self._sessions):
            self.leave(session)
        if self._folder is not None and self._keeps_texts:
            arrays = {f"{name}.{key}": array for name, own in self._arrays_by_owner() for key, array in own.items()}
            self._folder.write(LEARNT, {**arrays, "texts": joined_texts(self._texts)})
            self._folder = None

    def _arrays_by_owner(self) -> list[tuple[str, Mapping[str, NDArray[Any]]]]:
        """All arrays to save, with the names of their owners."""
        found: list[tuple[str, Mapping[str, NDArray[Any]]]] = [
            *((key, tables.arrays()) for key, tables in self.tables.items()),
            *((MODES[sampled], acceptance.arrays()) for sampled, acceptance in self.acceptance.items()),
        ]
        if self.with_model is not self.acceptance:
            found += [(f"{MODES[sampled]}_with_model", each.arrays()) for sampled, each in self.with_model.items()]
        return found


def _of_kind(tables: Mapping[str, Tables], kind: type[Kind]) -> Kind:
    """The tables of this kind."""
    return next(each for each in tables.values() if isinstance(each, kind))


def _session_of(request: DraftRequest) -> SessionDrafts:
    """The session that a request is for."""
    assert isinstance(request.speculator, SessionDrafts)
    return request.speculator
