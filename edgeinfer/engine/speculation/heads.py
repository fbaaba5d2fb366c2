"""A trained head, inside a model's file or in one of its own: finding it, its memory, and opening it.

In: options, the open model. Out: a `DraftModel`, which `head_model` runs, or `head_chain` if a file has several blocks
that guess one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import limits_for, memory_for_model, memory_need, with_budget
from edgeinfer.engine.run.evaluators import SequenceEvaluator, Subject
from edgeinfer.engine.speculation.draft_model import (
    CPU,
    DraftModel,
    draft_bytes,
    draft_work,
    known_tokens,
    split_sources,
)
from edgeinfer.engine.speculation.head_chain import HeadChain
from edgeinfer.engine.speculation.head_model import Head, waiting_bytes
from edgeinfer.engine.speculation.self_draft import self_draft_bytes
from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.step import Int32s
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import OpenHead, head_in, open_head
from edgeinfer.models.text import Vocabulary, vocabulary_of
from edgeinfer.models.trained_heads import TrainedHead, with_hidden
from edgeinfer.scheduling.cost.drafter import PlannedDrafter
from edgeinfer.scheduling.cost.memory import MemoryNeed, require_fit
from edgeinfer.steps import Progress, no_progress

I64 = 27
"""GGUF's number for whole numbers of 64 bits."""
TOKENS = "tokenizer.ggml.tokens"

SHOWING = (CPU, "reference")
"""Devices that show the hidden rows that heads read."""


def chosen_head(subject: Subject, load: LoadOptions, n_context: int) -> OpenHead | None:
    """The trained head to draft with: that of a file to draft from, else that inside the model's file; None without.

    A draft model takes its place. Texts with rows of numbers have positions that drafts know nothing of. Raises as
    `open_head` and `split_sources`, and BadSetting for a head in a file of its own that the options leave no use for.
    """
    assert subject.spec is not None
    if load.spec == "off":
        return None
    changed = load.isolate or subject.rows or subject.approx.threshold is not None
    is_usable, path = load.device in SHOWING and not changed, split_sources(load.draft_from)[1]
    if path is None:
        is_asked = load.self_draft in ("auto", "off")  # else the model was asked to draft for itself
        return _head_inside(subject.gguf, n_context) if is_usable and is_asked else None
    found = open_head(path, subject.gguf, subject.spec, n_context)
    if found is not None and not is_usable:
        found.file.close()
        raise BadSetting(
            f"{path.name} is a trained head, which reads what the model computes: it drafts with --device cpu, without "
            "--isolate, --approx and rows of numbers"
        )
    return found


def _head_inside(file: GGUFFile, n_context: int) -> OpenHead | None:
    """The head inside a model's file; one that edgeinfer cannot run does not keep the model from being opened."""
    try:
        head = head_in(file.metadata, file.tensors, n_context)
    except (BadGGUF, UnsupportedModel):
        return None
    return None if head is None else OpenHead(head, file)


def showing_rows(spec: ModelSpec, head: OpenHead | None) -> ModelSpec:
    """The model with the rows that a head reads in a buffer; the same without a head. Raises as `with_hidden`."""
    return spec if head is None else with_hidden(spec, head.head.taps, is_normed=head.head.is_normed)


def planned_drafter(file: GGUFFile, spec: ModelSpec, load: LoadOptions, n_context: int) -> PlannedDrafter:
    """What will draft for a model, from the headers. Raises as these parts do."""
    load = replace(load, device=CPU if load.device == "auto" else load.device)
    subject = Subject(file, spec, "", approx=load.approximation, rows=load.rows)
    if load.small_model is not None:
        n_bytes = draft_bytes([load.small_model], limits_for(n_context, load.n_sessions, load.kv, spec))
        return PlannedDrafter(n_bytes, writes=f"{Path(load.small_model).name} writes (--hand-over {load.hand_over})")
    found = chosen_head(subject, load, n_context)
    head = HeadInFile.of(replace(subject, head=found))
    room = limits_for(n_context, load.n_sessions, load.kv, spec)
    if head is None:
        if load.spec == "off":
            return PlannedDrafter()
        if own_bytes := self_draft_bytes(subject, load, with_budget(room, spec, load.approximation.kv)):
            return PlannedDrafter(own_bytes, is_itself=True)
        return PlannedDrafter(draft_bytes(load.draft_from, room), work=draft_work(load.draft_from))
    try:
        need = head.need(load.device, room, all_stay=True)
        plain, shown = (
            memory_need(load.device, each, file.tensors, room) for each in (spec, showing_rows(spec, found))
        )
        need = need.with_waiting(shown.buffer_bytes - plain.buffer_bytes)
        return PlannedDrafter(need.beside_bytes, need.waiting_bytes)
    finally:
        head.close()


