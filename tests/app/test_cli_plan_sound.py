"""`edgeinfer plan` of a model that hears: its projector, and what thirty seconds of sound take."""

from __future__ import annotations

from tests.app.test_cli_plan_images import planned, run
from tests.golden.goldens import DATA

MODEL = DATA / "sounds" / "qwen2a.gguf"


def test_a_model_with_a_projector_says_what_sound_takes(home: object) -> None:
    found = planned("-m", str(MODEL))
    assert found["images"] is None
    sound = found["sound"]
    assert (sound["projector"], sound["type"], sound["refused"]) == ("mmproj-qwen2a.gguf", "qwen2a", None)
    assert (sound["seconds"], sound["n_chunks"], sound["n_rows"]) == (30, 30, 30 * 25)
    assert found["memory"]["encoder_bytes"] == sound["encoder_bytes"] > 0
    line = next(line for line in run("-m", str(MODEL)).stdout.splitlines() if line.startswith("sound"))
    assert "30 s: 30 chunks, 750 tokens" in line
    without = planned("-m", str(MODEL), "--mmproj", "off")
    assert without["sound"] is None
    assert without["memory"]["encoder_bytes"] == 0
