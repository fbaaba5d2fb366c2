"""What of a sequence outlives its memory: its saved state as bytes, and its text, to be read again.

In: a magic word, a header of plain values and a body; for a sequence, a cache's bookkeeping and a lane: its pages, the
window of sliding-window layers, and its states. Out: bytes, and back. Layout: magic, uint32 header length, header as
JSON, body, BLAKE2b-128 of everything before it. A `ReadText` is for evaluators that outlive the owner of keys and
values: it takes batches and the accepted paths through them, and returns batches that read the same text. Knows no
files.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import index

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Lane
from edgeinfer.backends.memories import StateMemory
from edgeinfer.engine.kv.kvcache import KVCache, pages_for
from edgeinfer.errors import DoesNotFit, EdgeInferError
from edgeinfer.graph.step import PAGE, Batch, Floats, InputRows, Int32s, causal_spans, same_axes

Value = str | int | Sequence[int]

LENGTH = struct.Struct("<I")
CHECKSUM_BYTES = 16
_MAGIC = re.compile(rb"(?P<kind>EDGEINFER [A-Z ]+)\d+\n")
SAVED_CHECKPOINT_BYTES = 64_000_000
"""Byte limit for checkpoints saved with a sequence; the newest one is always saved."""


def seal(magic: bytes, header: Mapping[str, Value], body: bytes) -> bytes:
    """Frame a header and a body as one saved state."""
    text = json.dumps(dict(header)).encode()
    start = b"".join([magic, LENGTH.pack(len(text)), text, body])
    return start + _checksum(start)


def unseal(magic: bytes, state: bytes, what: str) -> tuple[dict[str, Value], bytes]:
    """Return the header and body of a saved state exactly as they were sealed.

    Raises EdgeInferError, naming `what`, if it is not such a state, of another version, truncated or altered; if it is
    a state of another kind, the message names the device that saved it.
    """
    device = _device_of(magic, state)
    if device is not None:
        raise EdgeInferError(f"{what} was saved by {_loading(device)}, or start again from the text")
    text_at = len(magic) + LENGTH.size
    if not state.startswith(magic) or len(state) < text_at + CHECKSUM_BYTES:
        raise EdgeInferError(f"{what} is not one that this version of edgeinfer saved; start again from the text")
    if _checksum(state[:-CHECKSUM_BYTES]) != state[-CHECKSUM_BYTES:]:
        raise EdgeInferError(f"{what} is cut short or damaged; start again from the text")
    (length,) = LENGTH.unpack_from(state, len(magic))
    try:
        header = json.loads(state[text_at : text_at + length])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise EdgeInferError(f"{what} is damaged; start again from the text")
    return header, state[text_at + length : -CHECKSUM_BYTES]


def saved_number(header: Mapping[str, Value], name: str) -> int:
    """A count in the header of a saved state. Raises EdgeInferError if it is none."""
    number = header.get(name)
    if type(number) is not int or number < 0:
        raise EdgeInferError("the saved state is damaged; start again from the text")
    return number


def _device_of(magic: bytes, state: bytes) -> Value | None:
    """The device that saved a state of another kind than `magic`; None if it is the same kind or names no device."""
    found = _MAGIC.match(state)
    if found is None or found["kind"] == magic.rstrip(b"0123456789\n"):
        return None
    with suppress(EdgeInferError):
        return unseal(found.group(), state, "")[0].get("device")
    return None


def check_same(found: Mapping[str, Value], expected: Mapping[str, Value]) -> None:
    """Raises EdgeInferError with the differences if a saved state's header does not match this model and device."""
    differing = [
        f"{key} is {found.get(key, 0)}, not {value}"
        for key, value in {"kv_budget": 0, **expected}.items()  # absent where there is none
        if found.get(key, 0) != value
    ]
    if not differing:
        return
    if found.get("model") == expected["model"] and found.get("device") != expected["device"]:
        raise EdgeInferError(
            f"the saved state was saved by {_loading(found.get('device'))}, or start again from the text: this is "
            f"the device {expected['device']}"
        )
    if found.get("model") == expected["model"] and found.get("window") != expected.get("window"):
        raise EdgeInferError(
            "the saved state was saved with another context, with which layers with a window keep other positions; "
            "start again from the text"
        )
    if len(differing) == 1 and found.get("layout") != expected.get("layout"):
        raise EdgeInferError(
            f"the saved state was saved when {expected['device']} had other layers each; start again from the text"
        )
    raise EdgeInferError(
        f"the saved state belongs to another model, device or kv: its {', its '.join(differing)}; "
        "use it with what it was saved with, or start again from the text"
    )


