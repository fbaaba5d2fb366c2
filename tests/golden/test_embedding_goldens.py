"""Models that embed: hidden rows and embeddings of transformers, and of llama.cpp; texts are read as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, Limits, open_device
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import ContextOverflow, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.add_vector import AddVector
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.step import Batch
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA, distance
from tests.unit.backends.cpu.kernel_calls import DISTINCT

FOLDER = DATA / "embedding"
FILES = sorted(path for path in FOLDER.glob("*.gguf") if "reranker" not in path.stem)
EXACT = [path for path in FILES if path.stem.endswith("f32")]
LIMITS = Limits(96, 4, max_tokens=128, max_outputs=16)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    with load(path, device="cpu") as found:
        yield found


def golden(path: Path) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    with np.load(path.with_suffix(".npz")) as held:
        return held["tokens"], held["hidden"], held["embedding"]


def hidden(
    device: CpuDevice | str,
    path: Path,
    parts: list[NDArray[np.int32]],
    spec: ModelSpec | None = None,
    limits: Limits = LIMITS,
) -> NDArray[np.float32]:
    """Rows that pooling is fed with, of texts that are read in one pass."""
    with open_model(path) as model:
        spec = spec or model.spec
        opened = open_device(device) if isinstance(device, str) else device
        lane = opened.compile(spec, model.file, limits)
        with Executor(opened, lane, limits, "golden") as executor:
            sequences = [executor.create() for _ in parts]
            batch = Batch(
                tokens=np.concatenate(parts),
                sequences=np.repeat(sequences, [len(part) for part in parts]).astype(np.int32),
                positions=np.concatenate([np.arange(len(part)) for part in parts]).astype(np.int32),
                parents=np.concatenate([_chain(parts, number) for number in range(len(parts))]).astype(np.int32),
                outputs=np.zeros(0, np.int32),
            )
            executor.evaluate(batch)
            return executor.show("x")


def _chain(parts: list[NDArray[np.int32]], number: int) -> NDArray[np.int64]:
    first = sum(len(part) for part in parts[:number])
    chain = np.arange(first - 1, first - 1 + len(parts[number]))
    chain[0] = -1
    return chain


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_embeddings_are_those_of_transformers(path: Path, device: str) -> None:
    tokens, _, expected = golden(path)
    with load(path, device=device) as llm:
        (found,) = llm.embed([tokens.tolist()])
    exact = 1e-6 if device == "reference" else 2e-4 if path in EXACT else 1e-2
    assert np.abs(found - expected).max() < exact
    assert float(found @ expected) > (0.9999 if path in EXACT else 0.999)


@pytest.mark.parametrize("path", EXACT, ids=lambda path: path.stem)
def test_every_part_matters(path: Path) -> None:
    """What a mistake in one of them costs is far more than what the tests above allow."""
    tokens = golden(path)[0]
    with open_model(path) as model:
        spec = model.spec
    exact = hidden("reference", path, [tokens])
    edits = {
        "causal": lambda op: replace(op, causal=True) if isinstance(op, Attention) else op,
        "no window": lambda op: replace(op, window=None) if isinstance(op, Attention) else op,
        "no kind of text": lambda op: None if isinstance(op, AddVector) else op,
    }
    changed = {}
    for name, edit in edits.items():
        stages = tuple(replace(s, ops=tuple(o for o in map(edit, s.ops) if o is not None)) for s in spec.stages)
        if stages != spec.stages:
            changed[name] = distance(hidden("reference", path, [tokens], replace(spec, stages=stages)), exact)
    assert "causal" in changed
    assert min(changed.values()) > 1e-2


def test_texts_of_one_pass_do_not_see_each_other(path: Path) -> None:
    tokens = golden(path)[0]
    parts = [tokens[:7], tokens[7:50], tokens[50:]]
    device = CpuDevice(DeviceOptions(n_workers=2))
    together = hidden(device, path, parts)
    alone = np.concatenate([hidden(device, path, [part]) for part in parts])
    assert together.tobytes() == alone.tobytes()


def test_any_instruction_set_and_number_of_workers_gives_the_same_bits(path: Path) -> None:
    tokens = golden(path)[0]
    rows = [hidden(CpuDevice(DeviceOptions(n_workers=2), isa), path, [tokens]) for isa in DISTINCT]
    rows.append(hidden(CpuDevice(DeviceOptions(n_workers=3)), path, [tokens]))
    assert {each.tobytes() for each in rows} == {rows[0].tobytes()}


def test_no_text_is_written(llm: LLM) -> None:
    with pytest.raises(UnsupportedModel, match="reads whole texts for embeddings and writes none"):
        "".join(llm.complete("hello", max_tokens=3))


def test_nothing_is_drafted(path: Path, home: Path) -> None:
    """Its rows are no logits: whoever looks for likely tokens in them reads beyond their end."""
    with load(path, device="cpu", spec="on", history=True) as llm:
        assert llm.drafts is None
        assert llm.later_drafts is None


def test_a_text_beyond_the_context_is_refused(llm: LLM) -> None:
    with pytest.raises(ContextOverflow, match="shorten it"):
        llm.embed([[1] * (llm.telemetry.limits.n_context + 1)])


@pytest.mark.parametrize("key", ["onnx", "openvino", "cuda"])
def test_other_devices_refuse_it_by_name(key: str) -> None:
    from edgeinfer.backends.base import device_kinds

    with open_model(EXACT[0]) as model, pytest.raises(UnsupportedModel, match=f"{key} cannot run the op"):
        device_kinds()[key].footprint(model.spec, model.file.tensors, LIMITS)


@pytest.mark.peer
def test_embeddings_are_those_of_llama_cpp(path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    tokens, _, expected = golden(path)
    other = llama_cpp.Llama(
        str(path),
        embedding=True,
        verbose=False,
        n_ctx=256,
        n_batch=256,
        n_ubatch=256,
        pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN,
    )
    other._batch.set_batch(batch=tokens.tolist(), n_past=0, logits_all=True)
    other._ctx.decode(other._batch)
    rows = llama_cpp.llama_get_embeddings_seq(other._ctx.ctx, 0)
    found = np.array(rows[: len(expected)], np.float32)
    found /= np.linalg.norm(found)
    assert float(found @ expected) > (0.9999 if path in EXACT else 0.995)


def test_texts_in_one_pass_do_not_see_one_another(llm: LLM, path: Path) -> None:
    tokens = golden(path)[0].tolist()
    texts = [tokens[:n] for n in (3, len(tokens), 1, 17, 8)]
    for text, found in zip(texts, llm.embed(texts), strict=True):
        np.testing.assert_array_equal(found, llm.embed([text])[0])
