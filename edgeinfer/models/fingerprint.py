"""A model's fingerprint: equal for equal models whatever their names, different for other models.

In: an open file. Out: 32 hex digits, from the tensor table, the architecture's metadata and samples of the weights.
Reads a few pages only, so it does not protect against forgery; checksums of whole files belong to the store.
"""

from __future__ import annotations

import hashlib

from edgeinfer.models.gguf import GGUFFile

N_SAMPLES = 16
SAMPLE_BYTES = 4096


def approximate(fingerprint: str, threshold: float | None) -> str:
    """The fingerprint of a model with an activation threshold, which makes it a different model."""
    if threshold is None:
        return fingerprint
    return hashlib.blake2b(f"{fingerprint} approx {threshold!r}".encode(), digest_size=16).hexdigest()


def fingerprint(file: GGUFFile) -> str:
    """The fingerprint of a model."""
    digest = hashlib.blake2b(digest_size=16)
    for name, info in file.tensors.items():
        digest.update(f"{name} {info.shape} {info.ggml_type}\n".encode())
    architecture = file.metadata.text("general.architecture")
    for key in sorted(key for key in file.metadata if key.startswith(f"{architecture}.")):
        digest.update(f"{key} {file.metadata[key]!r}\n".encode())
    names = list(file.tensors)
    for name in names[:: max(1, len(names) // N_SAMPLES)]:
        digest.update(file.raw(name)[:SAMPLE_BYTES].tobytes())
    return digest.hexdigest()