@dataclass(frozen=True, slots=True)
class HeadInFile:
    """A trained head, and the file that holds it. `shared`: weights that the model has in memory too.

    `is_own`: the file is not its model's.
    """

    head: TrainedHead
    file: GGUFFile
    shared: frozenset[Weight]
    is_own: bool

    @classmethod
    def of(cls, subject: Subject) -> HeadInFile | None:
        """The head of a model, if it is used."""
        if subject.head is None or subject.spec is None:
            return None
        is_own = subject.head.file is not subject.file
        shared = frozenset[Weight]() if is_own else frozenset(subject.spec.matrices())
        return cls(subject.head.head, subject.head.file, shared, is_own)

    def need(self, device: str, room: Limits, *, all_stay: bool) -> MemoryNeed:
        """Its memory beside its model, whose limits are `room`, from the header, with rows that wait to be read.

        `all_stay`: all weights of the model stay in memory, so that those of both are there once.
        """
        held, limits, found = set(self.shared if all_stay else ()), self.limits(room), None
        for head in self.head.blocks:
            need = memory_need(device, head.spec.without_products(held), self.file.tensors, limits)
            held |= set(head.spec.matrices())  # of one file, so packed once for all blocks
            found = need if found is None else found.with_other(need)
        assert found is not None
        return found.with_waiting(waiting_bytes(self.head, _sessions_of(room), room.max_tokens))

    def close(self) -> None:
        """Close the file, unless it is the model's."""
        if self.is_own:
            self.file.close()

    def limits(self, room: Limits) -> Limits:
        """Its limits beside its model, whose limits are `room`: the same context, for as many sessions."""
        return limits_for(room.n_context, _sessions_of(room), room.kv, self.head.spec)

    def open(self, executor: SequenceEvaluator, vocabulary: Vocabulary, progress: Progress = no_progress) -> DraftModel:
        """Open it beside its model, which has this vocabulary. A file of its own is closed with it, or if that fails.

        Raises DoesNotFit, BadSetting for a head with another vocabulary, and UnsupportedModel where the device shows no
        hidden rows.
        """
        heads: list[Head] = []
        try:
            if executor.capabilities.showing is None:
                raise UnsupportedModel(f"{executor.device} does not show the hidden rows that a head reads")
            if self.is_own and TOKENS in self.file.metadata:
                known_tokens(self.file.path, vocabulary_of(self.file.metadata), vocabulary)
            self._check_embedding(vocabulary.n_tokens)
            all_stay = executor.limits.stored is None
            require_fit(self.need(executor.device, executor.limits, all_stay=all_stay), memory_for_model())
            tokens, limits, own = (
                self._tokens(vocabulary.n_tokens),
                self.limits(executor.limits),
                fingerprint(self.file),
            )
            for block in self.head.blocks:
                beside = executor.beside(block.spec, self.file, own, limits, progress)
                heads.append(Head(beside, own, block, tokens, _nothing if heads else self.close))
        except BaseException:
            for head in reversed(heads):
                head.close()
            self.close()
            raise
        return heads[0] if len(heads) == 1 else HeadChain(heads, heads[0].executor)

    def _check_embedding(self, n_tokens: int) -> None:
        """Raises BadSetting for a head that cannot read all tokens of the model."""
        n_read = min(op.weight.n_rows for block in self.head.blocks for op in block.spec.ops() if isinstance(op, Embed))
        if n_read < n_tokens:
            raise BadSetting(
                f"{self.file.path.name} cannot draft for this model: it has rows for {n_read} tokens, and the model "
                f"has {n_tokens}; give the head made for it"
            )

    def _tokens(self, n_tokens: int) -> Int32s:
        """The model's token for each of the head's. Raises BadGGUF if there are no such tokens."""
        if not self.head.vocabulary:
            return np.arange(min(self.head.spec.n_vocab, n_tokens), dtype=np.int32)
        info = self.file.tensors[self.head.vocabulary]
        if info.ggml_type != I64:
            raise BadGGUF(f"{self.head.vocabulary} is not of whole numbers of 64 bits, as converters write it")
        found = np.frombuffer(self.file.raw(self.head.vocabulary), np.int64)
        if len(found) and not 0 <= found.min() <= found.max() < n_tokens:
            raise BadGGUF(f"{self.head.vocabulary} names tokens beyond the {n_tokens} of the model")
        return found.astype(np.int32)


def _sessions_of(room: Limits) -> int:
    """The number of sessions that limits have room for."""
    return max(1, room.n_pages // pages_for(room.n_context))


def _nothing() -> None:
    """Close nothing more."""
