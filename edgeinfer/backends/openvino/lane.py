"""Lanes: a compiled graph, the states of its keys and values, one step after another.

In: steps and input buffers. Out: output buffers, views of OpenVINO's own memory. Independent of how the graph was
built.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from edgeinfer.backends.base import PATIENCE_S
from edgeinfer.backends.capabilities import LaneCapabilities
from edgeinfer.backends.openvino.feeding import Arrays, GraphFeed
from edgeinfer.backends.openvino.runtime import Placing
from edgeinfer.backends.openvino.states import Holder, States
from edgeinfer.errors import DeviceFailed, EngineClosed
from edgeinfer.graph.step import Floats, Int32s, Step

MOST_JOINED = 1024
"""Most tokens of passes joined into one."""
JOINED_PRODUCTS = 1.5e11
"""Most multiplications of weights in a joined pass, so that it takes about a second at most on a slow machine."""


CLOSING_S = 1.0
"""Seconds an aborted step may take to end before its lane is closed without waiting."""


class OpenVinoFragmentLane:
    """A fragment on one OpenVINO processor; steps are asynchronous infer requests."""

    def __init__(
        self, feed: GraphFeed, states: States, outputs: tuple[str, ...], resident_bytes: int, placing: Placing
    ) -> None:
        self._placing = placing
        self._feed, self._states, self._outputs = feed, states, outputs
        self._resident_bytes = resident_bytes
        self._request: ov.InferRequest | None = None
        self._lent: Arrays = {}
        self._began = 0.0
        self._runs = False
        self._closed = False
        self.patience_s, self.closing_s = PATIENCE_S, CLOSING_S
        self.ran = (0.0, 0.0)

    @property
    def resident_bytes(self) -> int:
        return 0 if self._closed else self._resident_bytes

    def submit(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Start a step."""
        self._require_open()
        with _failures("could not start a step"):
            holder = self._states.holder_for(step)
            holder.make_room()
            arrays = self._feed.arrays(step, holder.rows, inputs)
            self._start(holder, arrays)
        self._states.appended(step.slots, holder)

    def wait(self) -> Mapping[str, Floats]:
        """The outputs of the step, float32[T or O, width]. Raises DeviceFailed."""
        self._require_open()
        request = self._request
        if request is None:
            raise DeviceFailed("openvino was asked for the results of a step that was never started")
        with _failures("failed in the middle of a step"):
            if not request.wait_for(round(1e3 * self.patience_s)):
                request.cancel()
                raise DeviceFailed(f"openvino did not finish a step in {self.patience_s:.0f} s")
        self._runs = False
        self._placing.after_step()
        self.ran = (self._began, self._began + request.latency / 1e3)
        return {name: request.get_output_tensor(place).data[0] for place, name in enumerate(self._outputs)}

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Let the target slots refer to the rows of the source slots; nothing is moved."""
        self._states.copy(sources, targets)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]."""
        self._require_open()
        return self._states.read(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore the contents of pages."""
        self._require_open()
        self._states.write(pages, contents)

    def close(self) -> None:
        """Free the graph and its states; a running step is aborted, and if it does not end it keeps them alive."""
        request, lent = self._request, self._lent
        self._request, self._lent, self._closed = None, {}, True
        if request is None or not self._runs or _ended(request, self.closing_s):
            self._states.close()
        else:  # the request still reads and writes them
            threading.Thread(target=_outlast, args=(request, lent, self._states), daemon=True).start()
        self._runs = False

    def _start(self, holder: Holder, arrays: Arrays) -> None:
        """Start a request with these inputs, which are kept alive until the next."""
        self._request, self._lent = holder.request, arrays
        for name, array in arrays.items():
            holder.request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        self._began = time.perf_counter()
        holder.request.start_async()
        self._runs = True

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("the model is closed; load it again")


class OpenVinoLane(OpenVinoFragmentLane):
    """A whole model on one OpenVINO processor.

    Steps without requested logits, the earlier parts of a prompt, are delayed to be joined with later ones if the model
    is small: attention over tokens cached by an earlier pass is far slower than within one pass.
    """

    capabilities = LaneCapabilities()

    def __init__(
        self,
        feed: GraphFeed,
        states: States,
        outputs: tuple[str, ...],
        resident_bytes: int,
        placing: Placing,
        n_weights: int,
        n_vocab: int,
    ) -> None:
        super().__init__(feed, states, outputs, resident_bytes, placing)
        self._most_tokens = min(MOST_JOINED, int(JOINED_PRODUCTS / n_weights))
        self._n_vocab = n_vocab
        self._waiting: list[Arrays] = []
        self._holder: Holder | None = None
        self._n_waiting = 0

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], valid until the next run."""
        self._require_open()
        n_tokens, n_outputs = len(step.batch.tokens), len(step.batch.outputs)
        with _failures("could not start a step"):
            holder = self._states.holder_for(step)
            if self._waiting and (holder is not self._holder or self._n_waiting + n_tokens > MOST_JOINED):
                self._flush()
            if not self._waiting:
                holder.make_room()
            self._holder = holder
            self._waiting.append(self._feed.arrays(step, holder.rows, {}))
            self._n_waiting += n_tokens
        self._states.appended(step.slots, holder)
        if not n_outputs and self._n_waiting + n_tokens <= self._most_tokens:
            return np.zeros((0, self._n_vocab), np.float32)
        return self._flush()

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]."""
        self._flush()
        return super().read_pages(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore the contents of pages."""
        self._flush()
        super().write_pages(pages, contents)

    def close(self) -> None:
        """Free the graph and its states."""
        self._waiting, self._holder = [], None
        super().close()

    def _flush(self) -> Floats:
        """Run the delayed steps; returns the logits of the last one, or none."""
        waiting, self._waiting, self._n_waiting = self._waiting, [], 0
        if not waiting or self._holder is None:
            return np.zeros((0, self._n_vocab), np.float32)
        with _failures("could not start a step"):
            self._start(self._holder, waiting[0] if len(waiting) == 1 else self._feed.joined(waiting))
        return self.wait()[self._outputs[0]]


def _ended(request: ov.InferRequest, patience_s: float) -> bool:
    """Abort a request; returns whether it has ended."""
    try:
        request.cancel()
        return bool(request.wait_for(round(1e3 * patience_s)))
    except RuntimeError:  # it was cancelled, or it failed
        return True


def _outlast(request: ov.InferRequest, lent: Arrays, states: States) -> None:
    """Keep what a request uses alive until it ends."""
    with suppress(RuntimeError):
        request.wait()
    lent.clear()
    states.close()


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Turn OpenVINO's exceptions into DeviceFailed, without the source locations in their messages."""
    try:
        yield
    except RuntimeError as reason:
        lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
        raise DeviceFailed(f"openvino {what}: {lines[-1] if lines else 'it does not say why'}") from None
