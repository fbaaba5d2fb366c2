"""`edgeinfer plan` of a model that sees: its projector, the memory of its encoder, and what an image takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import edgeinfer
from edgeinfer.app.cli import build_app
from edgeinfer.engine.kv.limits import with_encoder
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.models.images.image import Image
from edgeinfer.models.projector_file import open_projector
from edgeinfer.scheduling.cost.images import EncoderWork
from edgeinfer.scheduling.cost.memory import MemoryNeed
from edgeinfer.scheduling.machine.topology import read_topology
from tests.golden.goldens import DATA
from tests.unit.scheduling.profiles import machine

VISION = DATA / "vision"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["plan", *arguments])


def planned(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return found


@pytest.fixture
def seeing(home: Path, tmp_path: Path) -> Path:
    """A model with its projector beside it, on a machine that was measured before."""
    measured = {"fingerprint": fingerprint_of(read_topology()), "measured": "2026-11-22 12:00 UTC", "idle_share": 1.0}
    ProfileStore().save(replace(machine(), **measured))
    for name in ("idefics3.gguf", "mmproj-idefics3.gguf"):
        (tmp_path / name).write_bytes((VISION / name).read_bytes())
    return tmp_path / "idefics3.gguf"


def test_a_model_with_a_projector_says_what_an_image_takes(seeing: Path) -> None:
    images = planned("-m", str(seeing))["images"]
    with open_projector(seeing.with_name("mmproj-idefics3.gguf")) as projector:
        facts = projector.facts
        plan = facts.encoder.plan((768, 1024))
        encode_s = EncoderWork.of(facts.encoder, facts.tensors).seconds(machine(), plan)
        need = with_encoder(MemoryNeed(0, 0, 0, 0, 0), "cpu", facts)
    assert (images["projector"], images["type"]) == ("mmproj-idefics3.gguf", "idefics3")
    assert (images["width"], images["height"]) == (1024, 768)
    assert (images["n_tiles"], images["n_rows"]) == (len(plan.tiles), plan.n_rows)
    with edgeinfer.load(seeing, device="reference", n_context=64) as llm:
        n_tokens = llm.prompts.n_image_tokens(Image.of(np.zeros((768, 1024, 3), np.uint8)))
    assert images["n_tokens"] == n_tokens > plan.n_rows
    assert images["encoder_bytes"] == need.encoder_bytes > 0
    assert images["encode_s"] == pytest.approx(encode_s)
    assert images["read_s"] > 0
    assert images["refused"] is None
    line = next(line for line in run("-m", str(seeing)).stdout.splitlines() if line.startswith("images"))
    assert f"1024x768: {len(plan.tiles)} tiles, {n_tokens} tokens, " in line
    assert line.endswith(" to read")


def test_memory_counts_the_encoder_where_there_is_one(seeing: Path) -> None:
    with_images, without = (planned("-m", str(seeing), *more) for more in ((), ("--mmproj", "off")))
    assert without["images"] is None
    encoder = with_images["memory"]["encoder_bytes"]
    assert without["memory"]["encoder_bytes"] == 0 < encoder
    assert with_images["memory"]["weight_bytes"] - without["memory"]["weight_bytes"] == encoder
    assert with_images["predicted"]["ram_bytes"] > without["predicted"]["ram_bytes"] + encoder
    elsewhere = planned("-m", str(seeing), "--machine", "cloud-2core")
    assert elsewhere["images"]["n_rows"] == with_images["images"]["n_rows"]
    assert elsewhere["memory"]["encoder_bytes"] == encoder


def test_a_projector_of_another_model_is_told_or_refused(seeing: Path, tmp_path: Path) -> None:
    other = VISION / "mmproj-qwen3vl.gguf"
    refused = run("-m", str(seeing), "--mmproj", str(other))
    assert refused.exit_code == 1
    assert "belongs to another model" in refused.output
    refused = run("-m", str(seeing), "--mmproj", str(seeing))
    assert refused.exit_code == 1
    assert "no projector file" in refused.output
    (tmp_path / "mmproj-idefics3.gguf").write_bytes(seeing.read_bytes())
    assert "images    cannot be read with mmproj-idefics3.gguf: " in run("-m", str(seeing)).stdout


def test_accelerators_read_no_images(seeing: Path) -> None:
    images = planned("-m", str(seeing), "--machine", "a10-16core", "--schedule", "accelerator")["images"]
    assert images["encode_s"] is None
    assert "cpu alone" in images["refused"]
