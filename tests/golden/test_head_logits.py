"""A trained head's logits are llama.cpp's: with the model's hidden rows, and with its own, on every device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, Limits, open_device
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import head_in, open_head, open_model
from edgeinfer.models.trained_heads import HIDDEN, with_hidden
from tests.golden.goldens import DATA
from tests.head_files import ASSISTANTS, CHAINS, EAGLES, HEADS, N_BLOCKS, write_assistant, write_eagle, write_with_head

HALVES = 0.002
"""Distance that float16 keys and values make, in the model and in the head."""


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_computes_what_llama_cpp_does(name: str, device: str, tmp_path: Path) -> None:
    source, own_output = HEADS[name]
    path = write_with_head(DATA / source, tmp_path / "m.gguf", seed=list(HEADS).index(name), own_output=own_output)
    golden = np.load(DATA / "heads" / f"{name}.npz")
    with open_model(path) as model:
        found = head_in(model.file.metadata, model.file.tensors)
        assert found is not None
        with opened(device, with_hidden(model.spec), model.file) as trunk:
            evaluate(trunk, golden["tokens"], None)
            rows = trunk.show(HIDDEN)
        with opened(device, found.spec, model.file) as head:
            logits = evaluate(head, golden["tokens"][1:], rows[:-1])
            assert distance(logits, golden["logits"]) < HALVES
            for token, wanted in zip(golden["next"], golden["next_logits"], strict=True):
                logits = evaluate(head, np.array([token]), head.show(found.next_rows)[-1:])
                assert distance(logits, wanted[None]) < HALVES


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", CHAINS)
def test_each_of_several_blocks_computes_what_llama_cpp_does(name: str, device: str, tmp_path: Path) -> None:
    golden = np.load(DATA / "heads" / f"{name}.npz")
    with open_model(write_with_head(DATA / CHAINS[name], tmp_path / "m.gguf", n_blocks=N_BLOCKS)) as model:
        found = head_in(model.file.metadata, model.file.tensors)
        assert found is not None
        assert len(found.blocks) == N_BLOCKS
        shown = with_hidden(model.spec, is_normed=found.is_normed)
        with opened(device, shown, model.file) as trunk:
            evaluate(trunk, golden["tokens"], None)
            rows = trunk.show(HIDDEN)
        for number, (block, wanted) in enumerate(zip(found.blocks, golden["logits"], strict=True), 1):
            with opened(device, block.spec, model.file) as head:
                logits = evaluate(head, golden["tokens"][number:], rows[:-1])
                assert distance(logits, wanted[number:]) < HALVES
                rows = head.show(HIDDEN) if number < N_BLOCKS else rows


def opened(device: str, spec: ModelSpec, file: GGUFFile) -> Executor:
    """A model on a device, with an empty sequence."""
    own, limits = open_device(device, DeviceOptions(n_workers=1)), Limits(256, 8)
    executor = Executor(own, own.compile(spec, file, limits), limits, "", inputs=spec.inputs)
    assert executor.create() == 0
    return executor


def evaluate(executor: Executor, tokens: NDArray[np.int32], rows: Floats | None) -> Floats:
    """Logits of tokens that continue the only sequence."""
    order = np.arange(len(tokens), dtype=np.int32)
    place = np.zeros(len(tokens), np.int32), order + np.int32(executor.n_cached(0)), order - 1, order
    logits = executor.evaluate(Batch(tokens.astype(np.int32), *place, hidden=rows)).copy()
    executor.commit(0, order)
    return logits


def distance(logits: Floats, wanted: Floats) -> float:
    """Largest distance of a row, relative to its size."""
    return float((np.linalg.norm(logits - wanted, axis=1) / np.linalg.norm(wanted, axis=1)).max())


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", EAGLES)
def test_an_eagle_head_computes_what_llama_cpp_does(name: str, device: str, tmp_path: Path) -> None:
    path = write_eagle(tmp_path / "head.gguf", seed=list(EAGLES).index(name), **EAGLES[name])
    golden = np.load(DATA / "heads" / f"{name}.npz")
    with GGUFFile.open(path) as file:
        found = head_in(file.metadata, file.tensors)
        assert found is not None
        known = np.frombuffer(file.raw(found.vocabulary), np.int64)
        assert np.all(np.isinf(np.delete(golden["logits"], known, axis=1)))
        width = found.spec.inputs.hidden_width
        with opened(device, found.spec, file) as head:
            rows = np.pad(golden["rows"], ((0, 0), (0, width - found.apart)))
            logits = evaluate(head, golden["tokens"], rows)
            assert distance(logits, golden["logits"][:, known]) < HALVES
            for token, wanted in zip(golden["next"], golden["next_logits"], strict=True):
                own = np.pad(head.show(found.next_rows)[-1:], ((0, 0), (found.apart, 0)))
                assert distance(evaluate(head, np.array([token]), own), wanted[None, known]) < HALVES


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(("name", "n_groups"), [*((name, 0) for name in ASSISTANTS), ("assistant-small", 16)])
def test_an_assistant_computes_what_llama_cpp_does(name: str, n_groups: int, device: str, tmp_path: Path) -> None:
    """Groups of tokens, which files of small ones may name, change no logit: llama.cpp opens none with them."""
    source, seed = ASSISTANTS[name]
    path = write_assistant(DATA / source, tmp_path / "head.gguf", seed=seed, n_groups=n_groups)
    golden = np.load(DATA / "heads" / f"{name}.npz")
    with open_model(DATA / source) as model, opened(device, with_hidden(model.spec), model.file) as trunk:
        found = open_head(path, model.file, model.spec, 256)
        assert found is not None
        with found.file, trunk.beside(found.head.spec, found.file, "", trunk.limits) as head:
            tokens, last = golden["tokens"], np.zeros((0, 0), np.float32)
            for token, following, wanted in zip(tokens, tokens[1:], golden["logits"], strict=False):
                evaluate(trunk, np.array([token]), None)
                last = trunk.show(HIDDEN)
                assert distance(looked(head, trunk, following, last), wanted[None]) < HALVES
            for token, wanted in zip(golden["next"], golden["next_logits"], strict=True):
                last = head.show(found.head.next_rows)
                assert distance(looked(head, trunk, token, last), wanted[None]) < HALVES


def looked(head: Executor, trunk: Executor, token: int, row: Floats) -> Floats:
    """Logits of an assistant after a token that follows what its model has cached."""
    nothing, zero = np.full(1, -1, np.int32), np.zeros(1, np.int32)
    place = np.array([trunk.n_cached(0) - 1], np.int32)
    return head.evaluate(Batch(np.array([token], np.int32), zero, place, nothing, zero, hidden=row)).copy()


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_model_shows_the_rows_that_its_layers_read(device: str) -> None:
    with open_model(DATA / "glm4moe-f32.gguf") as model:
        spec, tokens = model.spec, np.arange(30, dtype=np.int32)
        taps = 0, spec.n_layers - 1, 1
        with opened(device, with_hidden(spec, taps), model.file) as trunk:
            evaluate(trunk, tokens, None)
            shown = np.split(trunk.show(HIDDEN), 3, axis=1)
        for layer, rows in zip(taps, shown, strict=True):
            first = [stage.name for stage in spec.stages].index(f"blk.{layer}")
            cut = replace(spec, stages=(*spec.stages[:first], spec.stages[-1]))
            with opened(device, cut, model.file) as part:
                evaluate(part, tokens, None)
                assert distance(rows, part.show("x")) < 1e-6


def test_a_model_without_the_rows_that_a_head_reads_is_refused() -> None:
    with open_model(DATA / "glm4moe-f32.gguf") as model, pytest.raises(UnsupportedModel, match=r"layers \[0, 1, 99\]"):
        with_hidden(model.spec, (0, 1, 99))
