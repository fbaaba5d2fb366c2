"""Weights as graph constants: how each quant format is stored, its size, and the arrays themselves.

In: a quant format, or the raw rows of a weight. Out: a `Form`, and `StoredMatrix` arrays with exactly the values of the
file, except for formats with a minimum. Independent of OpenVINO.

OpenVINO multiplies 8-bit activations with weights of the form scale * (code - zero point), all integers except the
scale. A minimum is a zero point that is not an integer: the nearest integer is stored, and the remainder of each group,
at most half a scale, becomes an extra column, which is multiplied by the sum of the group's activations. These columns
are coded like all others, which gives the half scale some 4 more bits: an error of at most 1/30 scale for 4-bit codes,
1/500 for 8-bit codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants import Codes, FloatFormat, QuantFormat, decode_rows

CodeType = Literal["u4", "u8", "f16", "bf16", "f32"]
CODE_BITS = {"u4": 4, "u8": 8, "f16": 16, "bf16": 16, "f32": 32}
CHUNK_WEIGHTS = 1 << 22
"""Weights unpacked at a time, so that loading needs little memory beyond the result."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a matrix is stored.

    code     type of the codes, or of the values if there are no groups
    group    columns that share a scale, 0 for plain values
    zero     zero point of all codes; None: one per group, of the codes' type
    scale    type of the scales
    """

    code: CodeType
    group: int = 0
    zero: int | None = 0
    scale: Literal["f16", "f32"] = "f16"

    @property
    def has_sums(self) -> bool:
        """Whether extra columns for the sums of groups follow the matrix's own."""
        return self.zero is None

    def sum_columns(self, columns: int) -> int:
        """Number of extra columns: one per group, padded to whole groups."""
        return -(-(columns // self.group) // self.group) * self.group if self.has_sums else 0

    def nbytes(self, n_rows: int, columns: int) -> int:
        """Bytes of a matrix in this form."""
        columns += self.sum_columns(columns)
        code_bytes = n_rows * columns * CODE_BITS[self.code] // 8
        if not self.group:
            return code_bytes
        n_groups = n_rows * (columns // self.group)
        zero_bytes = 1 if self.zero is not None else -(-n_groups * CODE_BITS[self.code] // 8)
        return code_bytes + zero_bytes + n_groups * (2 if self.scale == "f16" else 4)


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix: codes uint8[N, K' * bits / 8] (two 4-bit codes in a byte, the first one low), or its values.

    scale float16 or float32[N, K' / group, 1]; zero uint8[1, 1, 1], or [N, K' / group * bits / 8] packed like codes.
    """

    form: Form
    n_rows: int
    columns: int
    codes: NDArray[np.generic]
    scale: NDArray[np.floating] | None = None
    zero: NDArray[np.uint8] | None = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.codes, self.scale, self.zero) if array is not None)


def form_of(form: QuantFormat) -> Form:
    """How tensors of a quant format are stored."""
    if isinstance(form, FloatFormat):
        names: dict[str, CodeType] = {"F16": "f16", "BF16": "bf16"}
        return Form(names.get(form.name, "f32"))
    low, high = form.code_range
    code: CodeType = "u4" if high - low < 16 else "u8"
    scale: Literal["f16", "f32"] = "f16" if form.f16_scales else "f32"
    if form.has_minimum:
        return Form(code, form.group, None, "f32")
    return Form(code, form.group, 8 if code == "u4" else 128, scale)


def store(raw: NDArray[np.uint8], quant: QuantFormat, columns: int) -> StoredMatrix:
    """Raw rows, uint8[N, row_bytes], in the form of their format."""
    form, n_rows = form_of(quant), len(raw)
    if isinstance(quant, FloatFormat):
        return StoredMatrix(form, n_rows, columns, _plain(raw, quant, form))
    n_columns = columns + form.sum_columns(columns)
    n_groups, per_byte = n_columns // form.group, 8 // CODE_BITS[form.code]
    codes = np.empty((n_rows, n_columns // per_byte), np.uint8)
    scale = np.empty((n_rows, n_groups, 1), np.float16 if form.scale == "f16" else np.float32)
    zeros = np.empty((n_rows if form.has_sums else 0, n_groups), np.uint8)
    step = max(1, CHUNK_WEIGHTS // columns)
    for first in range(0, n_rows, step):
        rows, unpacked = slice(first, first + step), quant.unpack(raw[first : first + step])
        if form.zero is None:
            whole, scale[rows, :, 0], zeros[rows] = _with_sums(unpacked, form)
        else:
            whole, scale[rows, :, 0] = unpacked.codes.view(np.uint8) + np.uint8(form.zero), unpacked.scale
        codes[rows] = _packed(whole, form)
    if form.zero is None:
        return StoredMatrix(form, n_rows, columns, codes, scale, _packed(zeros.reshape(1, -1), form).reshape(-1))
    return StoredMatrix(form, n_rows, columns, codes, scale, np.full((1, 1, 1), form.zero, np.uint8))


def _plain(raw: NDArray[np.uint8], quant: FloatFormat, form: Form) -> NDArray[np.generic]:
    """Values as in the file; float32 if OpenVINO has no such type."""
    if form.code == "f32":
        return np.ascontiguousarray(decode_rows(raw, quant))
    return np.ascontiguousarray(raw).view(np.uint16)


def _packed(codes: NDArray[np.uint8], form: Form) -> NDArray[np.uint8]:
    """Codes uint8[N, K] as bytes of the form, [N, K * bits / 8]; an odd last 4-bit code gets its own byte."""
    if form.code != "u4":
        return codes
    low, high = codes[:, 0::2], codes[:, 1::2]
    packed = low.copy()
    packed[:, : high.shape[1]] |= high << 4
    return packed


def _with_sums(unpacked: Codes, form: Form) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """Codes [N, K'], scales and zero points [N, K' / group] of rows with a minimum."""
    largest = (1 << CODE_BITS[form.code]) - 1
    assert unpacked.minimum is not None
    scale, minimum = unpacked.scale, unpacked.minimum
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exact = np.where(scale != 0, -minimum / scale, np.float32(0))
        zero = np.clip(np.rint(np.nan_to_num(exact, posinf=largest, neginf=0)), 0, largest).astype(np.float32)
        left = minimum + scale * zero
    columns = unpacked.codes.shape[1]
    padded = np.zeros((len(left), form.sum_columns(columns)), np.float32)
    padded[:, : left.shape[1]] = left
    grouped = padded.reshape(len(left), -1, form.group)
    middle = (largest + 1) // 2
    sum_scale = np.abs(grouped).max(axis=-1) / np.float32(middle - 1)
    inverse = np.divide(np.float32(1), sum_scale, out=np.zeros_like(sum_scale), where=sum_scale > 1e-30)
    sum_codes = np.clip(np.rint(grouped * inverse[..., None]) + middle, 0, largest).astype(np.uint8)
    codes = np.concatenate([unpacked.codes.view(np.uint8), sum_codes.reshape(len(left), -1)], axis=1)
    zeros = np.concatenate([zero.astype(np.uint8), np.full(sum_scale.shape, middle, np.uint8)], axis=1)
    return codes, np.concatenate([scale, sum_scale], axis=1), zeros
