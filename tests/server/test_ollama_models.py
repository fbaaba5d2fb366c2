"""Ollama's own client lists, describes, loads, unloads, pulls and deletes models, and embeds texts."""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
from pydantic import TypeAdapter, ValidationError

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.ollama_models import count_text
from edgeinfer.app.server.ollama_pull import pull_records, source_of
from edgeinfer.app.server.ollama_schemas import KeepAlive
from edgeinfer.models.download.policy import PullStopped
from edgeinfer.models.store import ModelStore, path_model
from tests.conftest import write_tiny_llama
from tests.server.conftest import UNENCRYPTED, Running, served
from tests.waiting import until

ollama = pytest.importorskip("ollama")

MESSAGES = [{"role": "user", "content": "the rain"}]
FEW = {"num_predict": 3}


def connected(running: Running, **options: object) -> Any:
    """Ollama's client of a server."""
    return running.clients.enter_context(ollama.Client(host=running.url, verify=UNENCRYPTED, **options))


@pytest.fixture
def client(server: Running) -> Any:
    return connected(server)


def test_the_server_is_found(server: Running) -> None:
    http = server.http()
    assert http.head("/").status_code == 200
    assert http.head("/api/version").status_code == 200
    assert http.head("/api/tags").status_code == 200
    assert tuple(map(int, http.get("/api/version").json()["version"].split("."))) >= (0, 6, 4)  # what Copilot wants


def test_models_are_listed_and_described(server: Running, client: Any, tiny_model: Path) -> None:
    reader = gguf.GGUFReader(tiny_model)
    n_parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    (model,) = client.list().models
    assert (model.model, model.size) == ("tiny:latest", tiny_model.stat().st_size)
    assert (model.details.format, model.details.family) == ("gguf", "llama")
    assert model.details.parameter_size == count_text(n_parameters)
    assert len(bytes.fromhex(model.digest)) == 32
    assert model.modified_at == datetime.fromtimestamp(tiny_model.stat().st_mtime, UTC)
    shown = client.show("tiny")
    assert shown.details == model.details
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["general.parameter_count"] == n_parameters
    assert shown.modelinfo["llama.context_length"] == 512
    assert shown.modelinfo["tokenizer.ggml.tokens"] == []
    assert shown.capabilities == ["completion", "tools"]
    assert shown.template == server.http().get("/props").json()["chat_template"]
    assert str(tiny_model) in shown.modelfile
    verbose = server.http().post("/api/show", json={"name": "tiny:latest", "verbose": True}).json()
    assert len(verbose["model_info"]["tokenizer.ggml.tokens"]) == len(server.llm.prompts.tokenizer.vocabulary.tokens)


def test_numbers_of_parameters_are_written_as_ollama_does() -> None:
    numbers = (134_515_008, 8_030_261_248, 7_000_000_000, 271_000_000, 33_600, 12)
    assert [count_text(number) for number in numbers] == ["134.52M", "8.0B", "7B", "271M", "34K", "12"]


@pytest.mark.parametrize("name", ["tiny", "tiny:latest", "TINY:latest", "tiny.gguf"])
def test_names_may_have_the_default_tag(client: Any, name: str) -> None:
    answer = client.chat(name, MESSAGES, options=FEW)
    assert answer.model == name
    assert answer.done


def test_names_with_tags_are_found(tiny_model: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "sha-1", tmp_path / "sha-2"]
    for path in paths:
        shutil.copy(tiny_model, path)
    models = [path_model(path) for path in paths]
    named = [
        type(model)(name, model.path, model.nbytes, f"ollama:{name}", None, model.paths, "Ollama")
        for model, name in zip(models, ("llama3.2:1b", "llama3.2:latest"), strict=True)
    ]
    with served(tiny_model, others=named, most_models=1, strict_names=True) as running:
        client = connected(running)
        assert {model.model for model in client.list().models} == {"tiny:latest", "llama3.2:1b", "llama3.2:latest"}
        assert client.generate("llama3.2:1b", "a", options=FEW).done
        assert running.pool.open[0].path == paths[0]
        assert client.generate("llama3.2", "a", options=FEW).done
        assert running.pool.open[0].path == paths[1]
        with pytest.raises(ollama.ResponseError) as caught:
            client.generate("llama3.2:70b", "a")
        assert caught.value.status_code == 404


