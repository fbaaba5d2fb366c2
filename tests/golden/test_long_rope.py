"""LongRoPE: on both sides of the border the logits of transformers; which factors are used is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.kv.limits import context_of
from edgeinfer.engine.loading import load
from edgeinfer.models.load import open_model
from tests.app.test_cli_plan import run
from tests.golden.goldens import DATA, Golden, Player

PATH = DATA / "phi3-longrope-q8_0.gguf"
BORDER, TRAINED = 64, 256
LONG = "uses its factors for long texts (LongRoPE), as the context of 65 tokens exceeds 64; --ctx 64 uses"
SHORT = "uses its factors for texts up to 64 tokens (LongRoPE); a larger --ctx uses the others"


@pytest.mark.parametrize(("asked", "side"), [(None, "short"), (BORDER, "short"), (BORDER + 1, "long"), (None, "long")])
def test_logits_are_those_of_transformers_on_both_sides(asked: int | None, side: str) -> None:
    """transformers read a text within the border, and one beyond it. Unasked, contexts end at the border."""
    expected = Golden.read(f"phi3-longrope-q8_0@{side}")
    with open_model(PATH) as model:
        assert (model.spec.rope_border, model.spec.n_context_trained) == (BORDER, TRAINED)
        n_context = context_of(model.spec.n_context_usual, asked)
    with open_model(PATH, n_context) as model:
        spec = model.spec
    with Player(ReferenceDevice(), expected, spec) as player:
        error = expected.error(player.feed(expected.tokens))
    assert error < 1e-5 if (n_context > BORDER) == (side == "long") else error > 1e-3


def test_a_model_says_that_it_uses_factors_for_long_texts() -> None:
    with load(PATH, device="reference") as llm:
        assert llm.info.n_context == BORDER
        assert not any("LongRoPE" in notice for notice in llm.info.notices)
    with load(PATH, device="reference", n_context=BORDER + 1) as llm:
        assert any(LONG in notice for notice in llm.info.notices)


@pytest.mark.parametrize(("asked", "told"), [((), SHORT), (("--ctx", str(BORDER + 1)), LONG)])
def test_a_plan_says_which_factors_are_used(home: Path, asked: tuple[str, ...], told: str) -> None:
    shown = run("-m", str(PATH), *asked)
    assert shown.exit_code == 0, shown.output
    assert told in shown.stdout
