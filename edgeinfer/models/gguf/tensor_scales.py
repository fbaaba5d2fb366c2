"""Scales of whole tensors: NVFP4 matrices have one in a tensor beside them, NAME.scale for NAME.weight.

It is a float32 for the whole matrix, or one for each expert of a stack, that multiplies all weights. In: the tensor
table and a matrix's bytes. Out: the table with such matrices as types whose blocks repeat the scale, and their bytes,
so that nothing else has to know of a second tensor. The tensors NAME.input_scale are for devices that round activations
to NVFP4, and are not read. Source: `build_lora_mm` in llama.cpp, which multiplies the products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF
from edgeinfer.models.gguf.header import SCALED_TYPES, TensorInfo

NVFP4, F32 = 40, 0
BLOCK, BLOCK_SCALES, BLOCK_BYTES = 64, 4, 36
"""Weights of an NVFP4 block, and its bytes: those of the groups' scales, and all."""


def with_scales(tensors: Mapping[str, TensorInfo], source: str) -> dict[str, TensorInfo]:
    """The table with each NVFP4 matrix that has a scale as one of SCALED_TYPES, and without the scales.

    Raises BadGGUF for a scale of another type or shape.
    """
    matrices = [name for name, info in tensors.items() if info.ggml_type == NVFP4]
    beside = {f"{name.removesuffix('.weight')}.{kind}" for name in matrices for kind in ("scale", "input_scale")}
    return {name: _scaled(tensors, info, source) for name, info in tensors.items() if name not in beside}


def scale_name(name: str) -> str:
    """The name of a matrix's scale."""
    return f"{name.removesuffix('.weight')}.scale"


def _scaled(tensors: Mapping[str, TensorInfo], info: TensorInfo, source: str) -> TensorInfo:
    scale = tensors.get(scale_name(info.name)) if info.ggml_type == NVFP4 else None
    if scale is None:
        return info
    counts = {1, info.shape[0]} if len(info.shape) > 2 else {1}
    if scale.ggml_type != F32 or math.prod(scale.shape) not in counts:
        raise BadGGUF(
            f"{source}: tensor {scale.name!r} is {scale.type_name} of shape {list(scale.shape)}; the scale of "
            f"{info.name!r} has to be {' or '.join(map(str, sorted(counts)))} F32; convert the model again"
        )
    kind = next(kind for kind in SCALED_TYPES if info.shape[-1] % kind.block_size == 0)
    n_bytes = info.nbytes // BLOCK_BYTES * BLOCK * kind.block_bytes // kind.block_size
    return replace(info, ggml_type=kind.id, nbytes=n_bytes)


def repeat_scale(raw: NDArray[np.uint8], scale: NDArray[np.uint8], info: TensorInfo, source: str) -> NDArray[np.uint8]:
    """The bytes of a matrix in one of SCALED_TYPES, uint8[nbytes], from those of the NVFP4 matrix and of its scale.

    A block is the scale, then its groups' scales, then its codes. Raises BadGGUF if the scale is not finite.
    """
    kind = next(kind for kind in SCALED_TYPES if kind.id == info.ggml_type)
    values = scale.view("<f4")
    if not np.isfinite(values).all():
        raise BadGGUF(f"{source}: tensor {scale_name(info.name)!r} is not finite; fetch the model again")
    blocks = raw.reshape(len(values), -1, kind.block_size // BLOCK, BLOCK_BYTES)
    out = np.empty((*blocks.shape[:2], kind.block_bytes), np.uint8)
    codes_at = 4 + blocks.shape[2] * BLOCK_SCALES
    out[..., :4] = scale.reshape(-1, 1, 4)
    out[..., 4:codes_at] = blocks[..., :BLOCK_SCALES].reshape(*blocks.shape[:2], -1)
    out[..., codes_at:] = blocks[..., BLOCK_SCALES:].reshape(*blocks.shape[:2], -1)
    return out.reshape(-1)
