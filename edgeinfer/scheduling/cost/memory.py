"""Whether a model fits in memory: numbers in, a verdict out.

In: bytes of weights, KV cache and buffers as a device would hold them, and the memory available. Out: whether it fits,
and if not, how many bytes are missing and what would fit: a smaller context, states of fewer sequences. Measures
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.operands import SLOTS_IN_PASS
from edgeinfer.text_values import size_text

PROGRAM_BYTES = 210_000_000
"""Resident bytes of Python, libraries and compiled kernels without any model: 190 to 235 MB on measured machines, more
than half of it pages of library files, above all LLVM's."""
FIXED_BUFFER_BYTES = 128 << 20
"""Maximum size of the buffers of one pass that does not depend on the context (512 tokens of a large model)."""
LEAST_CONTEXT = 256
"""Smallest context worth running a model with, in tokens."""
SMALLER_MODEL = "a smaller model or a smaller quant would fit"
RESERVE_SHARE = 0.05
"""Share of the available memory that is left to other programs."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes a model takes while it runs with `n_context` tokens of context.

    `weight_bytes`: in memory, in the device's own form; `buffer_bytes`: working buffers of a pass. `state_bytes`: the
    part of `kv_bytes` for states, which do not grow with the context; `window_bytes`: the part for layers that keep
    only a window, which hardly grows. `n_states`: slots for states, of `bytes_per_state` each; they are not all of
    `state_bytes`. `draft_bytes`: the part of `buffer_bytes` for logits after more than one token of a pass: of drafts,
    and of other sequences. `waiting_bytes`: the part for rows of its model that a trained head has not read yet.
    `kv_file_bytes`: of the file on disk that keys and values are in, if only a part of them is in memory.
    `encoder_bytes`: the part of `weight_bytes` for an image encoder.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    buffer_bytes: int
    n_context: int
    state_bytes: int = 0
    window_bytes: int = 0
    bytes_per_state: int = 0
    n_states: int = 0
    draft_bytes: int = 0
    waiting_bytes: int = 0
    kv_file_bytes: int = 0
    encoder_bytes: int = 0

    def with_encoder(self, *parts: MemoryNeed) -> MemoryNeed:
        """The need with that of an image encoder beside it, whose keys and values do not grow with the context."""
        weight_bytes = sum(part.weight_bytes for part in parts)
        return replace(
            self,
            weight_bytes=self.weight_bytes + weight_bytes,
            buffer_bytes=self.buffer_bytes + sum(part.buffer_bytes + part.kv_bytes for part in parts),
            encoder_bytes=weight_bytes,
        )

    def with_waiting(self, n_bytes: int) -> MemoryNeed:
        """The need with this much for rows that wait."""
        return replace(self, buffer_bytes=self.buffer_bytes + n_bytes, waiting_bytes=self.waiting_bytes + n_bytes)

    def with_states(self, n_states: int) -> MemoryNeed:
        """The need with this many slots for states."""
        saved = (self.n_states - n_states) * self.bytes_per_state
        return replace(self, kv_bytes=self.kv_bytes - saved, state_bytes=self.state_bytes - saved, n_states=n_states)

    def with_other(self, other: MemoryNeed) -> MemoryNeed:
        """The need of this and another model, without states, in the same context."""
        return replace(
            self,
            weight_bytes=self.weight_bytes + other.weight_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token + other.kv_bytes_per_token,
            kv_bytes=self.kv_bytes + other.kv_bytes,
            buffer_bytes=self.buffer_bytes + other.buffer_bytes,
            window_bytes=self.window_bytes + other.window_bytes,
            draft_bytes=self.draft_bytes + other.draft_bytes,
            waiting_bytes=self.waiting_bytes + other.waiting_bytes,
        )

    @property
    def beside_bytes(self) -> int:
        """What it takes beside another model in the same program."""
        return self.weight_bytes + self.kv_bytes + self.buffer_bytes

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Everything that memory is the sum of, by the names that all commands and screens use."""
        return (
            ("weights", self.weight_bytes),
            ("KV cache", self.kv_bytes),
            ("buffers", self.buffer_bytes),
            ("program", PROGRAM_BYTES),
        )

    @property
    def total_bytes(self) -> int:
        """Memory: the sum of the parts."""
        return sum(n_bytes for _, n_bytes in self.parts)

    @property
    def parts_text(self) -> str:
        """The parts as text for people."""
        return ", ".join(self._part_text(name, n_bytes) for name, n_bytes in self.parts)

    def _part_text(self, name: str, n_bytes: int) -> str:
        inner: tuple[tuple[str, int], ...] = ()
        if name == "weights":
            inner = (("encoders", self.encoder_bytes),)
        elif name == "KV cache":
            inner = ("states", self.state_bytes), ("windows", self.window_bytes), ("on disk", self.kv_file_bytes)
        elif name == "buffers":
            inner = ("drafts", self.draft_bytes), ("rows that wait", self.waiting_bytes)
        told = ", ".join(f"{part} {size_text(part_bytes)}" for part, part_bytes in inner if part_bytes)
        return f"{name} {size_text(n_bytes)}{f' ({told})' if told else ''}"


