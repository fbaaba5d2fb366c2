"""Saved states as bytes: a header that says what they belong to, the body, and a checksum over both.

In: a magic word, a header of plain values and a body. Out: bytes, and back. Layout: magic, uint32 header length,
header as JSON, body, BLAKE2b-128 of everything before it. Does not know what header and body mean.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress

from edgeinfer.errors import EdgeInferError

Value = str | int | Sequence[int]

LENGTH = struct.Struct("<I")
CHECKSUM_BYTES = 16
_MAGIC = re.compile(rb"(?P<kind>EDGEINFER [A-Z ]+)\d+\n")


def seal(magic: bytes, header: Mapping[str, Value], body: bytes) -> bytes:
    """One saved state."""
    text = json.dumps(dict(header)).encode()
    start = b"".join([magic, LENGTH.pack(len(text)), text, body])
    return start + _checksum(start)


def unseal(magic: bytes, state: bytes, what: str) -> tuple[dict[str, Value], bytes]:
    """Header and body of a saved state, just as they were sealed.

    Raises EdgeInferError, naming `what`, when it is no such state, of another version, cut short or altered, and with
    the device that saved it when it is one of another kind.
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
    header: dict[str, Value] = json.loads(state[text_at : text_at + length])
    return header, state[text_at + length : -CHECKSUM_BYTES]


def _device_of(magic: bytes, state: bytes) -> Value | None:
    """The device that saved a state of another kind than `magic`; None where it is of that kind, or does not say."""
    found = _MAGIC.match(state)
    if found is None or found["kind"] == magic.rstrip(b"0123456789\n"):
        return None
    with suppress(EdgeInferError):
        return unseal(found.group(), state, "")[0].get("device")
    return None


def check_same(found: Mapping[str, Value], wanted: Mapping[str, Value]) -> None:
    """Raises EdgeInferError with what differs where the header of a saved state is not of this model and device."""
    differing = [f"{key} is {found.get(key)}, not {value}" for key, value in wanted.items() if found.get(key) != value]
    if not differing:
        return
    if found.get("model") == wanted["model"] and found.get("device") != wanted["device"]:
        raise EdgeInferError(
            f"the saved state was saved by {_loading(found.get('device'))}, or start again from the text: this is "
            f"the device {wanted['device']}"
        )
    if found.get("model") == wanted["model"] and found.get("window") != wanted.get("window"):
        raise EdgeInferError(
            "the saved state was saved with another context, with which layers with a window keep other positions; "
            "start again from the text"
        )
    if len(differing) == 1 and found.get("layout") != wanted.get("layout"):
        raise EdgeInferError(
            f"the saved state was saved when {wanted['device']} had other layers each; start again from the text"
        )
    raise EdgeInferError(
        f"the saved state belongs to another model, device or kv: its {', its '.join(differing)}; "
        "use it with what it was saved with, or start again from the text"
    )


def _loading(device: Value | None) -> str:
    """A device that saved a state, and how it is chosen."""
    name = str(device)
    return f"the device {name}; load the model with --device {name.replace('+', ',')} to use it"


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).digest()
