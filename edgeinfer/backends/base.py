"""The interfaces of execution: what a device accepts and returns.

`Device` compiles the ops of a ModelSpec into a `Lane`, which runs one `Step` after another and owns the KV memory.
Optional abilities of either are listed in its `capabilities` record: a `FragmentDevice`, for example, can also compile
part of a model to run alongside other devices.

The engine decides which page of the KV memory holds what (`engine.kv.kvcache`); a lane only reads and writes the slots
it is given. Programs that run whole models themselves are the other kind of entry in DEVICES: `backends.evaluator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgeinfer.backends.memories import KVMemory
from edgeinfer.errors import BadSetting, DeviceUnavailable, UnknownKey
from edgeinfer.graph.graph import Fragment, ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import LayerState, Windows, n_state_slots
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
"""Seconds after which a device that has not finished a step counts as failed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lane must be able to hold.

    n_context: longest sequence in tokens; n_pages: KV pages in total; max_tokens, max_outputs: rows of one pass; kv:
    format of keys and values; branches: whether evaluating a tree in one pass pays off; otherwise it is read path by
    path; stored: where weights are stored that do not fit in memory; n_sequences: most sequences in one pass, 0 for as
    many as the pages allow; windows: what layers with a window store, on devices that can store less than the context,
    None: all of it; n_states: most slots for sequence states, 0 for as many as are useful; budgets: whether passes may
    state budgets of attention, for which keys are summarised; kv_budget: the budget of the tokens of answers, 0: none;
    whole_blocks: whether prompts are read in whole blocks of PAGE tokens where that can be (`Batch.blocks`); kv_ram:
    bytes of keys and values in memory, of layers that keep everything; others are in a file; 0: all are in memory.
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
    budgets: bool = False
    kv_budget: int = 0
    whole_blocks: bool = False
    kv_ram: int = 0

    def state_slots(self, states: tuple[LayerState, ...]) -> int:
        """Slots for the states of a model's sequences; 0 for a model without states."""
        useful = n_state_slots(states, self.n_pages, self.max_outputs)
        return min(useful, self.n_states) if self.n_states else useful


WHOLE = 1 << 16
"""The number of parts into which a step's work is divided."""