def missing_bytes(need: MemoryNeed, available_bytes: int) -> int:
    """Missing bytes; 0 if the model fits with the reserve."""
    return max(0, need.total_bytes - int(available_bytes * (1.0 - RESERVE_SHARE)))


def fitting_context(need: MemoryNeed, available_bytes: int) -> int:
    """A context that would fit, in tokens; 0 if the weights alone do not.

    Buffers grow with the context too (rotary tables, attention partials); up to FIXED_BUFFER_BYTES they do not shrink.
    """
    fixed_bytes = need.weight_bytes + need.state_bytes + need.window_bytes + PROGRAM_BYTES
    fixed_bytes += min(need.buffer_bytes, FIXED_BUFFER_BYTES)
    if need.kv_file_bytes:  # keys and values take the same memory in any context
        fixed_bytes += need.kv_bytes - need.state_bytes - need.window_bytes
    room = int(available_bytes * (1.0 - RESERVE_SHARE)) - fixed_bytes
    per_token = need.kv_bytes_per_token + need.buffer_bytes // max(1, need.n_context)
    return max(0, min(need.n_context, room // max(1, per_token)))


def fitting_states(need: MemoryNeed, available_bytes: int) -> int:
    """Slots for states that would fit beside everything else; 0 for a model without states."""
    excess = missing_bytes(need, available_bytes)
    return max(0, need.n_states - -(-excess // max(1, need.bytes_per_state)))


def fitting_sequences(need: MemoryNeed, available_bytes: int) -> int:
    """Sequences of a pass whose states would fit beside everything else; 0 for a model without states."""
    return fitting_states(need, available_bytes) // SLOTS_IN_PASS


def require_fit(need: MemoryNeed, available_bytes: int) -> None:
    """Raise DoesNotFit, with the numbers and what would fit, unless the model fits."""
    missing = missing_bytes(need, available_bytes)
    if not missing:
        return
    raise DoesNotFit(
        f"the model needs {size_text(need.total_bytes)} of memory ({need.parts_text}) for a context of "
        f"{need.n_context} tokens, and {size_text(available_bytes)} are available: {size_text(missing)} too much; "
        f"{would_fit(need, available_bytes)}"
    )


def would_fit(need: MemoryNeed, available_bytes: int) -> str:
    """What would fit instead of a model that does not."""
    context, n_sequences = fitting_context(need, available_bytes), fitting_sequences(need, available_bytes)
    ways = [f"a context of {context} tokens would fit (--ctx {context})"] if context >= LEAST_CONTEXT else []
    ways += [f"{_states_of(n_sequences)} would fit (--parallel {n_sequences})"] if n_sequences else []
    if ways or not need.n_states:
        return "; ".join(ways) or SMALLER_MODEL
    one = need.with_states(min(need.n_states, SLOTS_IN_PASS))
    context = fitting_context(one, available_bytes)
    if context >= LEAST_CONTEXT:
        return f"a context of {context} tokens with {_states_of(1)} would fit (--ctx {context} --parallel 1)"
    if fitting_context(replace(need, state_bytes=0), available_bytes) < LEAST_CONTEXT:
        return SMALLER_MODEL
    return (
        f"the state of a single sequence takes {size_text(need.bytes_per_state)}, and a pass needs room for "
        f"{SLOTS_IN_PASS}; a smaller model would fit"
    )


def fewer_sequences(need: MemoryNeed, available_bytes: int, n_asked: int) -> str:
    """How many of the requested sequences would leave room for all weights: the end of a sentence, "" for none."""
    n_sequences = fitting_sequences(need, available_bytes)
    if not 0 < n_sequences < n_asked:
        return ""
    return f"; {_states_of(n_sequences)} would leave room for all weights (--parallel {n_sequences})"


def _states_of(n_sequences: int) -> str:
    return f"states of {n_sequences} sequence{'' if n_sequences == 1 else 's'}"


def enough(n_bytes: int) -> str:
    """Bytes to request, rounded up: "1.23 GB", "45 MB", and "450 kB" below ten megabytes."""
    if n_bytes >= 1e9:
        return f"{-(-n_bytes // 10**7) / 100:.2f} GB"
    return f"{-(-n_bytes // 10**6)} MB" if n_bytes >= 1e7 else f"{-(-n_bytes // 10**3)} kB"
