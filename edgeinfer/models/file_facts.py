"""Facts of a model file that need no model: quant format, fingerprint, and what lists show.

In: a header, an open file, or a listed model. Out: the name of the whole model's quant format, such as Q4_K_M, as
opposed to the types of its tensors; a fingerprint of 32 hex digits, equal for equal models whatever their names;
`HeaderFacts` (architecture, quant format, context), read without the vocabulary. If neither the start of the header nor
the name states the quant format, the file is read up to the end of its header.

A fingerprint covers the tensor table, the architecture's metadata and samples of the weights. It reads a few pages
only, so it does not protect against forgery; checksums of whole files belong to the store. Source of the formats'
names: `general.file_type` in the GGUF specification (docs/gguf.md of ggml) and llama.cpp's `llama_ftype`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from edgeinfer.errors import BadGGUF
from edgeinfer.models.download.header import file_header
from edgeinfer.models.file_names import quant_of
from edgeinfer.models.gguf import GGUFFile, Header, Metadata, parse_beginning
from edgeinfer.models.local_model import LocalModel

FILE_TYPES = MappingProxyType(
    {
        0: "F32",
        1: "F16",
        2: "Q4_0",
        3: "Q4_1",
        7: "Q8_0",
        8: "Q5_0",
        9: "Q5_1",
        10: "Q2_K",
        11: "Q3_K_S",
        12: "Q3_K_M",
        13: "Q3_K_L",
        14: "Q4_K_S",
        15: "Q4_K_M",
        16: "Q5_K_S",
        17: "Q5_K_M",
        18: "Q6_K",
        19: "IQ2_XXS",
        20: "IQ2_XS",
        21: "Q2_K_S",
        22: "IQ3_XS",
        23: "IQ3_XXS",
        24: "IQ1_S",
        25: "IQ4_NL",
        26: "IQ3_S",
        27: "IQ3_M",
        28: "IQ2_S",
        29: "IQ2_M",
        30: "IQ4_XS",
        31: "IQ1_M",
        32: "BF16",
        36: "TQ1_0",
        37: "TQ2_0",
        38: "MXFP4_MOE",
    }
)
N_SAMPLES = 16
SAMPLE_BYTES = 4096
BEGINNING_BYTES = 1 << 16
VOCABULARY = "tokenizer."


def quant_of_type(metadata: Metadata) -> str | None:
    """The type the file states; None if it states none or an unknown one."""
    said = metadata.get("general.file_type")
    return FILE_TYPES.get(said) if isinstance(said, int) else None


def quant_name(header: Header) -> str | None:
    """The type the file states; else the type of most of its bytes; None for a file without tensors."""
    sizes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        sizes[tensor.type_name] += tensor.nbytes
    if not sizes:
        return None
    return quant_of_type(header.metadata) or sizes.most_common(1)[0][0]


def approximate(fingerprint: str, threshold: float | None, block_budget: int | None = None) -> str:
    """The fingerprint of a model with an activation threshold or a budget for blocks: a different model."""
    if threshold is None and block_budget is None:
        return fingerprint
    how = f"{threshold!r}" if block_budget is None else f"{threshold!r} prefill {block_budget}"
    return hashlib.blake2b(f"{fingerprint} approx {how}".encode(), digest_size=16).hexdigest()


def fingerprint(file: GGUFFile) -> str:
    """The fingerprint of a model, and of the adapters opened with it, which make it a different model."""
    digest = hashlib.blake2b(digest_size=16)
    for adapter in file.adapters:
        digest.update(f"{adapter.scale!r} {adapter.metadata.number('adapter.lora.alpha', 0.0)!r}\n".encode())
        for name in file.tensors:
            if name.startswith(adapter.prefix):
                digest.update(file.raw(name)[:SAMPLE_BYTES].tobytes())
    for name, info in file.tensors.items():
        digest.update(f"{name} {info.shape} {info.ggml_type}\n".encode())
    architecture = file.metadata.text("general.architecture")
    for key in sorted(key for key in file.metadata if key.startswith(f"{architecture}.")):
        digest.update(f"{key} {file.metadata[key]!r}\n".encode())
    names = list(file.tensors)
    for name in names[:: max(1, len(names) // N_SAMPLES)]:
        digest.update(file.raw(name)[:SAMPLE_BYTES].tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What the beginning of a header states; None for what it does not."""

    architecture: str | None
    quant: str | None
    n_context: int | None


def header_facts(path: Path) -> HeaderFacts:
    """The facts of a local GGUF file. Raises BadGGUF."""
    try:
        with path.open("rb") as file:
            metadata = parse_beginning(file.read(BEGINNING_BYTES), path.stat().st_size, str(path), VOCABULARY)
    except OSError as error:
        raise BadGGUF(f"{path} cannot be read: {error.strerror or error}") from None
    quant = quant_of_type(metadata) or quant_of(path.name) or quant_name(file_header(path))
    architecture = metadata.text("general.architecture", None)
    return HeaderFacts(architecture, quant, None if architecture is None else context_length(metadata, architecture))


def listed_format(model: LocalModel) -> tuple[str | None, str | None]:
    """Architecture and quant format of a listed model.

    The whole header is read, and so checked, except for models of other programs, of which there may be many. Raises
    BadGGUF.
    """
    if model.is_elsewhere:
        facts = header_facts(model.path)
        return facts.architecture, facts.quant
    header = file_header(model.path)
    return header.metadata.text("general.architecture", None), quant_name(header)


def is_embedder(path: Path) -> bool:
    """Whether a model makes embeddings, as its file says. Raises BadGGUF."""
    metadata = file_header(path).metadata
    return f"{metadata.text('general.architecture', '')}.pooling_type" in metadata


def context_length(metadata: Metadata, architecture: str) -> int | None:
    """The context a model was trained for, in tokens; None if its file does not state it. Raises BadGGUF."""
    return metadata.integer(f"{architecture}.context_length", None)
