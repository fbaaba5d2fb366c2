"""Several models behind one server: presets, limits by memory, events, and llama-server's routes about models."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import edgeinfer
from edgeinfer.app.server.model_memory import planned_need
from edgeinfer.app.server.presets import Presets, read_presets
from edgeinfer.app.server.streaming import LOOK_S
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.download.policy import PullStopped
from edgeinfer.models.store import ModelStore, path_model
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES
from edgeinfer.settings import load_settings
from tests.adapter_files import write_adapter
from tests.conftest import write_tiny_llama
from tests.file_server import Served, serving
from tests.golden.goldens import DATA
from tests.server.conftest import Running, served
from tests.server.test_sidecar import OPEN, started
from tests.waiting import until

MESSAGES = [{"role": "user", "content": "the hen"}]
NAMES = ("one", "two", "three")
TABLES = """
[greedy]
model = "one.gguf"
aliases = ["gpt-4o-mini"]
temp = 0
max_tokens = 9

[hot]
model = "one.gguf"
temp = 1.5
seed = 7
max_tokens = 9
ctx = 64

[styled]
model = "one.gguf"
temp = 0
max_tokens = 9
lora = "style.gguf"
device = "cpu"
keep_alive = 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with models and an adapter."""
    for seed, name in enumerate(NAMES):
        write_tiny_llama(tmp_path / f"{name}.gguf", seed=seed)
    write_adapter(tmp_path / "one.gguf", tmp_path / "style.gguf", rank=4, seed=1)
    (tmp_path / "presets.toml").write_text(TABLES)
    return tmp_path


def presets_in(folder: Path) -> Presets:
    return read_presets(folder / "presets.toml", load_settings({}, environ={}, cwd=folder))


@contextmanager
def preset_server(folder: Path, **limits: object) -> Iterator[Running]:
    limits = {"most_models": 3, "strict_names": True, **limits}
    presets = presets_in(folder)
    with served(folder / "one.gguf", presets=presets, reread=lambda: presets_in(folder), **limits) as running:
        yield running


def answered(running: Running, model: str, **options: Any) -> str:
    answer = running.client().chat.completions.create(model=model, messages=MESSAGES, **options)  # type: ignore[arg-type]
    return answer.choices[0].message.content or ""


def names(running: Running) -> list[str]:
    return [pooled.name for pooled in running.pool.open]


def statuses(running: Running) -> dict[str, dict[str, Any]]:
    return {each["id"]: each["status"] for each in running.http().get("/models").json()["data"]}


@dataclass
class Heard:
    """Events of a server, read by a thread."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def of(self, model: str) -> list[str]:
        """The events of a model: a status's value, or the event's name."""
        return [each.get("data", {}).get("status", each["event"]) for each in self.events if each["model"] == model]

    def wait(self, model: str, last: str) -> list[str]:
        """The events of a model as soon as the last one is as given."""
        until(lambda: self.of(model)[-1:] == [last])
        return self.of(model)


@contextmanager
def listening(running: Running) -> Iterator[Heard]:
    heard, http = Heard(), running.http()

    def read(lines: Iterator[str]) -> None:
        for line in lines:
            if line.startswith("data: "):
                heard.events.append(json.loads(line.removeprefix("data: ")))

    with http.stream("GET", "/models/sse") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        thread = threading.Thread(target=read, args=(response.iter_lines(),))
        thread.start()
        yield heard
        running.loop.call_soon_threadsafe(running.pool.events.close)
        thread.join(60)


def test_presets_say_how_models_answer(folder: Path) -> None:
    with preset_server(folder) as running:
        client = running.client()
        assert [model.id for model in client.models.list()] == ["greedy", "hot", "styled"]
        assert names(running) == ["greedy"]
        greedy = answered(running, "greedy")
        assert greedy == answered(running, "gpt-4o-mini", temperature=0, max_tokens=9)
        hot = answered(running, "hot")
        assert hot == answered(running, "greedy", temperature=1.5, seed=7)
        assert hot != greedy
        assert answered(running, "hot", temperature=0) == greedy
        assert client.chat.completions.create(model="hot", messages=MESSAGES).usage.completion_tokens == 9  # type: ignore[arg-type,union-attr]
        with pytest.raises(openai.NotFoundError, match="there are: greedy, hot, styled"):
            answered(running, "other")