def _loading(device: Value | None) -> str:
    """A phrase that names the device that saved a state and the option that selects it."""
    name = str(device)
    return f"the device {name}; load the model with --device {name.replace('+', ',')} to use it"


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).digest()


def n_saved_checkpoints(slot_bytes: int) -> int:
    """Most checkpoints that are saved with a sequence, given the size of a state."""
    return max(1, SAVED_CHECKPOINT_BYTES // max(1, slot_bytes))


def saved(cache: KVCache, lane: Lane, sequence: int) -> tuple[dict[str, Value], bytes]:
    """Header fields that describe a sequence's contents, and the contents."""
    pages, n_tokens, windows = cache.pages(sequence), cache.n_cached(sequence), lane.capabilities.windows
    body = lane.read_pages(pages).tobytes() if len(pages) else b""
    if cache.windows is not None and windows is not None and len(pages):
        cache.windows.tell(windows)
        body += windows.read(pages[cache.windows.first_page(n_tokens) :]).tobytes()
    header, states = _saved_states(cache, lane.capabilities.states, sequence)
    return {"n_tokens": n_tokens, **header}, body + states


def put_back(cache: KVCache, lane: Lane, sequence: int, header: dict[str, Value], body: bytes) -> None:
    """Replace the cached contents of a sequence by saved ones.

    Raises EdgeInferError for contents of another size, before anything changes. Raises ContextOverflow or DoesNotFit if
    there is no room, and leaves the sequence empty.
    """
    windows, page_bytes = lane.capabilities.windows, lane.read_pages(np.zeros(1, np.int32)).shape[1]
    n_tokens = _n_tokens_of(cache, lane, header, len(body), page_bytes)
    pages = cache.refill(sequence, n_tokens)
    if not len(pages):
        return
    contents = np.frombuffer(bytearray(body), np.uint8)
    start, stop = 0, len(pages) * page_bytes
    lane.write_pages(pages, contents[:stop].reshape(len(pages), page_bytes))
    if cache.windows is not None and windows is not None:
        cache.windows.tell(windows)
        seen, page_bytes = pages[cache.windows.first_page(n_tokens) :], windows.page_bytes
        start, stop = stop, stop + len(seen) * page_bytes
        windows.write(seen, contents[start:stop].reshape(len(seen), page_bytes))
    _put_states_back(cache, lane.capabilities.states, sequence, header.get("checkpoints", ()), contents[stop:])


def _n_tokens_of(cache: KVCache, lane: Lane, header: Mapping[str, Value], n_bytes: int, page_bytes: int) -> int:
    """The number of saved tokens. Raises EdgeInferError unless as many bytes were saved as these and states take."""
    windows, states = lane.capabilities.windows, lane.capabilities.states
    n_tokens, checkpoints = saved_number(header, "n_tokens"), header.get("checkpoints", ())
    numbers = list(checkpoints) if isinstance(checkpoints, Sequence) else []
    n_pages, expected = pages_for(n_tokens), 0
    if n_pages:
        expected = n_pages * page_bytes
        if cache.windows is not None and windows is not None:
            expected += (n_pages - cache.windows.first_page(n_tokens)) * windows.page_bytes
        if cache.states is not None and states is not None:
            expected += (1 + len(numbers)) * states.slot_bytes
    is_within = all(type(number) is int and 0 < number <= (n_tokens - 1) // PAGE for number in numbers)
    if not is_within or (n_pages and expected != n_bytes):
        raise EdgeInferError("the saved state is damaged; start again from the text")
    return n_tokens


def fill_with_zeros(cache: KVCache, lane: Lane, sequence: int, n_tokens: int) -> None:
    """Give a sequence `n_tokens` cached tokens whose keys and values are zeros. Raises as `KVCache.refill`."""
    pages, windows = cache.refill(sequence, n_tokens), lane.capabilities.windows
    if not len(pages):
        return
    lane.write_pages(pages, np.zeros_like(lane.read_pages(pages)))
    if cache.windows is not None and windows is not None:
        cache.windows.tell(windows)
        seen = pages[cache.windows.first_page(n_tokens) :]
        windows.write(seen, np.zeros((len(seen), windows.page_bytes), np.uint8))


def _saved_states(cache: KVCache, states: StateMemory | None, sequence: int) -> tuple[dict[str, Value], bytes]:
    """Header fields that describe a sequence's state and newest checkpoints, and their contents."""
    if cache.states is None or states is None:
        return {}, b""
    pages = cache.pages(sequence)[: (cache.n_cached(sequence) - 1) // PAGE].tolist()  # pages before the last token
    checkpoints = cache.states.checkpoints(pages)[-n_saved_checkpoints(states.slot_bytes) :]
    slots = [cache.states.current(sequence), *(slot for _, slot in checkpoints)]
    return {"checkpoints": [n_pages for n_pages, _ in checkpoints]}, states.read(slots).tobytes()


def _put_states_back(
    cache: KVCache, states: StateMemory | None, sequence: int, checkpoints: Value, body: NDArray[np.uint8]
) -> None:
    """Restore the current state of a sequence, and as many of its checkpoints as fit.

    Raises DoesNotFit if there is no slot for the state, and leaves the sequence empty.
    """
    if cache.states is None or states is None:
        return
    contents = body.reshape(-1, states.slot_bytes)
    try:
        states.write([cache.states.adopt(sequence)], contents[:1])
    except DoesNotFit:
        cache.truncate(sequence, 0)
        raise
    assert not isinstance(checkpoints, int | str)
    pages: Int32s = cache.pages(sequence)
    for n_pages, content in zip(checkpoints, contents[1:], strict=True):
        if cache.states.slots.n_available:
            slot = cache.states.slots.take()
            cache.states.slots.keep(int(pages[n_pages - 1]), slot)
            states.write([slot], content[None])


@dataclass(slots=True)
class ReadText:
    """Tokens in order, negative where a row was read; the rows; and the axes of all tokens if any token had some.

    `ahead`: how many tokens after it each one sees, if any sees some: then these must be read in the same pass.
    `scales`: of LoRA adapters, the same for all tokens; None if they were read as the model was loaded.
    """

    tokens: list[int] = field(default_factory=list)
    rows: list[Floats] = field(default_factory=list)
    axes: list[list[int]] | None = None
    scales: list[float] | None = None
    ahead: list[int] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, batch: Batch, path: Int32s) -> None:
        """Append accepted tokens of a batch."""
        n_before = len(self.tokens)
        if len(path):
            self.scales = None if batch.scales is None else batch.scales[path[0]].tolist()
        self.tokens += batch.tokens[path].tolist()
        if batch.rows is not None and (chosen := batch.rows_of(path)) is not None:
            self.rows += list(chosen.values)
        if batch.axes is not None and self.axes is None:
            first = int(batch.positions[path[0]]) - n_before if len(path) else 0
            self.axes = same_axes(np.arange(first, first + n_before, dtype=np.int32)).tolist()
        if self.axes is not None:
            axes = same_axes(batch.positions) if batch.axes is None else batch.axes
            self.axes += axes[path].tolist()
        if batch.spans is not None and self.ahead is None:
            self.ahead = [0] * n_before
        if self.ahead is not None:
            ahead = np.zeros_like(batch.positions) if batch.spans is None else batch.spans[:, 1] - batch.positions
            self.ahead += ahead[path].tolist()

    def whole_before(self, n_tokens: int) -> int:
        """The most of the first `n_tokens` tokens that can be read again without those after them."""
        while self.ahead is not None and n_tokens and self.ahead[n_tokens - 1]:
            n_tokens -= 1
        return n_tokens

    def cut(self, n_tokens: int) -> None:
        """Drop everything after the first `n_tokens` tokens."""
        if self.rows:
            del self.rows[sum(token < 0 for token in self.tokens[:n_tokens]) :]
        del self.tokens[n_tokens:]
        if self.axes is not None:
            del self.axes[n_tokens:]
            self.axes = self.axes or None
        if self.ahead is not None:
            del self.ahead[n_tokens:]
            self.ahead = self.ahead or None

    def copied(self) -> ReadText:
        """Return an independent copy."""
        axes = None if self.axes is None else list(self.axes)
        ahead = None if self.ahead is None else list(self.ahead)
        return ReadText(list(self.tokens), list(self.rows), axes, self.scales, ahead)

    def batches(self, sequence: int, most_tokens: int, first: int = 0) -> Iterator[Batch]:
        """Yield batches that read the text one after the other, from position `first` on, without logits."""
        n_rows = start = 0
        while start < len(self.tokens):
            stop = self.whole_before(min(start + most_tokens, len(self.tokens)))
            tokens = np.array(self.tokens[start:stop], np.int32)
            order, n_own = np.arange(len(tokens), dtype=np.int32), int(np.count_nonzero(tokens < 0))
            rows = InputRows(np.array(self.rows[n_rows : n_rows + n_own], np.float32)) if n_own else None
            axes = None if self.axes is None else np.array(self.axes[start:stop], np.int32)
            sequences, positions = np.full(len(tokens), sequence, np.int32), order + np.int32(first + start)
            scales = None if self.scales is None else np.tile(np.array(self.scales, np.float32), (len(tokens), 1))
            batch = Batch(tokens, sequences, positions, order - 1, order[:0], rows, axes, scales)
            if self.ahead is not None and any(self.ahead[start:stop]):
                spans = causal_spans(positions)
                spans[:, 1] += np.array(self.ahead[start:stop], np.int32)
                batch = replace(batch, spans=spans)
            yield batch
            n_rows, start = n_rows + n_own, stop

    def sealed(self) -> tuple[str, bytes]:
        """The text as JSON, and the bytes of its rows."""
        width = len(self.rows[0]) if self.rows else 0
        shapes = {"n_rows": len(self.rows), "width": width, "ahead": self.ahead}
        header = json.dumps({"tokens": self.tokens, "axes": self.axes, "scales": self.scales, **shapes})
        return header, b"".join(row.tobytes() for row in self.rows)

    @classmethod
    def unsealed(cls, header: str, body: bytes) -> tuple[ReadText, bytes]:
        """Restore what `sealed` returned. Returns the text and the remaining bytes. Raises EdgeInferError."""
        try:
            fields = json.loads(header)
            n_rows, width = index(fields["n_rows"]), index(fields["width"])
            rows = np.frombuffer(body[: 4 * n_rows * width], np.float32).reshape(n_rows, width)
            own = fields["tokens"], list(rows), fields["axes"], fields.get("scales"), fields.get("ahead")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise EdgeInferError("the saved state is damaged; start again from the text") from None
        return cls(*own), body[4 * n_rows * width :]


def cut_whole(n_tokens: int, whole_before: Callable[[int], int], cut: Callable[[int], int]) -> int:
    """Cut a sequence to what can be read again, `n_tokens` or fewer; returns how many are left.

    `cut` drops what is after so many tokens, or more, and returns how many are left.
    """
    while True:
        wanted = whole_before(n_tokens)
        n_tokens = cut(wanted)
        if n_tokens == wanted:
            return n_tokens
