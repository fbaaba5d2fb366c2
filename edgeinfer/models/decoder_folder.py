"""A folder with a decoder as an ONNX graph, as written by optimum and onnxruntime-genai.

In: a path. Out: a `DecoderFolder`: which file is the graph, the names of its inputs and outputs, what the settings
beside it say about the model. Reads settings only; does not open the graph. Independent of what runs it. Sources:
optimum's exporters for ONNX, genai_config.json of onnxruntime-genai.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import ModelNotFound, UnsupportedModel
from edgeinfer.models.gguf import Metadata, TensorInfo
from edgeinfer.models.gguf.metadata import ValueSpan
from edgeinfer.models.gguf.values import STRING
from edgeinfer.models.json_config import JsonConfig

GENAI, CONFIG = "genai_config.json", "config.json"
GRAPHS = ("model.onnx", "decoder_model_merged.onnx")
"""File names of graphs that read prompts as well as single tokens, the likeliest first."""
INNER = "onnx"
"""The subfolder of a published folder that contains graphs."""
LONGEST_NAME = 255
"""Bytes of a file's name; systems raise an error for longer ones."""
SAMPLE_BYTES = 65536
U32, BYTES = 4, 24
"""GGUF type numbers: a 32-bit metadata number, a tensor of bytes."""
COUNT_MAX = (1 << 32) - 1
CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a graph's inputs and outputs; %d stands for the layer number."""

    tokens: str = "input_ids"
    mask: str = "attention_mask"
    positions: str = "position_ids"
    logits: str = "logits"
    past: tuple[str, str] = ("past_key_values.%d.key", "past_key_values.%d.value")
    present: tuple[str, str] = ("present.%d.key", "present.%d.value")


