"""Several MTP blocks: each guesses one token further, none changes an answer, and guesses depend on the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.speculation.draft_model import FollowedText
from edgeinfer.engine.speculation.head_chain import HeadChain
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.models.load import head_bytes, head_in, open_model
from edgeinfer.models.trained_heads import HIDDEN, with_hidden
from tests.golden.goldens import DATA
from tests.golden.test_head_logits import distance, evaluate, opened
from tests.head_files import write_apart, write_sure_head, write_with_head
from tests.unit.engine.speculation.test_heads import OPTIONS, stats_of, turns

GLM, QWEN, MIMO = DATA / "glm4moe-f32.gguf", DATA / "converted" / "qwen35-bf16.gguf", DATA / "peer" / "mimo2.gguf"
N_BLOCKS = 3
Guesses = dict[tuple[int, tuple[int, ...]], list[float]]


def chain_of(llm: LLM) -> HeadChain:
    """The blocks of an open model."""
    assert llm.drafts is not None
    assert isinstance(llm.drafts.draft_model, HeadChain)
    return llm.drafts.draft_model


@pytest.mark.parametrize(("source", "options"), [*((QWEN, each) for each in OPTIONS), (MIMO, OPTIONS[0])])
def test_no_chain_changes_an_answer(source: Path, options: dict[str, Any], tmp_path: Path, home: Path) -> None:
    path = write_with_head(source, tmp_path / "m.gguf", seed=5, n_blocks=N_BLOCKS)
    with load(path, threads=1, spec="off", n_context=512) as llm:
        plain = turns(llm, options)
    for spec in ("on", 2, 8):
        with load(path, threads=1, spec=spec, n_context=512) as llm:  # type: ignore[arg-type]
            assert turns(llm, options) == plain
            n_passes = [block.n_passes for block in chain_of(llm)._blocks]
            assert n_passes[0] > 0
            if spec == 8:
                assert n_passes[0] >= n_passes[1] > 20
                assert n_passes[2] > n_passes[1]  # the last one goes on by itself


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_sure_chain_is_always_right(is_apart: bool, tmp_path: Path, home: Path) -> None:
    model = write_sure_head(QWEN, tmp_path / "sure.gguf", n_blocks=N_BLOCKS)
    apart = [write_apart(model, tmp_path / "mtp-sure.gguf", N_BLOCKS)] if is_apart else []
    with load(model, threads=1, spec=6, n_context=512, draft_from=apart) as llm:
        for prompt in ("the rain in the inn", "the rain in the inn " * 25):
            stats = stats_of(llm.complete(prompt, max_tokens=60, temperature=0))
            assert stats.draft is not None
            assert stats.draft.sources["trained_head"].accepted >= 1
            assert stats.accepted_per_step > 4
        assert all(block.n_passes > 1 for block in chain_of(llm)._blocks)


def guesses(llm: LLM, prompts: Sequence[str]) -> Guesses:
    """What each block computes for the next token, by its number and the text with guesses; for the last prompt."""
    found: Guesses = {}
    chain, text = chain_of(llm), list[int]()
    read, go_on = chain.read, chain.go_on

    def reading(texts: Sequence[FollowedText], ahead: Sequence[Sequence[int]]) -> list[int | None]:
        text[:] = texts[0].history
        return read(texts, ahead)

    def going_on(
        texts: Sequence[FollowedText], tokens: Sequence[int], ahead: Sequence[Sequence[int]]
    ) -> list[int | None]:
        text.append(tokens[0])
        return go_on(texts, tokens, ahead)

    def noting(number: int, evaluate: Any, batch: Batch) -> Floats:
        logits: Floats = evaluate(batch)
        if len(logits):
            found.setdefault((number, tuple(text)), logits[0].tolist())
        return logits

    with llm.session() as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "read", reading)
        patch.setattr(chain, "go_on", going_on)
        for number, block in enumerate(chain._blocks):
            evaluate = block.executor.evaluate
            patch.setattr(block.executor, "evaluate", lambda batch, n=number, each=evaluate: noting(n, each, batch))
        for prompt in prompts:
            found.clear()
            session.complete(prompt, max_tokens=40, temperature=0).read()
    return found


@pytest.mark.parametrize("source", [GLM, QWEN], ids=["glm4moe", "qwen35"])
def test_a_guess_depends_on_the_text_alone_and_not_on_how_it_came_about(
    source: Path, tmp_path: Path, home: Path
) -> None:
    """Passes that accept more or fewer tokens, and another text before, change nothing, with any block."""
    path = write_with_head(source, tmp_path / "m.gguf", n_blocks=N_BLOCKS)
    last = "the rain in the inn and the"
    with load(path, threads=1, spec=4, n_context=256) as llm:
        wanted = guesses(llm, [last])
    for spec, before in ((8, ()), (6, ("another heat", "in the rain"))):
        with load(path, threads=1, spec=spec, n_context=256) as llm:
            found = guesses(llm, [*before, last])
            for number in range(N_BLOCKS):
                same = {key for key in found.keys() & wanted.keys() if key[0] == number}
                assert len(same) > 1
                assert all(found[key] == wanted[key] for key in same)


def test_each_block_guesses_from_the_rows_of_the_one_before_it(tmp_path: Path, home: Path) -> None:
    """The same guesses come from evaluating all blocks over the whole text at once, as they are trained."""
    path = write_with_head(QWEN, tmp_path / "m.gguf", n_blocks=N_BLOCKS)
    with load(path, threads=1, spec=4, n_context=256) as llm:
        found = guesses(llm, ["the rain in the inn and the"])
    with open_model(path, 256) as model:
        head = head_in(model.file.metadata, model.file.tensors, 256)
        assert head is not None
        for number in range(N_BLOCKS):
            text = np.array(max(text for block, text in found if block == number), np.int32)
            with opened("cpu", with_hidden(model.spec), model.file) as trunk:
                evaluate(trunk, text, None)
                rows, logits = trunk.show(HIDDEN), np.zeros((0, 0), np.float32)
            for n, block in enumerate(head.blocks[: number + 1], 1):
                with opened("cpu", block.spec, model.file) as executor:
                    logits = evaluate(executor, text[n:], rows[:-1])
                    rows = executor.show(HIDDEN) if n < N_BLOCKS else rows
            assert distance(logits[-1:], np.array([found[number, tuple(text.tolist())]], np.float32)) < 1e-5


def test_all_blocks_count(tmp_path: Path) -> None:
    one, three = (write_with_head(GLM, tmp_path / f"{n}.gguf", n_blocks=n) for n in (1, N_BLOCKS))
    sizes = []
    for path in (one, three):
        with open_model(path) as model:
            metadata, tensors = model.file.metadata, model.file.tensors
            sizes.append(head_bytes(metadata, tensors))
            head = head_in(metadata, tensors)
            assert head is not None
            prefixes = [min(name for name in _names(block.spec) if name.startswith("blk.")) for block in head.blocks]
            assert len({prefix.split(".")[1] for prefix in prefixes}) == len(head.blocks)
    assert sizes[1] == N_BLOCKS * sizes[0] > 0


def _names(spec: Any) -> set[str]:
    return {weight.tensor for weight in spec.weights()}