def test_models_are_loaded_and_unloaded(tiny_model: Path) -> None:
    with served(tiny_model) as running:
        client = connected(running)
        (loaded,) = client.ps().models
        assert (loaded.model, loaded.context_length, loaded.size_vram) == ("tiny:latest", 512, 0)
        assert loaded.expires_at.year > 2200
        assert client.generate("tiny", keep_alive=0).done_reason == "unload"
        assert not client.ps().models
        assert client.chat("tiny", [], keep_alive=0).done_reason == "unload"
        for load in (lambda: client.generate("tiny", keep_alive="10m"), lambda: client.chat("tiny", keep_alive=600)):
            assert load().done_reason == "load"
            (loaded,) = client.ps().models
            left_s = (loaded.expires_at - datetime.now(UTC)).total_seconds()
            assert 500 < left_s <= 600
            assert client.generate("tiny", "a", options=FEW, keep_alive=0).done_reason
            assert not client.ps().models
        list(client.chat("tiny", MESSAGES, options=FEW, keep_alive=-1, stream=True))
        assert client.ps().models[0].expires_at.year > 2200
        list(client.chat("tiny", MESSAGES, options=FEW, keep_alive=0, stream=True))
        until(lambda: not client.ps().models)  # a stream's model is closed once its last byte is sent
        assert len(client.embed("tiny", "a").embeddings) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("5m", 300), ("1h30m", 5400), ("1.5s", 1.5), ("300ms", 0.3), ("0", 0), (0, 0), (2.5, 2.5)),
        *(("-1m", math.inf), (-1, math.inf), ("-1", math.inf)),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert TypeAdapter(KeepAlive).validate_python(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "5 parsecs", "nan", "5m5"])
