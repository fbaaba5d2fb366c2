"""The seams of execution: what a device takes and gives.

`Device`: compiles the ops of a ModelSpec into a `Lane` that runs one `Step` after another and owns the KV memory.
What either has besides is in its record of `capabilities`: `FragmentDevice`, for one, compiles part of a model too,
which then runs beside other devices.
Which page of the KV memory holds what is decided by the engine (`engine.kv.kvcache`); a lane only reads and writes the
slots it is told. Programs that run whole models by
themselves are the other kind of entry in DEVICES: `backends.evaluator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgeinfer.backends.memories import KVMemory
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.graph.fragment import Fragment
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.state import LayerState, Windows, n_state_slots
from edgeinfer.graph.step import Floats, Step
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.offload.weights import OffloadedWeights, Prepacked
from edgeinfer.registry import Registry
from edgeinfer.settings import KVKind
from edgeinfer.steps import Progress, no_progress

if TYPE_CHECKING:
    from edgeinfer.backends.capabilities import DeviceCapabilities, LaneCapabilities
    from edgeinfer.backends.evaluator import EvaluatorKind
    from edgeinfer.backends.offload import WeightOffload

PATIENCE_S = 300.0
"""A device that has not finished a step by then has failed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lane must be able to hold.

    n_context: longest sequence in tokens; n_pages: KV pages in all; max_tokens, max_outputs: rows of one pass; kv: how
    keys and values are kept; branches: whether a tree in one pass pays; else it is read path by path; stored: where
    weights are that do not fit into memory; n_sequences: most of one pass, 0 for as many as pages allow; windows: what
    layers with a window keep on devices that can keep less than the context, None: all of it; n_states: most slots for
    states of sequences, 0 for as many as are of use.
    """

    n_context: int
    n_pages: int
    max_tokens: int = 256
    max_outputs: int = 64
    kv: KVKind = "f16"
    branches: bool = True
    stored: OffloadedWeights | None = None
    prepacked: Prepacked | None = None
    n_sequences: int = 0
    windows: Windows | None = None
    n_states: int = 0

    def state_slots(self, states: tuple[LayerState, ...]) -> int:
        """Slots for the states of a model's sequences; 0 for a model without states."""
        useful = n_state_slots(states, self.n_pages, self.max_outputs)
        return min(useful, self.n_states) if self.n_states else useful


WHOLE = 1 << 16
"""Parts that the work of a step is shared out in."""