def test_presets_say_how_models_are_loaded(folder: Path) -> None:
    with preset_server(folder) as running:
        http = running.http()
        plain = answered(running, "greedy")
        assert answered(running, "styled") != plain
        assert names(running) == ["greedy"]  # the other one is kept for no time
        adapters = http.get("/lora-adapters", params={"model": "styled"}).json()
        assert [(Path(each["path"]).name, each["scale"]) for each in adapters] == [("style.gguf", 1.0)]
        off = http.post(
            "/completion", json={"model": "styled", "prompt": "the", "lora": [{"id": 0, "scale": 0}]}
        ).json()
        assert off["content"] == http.post("/completion", json={"model": "greedy", "prompt": "the"}).json()["content"]
        long = [{"role": "user", "content": "the rain " * 40}]
        with pytest.raises(openai.BadRequestError, match="64"):
            running.client().chat.completions.create(model="hot", messages=long)  # type: ignore[arg-type]
        assert running.client().chat.completions.create(model="greedy", messages=long)  # type: ignore[arg-type]
        props = {name: http.get("/props", params={"model": name}).json() for name in ("greedy", "hot")}
        contexts = {name: found["default_generation_settings"]["n_ctx"] for name, found in props.items()}
        assert contexts == {"greedy": 512, "hot": 64}
        assert props["hot"]["default_generation_settings"]["params"]["temperature"] == 1.5
        assert (props["hot"]["role"], props["hot"]["models_autoload"]) == ("router", True)


def test_models_as_llama_server_lists_them(folder: Path) -> None:
    with preset_server(folder) as running:
        first = running.http().get("/models").json()["data"][0]
        assert (first["id"], first["aliases"], first["status"]) == ("greedy", ["gpt-4o-mini"], {"value": "loaded"})
        assert first["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
        assert (first["source"], first["can_remove"]) == ("preset", False)
        assert running.http().delete("/models", params={"model": "greedy"}).status_code == 409
        assert statuses(running)["hot"] == {"value": "unloaded"}


def test_the_least_recently_used_makes_room_in_memory(folder: Path) -> None:
    need = planned_need(path_model(folder / "one.gguf"), LoadOptions())
    assert need is not None
    two = 2 * (need.total_bytes - PROGRAM_BYTES) + PROGRAM_BYTES
    others = [path_model(folder / f"{name}.gguf") for name in NAMES]
    with (
        served(folder / "one.gguf", others=others, most_models=9, memory_bytes=two) as running,
        listening(running) as heard,
    ):
        for name in ("two", "one", "three"):  # two were used longest ago when the third comes
            answered(running, name, max_tokens=2)
        assert names(running) == ["one", "three"]
        assert heard.wait("two", "unloaded")[0] == "loading"
        assert heard.of("two")[-2:] == ["loaded", "unloaded"]
        assert statuses(running)["two"] == {"value": "unloaded"}
        loaded = next(each for each in heard.events if each["model"] == "two" and each["data"]["status"] == "loaded")
        assert (loaded["event"], loaded["data"]["info"]["n_ctx"]) == ("model_status", 512)
        told = [each["data"]["progress"] for each in heard.events if each["data"].get("progress")]
        assert all(each["current"] in each["stages"] for each in told)


def test_the_encoder_of_images_counts(tmp_path: Path) -> None:
    for name in ("idefics3.gguf", "mmproj-idefics3.gguf"):
        (tmp_path / name).write_bytes((DATA / "vision" / name).read_bytes())
    model, load = path_model(tmp_path / "idefics3.gguf"), LoadOptions(n_context=256)
    need, blind = planned_need(model, load), planned_need(model, replace(load, mmproj="off"))
    assert need is not None
    assert blind is not None
    assert need.encoder_bytes == need.weight_bytes - blind.weight_bytes > blind.encoder_bytes == 0
    with edgeinfer.load(tmp_path / "idefics3.gguf", n_context=256) as llm:
        assert llm.info.need.total_bytes == need.total_bytes
    small = planned_need(model, replace(load, ram_bytes=4096))
    assert small is not None
    assert small.weight_bytes == 4096 + need.encoder_bytes


def test_a_model_that_never_fits_is_refused_in_words_and_closes_none(folder: Path) -> None:
    one = planned_need(path_model(folder / "one.gguf"), LoadOptions())
    assert one is not None
    large = path_model(write_tiny_llama(folder / "large.gguf", seed=9, n_tokens=60000))
    with served(folder / "one.gguf", others=[large], most_models=9, memory_bytes=one.total_bytes + 10**6) as running:
        with pytest.raises(
            openai.BadRequestError, match=r"large takes .* of memory \(weights .*--models-memory"
        ) as refused:
            answered(running, "large")
        assert refused.value.code == "model_too_large"
        assert names(running) == ["one"]
        assert statuses(running)["large"]["failed"]


def test_a_request_waits_while_the_others_are_in_use(folder: Path) -> None:
    endless = write_tiny_llama(folder / "endless.gguf", seed=0, context=8192)
    others = [path_model(path) for path in (endless, folder / "two.gguf", folder / "three.gguf")]
    with served(others[0].path, others=others, most_models=1) as running:
        stream = running.client().chat.completions.create(
            model="endless", messages=MESSAGES, temperature=0, stream=True, max_tokens=8000
        )  # type: ignore[call-overload]
        next(iter(stream))
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(answered(running, "two", max_tokens=2)))
        thread.start()
        until(running.pool._opening.locked)
        assert running.http().post("/tokenize", json={"model": "endless", "content": "a"}).status_code == 200
        assert names(running) == ["endless"]
        assert not found
        with pytest.raises(httpx.ReadTimeout):  # this client leaves before there is room
            running.http().post(
                "/tokenize", json={"model": "three", "content": "a"}, timeout=httpx.Timeout(60, read=0.2)
            )
        time.sleep(2 * LOOK_S)
        stream.close()
        thread.join(60)
        assert len(found) == 1
        until(lambda: not running.pool._opening.locked())
        assert names(running) == ["two"]
        assert len(running.opened) == 2


