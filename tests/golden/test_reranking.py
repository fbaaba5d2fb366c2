"""Rerankers: the scores of transformers and llama.cpp, for documents in the API and on the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.embedding import Ranker
from edgeinfer.engine.loading import load
from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.graph.graph import RankHead
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import open_model
from edgeinfer.steps import no_progress
from tests.golden.goldens import DATA, Golden, Player
from tests.server.conftest import served
from tests.unit.models.test_other_names import rewritten

FOLDER = DATA / "embedding"
FILES = sorted(FOLDER.glob("reranker-*.gguf"))
CONVERTED = DATA / "converted"
HEADS = ("modern-bert-reranker", "distilbert-reranker", "xlm-roberta-reranker")
DOCUMENTS = ["a dog sat", "the moon", "cat cat cat", "a cat sat"]
TEMPLATE = "Query: {query}\nDocument: {document}\nAnswer:"
YES, NO = 40, 50


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_scores_are_those_of_transformers(path: Path, device: str) -> None:
    with np.load(path.with_suffix(".npz")) as held, load(path, device=device) as llm:
        tokens = held["tokens"].tolist()
        assert llm._ranker._scores([tokens], no_progress)[0] == pytest.approx(
            float(held["score"][0]), abs=1e-5 if device == "reference" else 1e-4 if "f32" in path.stem else 5e-3
        )


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_scores_are_those_of_llama_cpp_where_transformers_lacks_the_family(device: str) -> None:
    path = FOLDER / "peer" / "neo-bert-reranker.gguf"
    with np.load(path.with_suffix(".npz")) as held, load(path, device=device) as llm:
        (found,) = llm._ranker._scores([held["tokens"].tolist()], no_progress)
        assert found == pytest.approx(float(held["score"][0]), abs=1e-5 if device == "reference" else 1e-3)


@pytest.mark.parametrize("name", HEADS)
def test_goldens_see_every_part_of_a_head(name: str) -> None:
    """`test_converted` compares scores with transformers'; here every part of a head is changed."""
    with np.load(CONVERTED / f"{name}.npz") as held:
        expected, pair = float(held["score"]), (str(held["query"]), [str(held["document"])])
    with load(CONVERTED / f"{name}-bf16.gguf", device="reference") as llm:
        head, score = llm._subject.spec.rank, llm.rerank(*pair)[0]
        assert score == pytest.approx(expected, abs=1e-5)
        kinds: list[RankHead] = [replace(head, bend=bend) for bend in ("tanh", "relu", "gelu") if bend != head.bend]
        kinds += [replace(head, row=row) for row in ("first", "last", "mean") if row != head.row]
        kinds += [] if head.norm is None else [replace(head, norm=None)]
        for kind in kinds:
            changed = replace(llm._subject, spec=replace(llm._subject.spec, rank=kind))
            ranker = Ranker(llm._embedder, changed, llm._tokenizer)
            assert abs(ranker.rank(*pair)[0] - expected) > 1e-4, kind


def test_a_pair_is_put_as_its_family_has_it() -> None:
    with load(FILES[0], device="reference") as llm:
        words = {text: llm.tokenize(text, add_special=False) for text in ("the cat", "a dog")}
        assert llm._ranker.tokens("the cat", "a dog") == [0, *words["the cat"], 2, 2, *words["a dog"], 2]