@dataclass(frozen=True, slots=True)
class WorkSplit:
    """Which workers take part in a step and the share of each. Results never depend on it.

    workers  their numbers, increasing
    cuts     where each worker's share begins, in parts of WHOLE, and finally WHOLE itself
    pinned   False: the system places the calling thread, which is not pinned to the first worker's core
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
    """Timing of the last step: `seconds` in total, and how long each worker of its work split was `busy`.

    `busy` has an arbitrary unit, the same for all workers, and covers only the work that the cuts divide.
    """

    seconds: float
    busy: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OpSeconds:
    """Time of one part of an op in a step. `multiplies`: whether it is the product, not the rounding of its input."""

    op: Op
    multiplies: bool
    seconds: float


PEAK_LANES = 16
"""Peaks per block of logits."""
PEAK_LOGITS = 32
"""Logits per peak: those of its block whose distance is a multiple of PEAK_LANES."""
PEAK_BLOCK = PEAK_LANES * PEAK_LOGITS


class Peaked(Protocol):
    """A lane that reports where its highest logits are."""

    @property
    def peaks(self) -> Floats:
        """The maximum of each group of PEAK_LOGITS logits of the last run: float32[O, blocks * PEAK_LANES].

        NaN if any logit of the group is not finite. Valid until the next run.
        """
        ...


class Lane(KVMemory, Protocol):
    """A compiled model on one device (or several), with its KV memory."""

    @property
    def capabilities(self) -> LaneCapabilities:
        """Its optional abilities; constant while the lane is open."""
        ...

    def run(self, step: Step) -> Floats:
        """Evaluate one step. Returns float32[O, V], valid until the next run."""
        ...


class FragmentLane(KVMemory, Protocol):
    """A compiled fragment on one device, with its layers' KV memory. Each `submit` is followed by a `wait`."""

    def submit(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Start a step; return as soon as the device can proceed without the host.

        `inputs`: float32[T or O, width] of each input buffer; must not change before `wait`.
        """
        ...

    def wait(self) -> Mapping[str, Floats]:
        """The output buffers of the last submitted step, float32[T or O, width], valid until the next submit.

        Raises DeviceFailed if the device did not finish the step.
        """
        ...

    @property
    def ran(self) -> tuple[float, float]:
        """Start and end of the last step on the device, by time.perf_counter."""
        ...


class Device(Protocol):
    """A device that executes ops."""

    @property
    def name(self) -> str: ...

    @property
    def batch_invariant(self) -> bool:
        """Whether a token's logits are bit-identical whatever else is in the pass."""
        ...

    @property
    def capabilities(self) -> DeviceCapabilities:
        """Its optional abilities; constant while the device is open."""
        ...

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane: ...

    def close(self) -> None: ...


class FragmentDevice(Device, Protocol):
    """A device that can also run part of a model."""

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> FragmentLane: ...


@dataclass(frozen=True, slots=True)
class Joined:
    """How a whole model joins passes without requested logits into one.

    Limits of the joined pass: its tokens, and its multiplications of weights.
    """

    most_tokens: int
    most_products: float


class PartsDevice(FragmentDevice, Protocol):
    """A device that divides its memory among all the parts of a model it runs, one part at a time."""

    def compile_fragments(
        self, fragments: Sequence[Fragment], file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> Sequence[FragmentLane]:
        """One lane per fragment. They run in this order; outputs are valid until the next lane's submit."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Options of a device: number of worker threads (None: as many as help) and the cores to pin them to.

    `target`: which of a runtime's processors to use, in lower case ("gpu" of "openvino:gpu"), or "". `adapts`: whether
    each step's work split follows measured times; otherwise all workers get equal shares. `pins`: whether each worker
    is pinned to a core; otherwise the system places them. `decode_shares`, `prefill_shares`: initial shares of each
    worker in small and large passes, 0 for none; () for equal shares. `n_nodes`: NUMA nodes of the cores; with several,
    each small page is placed on the node that uses it first.
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
    """Memory that a lane takes: weights in the device's own form, KV pages, states, and buffers independent of cores.

    `kv_bytes_per_token`: cost of one more token of context; `bytes_per_state`: of one more slot for a sequence's state.
    `window_bytes`: the part of `kv_bytes` for layers with a window, which hardly grows with the context.
    `kv_file_bytes`: of the file for keys and values, if they are not all in memory (`Limits.kv_ram`).
    """

    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    buffer_bytes: int
    state_bytes: int = 0
    window_bytes: int = 0
    bytes_per_state: int = 0
    kv_file_bytes: int = 0


USUAL_KV: tuple[KVKind, ...] = ("f16", "q8")
"""The KV caches of devices whose runtimes store numbers in 16 or 8 bits."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A registry entry: how to open a device of this kind and, from a header alone, how much memory it would take.

    `open` raises DeviceUnavailable if the device cannot run. `host_targets`: its targets that compute on the machine's
    own cores. `modules`: packages that must be importable for a device that may be chosen in place of the cpu;
    `entrants`: its names on this machine, with the available targets. `folders`: how it opens decoder folders written
    by other programs. `code_sources`: what its compiled code is made of. `compile_ahead`: compiles what a Llama with
    these weight types needs before more of the model is known. `offload`: how it runs models whose weights do not all
    stay in memory. Unsupported fields are None. `kv_kinds`: the KV caches it can have. `budgets`: whether its lanes
    read budgets of attention (`Limits.budgets`).
    """

    key: str
    summary: str
    open: Callable[[DeviceOptions], Device]
    footprint: Callable[[ModelSpec, Mapping[str, TensorInfo], Limits], Footprint]
    host_targets: frozenset[str] = frozenset({""})
    modules: tuple[str, ...] = ()
    entrants: Callable[[], tuple[str, ...]] = tuple
    folders: EvaluatorKind | None = None
    code_sources: Callable[[], tuple[Path, ...]] | None = None
    compile_ahead: Callable[[KVKind, Sequence[int]], None] | None = None
    offload: Callable[[], WeightOffload] | None = None
    kv_kinds: tuple[KVKind, ...] = USUAL_KV
    budgets: bool = False


_SEAMS = (
    *("base", "cache_rows", "capabilities", "device_ops", "evaluator"),
    *("meanings", "memories", "offload", "reference_states", "weights"),
)
DEVICES: Registry[DeviceKind | EvaluatorKind] = Registry("edgeinfer.backends", "DEVICE", "device", skip=_SEAMS)

GPU_WORDS = ("gpu", "nvidia", "intel", "amd", "metal", "mps", "rocm", "vulkan")
"""What other programs call a GPU."""


def kind_of(name: str) -> DeviceKind | EvaluatorKind:
    """The registry entry of a device name: a key, or key:target ("openvino:gpu"). Raises UnknownKey."""
    try:
        return DEVICES.get(name.partition(":")[0])
    except UnknownKey as error:
        raise UnknownKey(f"{error}{gpu_hint(name)}") from None


def gpu_hint(name: str) -> str:
    """What is added to the names of devices where this one is another program's word for a GPU; "" for others."""
    return "; a GPU is cuda (NVIDIA's) or openvino:gpu (Intel's)" if name.lower() in GPU_WORDS else ""


def require_kv(names: str, kv: KVKind) -> None:
    """Raises BadSetting if one of these devices (with commas between them) cannot have such a KV cache; UnknownKey."""
    for name in names.split(","):
        kinds = kind_of(name).kv_kinds
        if kv not in kinds:
            raise BadSetting(
                f"the device {name} has no {kv} cache: use --kv {' or '.join(kinds)}, or --device cpu with --kv {kv}"
            )


def require_budgets(names: str) -> None:
    """Raises BadSetting unless this is one device whose lanes read budgets of attention; UnknownKey."""
    kind = None if "," in names else kind_of(names)
    if not (isinstance(kind, DeviceKind) and kind.budgets):
        raise BadSetting(
            f"{names} attends to all that is cached: use --device cpu with --approx kv=N, or leave one of the two out"
        )


def device_kind(name: str) -> DeviceKind:
    """The entry of a device that runs ops of edgeinfer's own graph. Raises UnknownKey, DeviceUnavailable."""
    kind = kind_of(name)
    if not isinstance(kind, DeviceKind):
        raise DeviceUnavailable(
            f"{name} runs whole models by itself and no single ops; there are: {', '.join(device_kinds())}"
        )
    return kind


def device_kinds() -> dict[str, DeviceKind]:
    """The entries that run ops of edgeinfer's own graph, by key."""
    return {key: kind for key, kind in DEVICES.entries().items() if isinstance(kind, DeviceKind)}


def open_device(name: str, options: DeviceOptions | None = None) -> Device:
    """Open a device by its name. Raises UnknownKey, DeviceUnavailable."""
    return device_kind(name).open(replace(options or DeviceOptions(), target=name.partition(":")[2]))
