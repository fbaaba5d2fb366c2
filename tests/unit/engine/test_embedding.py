"""Embeddings: pooled final hidden states, judged by the model's own logits, by the oracle and by llama.cpp."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.weights import matrix
from edgeinfer.engine import embedding
from edgeinfer.engine.embedding import CHUNK
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.errors import BadSetting, ContextOverflow, DoesNotFit, EngineClosed, UnsupportedModel
from edgeinfer.graph.ops.matmul import MatMul
from tests.golden.goldens import DATA
from tests.unit.models.test_other_names import rewritten

NO_END = dict.fromkeys((0, 2), -np.inf)
TEXTS = ["the rain in the tin", "an inn", "the hen " * 40]


@pytest.fixture(scope="module", params=["cpu", "reference"])
def llm(request: pytest.FixtureRequest, tiny_model: Path):
    with load(tiny_model, device=request.param, n_sessions=3) as loaded:
        yield loaded


def test_the_last_hidden_state_gives_the_models_logits(llm: LLM) -> None:
    """An independent way to the same number: the head's matrix times what was pooled."""
    head = llm._subject.spec.stages[-1].ops[-1]
    assert isinstance(head, MatMul)
    weights = matrix(llm._subject.gguf, head.weight)
    for text in TEXTS:
        (state,) = llm.embed([text], pooling="last", normalized=False)
        cached = llm._pool.open()
        with cached.lock:
            tokens = llm.tokenize(text)
            for start in range(0, len(tokens), 100):
                part = tokens[start : start + 100]
                batch = cached.chain(part, wants_logits=start + 100 >= len(tokens))
                logits = cached.evaluate(batch)
                cached.commit(batch, np.arange(len(part), dtype=np.int32))
            expected = logits[0].copy()
        cached.close()
        assert np.abs(weights @ state - expected).max() < 0.02 * np.abs(expected).max()