def test_a_model_that_cannot_be_loaded_is_told(folder: Path) -> None:
    with preset_server(folder) as running, listening(running) as heard:
        (folder / "one.gguf").write_bytes(b"no model")
        assert running.http().post("/models/load", json={"model": "hot"}).status_code == 503
        assert heard.wait("hot", "unloaded") == ["unloaded"]
        assert heard.events[-1]["data"]["failed"]
        assert "one.gguf" in heard.events[-1]["data"]["reason"]
        assert statuses(running)["hot"]["failed"]


def test_presets_are_read_again(folder: Path) -> None:
    with preset_server(folder) as running, listening(running) as heard:
        before = answered(running, "hot")
        (folder / "presets.toml").write_text(
            TABLES.replace("[styled]", "[painted]")
            .replace("[greedy]", '[new]\nmodel = "two.gguf"\n[greedy]')
            .replace("seed = 7", "seed = 8")
        )
        found = running.http().get("/models", params={"reload": 1}).json()["data"]
        assert [each["id"] for each in found] == ["new", "greedy", "hot", "painted"]
        assert names(running) == ["greedy"]  # whose table has not changed
        assert heard.wait("*", "models_reload")
        assert answered(running, "hot") != before
        (folder / "presets.toml").write_text("[greedy]\ntemp = 9")
        refused = running.http().get("/models", params={"reload": 1})
        assert (refused.status_code, "line 2, [greedy]" in refused.text) == (400, True)
        assert len(statuses(running)) == 4


def test_models_are_loaded_on_request_alone(folder: Path) -> None:
    (folder / "presets.toml").write_text(TABLES.replace("max_tokens = 9\n", "load_on_startup = false\n", 1))
    with preset_server(folder, loads_on_demand=False) as running:
        assert names(running) == []
        props = running.http().get("/props").json()
        assert (props["role"], props["max_instances"], props["model_alias"]) == ("router", 2, "greedy")
        assert names(running) == []
        with pytest.raises(openai.BadRequestError, match="greedy is not loaded; POST /models/load loads it"):
            answered(running, "greedy")
        assert running.http().post("/models/load", json={"model": "greedy"}).json()["success"]
        assert answered(running, "greedy", max_tokens=2)