def test_texts_that_are_no_durations(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(KeepAlive).validate_python(text)


def test_embeddings(server: Running, client: Any) -> None:
    told = server.client().embeddings.create(model="tiny", input=["the rain", "the sun"], encoding_format="float")
    made = client.embed("tiny", ["the rain", "the sun"])
    assert [list(vector) for vector in made.embeddings] == [each.embedding for each in told.data]
    assert made.prompt_eval_count == told.usage.prompt_tokens
    assert made.total_duration >= made.load_duration > 0
    assert list(client.embeddings("tiny", "the rain").embedding) == told.data[0].embedding
    (short,) = client.embed("tiny", "the rain", dimensions=8).embeddings
    assert len(short) == 8
    assert math.hypot(*short) == pytest.approx(1)
    scale = short[0] / told.data[0].embedding[0]
    assert list(short) == pytest.approx([scale * value for value in told.data[0].embedding[:8]])
    assert client.embed("tiny", "").embeddings == []
    assert len(client.embed("tiny", "rain " * 2000).embeddings) == 1
    with pytest.raises(ollama.ResponseError, match="context"):
        client.embed("tiny", "rain " * 2000, truncate=False)


@pytest.fixture
def stocked(tiny_model: Path, home: Path) -> Iterator[Running]:
    """A server over an empty store."""
    with served(tiny_model) as running:
        running.pool.names._listed = ModelStore().models  # what `edgeinfer serve` lists
        yield running


def test_embeddings_are_made_as_the_server_is_told(tiny_model: Path) -> None:
    made = []
    for pooling in ("last", "first"):
        with served(tiny_model, ServerOptions(port=0, pooling=pooling)) as running:
            told = running.client().embeddings.create(model="tiny", input="the rain", encoding_format="float")
            assert list(connected(running).embed("tiny", "the rain").embeddings[0]) == told.data[0].embedding
            made.append(told.data[0].embedding)
    assert made[0] != made[1]
    of_tokens = ServerOptions(port=0, pooling="none")
    with served(tiny_model, of_tokens) as running, pytest.raises(ollama.ResponseError, match="POST /embeddings"):
        connected(running).embed("tiny", "the rain")


def test_a_local_file_is_pulled_and_deleted(stocked: Running, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "other.gguf", seed=5)
    client = connected(stocked)
    steps = [step.status for step in client.pull(str(path), stream=True)]
    assert steps[0] == "pulling manifest"
    assert steps[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    assert {model.model for model in client.list().models} == {"tiny:latest", "other:latest"}
    assert client.pull("other").status == "success"  # it is here
    assert client.generate("other", "a", options=FEW).done
    assert client.delete("other").status == "success"
    assert {model.model for model in client.list().models} == {"tiny:latest"}
    assert path.is_file()  # it is not edgeinfer's own
    assert stocked.http().get("/api/ps").json()["models"] == [] or client.ps().models[0].model == "tiny:latest"
    for name, status in (("other", 404), ("tiny", 409)):
        with pytest.raises(ollama.ResponseError) as caught:
            client.delete(name)
        assert caught.value.status_code == status


def test_a_download_tells_its_progress(stocked: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_llama(tmp_path / "far.gguf", seed=6)

    def pull(store: ModelStore, source: str, *, progress: Any, approve: Any) -> Any:
        for done in (0, 40, 100):
            progress(done, 100, 1.0)
        return path_model(path)

    monkeypatch.setattr(ModelStore, "pull", pull)
    client = connected(stocked)
    steps = [step for step in client.pull("https://example.org/far.gguf", stream=True) if step.digest]
    assert [(step.completed, step.total) for step in steps] == [(0, 100), (40, 100), (100, 100)]
    assert client.pull("https://example.org/far.gguf").status == "success"


def test_pulls_are_refused(stocked: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connected(stocked)
    for name, said in (("no-such-model:1b", "Don't know where to find"), ("x" * 400, "no model is called")):
        with pytest.raises(ollama.ResponseError, match=said) as caught:
            client.pull(name)
        assert caught.value.status_code == 404
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ollama.ResponseError, match="GGUF"):
        list(client.pull(str(tmp_path / "text.gguf"), stream=True))
    monkeypatch.setattr("edgeinfer.app.server.ollama_pull.MOST_PULLS", 0)
    with pytest.raises(ollama.ResponseError, match="are being pulled") as caught:
        client.pull(str(write_tiny_llama(tmp_path / "third.gguf")))
    assert caught.value.status_code == 503


def test_a_server_may_pull_nothing_for_clients(tiny_model: Path, tmp_path: Path, home: Path) -> None:
    """What is here needs no pulling; of others it says who can."""
    path = write_tiny_llama(tmp_path / "other.gguf", seed=5)
    with served(tiny_model, ServerOptions(port=0, without=frozenset({"pull"}))) as running:
        client, http = connected(running), running.http()
        assert client.pull("tiny").status == "success"
        for source in (str(path), "hf:user/repo:Q4_0", "https://example.org/far.gguf"):
            for streams in (False, True):
                with pytest.raises(ollama.ResponseError, match="edgeinfer pull") as caught:
                    list(client.pull(source, stream=streams))
                assert caught.value.status_code == 403
            refused = http.post("/models", json={"model": source})
            assert (refused.status_code, refused.json()["error"]["param"]) == (403, "model")
            assert "--without pull" in refused.json()["error"]["message"]
        assert http.post("/models", json={"model": "user/repo:Q4_0"}).status_code == 403
    assert ModelStore().models() == []


def test_a_client_that_leaves_stops_the_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []

    def pull(store: ModelStore, source: str, *, progress: Any, approve: Any) -> None:
        try:
            for done in range(10**6):
                progress(done, None, 1.0)
                time.sleep(0.01)
        except PullStopped as reason:
            kept.append(reason.keeps)
            raise

    async def leave_early() -> None:
        records = pull_records("https://example.org/far.gguf", state)
        assert (await anext(records))["status"] == "pulling manifest"
        await anext(records)
        assert state.n_pulls == 1
        await records.aclose()
        while state.n_pulls:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(ModelStore, "pull", pull)
    state: Any = SimpleNamespace(n_pulls=0, pool=SimpleNamespace(used_s=0.0))
    asyncio.run(asyncio.wait_for(leave_early(), 30))
    assert kept == [True]  # what was received stays
    assert state.pool.used_s > 0  # the server is not idle meanwhile


def test_other_computers_name_no_files_of_this_one(tiny_model: Path) -> None:
    pool = SimpleNamespace(find=ModelList(list, path_model(tiny_model)).find)
    for host, key in (("127.0.0.1", None), ("127.0.0.1,10.0.0.7", "secret")):
        state: Any = SimpleNamespace(pool=pool, options=ServerOptions(host=host, key=key))
        assert source_of("https://example.org/far.gguf", state) == "https://example.org/far.gguf"
        for path in ("/home/anna/two.gguf", "path:/home/anna", "\\\\far\\share\\two.gguf"):
            if key is None:
                assert source_of(path, state) == path
            else:
                with pytest.raises(APIError, match="no path is taken"):
                    source_of(path, state)
        for near in ("http://169.254.169.254/a.gguf", "http://localhost:9/a.gguf", "https://[::1]/a.gguf"):
            if key is None:
                assert source_of(near, state) == near
            else:
                with pytest.raises(APIError, match="only public addresses"):
                    source_of(near, state)
