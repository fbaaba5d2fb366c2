"""Embeddings beside answers: one request at a time, in a thread, as long as somebody waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.graph.step import Floats
from edgeinfer.steps import Progress
from tests.server.conftest import Running, served
from tests.waiting import until

EMBEDDINGS = "/v1/embeddings"


class Watched:
    """Makes embeddings as the model does, a little later; tells in which threads, and how many at a time."""

    def __init__(self, server: Running, monkeypatch: pytest.MonkeyPatch, *, pause_s: float = 0.0) -> None:
        self._embed, self._tokenize, self._pause_s = server.llm.embed, server.llm.tokenize, pause_s
        self.threads: set[str] = set()
        self.n_made = self.n_now = self.most = self.n_read = 0
        monkeypatch.setattr(server.llm, "embed", self.embed)
        monkeypatch.setattr(server.llm, "tokenize", self.tokenize)

    def embed(self, texts: Sequence[Sequence[int]], progress: Progress, **options: object) -> list[Floats]:
        def slowly(what: str, done: int, total: int) -> None:
            time.sleep(self._pause_s)
            self.n_read = done
            progress(what, done, total)

        self.threads.add(threading.current_thread().name)
        self.n_now += 1
        self.most = max(self.most, self.n_now)
        try:
            found = self._embed(texts, progress=slowly, **options)
            self.n_made += len(texts)
        finally:
            self.n_now -= 1
        return found

    def tokenize(self, text: str) -> list[int]:
        self.threads.add(threading.current_thread().name)
        return self._tokenize(text)


def test_threads_are_left_to_answers(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(server, monkeypatch, pause_s=0.02)
    with ThreadPoolExecutor(4) as asking:
        found = list(asking.map(lambda text: server.http().post(EMBEDDINGS, json={"input": [text, text]}), "abcd"))
    assert [response.status_code for response in found] == [200] * 4
    assert (watched.n_made, watched.most) == (8, 1)
    assert "server" not in watched.threads  # where the event loop is


def test_embeddings_of_single_tokens(tiny_model: Path) -> None:
    with served(tiny_model, ServerOptions(port=0, pooling="none", tags=("small",))) as running:
        http = running.http()
        found = http.post("/embeddings", json={"input": ["the rain", "in"]}).json()
        assert [each["index"] for each in found] == [0, 1]
        lengths = [len(running.llm.tokenize(text)) for text in ("the rain", "in")]
        assert [len(each["embedding"]) for each in found] == lengths
        assert "POST /embeddings" in http.post(EMBEDDINGS, json={"input": "a"}).json()["error"]["message"]
        text = http.get("/metrics").text
        assert f"llamacpp:prompt_tokens_total {sum(lengths)}\n" in text
        assert http.get("/v1/models").json()["data"][0]["tags"] == ["small"]


@pytest.mark.parametrize("texts", [["a"] * 2000, ["a" * 400]], ids=["many", "long"])
def test_who_goes_away_ends_them(server: Running, monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> None:
    monkeypatch.setattr("edgeinfer.engine.embedding.CHUNK", 1)
    watched = Watched(server, monkeypatch, pause_s=0.02)
    with pytest.raises(httpx.TimeoutException):
        server.http().post(EMBEDDINGS, json={"input": texts}, timeout=0.5)
    until(lambda: not server.pool.n_users)
    assert watched.n_now == 0
    assert watched.n_made < len(texts)
    assert watched.n_read < 400


def test_wrong_dimensions_are_refused_before_anything_is_made(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(server, monkeypatch)
    refused = server.http().post(EMBEDDINGS, json={"input": "a", "dimensions": 65})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")
    assert not watched.threads


@pytest.mark.parametrize("n", [1, 8, 64])
@pytest.mark.parametrize("path", [EMBEDDINGS, "/embeddings", "/api/embed"])
def test_embeddings_are_shortened(server: Running, path: str, n: int) -> None:
    """As sentence-transformers and OpenAI do: the first numbers, of length 1."""
    body = {"input": ["the hen"], "model": "tiny", "dimensions": n}
    told = server.http().post(path, json=body).json()
    found = np.array(told["embeddings"][0] if path == "/api/embed" else told["data"][0]["embedding"])
    (whole,) = server.llm.embed(["the hen"])
    assert found == pytest.approx(whole[:n] / np.linalg.norm(whole[:n]), abs=1e-6)


def test_embeddings_of_single_tokens_are_not_shortened(tiny_model: Path) -> None:
    with served(tiny_model, ServerOptions(port=0, pooling="none")) as running:
        http = running.http()
        assert http.post("/embeddings", json={"input": "a", "dimensions": 64}).status_code == 200
        refused = http.post("/embeddings", json={"input": "a", "dimensions": 8})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")


def test_texts_as_llama_server_takes_them(server: Running) -> None:
    def embedded(given: object) -> list[list[float]]:
        answer = server.http().post(EMBEDDINGS, json={"input": given})
        assert answer.status_code == 200, answer.text
        return [each["embedding"] for each in answer.json()["data"]]

    tokens = server.llm.tokenize("the hen")
    [expected] = embedded("the hen")
    parts = {"content": [{"type": "text", "text": "the "}, {"type": "text", "text": "hen"}]}
    for given in (tokens, {"prompt_string": "the hen"}, parts, [parts], [tokens]):
        assert embedded(given) == [expected]
    ends = [*tokens[:1], server.llm.detokenize(tokens[1:])]
    assert embedded(ends) == [expected]
    assert embedded(["the hen", ends, parts]) == [expected] * 3
    picture = {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
    for given in ([], {"content": "the hen"}, {"content": [{"type": "unknown"}]}, picture, [[]], [1.5], [None]):
        assert server.http().post(EMBEDDINGS, json={"input": given}).status_code == 400, given