def test_the_mean_is_that_of_all_states(llm: LLM) -> None:
    text = "the rain in the tin"
    tokens = llm.tokenize(text)
    lasts = [llm.embed([tokens[: n + 1]], pooling="last", normalized=False)[0] for n in range(len(tokens))]
    (mean,) = llm.embed([text], pooling="mean", normalized=False)
    np.testing.assert_allclose(mean, np.mean(lasts, axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(llm.embed([text], pooling="first", normalized=False)[0], lasts[0], rtol=1e-4, atol=1e-5)
    (unit,) = llm.embed([text])
    assert np.linalg.norm(unit) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(unit, mean / np.linalg.norm(mean), rtol=1e-4, atol=1e-5)


def test_one_text_is_no_list_of_its_characters(llm: LLM) -> None:
    with pytest.raises(BadSetting, match="a list of texts"):
        llm.embed("abc")


def test_it_does_not_matter_in_which_pieces_a_text_is_read(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the hen in the inn " * 12
    (whole,) = llm.embed([text])
    assert len(llm.tokenize(text)) > CHUNK
    monkeypatch.setattr("edgeinfer.engine.embedding.CHUNK", 7)
    (pieces,) = llm.embed([text])
    np.testing.assert_allclose(pieces, whole, rtol=1e-5, atol=1e-6)


def test_the_device_agrees_with_the_oracle(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu") as own, load(tiny_model, device="reference") as oracle:
        for found, expected in zip(own.embed(TEXTS), oracle.embed(TEXTS), strict=True):
            assert float(found @ expected) > 0.9995


def test_embedding_leaves_answers_in_the_making_alone(llm: LLM) -> None:
    options = {"temperature": 0.9, "seed": 3, "max_tokens": 60}
    expected = llm.complete("the ", **options).read()
    free = llm.telemetry.n_free_pages
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(llm.complete("the ", **options).read())) for _ in range(3)]
    for thread in threads:
        thread.start()
    embedded = [llm.embed(TEXTS) for _ in range(5)]
    for thread in threads:
        thread.join()
    assert found == [expected] * 3
    for again in embedded[1:]:
        for one, other in zip(embedded[0], again, strict=True):
            np.testing.assert_array_equal(one, other)
    assert llm.telemetry.n_free_pages >= free - 3


def test_it_tells_how_far_it_is_and_may_be_ended(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.engine.embedding.CHUNK", 4)
    told: list[tuple[str, int, int]] = []
    llm.embed([range(3, 13)], progress=lambda *progress: told.append(progress))
    assert told == [("embedding", done, 10) for done in (0, 4, 8, 10)]
    free = llm.telemetry.n_free_pages

    def end(what: str, done: int, total: int) -> None:
        if done == 4:
            raise KeyError(what)

    with pytest.raises(KeyError):
        llm.embed([range(3, 13)], progress=end)
    assert llm.telemetry.n_free_pages == free


def test_rows_of_single_tokens(llm: LLM) -> None:
    before = llm.telemetry.queue
    rows, others = llm.embed(TEXTS[:2], pooling="none", normalized=False)
    after = llm.telemetry.queue
    n_read = after.n_evaluated - before.n_evaluated
    assert (len(rows) + len(others), after.n_passes > before.n_passes) == (n_read, True)
    last = llm.embed(TEXTS[:1], pooling="last", normalized=False)[0]
    np.testing.assert_allclose(rows[-1], last, rtol=1e-4, atol=1e-5)
    mean = llm.embed(TEXTS[1:2], pooling="mean", normalized=False)[0]
    np.testing.assert_allclose(others.mean(axis=0), mean, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_embedded_is_said(llm: LLM) -> None:
    with pytest.raises(ContextOverflow, match="tokens and the context holds 512"):
        llm.embed(["the hen " * 400])
    with pytest.raises(BadSetting, match="pooling cannot be 'most'"):
        llm.embed(["a"], pooling="most")  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="empty text"):
        llm.embed([[]])
    with pytest.raises(BadSetting, match="no token 99999"):
        llm.embed([[99999]])


@pytest.mark.parametrize("number", [5, 99, -1, 1 << 63])
def test_a_way_of_pooling_that_is_not_known_is_refused(tmp_path: Path, number: int) -> None:
    path = rewritten(
        DATA / "qwen3-q8_0.gguf",
        tmp_path / "other.gguf",
        "qwen3",
        lambda writer: (writer.add_int64 if number < 0 else writer.add_uint64)("qwen3.pooling_type", number),
    )
    with (
        load(path, device="cpu", spec="off") as other,
        pytest.raises(UnsupportedModel, match=f"pooling_type is {number}"),
    ):
        other.embed(["a"])


def test_devices_that_do_not_show_hidden_states_say_so(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu", isolate=True) as apart, pytest.raises(UnsupportedModel, match="--device cpu"):
        apart.embed(["a"])
    with load(tiny_model, device="null") as none, pytest.raises(UnsupportedModel, match="--device cpu"):
        none.embed(["a"])
    closed = load(tiny_model, device="cpu")
    closed.close()
    with pytest.raises(EngineClosed):
        closed.embed(["a"])


@pytest.mark.peer
def test_embeddings_are_those_of_llama_cpp(tiny_model: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="the extra llamacpp is not installed")
    peer = llama_cpp.Llama(
        str(tiny_model), embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN, verbose=False, n_ctx=512
    )
    with load(tiny_model, device="cpu") as llm:
        for text, own in zip(TEXTS, llm.embed(TEXTS), strict=True):
            other = np.array(peer.embed(text, normalize=True), np.float32)
            assert float(own @ other) > 0.9995
    peer.close()


def test_many_texts_are_read_in_few_passes_and_none_changes_another(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the " + "hen in the inn " * n for n in (0, 1, 0, 2, 9, 1, 0, 30, 1)]
    passes: list[int] = []
    executor = type(llm._pool.executor)
    evaluate = executor.evaluate
    monkeypatch.setattr(
        executor, "evaluate", lambda own, batch: (passes.append(len(batch.tokens)), evaluate(own, batch))[1]
    )
    alone = [llm.embed([text])[0] for text in texts]
    n_alone = len(passes)
    passes.clear()
    told: list[tuple[int, int]] = []
    together = llm.embed(texts, progress=lambda _, done, total: told.append((done, total)))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, atol=0.0 if llm.telemetry.device == "cpu" else 1e-6, rtol=0.0)
    lengths = [len(llm.tokenize(text)) for text in texts]
    assert max(passes) <= CHUNK
    assert len(passes) < n_alone / 1.3
    assert sum(passes) == sum(lengths)
    assert sum(total for done, total in told if done == total) == sum(lengths)


def test_a_text_whose_memory_was_given_to_others_is_read_again(llm: LLM) -> None:
    text = "the hen in the inn " * 30
    expected = llm.embed([text])[0]
    times: list[int] = []

    def take(_what: str, done: int, total: int) -> None:
        times.append(done)
        if len(times) == 2:
            with llm._pool.lock:
                while llm._pool.make_room(()):
                    pass

    np.testing.assert_array_equal(llm.embed([text], progress=take)[0], expected)
    assert times.count(CHUNK) == 2


def test_texts_wait_for_the_memory_of_running_requests(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(tiny_model, device="reference", n_context=256, n_sessions=1, spec="off") as llm:
        text = llm.tokenize("the rain " * 60)[:250]
        expected = llm.embed([text])[0]

        def begun() -> list[TextStream]:
            """Two answers in the making that hold all pages."""
            streams = [llm.complete(f"{word} hen " * 40, max_tokens=90, logit_bias=NO_END) for word in ("the", "a")]
            for _ in zip(range(50), *streams, strict=False):
                pass
            return streams

        streams, told = begun(), []

        def end_an_answer(_what: str, done: int, _total: int) -> None:
            told.append(done)
            if told.count(done) == 2:
                streams.pop().close()

        np.testing.assert_array_equal(llm.embed([text], progress=end_an_answer)[0], expected)
        assert len(streams) < 2
        streams += begun()
        monkeypatch.setattr(embedding, "PATIENCE_S", 0.0)
        with pytest.raises(DoesNotFit):
            llm.embed([text])
        for stream in streams:
            stream.close()
