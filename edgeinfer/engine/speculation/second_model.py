"""Opening a draft model: a second model with the same vocabulary, on the device of the model that it drafts for.

In: the sources that the user wants to draft from. Out: the text sources among them, and a `DraftModel`. A source is a
model if it is a GGUF file, or if it is not a path but the name of a model on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import limits_for, limits_with_states, memory_for_model, memory_need
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.speculation.draft_model import DraftModel
from edgeinfer.errors import BadSetting, ModelNotFound
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model, open_model, spec_of
from edgeinfer.models.store import ModelStore
from edgeinfer.models.text import Vocabulary, vocabulary_of
from edgeinfer.scheduling.cost.memory import require_fit
from edgeinfer.steps import Progress, no_progress

CPU = "cpu"
MAGIC = b"GGUF"
MOST_SPARE = 128
"""Tokens at the end that one vocabulary may have beyond the other: models of a family are padded differently."""


def split_sources(sources: Sequence[str | Path]) -> tuple[tuple[Path, ...], Path | None]:
    """The files and folders of text, and the draft model if one is among them. Raises BadSetting for a second one."""
    texts: list[Path] = []
    models: list[Path] = []
    for source in map(Path, sources):
        path = source if source.exists() else _named(source)
        (models if _is_model(path) else texts).append(path)
    if len(models) > 1:
        raise BadSetting(
            f"draft-from names two models, {models[0]} and {models[1]}: give one, the smallest that is good"
        )
    return tuple(texts), models[0] if models else None


def draft_bytes(sources: Sequence[str | Path], room: Limits) -> int:
    """From its header, the memory of a draft model among `sources` beside one on the cpu with limits `room`; or 0.

    Raises BadSetting, and whatever opening a model raises.
    """
    path = split_sources(sources)[1]
    if path is None:
        return 0
    with open_model(path) as model:
        spec, limits = _cut(model, room)
        need = memory_need(CPU, spec, model.file.tensors, limits)
    return need.weight_bytes + need.kv_bytes + need.buffer_bytes


def _cut(model: Model, room: Limits) -> tuple[ModelSpec, Limits]:
    """Open a draft model with the other model's context, if it supports that length, for as many sessions."""
    n_sessions = max(1, room.n_pages // pages_for(room.n_context))
    n_context = min(model.spec.n_context_trained, room.n_context)
    spec = spec_of(model.file.metadata, model.file.tensors, n_context)
    return spec, limits_for(n_context, n_sessions, room.kv, spec)


def open_draft_model(
    path: Path, vocabulary: Vocabulary, executor: SequenceEvaluator, progress: Progress = no_progress
) -> DraftModel:
    """Open a draft model beside the model of `executor`, which has this vocabulary.

    Raises BadSetting for a different vocabulary, DoesNotFit, and whatever opening a model raises.
    """
    model = open_model(path)
    try:
        own = vocabulary_of(model.file.metadata)
        n_known = _known_tokens(path, own, vocabulary)
        spec, limits = _cut(model, executor.limits)
        available, tensors = memory_for_model(), model.file.tensors
        limits = limits_with_states(executor.device, spec, tensors, limits, available)
        require_fit(memory_need(executor.device, spec, tensors, limits), available)
        print_of_model = fingerprint(model.file)
        beside = executor.beside(spec, model.file, print_of_model, limits, progress)
        model.file.release()
    except BaseException:
        model.close()
        raise
    return DraftModel(beside, print_of_model, n_known, model.close)


def _named(source: Path) -> Path:
    """The file of the model with this name, else the path unchanged: reading it will report the error."""
    try:
        return ModelStore().find(str(source)).path
    except ModelNotFound:
        return source


def _is_model(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _known_tokens(path: Path, own: Vocabulary, other: Vocabulary) -> int:
    """The number of tokens that are the same in both vocabularies, with the same ids.

    Raises BadSetting if they differ.
    """
    n_known = min(own.n_tokens, other.n_tokens)
    differing = next((token for token in range(n_known) if own.tokens[token] != other.tokens[token]), None)
    if differing is not None:
        found = f"token {differing} is {own.tokens[differing]!r} there and {other.tokens[differing]!r} here"
    elif own.model != other.model or abs(own.n_tokens - other.n_tokens) > MOST_SPARE:
        found = f"{own.n_tokens} tokens of kind {own.model} there, {other.n_tokens} of kind {other.model} here"
    else:
        return n_known
    raise BadSetting(
        f"{path.name} cannot draft for this model, for its vocabulary is another one: {found}; give a smaller model of "
        "the same family"
    )