@pytest.fixture
def stocked(folder: Path, home: Path) -> Iterator[Running]:
    """A server that lists a store."""
    with served(folder / "one.gguf") as running:
        running.pool.names._listed = ModelStore().models
        yield running


def test_a_model_is_pulled_and_deleted(stocked: Running, folder: Path) -> None:
    http = stocked.http()
    with serving() as far, listening(stocked) as heard:
        far.files["/far.gguf"] = Served((folder / "two.gguf").read_bytes())
        name, none = far.url("/far.gguf"), far.url("/none.gguf")
        assert http.post("/models", json={"model": name}).json() == {"success": True}
        assert set(heard.wait(name, "download_finished")) == {"download_progress", "download_finished"}
        steps = [each["data"][name] for each in heard.events if each["event"] == "download_progress"]
        assert steps[-1]["done"] == (folder / "two.gguf").stat().st_size
        assert http.post("/models", json={"model": name}).status_code == 400  # it is here
        assert statuses(stocked)["far"] == {"value": "unloaded"}
        assert http.post("/models/load", json={"model": "far"}).json()["success"]
        assert http.delete("/models", params={"model": "far"}).json() == {"success": True}
        assert heard.wait("far", "model_remove")
        assert "far" not in statuses(stocked)
        assert http.delete("/models", params={"model": "far"}).status_code == 404
        assert http.post("/models", json={"model": none}).json()["success"]
        heard.wait(none, "download_failed")
        assert http.post("/models", json={"model": "no such model"}).status_code == 404


def test_pulling_is_stopped(stocked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    is_stopped = threading.Event()

    def pull(store: ModelStore, source: str, *, progress: Any, approve: Any) -> Any:
        try:
            while True:
                progress(1, 100, 1.0)
                time.sleep(0.01)
        except PullStopped:
            is_stopped.set()
            raise

    monkeypatch.setattr(ModelStore, "pull", pull)
    http = stocked.http()
    with listening(stocked) as heard:
        http.post("/models", json={"model": "someone/model:Q4_0"})
        heard.wait("someone/model:Q4_0", "download_progress")
        status = statuses(stocked)["someone/model:Q4_0"]
        assert status == {"value": "downloading", "progress": {"hf:someone/model:Q4_0": {"done": 1, "total": 100}}}
        assert http.post("/models/unload", json={"model": "someone/model:Q4_0"}).json() == {"success": True}
        heard.wait("someone/model:Q4_0", "download_failed")
        assert is_stopped.wait(20)
        assert "someone/model:Q4_0" not in statuses(stocked)


def test_the_command_serves_presets(folder: Path) -> None:
    path = folder / "presets.toml"
    path.write_text(TABLES.replace("[hot]", "load_on_startup = false\n[hot]"))
    command = [*OPEN, "--presets", str(path), "--models-memory", "90%"]
    with started(command, EDGEINFER_HOME=str(folder / "home")) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["model"] == "greedy"
        with httpx.Client(base_url=str(ready["url"]), timeout=60) as http:
            found = http.get("/models").json()["data"]
            assert [(each["id"], each["status"]["value"]) for each in found] == [
                *((name, "unloaded") for name in ("greedy", "hot", "styled"))
            ]
            body = {"model": "hot", "prompt": "the"}
            assert http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 9
            assert http.post("/v1/completions", json={**body, "model": "cold"}).status_code == 404
            path.write_text(path.read_text().replace("[hot]", "[cold]"))
            assert http.get("/models?reload=1").status_code == 200
            assert http.post("/v1/completions", json={**body, "model": "cold"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--presets", "none.toml"], "none.toml cannot be read"),
        (["--alias", "x", "--presets", "presets.toml"], "each model has `aliases` in its table"),
        (["--models-memory", "much", "--presets", "presets.toml"], "--models-memory: 'much' is not a size"),
    ],
)
def test_mistakes_on_the_command_line_are_said(folder: Path, options: list[str], said: str) -> None:
    found = subprocess.run([*OPEN, *options], cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert said in found.stderr
    assert not found.stdout
