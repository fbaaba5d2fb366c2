"""Drafting with all drafters at once: one best-first tree, grown as far as it pays, learnt from after every pass.

In: a session's tokens. Out: drafts. `ModelDrafts` holds what sessions of a model share: compiled loops, tables of
successors, counts of chances, costs. `SessionDrafts` is a `Speculator`. Nothing here can change a text.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Floats, Int32s, Progress, no_progress
from edgeinfer.backends.cpu.catalogue import Function, Source
from edgeinfer.backends.cpu.library import KernelLibrary, cache_folder
from edgeinfer.engine.speculation.chances import Chances, fill, start
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.draft_model import Asking, DraftModel, Offer
from edgeinfer.engine.speculation.drafters import DRAFTERS, LOOPS, Drafter, SessionTables, Tables
from edgeinfer.engine.speculation.drafters import draft_model as draft_model_drafter
from edgeinfer.engine.speculation.drafters.recycling import SuccessorTable
from edgeinfer.engine.speculation.drafters.suffix import Automaton, Reading, joined_texts, latest_texts, split_texts
from edgeinfer.engine.speculation.keeping import LEARNT, PRIMED, DraftFolder
from edgeinfer.engine.speculation.log import TokenLog
from edgeinfer.engine.speculation.priming import PACK
from edgeinfer.engine.speculation.records import BEST, CANDIDATE, EACH, MOST, PROPOSED, SUFFIX, TREE, VOICES, offset_of
from edgeinfer.engine.speculation.speculator import DraftReport, SourceCount
from edgeinfer.engine.speculation.tree import Draft, Walk

DRAFT_MODEL = "draft_model"
"""Key of the drafter that is asked only where there is such a model; its voice is the last."""
MODES = MappingProxyType({False: "greedy", True: "sampled"})
LAYOUT_VERSION = 2
"""Raised when claims or kept arrays change their meaning."""
GROW = Function("grow", Source("growth", "grow", package=LOOPS), 1)
LOOK = Function("look", Source("learning", "look", package=LOOPS), 1)
LEARN = Function("learn", Source("learning", "learn", package=LOOPS), 1)
LOGITS, LOGITS_AT = struct.Struct("=4q"), offset_of(TREE, "logits")
"""The fields logits, logits_stride, peaks and peaks_stride of a tree: one call is quicker than four assignments;"""
WANTED, WANTED_AT = struct.Struct("=4q"), offset_of(TREE, "n_log")
"""n_log, n_vocab, most and deepest;"""
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
    ("tally", (VOICES, 2), "i8"),
)


def loops_library() -> KernelLibrary:
    """Where the compiled loops of speculation are kept: apart from the kernels, for neither changes with the other."""
    here = os.path.dirname(__file__)
    return KernelLibrary(cache_folder(here, os.path.join(here, "loops")))


def loops_of(drafters: Mapping[str, Drafter]) -> list[Function]:
    """All that must be compiled for drafting."""
    return [GROW, LOOK, LEARN, PACK, *(each for drafter in drafters.values() for each in drafter.functions)]


class ModelDrafts:
    """What all sessions of a model share. `close()` keeps what was learnt, if there is a folder for it."""

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
    ) -> None:
        """`branches`: whether a token may have several drafted after it; else drafts are chains."""
        self.library = library
        self.n_vocab = n_vocab
        self.costs = costs
        self.fixed, self.branches = fixed, branches
        self.draft_model = draft_model
        self.drafters: dict[str, Drafter] = DRAFTERS.entries()
        if draft_model is not None:
            self.drafters[DRAFT_MODEL] = draft_model_drafter.DRAFTER
        self.voices = [voice for drafter in self.drafters.values() for voice in drafter.voices]
        library.prepare(loops_of(self.drafters), os.cpu_count() or 1, progress)
        self.grow, self.look, self.learn = (library.function(each) for each in (GROW, LOOK, LEARN))
        self.tables: dict[str, Tables] = {key: drafter.open(n_vocab, library) for key, drafter in self.drafters.items()}
        n_claims = [voice.n_claims for voice in self.voices]
        self.chances = {sampled: Chances(n_claims) for sampled in (False, True)}
        for sampled, chances in self.chances.items():
            start(chances, self.claims, LAYOUT_VERSION, MODES[sampled])
            if draft_model is not None:
                likely = draft_model_drafter.LIKELIEST_CHANCES, draft_model_drafter.ASSUMED_SEEN
                chances.assume(len(self.voices) - 1, 0, *likely)
        self._folder: DraftFolder | None = None
        self._keeps_texts = False
        self._sessions: list[SessionDrafts] = []
        self._texts: list[Int32s] = []
        self._files: list[Int32s] = []
        self._primed = np.zeros((0, BEST), np.int32)

    @property
    def claims(self) -> dict[str, int]:
        """How many claims each voice can make."""
        return {voice.name: voice.n_claims for voice in self.voices}

    @property
    def layout(self) -> str:
        """What the meaning of counts depends on."""
        return f"{LAYOUT_VERSION} " + " ".join(f"{name}:{count}" for name, count in self.claims.items())

    def session(self) -> SessionDrafts:
        """Drafts for one more session."""
        session = SessionDrafts(self)
        self._sessions.append(session)
        return session

    def remember(self, folder: DraftFolder, *, texts: bool) -> None:
        """Go on with what was made and, if `texts`, learnt before, and keep what will be; before any session."""
        self._folder, self._keeps_texts = folder, texts
        rows = folder.read(PRIMED).get("rows")
        learnt = folder.read(LEARNT) if texts else {}
        if rows is not None and rows.ndim == 2 and rows.shape[1] == BEST and rows.dtype == np.int32:
            self.prime(0, rows[: self.n_vocab])
        for name, kept in self._kept():
            fill(kept, learnt, f"{name}.")
        self._recall(split_texts(learnt["texts"]) if "texts" in learnt else [])

    def _recall(self, texts: list[Int32s]) -> None:
        """Take in earlier texts."""
        suffix = self.tables["suffix"]
        assert isinstance(suffix, Automaton)
        self._texts = texts
        suffix.read(texts, files=False)

    def read_files(self, files: Sequence[Int32s]) -> None:
        """Take in the user's files; before any session, and before `remember`."""
        suffix = self.tables["suffix"]
        assert isinstance(suffix, Automaton)
        self._files = list(files)
        suffix.read(files, files=True)

    def make_room(self, session: SessionDrafts) -> None:
        """Before a session goes on: where the automaton cannot take in what it has, forget old texts of all."""
        suffix = self.tables["suffix"]
        assert isinstance(suffix, Automaton)
        if not suffix.has_room(session.n_unread):
            suffix.renew(self._texts, self._files)
            for each in {session, *self._sessions}:
                each.restart()

    @property
    def n_primed(self) -> int:
        """Tokens whose successors were made beforehand."""
        return len(self._primed)

    def prime(self, first: int, rows: Int32s) -> None:
        """Take over successors of the tokens from `first` on: all before it are known."""
        recycling = self.tables["recycling"]
        assert isinstance(recycling, SuccessorTable)
        recycling.prime(first, rows)
        self._primed = np.concatenate([self._primed[:first], rows])

    def keep_primed(self) -> None:
        """Keep the successors that were made beforehand, where there is a folder."""
        if self._folder is not None and len(self._primed):
            self._folder.write(PRIMED, {"rows": self._primed})

    def twin(self, *, learnt: bool = False) -> ModelDrafts:
        """Drafts of the same model that know nothing of any text, or all that these know; they keep nothing."""
        twin = ModelDrafts(
            self.library, self.n_vocab, self.costs, self.fixed, draft_model=self.draft_model, branches=self.branches
        )
        twin.prime(0, self._primed)
        if learnt:
            for (_, own), (_, other) in zip(self._kept(), twin._kept(), strict=True):
                fill(other, own, "")
            twin._recall([*self._texts, *(text for session in self._sessions for text in session.texts())])
        return twin

    def leave(self, session: SessionDrafts) -> None:
        """A session is over; its texts stay."""
        if session in self._sessions:
            self._sessions.remove(session)
            self._texts = latest_texts([*self._texts, *session.texts()])

    def close(self) -> None:
        """Keep what was learnt, and close the draft model; may be called twice."""
        if self.draft_model is not None:
            self.draft_model.close()
        for session in tuple(self._sessions):
            self.leave(session)
        if self._folder is not None and self._keeps_texts:
            arrays = {f"{name}.{key}": array for name, kept in self._kept() for key, array in kept.items()}
            self._folder.write(LEARNT, {**arrays, "texts": joined_texts(self._texts)})
            self._folder = None

    def _kept(self) -> list[tuple[str, Mapping[str, NDArray[Any]]]]:
        """All arrays that are kept, by what they belong to."""
        return [
            *((key, tables.kept()) for key, tables in self.tables.items()),
            *((MODES[sampled], chances.kept()) for sampled, chances in self.chances.items()),
        ]