@pytest.mark.peer
def test_scores_are_those_of_llama_cpp(path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    with np.load(path.with_suffix(".npz")) as held:
        tokens, expected = held["tokens"], float(held["score"][0])
    rank = llama_cpp.LLAMA_POOLING_TYPE_RANK
    other = llama_cpp.Llama(
        str(path), embedding=True, verbose=False, n_ctx=96, n_batch=96, n_ubatch=96, pooling_type=rank
    )
    other._batch.set_batch(batch=tokens.tolist(), n_past=0, logits_all=True)
    other._ctx.decode(other._batch)
    score = float(llama_cpp.llama_get_embeddings_seq(other._ctx.ctx, 0)[0])
    assert 1 / (1 + np.exp(-score)) == pytest.approx(expected, abs=1e-3 if "f32" in path.stem else 2e-2)


def test_the_server_ranks_documents() -> None:
    with load(FILES[0], device="cpu") as llm:
        scores = llm.rerank("the cat", DOCUMENTS)
    order = sorted(range(len(scores)), key=lambda number: -scores[number])
    with served(FILES[0]) as server:
        asked = {"query": "the cat", "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]]}
        found = server.http().post("/v1/rerank", json=asked)
        assert found.status_code == 200, found.text
        results = found.json()["results"]
        assert [each["index"] for each in results] == order
        assert [each["relevance_score"] for each in results] == pytest.approx(sorted(scores, reverse=True))
        assert "document" not in results[0]
        assert found.json()["usage"]["total_tokens"] > 4 * 4
        best = server.http().post("/rerank", json={**asked, "top_n": 1, "return_documents": True}).json()["results"]
        assert best == [{**results[0], "document": {"text": DOCUMENTS[order[0]]}}]
        for wrong in ({"query": "x", "documents": []}, {"documents": ["a"]}, {**asked, "top_n": 0}):
            assert server.http().post("/v1/rerank", json=wrong).status_code in (400, 422)


def asked_as(writer: gguf.GGUFWriter) -> None:
    """What Qwen3-Reranker's files have more than Qwen3's: two rows of the head, and how a pair is put."""
    with GGUFFile.open(DATA / "qwen3-f32.gguf") as file:
        info = file.tensors["token_embd.weight"]
        rows = file.raw("token_embd.weight").view(np.float32).reshape(info.shape)
    writer.add_tensor("cls.output.weight", np.ascontiguousarray(rows[[YES, NO]]))
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_string("tokenizer.chat_template.rerank", TEMPLATE)


def test_a_model_that_says_yes_or_no_ranks_by_that(tmp_path: Path) -> None:
    path = rewritten(DATA / "qwen3-f32.gguf", tmp_path / "reranker.gguf", "qwen3", asked_as)
    with load(path, device="reference", n_context=128) as llm:
        (score,) = llm.rerank("cat", ["dog"])
        tokens = np.array(llm.tokenize("Query: cat\nDocument: dog\nAnswer:"), np.int32)
    with Player(ReferenceDevice(), Golden.read("qwen3-f32")) as player:
        logits = player.feed(tokens)[-1]
    assert score == pytest.approx(1 / (1 + np.exp(logits[NO] - logits[YES])), abs=1e-5)


def test_what_cannot_rank_says_so(tmp_path: Path) -> None:
    llama = DATA / "llama-q8_0.gguf"
    with load(llama, device="reference") as llm, pytest.raises(UnsupportedModel, match="no head that ranks"):
        llm.rerank("a", ["b"])
    with load(FILES[0], device="reference") as llm, pytest.raises(BadSetting, match=r"write \[document\]"):
        llm.rerank("a", "b")

    def without_template(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("cls.output.weight", np.zeros((2, 32), np.float32))
        writer.add_pooling_type(gguf.PoolingType.RANK)

    path = rewritten(DATA / "qwen3-f32.gguf", tmp_path / "mute.gguf", "qwen3", without_template)
    with load(path, device="reference", n_context=64) as llm, pytest.raises(BadGGUF, match=r"chat_template\.rerank"):
        llm.rerank("a", ["b"])


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "message"),
    [
        (
            "bert-f32",
            "cls.output.weight",
            (1, 64),
            "token types to separate query and document, and its file lacks the layer before its head",
        ),
        ("reranker-f32", "cls.more.weight", (1, 64), "does not use"),
    ],
)
def test_rerankers_of_other_kinds_are_refused(
    tmp_path: Path, name: str, tensor: str, shape: tuple[int, int], message: str
) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor(tensor, np.zeros(shape, np.float32))

    path = rewritten(FOLDER / f"{name}.gguf", tmp_path / "other.gguf", "bert", add, rank=name == "bert-f32")
    with pytest.raises(UnsupportedModel, match=message):
        open_model(path)