@dataclass(frozen=True, slots=True)
class DecoderFolder:
    """A folder that contains a decoder. Numbers missing from its settings are None.

    most_context  most tokens the graph was made for; it fails with more
    shares_cache  the graph writes new keys and values after the past ones, in the same memory
    metadata      what is known of the model, under GGUF keys
    tensors       each file of weights, as if it were one tensor
    """

    path: Path
    graph: Path
    names: Names
    kv_heads: int | None
    head_width: int | None
    n_vocab: int | None
    n_context: int | None
    most_context: int | None
    shares_cache: bool
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]

    @property
    def fingerprint(self) -> str:
        """32 hex digits derived from the settings and from the sizes and beginnings of the graph and its weights."""
        digest = hashlib.blake2b(digest_size=16)
        for name in (GENAI, CONFIG):
            if (self.path / name).is_file():
                digest.update((self.path / name).read_bytes())
        for name, info in self.tensors.items():
            digest.update(f"{name} {info.nbytes}\n".encode())
            with (self.graph.parent / name).open("rb") as file:
                digest.update(file.read(SAMPLE_BYTES))
                file.seek(info.nbytes // 2)
                digest.update(file.read(SAMPLE_BYTES))
        return digest.hexdigest()

    def __enter__(self) -> DecoderFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def release(self) -> None:
        """Does nothing: no memory is held that could be released."""

    def close(self) -> None:
        """Does nothing: no file is open."""


def is_decoder_folder(path: Path) -> bool:
    """Whether a path is a folder that may contain a decoder, complete or not."""
    return path.is_dir() and ((path / GENAI).is_file() or bool(_graphs_in(path)))


def folder_bytes(path: Path) -> int:
    """Bytes of all files in a folder and in its graph subfolder."""
    return sum(each.stat().st_size for place in (path, path / INNER) for each in place.glob("*") if each.is_file())


def open_folder(path: Path) -> DecoderFolder:
    """Read a folder's settings. Raises ModelNotFound if the graph is missing, UnsupportedModel."""
    genai, config = JsonConfig.read(path / GENAI), JsonConfig.read(path / CONFIG)
    _check_kind(genai)
    by_genai = genai.has("model", "decoder")
    graph = _graph(path, genai)
    heads = genai.integer("model", "decoder", "num_attention_heads") or config.integer("num_attention_heads")
    kv_heads = genai.integer("model", "decoder", "num_key_value_heads") or config.integer("num_key_value_heads")
    width = genai.integer("model", "decoder", "hidden_size") or config.integer("hidden_size")
    head_width = genai.integer("model", "decoder", "head_size") or config.integer("head_dim")
    if head_width is None and width and heads:
        head_width = width // heads
    n_context = genai.integer("model", "context_length") or next(
        (found for key in CONTEXTS if (found := config.integer(key))), None
    )
    n_layers = genai.integer("model", "decoder", "num_hidden_layers") or config.integer("num_hidden_layers")
    counts = {
        "context_length": n_context,
        "block_count": n_layers,
        "attention.head_count_kv": kv_heads or heads,
        "attention.key_length": head_width,
    }
    kind = genai.text("model", "type") or config.text("model_type") or "onnx"
    return DecoderFolder(
        path=path,
        graph=graph,
        names=_names(genai) if by_genai else Names(),
        kv_heads=kv_heads or heads,
        head_width=head_width,
        n_vocab=genai.integer("model", "vocab_size") or config.integer("vocab_size"),
        n_context=n_context,
        most_context=genai.integer("model", "context_length"),
        shares_cache=genai.flag("search", "past_present_share_buffer") is True,
        metadata=_metadata(path, kind, counts, _template(path)),
        tensors=_weights(graph),
    )


def _check_kind(genai: JsonConfig) -> None:
    """Raises UnsupportedModel for models that consist of several graphs."""
    for part in ("encoder", "vision", "speech", "embedding"):
        if genai.has("model", part):
            raise UnsupportedModel(
                f"{genai.path}: the model has a part {part!r}; edgeinfer runs decoders of text alone"
            )
    if genai.has("model", "decoder", "pipeline"):
        raise UnsupportedModel(
            f"{genai.path}: the decoder is cut into a pipeline of graphs; edgeinfer runs single ones"
        )


def _graphs_in(path: Path) -> list[Path]:
    return [graph for place in (path, path / INNER) for graph in sorted(place.glob("*.onnx"))]


def _graph(path: Path, genai: JsonConfig) -> Path:
    """The graph's file. Raises ModelNotFound, listing the files present."""
    name = genai.text("model", "decoder", "filename")
    if name is not None:
        found = path / name
        if Path(name).name != name or len(name.encode("utf-8", "replace")) > LONGEST_NAME:
            raise UnsupportedModel(f"{genai.path} names the graph {name[:80]!r}, which is no file of this folder")
        if not found.is_file():
            raise ModelNotFound(f"{found} is missing, the graph that {GENAI} names; fetch the folder again")
        return found
    there = _graphs_in(path)
    for place in (path, path / INNER):
        for name in GRAPHS:
            if place / name in there:
                return place / name
    if len(there) == 1:
        return there[0]
    held = f"it holds {', '.join(graph.name for graph in there[:5])}" if there else "it holds no .onnx file"
    raise ModelNotFound(f"{path} has no {' or '.join(GRAPHS)}; {held}: leave one graph in it, with its weights")


def _names(genai: JsonConfig) -> Names:
    """The names in genai_config.json, with defaults for those it leaves out."""
    usual = Names()

    def given(part: str, key: str, otherwise: str) -> str:
        return genai.text("model", "decoder", part, key) or otherwise

    return Names(
        tokens=given("inputs", "input_ids", usual.tokens),
        mask=given("inputs", "attention_mask", usual.mask),
        positions=given("inputs", "position_ids", usual.positions),
        logits=given("outputs", "logits", usual.logits),
        past=(given("inputs", "past_key_names", usual.past[0]), given("inputs", "past_value_names", usual.past[1])),
        present=(
            given("outputs", "present_key_names", usual.present[0]),
            given("outputs", "present_value_names", usual.present[1]),
        ),
    )


def _template(path: Path) -> str | None:
    """The chat template, from its own file or from the tokenizer's settings, which hold one or several named ones."""
    if (path / "chat_template.jinja").is_file():
        return (path / "chat_template.jinja").read_text(encoding="utf-8", errors="replace")
    settings = JsonConfig.read(path / "tokenizer_config.json")
    if (whole := settings.text("chat_template")) is not None:
        return whole
    named = {each.text("name"): each.text("template") for each in settings.objects("chat_template")}
    return named.get("default") or JsonConfig.read(path / "chat_template.json").text("chat_template")


def _metadata(path: Path, kind: str, counts: Mapping[str, int | None], template: str | None) -> Metadata:
    """What is known of the model, under GGUF keys."""
    texts = {"general.architecture": kind, "general.name": path.name}
    if template is not None:
        texts["tokenizer.chat_template"] = template
    blob, spans = bytearray(), {}

    def add(key: str, value_type: int, value: bytes) -> None:
        spans[key] = ValueSpan(value_type, len(blob), len(blob) + len(value))
        blob.extend(value)

    for key, text in texts.items():
        written = text.encode("utf-8", "replace")
        add(key, STRING, struct.pack("<Q", len(written)) + written)
    for key, count in counts.items():
        if count is not None and 0 <= count <= COUNT_MAX:
            add(f"{kind}.{key}", U32, struct.pack("<I", count))
    return Metadata(spans, bytes(blob), str(path))


def _weights(graph: Path) -> dict[str, TensorInfo]:
    """The graph and the weight files beside it that share its name."""
    beside = sorted(each for each in graph.parent.glob(f"{graph.name}*data*") if each.is_file())
    sizes = {each.name: each.stat().st_size for each in (graph, *beside)}
    return {name: TensorInfo(name, (size,), BYTES, "I8", 0, size, 0) for name, size in sizes.items()}
