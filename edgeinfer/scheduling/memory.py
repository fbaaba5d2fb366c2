"""What a model needs against what there is: numbers in, a verdict out.

In: bytes of weights, KV cache and buffers as a device would hold them, and the memory available. Out: whether it fits,
and if not by how many bytes and what would. Measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.errors import DoesNotFit

RUNTIME_BYTES = 144 << 20
"""Python, NumPy and LLVM with compiled kernels, before any model (measured peak about 135 MB)."""
FIXED_BUFFER_BYTES = 128 << 20
"""Most that buffers of one pass take whatever the context is (512 tokens of a large model)."""
RESERVE_SHARE = 0.05
"""Share of the available memory that is left to others."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes a model takes while it runs with `n_context` tokens of context."""

    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    buffer_bytes: int
    n_context: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.buffer_bytes + RUNTIME_BYTES


def missing_bytes(need: MemoryNeed, available_bytes: int) -> int:
    """Bytes that are lacking, 0 if the model fits with the reserve."""
    return max(0, need.total_bytes - int(available_bytes * (1.0 - RESERVE_SHARE)))


def fitting_context(need: MemoryNeed, available_bytes: int) -> int:
    """A context that would fit, in tokens; 0 if the weights alone do not.

    Buffers grow with the context too (rotary tables, attention partials); up to FIXED_BUFFER_BYTES they do not shrink.
    """
    fixed_bytes = need.weight_bytes + RUNTIME_BYTES + min(need.buffer_bytes, FIXED_BUFFER_BYTES)
    room = int(available_bytes * (1.0 - RESERVE_SHARE)) - fixed_bytes
    per_token = need.kv_bytes_per_token + need.buffer_bytes // max(1, need.n_context)
    return max(0, min(need.n_context, room // max(1, per_token)))


def require_fit(need: MemoryNeed, available_bytes: int) -> None:
    """Raise DoesNotFit, with the numbers and what would fit, unless the model fits."""
    missing = missing_bytes(need, available_bytes)
    if not missing:
        return
    context = fitting_context(need, available_bytes)
    remedy = (
        f"a context of {context} tokens would fit (--ctx {context})"
        if context >= 256
        else "a smaller model or a smaller quant would fit"
    )
    raise DoesNotFit(
        f"the model needs {in_gigabytes(need.total_bytes)} of memory "
        f"({in_gigabytes(need.weight_bytes)} weights, {in_gigabytes(need.kv_bytes)} for a context of "
        f"{need.n_context} tokens) and {in_gigabytes(available_bytes)} are available: "
        f"{in_gigabytes(missing)} too much; {remedy}"
    )


def in_gigabytes(n_bytes: int) -> str:
    """Bytes for people: "1.23 GB", or "45 MB" below a gigabyte."""
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def enough(n_bytes: int) -> str:
    """Bytes to ask for, never fewer than so many: as `in_gigabytes`, and "450 kB" below ten megabytes."""
    if n_bytes >= 1e9:
        return f"{-(-n_bytes // 10**7) / 100:.2f} GB"
    return f"{-(-n_bytes // 10**6)} MB" if n_bytes >= 1e7 else f"{-(-n_bytes // 10**3)} kB"
