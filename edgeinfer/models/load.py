"""Opening a model: from a GGUF file, or its header alone, to a ModelSpec that can be run.

In: a path, or metadata and tensor table. Out: a `Model`, a `ModelSpec`, exact weight sizes. Checks that everything the
spec reads is present and readable, and that the spec uses everything in the file. Reads no weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from types import TracebackType

from edgeinfer.adapter_choice import AdapterChoice
from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.models import eagle3, gemma4_assistant
from edgeinfer.models.adapters import with_adapters
from edgeinfer.models.architectures import architecture_of
from edgeinfer.models.gguf import GGUFFile, Metadata, TensorInfo
from edgeinfer.models.gguf.adapter import DOWN, EMBEDDING, Adapter
from edgeinfer.models.hyperparameters import COUNT_MAX, Hyperparameters
from edgeinfer.models.quants import format_of
from edgeinfer.models.sizes import GUESSING, LAYERS_MAX
from edgeinfer.models.trained_heads import TrainedHead, has_head, in_chain
from edgeinfer.models.variants import with_block_budget, with_rows, with_threshold

UNREAD = re.compile(
    r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.attn_rot_embd\..*|adapter\.\d+\..*\.transposed"
)
"""Tensors that a model may have without reading them: rotary tables not selected by its context, what outputs need."""
IMAGE_READER = "what reads images"
"""The part of which a model that uses it is told nothing."""
PARTS = {
    IMAGE_READER: re.compile(r"(v|mm)\..*"),
    "what reads sound": re.compile(r"a\..*"),
    "norms of LoRA adapters": re.compile(r"adapter\.\d+\..*_norm\.weight"),
    "blocks that predict tokens after the next one (MTP)": re.compile(r"blk\.(\d{1,9})\..*|mtp\..*"),
}
"""Optional parts of a model, not needed for its answers, by their tensors; blocks are those after its layers."""
WIDTH = "embedding_length"
BORROWED = ("token_embd.weight", "output.weight", "output_norm.weight")
"""Tensors of a model that a trained head uses too."""
HEAD_KINDS = (eagle3.KEY, gemma4_assistant.KEY)
"""Architectures of files that hold a trained head alone."""


@dataclass(frozen=True, slots=True)
class Model:
    """An open file with its spec; closing it closes the file."""

    file: GGUFFile
    spec: ModelSpec

    def close(self) -> None:
        """Close the file; the spec stays usable."""
        self.file.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class OpenHead:
    """A trained head and the file that holds it: its model's, or its own."""

    head: TrainedHead
    file: GGUFFile


def open_model(
    path: str | Path,
    n_context: int | None = None,
    approx: float | None = None,
    *,
    rows: bool = False,
    adapters: Sequence[AdapterChoice] = (),
    block_budget: int | None = None,
) -> Model:
    """Open a GGUF model to run with `n_context` tokens (default: the context it was trained with).

    `approx`: a threshold below which activations count as zero. `rows`: prepare it for rows of numbers besides token
    ids. `adapters`: LoRA adapters that are added to its products. `block_budget`: positions that blocks of prompts
    attend to. Raises ModelNotFound, BadGGUF, UnsupportedModel, and
    BadSetting for an impossible context or threshold.
    """
    file = GGUFFile.open(path, adapters)
    try:
        opened = file.adapters
        how = file.metadata, file.tensors, n_context, approx
        return Model(file, spec_of(*how, rows=rows, adapters=opened, block_budget=block_budget))
    except BaseException:
        file.close()
        raise


