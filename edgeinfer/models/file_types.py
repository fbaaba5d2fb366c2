"""The name of a whole model's quant format, such as Q4_K_M, as opposed to the types of its tensors.

In: a header. Out: the name. Source: the values of `general.file_type` in the GGUF specification (docs/gguf.md of ggml)
and llama.cpp's `llama_ftype`. Independent of how formats are laid out.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType

from edgeinfer.models.gguf import Header, Metadata

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
