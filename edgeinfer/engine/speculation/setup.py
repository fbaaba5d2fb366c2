"""From the user's speculation options to the drafts of a loaded model.

In: an executor, and options. Out: `ModelDrafts`, or None if nothing is to be drafted.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.pool import FairLock
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.draft_model import DraftModel, open_draft_model, split_sources
from edgeinfer.engine.speculation.drafters import DRAFTERS
from edgeinfer.engine.speculation.drafts import ModelDrafts, loops_library, loops_of
from edgeinfer.engine.speculation.files import DraftFolder, file_texts
from edgeinfer.engine.speculation.heads import HeadInFile
from edgeinfer.engine.speculation.kept_costs import KeptCosts
from edgeinfer.engine.speculation.priming import Priming
from edgeinfer.engine.speculation.self_draft import SelfDraft, drafts_itself, self_budget
from edgeinfer.errors import DoesNotFit, UnsupportedModel
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.machine.topology import usable_cores
from edgeinfer.settings import Spec
from edgeinfer.steps import COMPILING, Progress, no_progress

BEGINNING = "\n"
"""Text before each token when its successors are primed: the first token of a text attracts special attention, so what
a model predicts after a lone token is not what it predicts within a text.
"""
NOT_EXACT = (
    "drafting on {} is not bit-exact: it rounds passes of several tokens otherwise than single ones, so that answers "
    "can differ from those without drafting where two tokens are nearly as likely"
)
FOR_TWO = 4
"""Number of cores from which on two processes compile loops."""
LOOK_S = 0.2
"""Seconds between checks of how far compiling is."""


class Loops:
    """The compiled loops of speculation, loaded or compiled by a thread and its processes while a model loads."""

    def __init__(self, *, alone: bool = False) -> None:
        """`alone`: no kernels are being compiled at the same time."""
        self._library = loops_library()
        n_processes = 2 if alone or len(usable_cores()) >= FOR_TWO else 1
        self._report = COMPILING, 0, 0
        wanted = loops_of(DRAFTERS.entries()), n_processes, self._note
        self._thread = threading.Thread(target=self._library.prepare, args=wanted, name="loops", daemon=True)
        self._thread.start()

    def library(self, progress: Progress = no_progress) -> KernelLibrary:
        """The library with all loops that could be compiled; waits for it, and reports progress meanwhile."""
        reported: tuple[str, int, int] | None = None
        while self._thread.is_alive():
            self._thread.join(LOOK_S)
            if self._thread.is_alive() and (report := self._report) != reported and report[2]:
                progress(*report)
                reported = report
        return self._library

    def must_measure(self, load: LoadOptions, executor: SequenceEvaluator, fingerprint: str) -> bool:
        """Whether costs of passes are unknown, and may be measured after an answer."""
        if load.race != "after" or load.isolate or not executor.batch_invariant or not _is_plain(load):
            return False
        return not KeptCosts(self.library(), executor, fingerprint).are_known

    def _note(self, what: str, done: int, total: int) -> None:
        self._report = what, done, total


def drafts_for(
    executor: SequenceEvaluator,
    tokenizer: Tokenizer,
    fingerprint: str,
    load: LoadOptions,
    loops: Loops | None,
    progress: Progress = no_progress,
    head: HeadInFile | None = None,
) -> tuple[ModelDrafts | None, tuple[str, ...]]:
    """Drafts for all sessions of a model, or None if nothing is to be drafted; and notices for the user.

    A draft model or head that does not fit beside the model is left out.
    `loops`: None if speculation is off. `head`: a trained head, which drafts in place of a draft model.
    Raises BadSetting for unusable files to draft from, and as `open_draft_model`.
    """
    text_paths, model_path = split_sources(load.draft_from)
    texts, notice = file_texts(text_paths, tokenizer)
    if loops is None:
        return None, ()
    if load.spec == "auto" and not executor.batch_invariant:
        if head is not None:
            head.close()
        return None, ()
    library = loops.library(progress)
    if load.verify_cost:
        costs = Costs(load.verify_cost, corrected=False)
    elif isinstance(load.spec, int):
        costs = Costs({}, corrected=False)
    else:
        costs = Costs.of(KeptCosts(library, executor, fingerprint).known(tokenizer.n_tokens, progress))
    draft_model: DraftModel | None = None
    folder = fingerprint
    notices: tuple[str, ...] = () if notice is None else (notice,)
    if head is not None:
        try:
            draft_model = head.open(executor, tokenizer.vocabulary, progress)
            folder += f"-head-{draft_model.fingerprint}" if head.is_own else "-head"
        except (DoesNotFit, UnsupportedModel) as reason:
            own = head.file.path.name if head.is_own else "the model's own head"
            notices += (f"nothing is drafted by {own}: {reason}",)
    elif model_path is not None:
        try:
            draft_model = open_draft_model(model_path, tokenizer.vocabulary, executor, progress)
            folder += f"-{draft_model.fingerprint}"  # what is learned with it is useless without it
        except DoesNotFit as reason:
            notices += (f"nothing is drafted by {model_path.name}: {reason}",)
    elif drafts_itself(executor, load):
        draft_model = SelfDraft(executor, fingerprint, tokenizer.n_tokens, self_budget(load))
    fixed, branches = _fixed(load.spec), executor.limits.branches
    given = library, tokenizer.n_tokens, costs, fixed, progress, draft_model
    drafts = ModelDrafts(*given, branches=branches, may_rest=load.spec == "auto" and not load.verify_cost)
    if texts:
        drafts.read_files(texts)
    drafts.remember(DraftFolder(folder, f"{drafts.layout} {tokenizer.n_tokens}"), texts=load.history)
    if not executor.batch_invariant:
        notices += (NOT_EXACT.format(executor.device),)
    return drafts, notices


class LaterDrafts:
    """Drafts of a model that starts to answer before the drafting code is compiled or the costs of passes are known."""

    def __init__(
        self,
        executor: SequenceEvaluator,
        tokenizer: Tokenizer,
        fingerprint: str,
        load: LoadOptions,
        head: HeadInFile | None = None,
    ) -> None:
        self._given = executor, tokenizer, fingerprint, load
        self._head = head
        self._loops: Loops | None = None

    def compile(self, progress: Progress) -> None:
        """Compile what is missing; may be called again."""
        if self._loops is None:
            self._loops = Loops(alone=True)
        self._loops.library(progress)

    def drafts(self) -> ModelDrafts | None:
        """The drafts. Runs passes; only one pass may run at a time."""
        return drafts_for(*self._given, self._loops, head=self._head)[0]


@dataclass(frozen=True, slots=True)
class ModelDrafting:
    """How a loaded model drafts: from `drafts`; or `later`, once they are compiled; None: not at all.

    `primes`: the table of likely successors is computed in idle time.
    """

    drafts: ModelDrafts | None = None
    later: LaterDrafts | None = None
    primes: bool = False


def may_draft_later(load: LoadOptions) -> bool:
    """Whether loops must be compiled first, and starting without drafts costs nothing but speed."""
    return _is_plain(load) and not loops_library().has(loops_of(DRAFTERS.entries()))


def _is_plain(load: LoadOptions) -> bool:
    return load.spec == "auto" and not load.draft_from and not load.verify_cost


def _fixed(spec: Spec) -> int | None:
    """Number of tokens of every pass; None if it is chosen per pass."""
    return spec if isinstance(spec, int) else None


def priming_of(executor: SequenceEvaluator, tokenizer: Tokenizer, drafts: ModelDrafts) -> Priming:
    """An object that computes the successor table of a model."""
    beginning = tokenizer.encode(BEGINNING)
    if tokenizer.vocabulary.add_eos:
        beginning.pop()
    return Priming(executor, drafts.library, drafts.n_vocab, beginning)


def prime_all(drafts: ModelDrafts, priming: Priming, lock: FairLock, progress: Progress) -> None:
    """Compute all missing rows of a table now and keep it; requests run between parts. Raises what `progress` does."""
    while True:
        progress("asking for successors of every token", drafts.n_primed, drafts.n_vocab)
        with lock:
            rows = priming.rows(drafts.n_primed)
        if not len(rows):
            break
        drafts.prime(drafts.n_primed, rows)
    drafts.keep_primed()