def spec_of(
    metadata: Metadata,
    tensors: Mapping[str, TensorInfo],
    n_context: int | None = None,
    approx: float | None = None,
    *,
    rows: bool = False,
    adapters: Sequence[Adapter] = (),
    block_budget: int | None = None,
) -> ModelSpec:
    """The spec of the model described by a header. Works without the weights. Raises as `open_model` does."""
    if n_context is not None and not 0 < n_context <= COUNT_MAX:
        raise BadSetting(f"a context of {n_context} tokens is impossible; give a number from 1 to {COUNT_MAX}")
    kind = metadata.text("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"the file is of type {kind[:80]!r}, not a model that can be run by itself")
    if not tensors:
        raise BadGGUF(
            "the file holds no tensors, only metadata and a vocabulary; get the file with the model's weights"
        )
    architecture = architecture_of(metadata.text("general.architecture"))
    header = Hyperparameters(metadata, tensors, 0)
    trained = header.integer("context_length")
    hp = Hyperparameters(metadata, tensors, n_context or trained)
    spec = architecture.build(hp)
    if n_context is not None and spec.limit is not None and n_context > spec.limit.n_tokens:
        raise BadSetting(
            f"a context of {n_context} tokens is impossible: {spec.limit.reason}; choose {spec.limit.n_tokens} or less"
        )
    if adapters:
        spec = with_adapters(spec, tensors, adapters)
        if rows and any(f"{adapter.prefix}{EMBEDDING}{DOWN}" in tensors for adapter in adapters):
            raise BadSetting(
                "a LoRA adapter changes the embedding, in place of which rows are given; merge it into the model"
            )
    _check_tensors(spec, tensors, header.integer("block_count"), re.compile(architecture.unread))
    if rows:
        whole = None if architecture.whole is None else architecture.whole(hp)
        spec = with_rows(spec, hp, architecture.axes, whole)
    spec = spec if block_budget is None else with_block_budget(spec, block_budget)
    return spec if approx is None else with_threshold(spec, approx)


def head_in(metadata: Metadata, tensors: Mapping[str, TensorInfo], n_context: int | None = None) -> TrainedHead | None:
    """The trained head in a file, a model's or its own; None if it has none, or none that edgeinfer can run.

    Raises BadGGUF for a head of impossible sizes, UnsupportedModel for one with weights of an unknown format.
    """
    key, header = metadata.text("general.architecture"), Hyperparameters(metadata, tensors, 0)
    build = eagle3.build if key == eagle3.KEY else architecture_of(key).head
    if build is None or (key != eagle3.KEY and not has_head(header)):
        return None
    hp = Hyperparameters(metadata, tensors, n_context or header.integer("context_length"))
    if key == eagle3.KEY:
        head = build(hp)
    else:
        numbered = (replace(hp, guess=number) for number in range(hp.integer(GUESSING, most=LAYERS_MAX)))
        head = in_chain([build(each) for each in takewhile(has_head, numbered)])
    _check_formats(_names_of_head(head), tensors)
    return head


def head_bytes(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of a model's file that only its trained heads read; 0 if there are none that edgeinfer can run."""
    try:
        head = head_in(metadata, tensors)
    except (BadGGUF, UnsupportedModel):
        return 0
    own = set() if head is None else _names_of_head(head) - set(BORROWED)
    return sum(tensors[name].nbytes for name in own)


def is_head_alone(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether a file has a trained head and no model: of a kind of its own, or one split from its model's file."""
    if metadata.text("general.architecture", "") in HEAD_KINDS:
        return True
    header = Hyperparameters(metadata, tensors, 0)
    return header.has(GUESSING) and "blk.0.attn_norm.weight" not in tensors and has_head(header)


def open_head(path: str | Path, model: GGUFFile, spec: ModelSpec, n_context: int) -> OpenHead | None:
    """The trained head in a file of its own, opened for a model; None if the file is no head. Close the file.

    Embeddings and output product may be the model's. Raises as `open_model`, and BadSetting for another model's head.
    """
    borrowed = {**{name: name for name in BORROWED}, gemma4_assistant.EMBEDDING: "token_embd.weight"}
    file = GGUFFile.open_beside(path, model, borrowed)
    try:
        if is_head_alone(file.metadata, file.tensors):
            _check_partner(file, model, spec)
            head = _head_for(file, spec, n_context)
            if head is None:
                raise UnsupportedModel(f"{file.path.name} is a trained head of a kind that edgeinfer does not run")
            return OpenHead(head, file)
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _head_for(file: GGUFFile, model: ModelSpec, n_context: int) -> TrainedHead | None:
    """The head of a file of its own, for a model. Raises as `head_in`, and BadSetting for another model's head."""
    if file.metadata.text("general.architecture") != gemma4_assistant.KEY:
        return head_in(file.metadata, file.tensors, n_context)
    head = gemma4_assistant.build(Hyperparameters(file.metadata, file.tensors, n_context), model)
    _check_formats(_names_of_head(head), file.tensors)
    return head


def _check_partner(file: GGUFFile, model: GGUFFile, spec: ModelSpec) -> None:
    """Raises BadSetting if a head was made for a model of other sizes or another family."""
    key, hp = file.metadata.text("general.architecture"), Hyperparameters(file.metadata, file.tensors, 0)
    width = hp.integer({eagle3.KEY: "target_hidden_size", gemma4_assistant.KEY: gemma4_assistant.WIDTH}.get(key, WIDTH))
    taps = eagle3.tap_layers(hp) if key == eagle3.KEY else ()
    own, reason = model.metadata.text("general.architecture"), ""
    made_for = gemma4_assistant.MODEL_KEY if key == gemma4_assistant.KEY else key
    if key != eagle3.KEY and made_for != own:
        reason = f"it is of a {made_for}, and the model is a {own}"
    elif width != spec.width:
        reason = f"it reads hidden rows of {width} numbers, and the model has {spec.width}"
    elif any(layer >= spec.n_layers for layer in taps):
        reason = f"it reads rows of layer {max(taps)}, and the model has {spec.n_layers} layers"
    if reason:
        raise BadSetting(f"{file.path.name} cannot draft for this model: {reason}; give the head made for it")


def left_out(
    spec: ModelSpec,
    metadata: Metadata,
    tensors: Mapping[str, TensorInfo],
    head: OpenHead | None = None,
    *,
    reads_images: bool = False,
) -> tuple[str, ...]:
    """Descriptions of the parts of a file that edgeinfer leaves out. `head`: the one that is used.

    `reads_images`: its own projector is used.
    """
    used = set() if head is None else _names_of_head(head.head)
    n_blocks = Hyperparameters(metadata, tensors, 0).integer("block_count")
    found = (_part(name, spec.n_layers, n_blocks) for name in tensors if name not in used)
    parts = dict.fromkeys(part for part in found if part is not None)
    return tuple(part for part in parts if not (reads_images and part == IMAGE_READER))


def _part(tensor: str, n_layers: int, n_blocks: int) -> str | None:
    """The optional part that a tensor belongs to, if any."""
    for part, pattern in PARTS.items():
        found = pattern.fullmatch(tensor)
        if found is not None and (not tensor.startswith("blk.") or n_layers <= int(found.group(1)) < n_blocks):
            return part
    return None


def weight_bytes(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of the file that the spec's ops read, each tensor counted once (a tied head adds nothing)."""
    return sum(tensors[name].nbytes for name in _names(spec))


def _names(spec: ModelSpec) -> set[str]:
    """Names of the tensors that the ops read."""
    factors = {op.table.factors for op in spec.ops() if isinstance(op, Rope) and op.table.factors is not None}
    beside = (*spec.dense, *(() if spec.rank is None else spec.rank.weights()))
    return {weight.tensor for weight in (*spec.weights(), *beside)} | factors


def _names_of_head(head: TrainedHead) -> set[str]:
    """Names of the tensors that a head's blocks read."""
    return set[str]().union(*(_names(block.spec) for block in head.blocks))


def _unused_keys(spec: ModelSpec) -> set[str]:
    """Tensors of keys and values that Gemma 3n's files hold for layers that attend to those of others."""
    stores = {stage.name for stage in spec.stages if any(isinstance(op, StoreKV) for op in stage.ops)}
    attends = {stage.name for stage in spec.stages if any(isinstance(op, Attention) for op in stage.ops)}
    return {f"{name}.attn_{part}.weight" for name in attends - stores for part in ("k", "v", "k_norm")}


def _check_formats(names: Collection[str], tensors: Mapping[str, TensorInfo]) -> None:
    """Raises UnsupportedModel for a tensor, one of those read, without a supported quant format."""
    for name, info in tensors.items():
        if name in names:
            try:
                format_of(info.ggml_type)
            except UnsupportedModel as error:
                raise UnsupportedModel(f"{name}: {error}") from None


def _check_tensors(spec: ModelSpec, tensors: Mapping[str, TensorInfo], n_blocks: int, unread: re.Pattern[str]) -> None:
    """Raises UnsupportedModel for a tensor that is read but has no supported quant format, or that no op reads."""
    names, unused = _names(spec), _unused_keys(spec)
    _check_formats(names, tensors)
    for name in tensors:
        if (
            name not in names
            and name not in unused
            and not UNREAD.fullmatch(name)
            and not unread.fullmatch(name)
            and _part(name, spec.n_layers, n_blocks) is None
        ):
            raise UnsupportedModel(
                f"the file has a tensor {name[:80]!r} that edgeinfer's {spec.architecture} does not use: "
                "the model is a variant of it, and answers without that tensor would be wrong"
            )