@dataclass(frozen=True, slots=True)
class WorkSplit:
    """Which workers take part in a step and how much of it each takes; the results never depend on it.

    workers  their numbers, increasing
    cuts     where each one's share begins, in parts of WHOLE, and WHOLE itself
    pinned   False: the calling thread goes where the system puts it, not to the first worker's core
    """

    workers: tuple[int, ...]
    cuts: tuple[int, ...]
    pinned: bool = True

    @classmethod
    def even(cls, size: int) -> WorkSplit:
        """The first `size` workers with equal shares."""
        return cls(tuple(range(size)), tuple(WHOLE * worker // size for worker in range(size + 1)))


@dataclass(frozen=True, slots=True)
class Timing:
    """What the last step took: `seconds` from its start to its end, and what each worker of its work split was `busy`.

    `busy` is in a unit of its own, the same for all, and counts the work that the cuts share out.
    """

    seconds: float
    busy: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OpSeconds:
    """What a part of an op took in a step. `multiplies`: it is the product itself, not what prepares its input."""

    op: Op
    multiplies: bool
    seconds: float


PEAK_LANES = 16
"""Peaks of a block of logits;"""
PEAK_LOGITS = 32
"""logits of a peak: those of its block that lie PEAK_LANES apart."""
PEAK_BLOCK = PEAK_LANES * PEAK_LOGITS


class Peaked(Protocol):
    """A lane that tells where its highest logits are."""

    @property
    def peaks(self) -> Floats:
        """The highest of each PEAK_LOGITS logits of the last run: float32[O, blocks * PEAK_LANES].

        NaN where one of them is not finite. Valid until the next run.
        """
        ...


class Lane(KVMemory, Protocol):
    """A compiled model on one device (or several), with its KV memory."""

    @property
    def capabilities(self) -> LaneCapabilities:
        """What it has besides: the same as long as it is open."""
        ...

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], valid until the next run."""
        ...


class FragmentLane(KVMemory, Protocol):
    """A compiled fragment on one device, with its layers' KV memory; each step is submitted and waited for."""

    def submit(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Start a step and return as soon as the device can go on alone.

        `inputs`: float32[T or O, width] of each input buffer, not to be changed before `wait`.
        """
        ...

    def wait(self) -> Mapping[str, Floats]:
        """The output buffers of the step that was submitted last, float32[T or O, width], valid until the next submit.

        Raises DeviceFailed where the device did not finish it.
        """
        ...

    @property
    def ran(self) -> tuple[float, float]:
        """When the device began and ended the last step, by time.perf_counter."""
        ...


class Device(Protocol):
    """An executor of ops."""

    @property
    def name(self) -> str: ...

    @property
    def batch_invariant(self) -> bool:
        """Whether a token's logits never depend, to the bit, on what else is in the pass."""
        ...

    @property
    def capabilities(self) -> DeviceCapabilities:
        """What it has besides: the same as long as it is open."""
        ...

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane: ...

    def close(self) -> None: ...


class FragmentDevice(Device, Protocol):
    """A device that also takes part of a model."""

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> FragmentLane: ...


@dataclass(frozen=True, slots=True)
class Joined:
    """How many tokens of silent passes a whole model joins to one, and how many multiplications of weights."""

    most_tokens: int
    most_products: float


class PartsDevice(FragmentDevice, Protocol):
    """A device that shares its memory out among all parts of a model that it runs, which it does one at a time."""

    def compile_fragments(
        self, fragments: Sequence[Fragment], file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> Sequence[FragmentLane]:
        """A lane for each fragment; they are run in this order, and outputs are valid until the next one's submit."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What a user may ask of a device: worker threads (None: as many as help) and the cores to pin them to.

    `target`: which of the processors that a runtime offers, in lower case ("gpu" of "openvino:gpu"), or "". `adapts`:
    whether the work split of each step follows measured times; else all workers take equal shares. `pins`: whether each
    worker stays on a core of its own; else the system puts them where it likes. `decode_shares`, `prefill_shares`: what
    each worker takes of small and of large passes until more is known, 0 for none; () for equal shares. `n_nodes`: NUMA
    nodes of the cores; with several, small pages go each to the node that uses it first.
    """

    n_workers: int | None = None
    cores: tuple[int, ...] | None = None
    adapts: bool = True
    pins: bool = True
    decode_shares: tuple[float, ...] = ()
    prefill_shares: tuple[float, ...] = ()
    n_nodes: int = 1
    target: str = ""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory a lane takes: weights in the device's own form, KV pages, states, buffers that do not depend on cores.

    `kv_bytes_per_token`: what a further token of context takes, `bytes_per_state`: a further slot for a sequence's
    state. `window_bytes`: of `kv_bytes` those of layers that keep only a window, which hardly grow with the context.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    buffer_bytes: int
    state_bytes: int = 0
    window_bytes: int = 0
    bytes_per_state: int = 0


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A registry entry: how to open a device of this kind, and what it would take, from a header alone.

    `open` raises DeviceUnavailable where the device cannot run. `host_targets`: its targets that compute on the
    machine's own cores. `modules`: what must be importable for a device that may take the cpu's place, and `entrants`:
    its names on this machine, with the targets that are there. `folders`: how it opens folders with a decoder that
    another program wrote, or None. `code_folder`: where code compiled for it is kept; `compile_ahead`: compiles what a
    Llama of these types of weights needs, before more is known of it; `offload`: how it runs models whose weights do
    not all stay in memory. None where it has no such thing.
    """

    key: str
    summary: str
    open: Callable[[DeviceOptions], Device]
    footprint: Callable[[ModelSpec, Mapping[str, TensorInfo], Limits], Footprint]
    host_targets: frozenset[str] = frozenset({""})
    modules: tuple[str, ...] = ()
    entrants: Callable[[], tuple[str, ...]] = tuple
    folders: EvaluatorKind | None = None
    code_folder: Callable[[], Path] | None = None
    compile_ahead: Callable[[KVKind, Sequence[int]], None] | None = None
    offload: Callable[[], WeightOffload] | None = None


_SEAMS = (
    "offload",
    "meanings",
    "base",
    "capabilities",
    "cache_rows",
    "device_ops",
    "evaluator",
    "host",
    "memories",
    "stopping",
    "weights",
)
DEVICES: Registry[DeviceKind | EvaluatorKind] = Registry("edgeinfer.backends", "DEVICE", "device", skip=_SEAMS)


def kind_of(name: str) -> DeviceKind | EvaluatorKind:
    """The registry entry of a device name: a key, or key:target ("openvino:gpu"). Raises UnknownKey."""
    return DEVICES.get(name.partition(":")[0])


def device_kind(name: str) -> DeviceKind:
    """The entry of a device that runs ops of our own graph. Raises UnknownKey, DeviceUnavailable."""
    kind = kind_of(name)
    if not isinstance(kind, DeviceKind):
        raise DeviceUnavailable(
            f"{name} runs whole models by itself and no single ops; there are: {', '.join(device_kinds())}"
        )
    return kind


def device_kinds() -> dict[str, DeviceKind]:
    """The entries that run ops of our own graph, by key."""
    return {key: kind for key, kind in DEVICES.entries().items() if isinstance(kind, DeviceKind)}


def open_device(name: str, options: DeviceOptions | None = None) -> Device:
    """Open a device by its name. Raises UnknownKey, DeviceUnavailable."""
    return device_kind(name).open(replace(options or DeviceOptions(), target=name.partition(":")[2]))
