"""Bundle files: packed weights on the disk, opened for the model that they are of, and every bundle read.

Half of the changed files have a right digest of their header, as whoever forges one gives it.
"""

from __future__ import annotations

import atexit
import random
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache

from mutation import mutated as mutated_bytes
from scratch import scratch
from tiny import DATA

from edgeinfer.backends.cpu.bundles.contents import Contents, contents_of
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.backends.cpu.bundles.header import DIGEST_BYTES, digest, identity_of, part_header
from edgeinfer.backends.cpu.bundles.writing import pack_bundles
from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model, open_model
from edgeinfer.steps import no_progress

LONGEST_BYTES = 1 << 18
NAMES = "llama-implicit-q8_0", "llama-relu-sparse-q4_1"
FOLDER = scratch()


@cache
def opened(name: str) -> tuple[Model, Contents, str]:
    """A tiny model, what its bundle file must hold, and the fingerprint of both."""
    stack = ExitStack()
    atexit.register(stack.close)
    model = stack.enter_context(open_model(DATA / f"{name}.gguf"))
    return model, contents_of(model.spec, model.file.tensors), fingerprint(model.file)


def seeds() -> list[bytes]:
    """A bundle file of each model; the first byte says of which."""
    found = []
    for number, name in enumerate(NAMES):
        model, contents, print_of_it = opened(name)
        path = FOLDER / f"{name}.bundles"
        pack_bundles(path, model.file, contents, print_of_it, kernel_library(), 1, no_progress)
        found.append(bytes([number]) + path.read_bytes())
    return found


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """A changed file; or one with changed checksums and a right digest of them."""
    seed = rng.choice(seeds)
    if rng.random() < 0.5:
        return seed[:1] + mutated_bytes([seed[1:]], rng, limit)
    _, contents, print_of_it = opened(NAMES[seed[0]])
    end = identity_of(contents, print_of_it).checked_bytes
    head = mutated_bytes([seed[1 : 1 + end]], rng, end).ljust(end, b"\0")
    body = mutated_bytes([seed[1 + end :]], rng, limit) if rng.random() < 0.5 else seed[1 + end :]
    return seed[:1] + head + digest(head) + body[DIGEST_BYTES:]


def run(data: bytes) -> None:
    """Open it, and read all bundles; and go on with it as with a half-written one."""
    _, contents, print_of_it = opened(NAMES[(*data[:1], 0)[0] % len(NAMES)])
    path = FOLDER / "changed.bundles"
    path.write_bytes(data[1:])
    part_header(data[1:], identity_of(contents, print_of_it))
    with BundleFile.open(path, contents, print_of_it) as file:
        source = file.source(direct=False)
        try:
            for bundle in contents.bundles:
                file.read(bundle.number, memoryview(bytearray(bundle.padded_bytes)), source)
        finally:
            source.close()
