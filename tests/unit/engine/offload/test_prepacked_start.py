"""A model that fits in memory starts from its bundle file, if it has a good one, and answers as without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer import load
from edgeinfer.backends.cpu.bundles.bundling import Bundling
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import open_model
from edgeinfer.offload.bundle_file import bundle_path
from edgeinfer.steps import no_progress


def pack(path: Path, name: str) -> Path:
    """Write the bundle file of a model to where it is looked for."""
    with open_model(path) as model:
        place = bundle_path(name, fingerprint(model.file))
        return Bundling(model, place, 1).pack(no_progress).path


def started(path: Path) -> tuple[str, set[str]]:
    """A greedy answer, and what loading said it did."""
    steps: list[tuple[str, int, int]] = []
    with (
        load(path, device="cpu", threads=1, n_context=64, spec="off", progress=lambda *step: steps.append(step)) as llm,
        llm.session() as session,
    ):
        answer = session.complete("the then", temperature=0, max_tokens=12).read()
    return answer, {what for what, _, _ in steps}


def test_weights_are_read_from_the_bundle_file(home: Path, tiny_model: Path) -> None:
    answer, said = started(tiny_model)
    assert "packing weights" in said
    assert answer
    pack(tiny_model, "tiny")
    again, said = started(tiny_model)
    assert "reading packed weights" in said
    assert "packing weights" not in said
    assert again == answer


@pytest.mark.parametrize("place", [20, 5000])
def test_a_damaged_bundle_file_is_not_used(home: Path, tiny_model: Path, place: int) -> None:
    answer, _ = started(tiny_model)
    bundles = pack(tiny_model, "tiny")
    with bundles.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x40]))
    again, said = started(tiny_model)
    assert "packing weights" in said
    assert (place > 4096) == any("wrong checksum" in what for what in said)
    assert again == answer