class SessionDrafts:
    """Drafts for one session after another text of it."""

    def __init__(self, shared: ModelDrafts) -> None:
        self._shared = shared
        self.costs = shared.costs
        self._arrays = {name: np.zeros(shape, kind) for name, shape, kind in TREE_ARRAYS}
        self._tree = np.zeros(1, TREE)
        self._fields = self._tree[0]
        self._bytes = self._tree.view(np.uint8).data
        for name, array in self._arrays.items():
            self._fields[name] = array.ctypes.data
        self._fields["fixed"] = shared.fixed is not None
        self._fields["chain"] = not shared.branches
        self._address = int(self._tree.ctypes.data)
        self._tables = {key: tables.session() for key, tables in shared.tables.items()}
        reading = self._tables["suffix"]
        assert isinstance(reading, Reading)
        self._reading = reading
        self._introduce(self._tables)
        self._chances = shared.chances[False]
        self._asking: Asking | None = None
        chain = self._tables.get(DRAFT_MODEL)
        if shared.draft_model is not None and isinstance(chain, draft_model_drafter.Chain):
            self._asking = Asking(shared.draft_model.session(shared.library), chain, self._chances.starts[-1])
        self._log = TokenLog(self._log_moved)
        self._begin_report()

    @property
    def reaches(self) -> Floats:
        """Estimated chance that the path comes to each node of the tree drafted last."""
        return self._arrays["reaches"]

    def texts(self) -> list[Int32s]:
        """What the session has seen."""
        return split_texts(self._log.tokens[: self._log.n_tokens])

    @property
    def n_unread(self) -> int:
        """Tokens that the automaton has not seen of the session, with the answer to come."""
        return self._reading.n_unread(self._log.n_tokens)

    def restart(self) -> None:
        """The automaton has begun anew."""
        self._reading.restart(self._log.n_tokens)

    def close(self) -> None:
        """The session is over."""
        self._shared.leave(self)
        if self._asking is not None:
            self._asking.close()

    def _introduce(self, tables: dict[str, SessionTables]) -> None:
        """Tell the loops who speaks and who learns, and where their tables are."""
        starts, library = self._shared.chances[False].starts, self._shared.library
        voices: list[tuple[int, int, int]] = []
        readers: list[tuple[int, int]] = []
        learners: list[tuple[int, int]] = []
        for key, drafter in self._shared.drafters.items():
            for voice in drafter.voices:
                voices.append((library.address(voice.speak), tables[key].address, starts[len(voices)]))
            if drafter.learn is not None:
                learners.append((library.address(drafter.learn), tables[key].address))
            if drafter.read is not None:
                readers.append((library.address(drafter.read), tables[key].address))
        self._voices = np.array(voices, np.int64).reshape(-1, 3)
        self._readers = np.array(readers, np.int64).reshape(-1, 2)
        self._learners = np.array(learners, np.int64).reshape(-1, 2)
        self._fields["voices"], self._fields["n_voices"] = self._voices.ctypes.data, len(voices)
        self._fields["readers"], self._fields["n_readers"] = self._readers.ctypes.data, len(readers)
        self._fields["learners"], self._fields["n_learners"] = self._learners.ctypes.data, len(learners)

    def begin(self, history: Sequence[int], *, sampled: bool) -> None:
        """A text to continue, of which more or less may be known."""
        self._log.begin(history)
        self._shared.make_room(self)
        for tables in self._tables.values():
            tables.reserve(self._log.n_tokens)
        self._chances = self._shared.chances[sampled]
        self._fields["chances"] = self._chances.address
        self._fields["costs"] = self._shared.costs.address
        self._shared.costs.begin()
        self._begin_report()

    def draft(self, history: Sequence[int], most: int, deepest: int) -> Draft:
        """The tree that should give most tokens per second: `most` tokens at most, `deepest` after the root."""
        started = time.perf_counter()
        log, fixed = self._log, self._shared.fixed
        log.follow(history)
        self._shared.costs.move(len(history) - 1)
        if fixed is not None:
            most = min(most, fixed)
        elif self._shared.costs.wants_single:
            most = 1
        WANTED.pack_into(self._bytes, WANTED_AT, log.n_tokens, self._shared.n_vocab, min(most, MOST), deepest)
        if self._asking is not None:
            self._asking.begin()
        n_nodes = self._shared.grow(self._address)
        if self._asking is not None and self._asking.ask(history, self._chances, self._offer(n_nodes, most, deepest)):
            n_nodes = self._shared.grow(self._address)
        draft = Draft(self._arrays["tokens"][:n_nodes].copy(), self._arrays["parents"][:n_nodes].copy())
        self._seconds += time.perf_counter() - started
        return draft

    def _offer(self, n_nodes: int, most: int, deepest: int) -> Offer:
        """What the tree gives as it is."""
        costs = self._shared.costs
        most_asked, is_fixed = min(most - 1, deepest), self._shared.fixed is not None
        expected: float = EXPECTED.unpack_from(self._bytes, EXPECTED_AT)[0]
        return Offer(expected, float(costs.curve[n_nodes]), costs, most_asked, is_fixed)

    def look(self, draft: Draft, logits: Floats, peaks: Floats | None) -> list[int]:
        """Find the highest logits of all nodes."""
        started = time.perf_counter()
        where = (0, 0) if peaks is None else (peaks.ctypes.data, peaks.strides[0])
        LOGITS.pack_into(self._bytes, LOGITS_AT, logits.ctypes.data, logits.strides[0], *where)
        self._shared.look(self._address)
        likeliest: list[int] = self._arrays["likeliest"][: len(draft.tokens)].tolist()
        self._seconds += time.perf_counter() - started
        return likeliest

    def learn(self, draft: Draft, walked: Walk, seconds: float) -> None:
        """Count what was right, and keep the highest logits of all nodes."""
        started = time.perf_counter()
        arrays = self._arrays
        n_path, n_nodes = len(walked.path), len(draft.tokens)
        arrays["path"][:n_path] = walked.path
        arrays["chosen"][:n_path] = walked.tokens
        N_PATH.pack_into(self._bytes, N_PATH_AT, n_path)
        self._shared.learn(self._address)
        asked_s = 0.0 if self._asking is None else self._asking.seconds
        self._shared.costs.observe(n_nodes, seconds - asked_s)
        self._n_passes += 1
        self._n_single += n_nodes == 1
        self._n_expected += EXPECTED.unpack_from(self._bytes, EXPECTED_AT)[0]
        self._seconds += time.perf_counter() - started

    def sources(self, path: Int32s) -> list[str | None]:
        """The voice that each node of a path after the root owes its place to."""
        voices, sources = self._shared.voices, self._arrays["sources"]
        return [voices[voice].name if voice >= 0 else None for voice in sources[path[1:]].tolist()]

    def take_notices(self) -> tuple[str, ...]:
        """What has happened to the draft model since this was last asked."""
        model = self._shared.draft_model
        return () if model is None else model.take_notices()

    def report(self) -> DraftReport:
        """The numbers of the text since `begin`."""
        counts = self._arrays["tally"].tolist()
        sources = {
            voice.name: SourceCount(proposed, accepted)
            for voice, (proposed, accepted) in zip(self._shared.voices, counts, strict=False)
        }
        return DraftReport(
            sources, self._seconds, self._n_passes, self._n_single, self._n_expected, self._shared.costs.single_s
        )

    def _begin_report(self) -> None:
        self._arrays["tally"].fill(0)
        self._seconds, self._n_passes, self._n_single, self._n_expected = 0.0, 0, 0, 0.0

    def _log_moved(self, log: TokenLog) -> None:
        self._fields["log"] = log.address
        for tables in self._tables.values():
            tables.follow(log)
