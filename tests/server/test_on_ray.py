"""The server by replicas on a Ray cluster: two computers' worth of Ray on this one, by the loopback address.

What a replica answers is what a plain server answers; what a lost computer costs is its own streams. The tests of a
lost and a new computer change the cluster, so they are the last.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from edgeinfer.app.server.listening import ServerOptions, listen, url_of
from edgeinfer.models.store import path_model
from edgeinfer.settings import load_settings
from tests.server.conftest import Server, served
from tests.waiting import until

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray leaves files and sockets open
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}
OPTIONS = ServerOptions(port=0, parallel=4)
QUESTION = {"messages": [{"role": "user", "content": "What is a tree?"}], "temperature": 0, "max_tokens": 12}
ENDLESS = 50_000
"""Tokens that no test waits for."""


@dataclass
class OnRay:
    """A front before two replicas, and the cluster they are on."""

    url: str
    cluster: Any
    second: Any

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, verify=False)

    def n_running(self) -> int:
        from ray import serve

        application = serve.status().applications["edgeinfer"]
        return sum(each.replica_states.get("RUNNING", 0) for each in application.deployments.values())


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """Ray's files in a folder with a short path; its processes are not held back, as Ray's usually are."""
    folder = tempfile.mkdtemp(prefix="eray-")
    (Path(folder) / "ray").mkdir()
    given = {"RAY_TMPDIR": folder, "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "EDGEINFER_HOME": folder}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(environment: None) -> Iterator[Any]:
    """Ray with one node."""
    from ray.cluster_utils import Cluster

    from edgeinfer.app.cluster import ray_session

    ray_session._keep_to_loopback("127.0.0.1")
    found = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def on_ray(cluster: Any, long_model: Path) -> Iterator[OnRay]:
    """A server by a replica on each of two nodes."""
    import ray

    from edgeinfer.app.cluster.application import ReplicaCounts
    from edgeinfer.app.cluster.front import guarded_front
    from edgeinfer.app.cluster.ray_session import ray_session
    from edgeinfer.app.cluster.replica import Serving
    from edgeinfer.app.cluster.serving import deployed

    second = cluster.add_node(**NODE)
    logging.getLogger("ray").setLevel(logging.ERROR)
    settings = load_settings({"model": str(long_model), "spec": "off", "ctx": "60000"})
    listener = listen("127.0.0.1", 0)
    with ray_session(cluster.address) as is_own:
        assert not is_own
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        serving = Serving(settings, OPTIONS, path_model(long_model), 1.0)
        with deployed(serving, ReplicaCounts(2, 2)) as handle:
            app, _ = guarded_front(handle, OPTIONS)
            server = Server(uvicorn.Config(app, log_config=None, lifespan="off"))
            thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
            thread.start()
            yield OnRay(url_of(listener), cluster, second)
            server.should_exit = True
            thread.join(60)
    listener.close()


@pytest.fixture(scope="module")
def plain(long_model: Path) -> Iterator[httpx.Client]:
    """A plain server of the same model."""
    with served(long_model, OPTIONS) as running:
        yield running.http()


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": QUESTION,
    "/v1/completions": {"prompt": "A tree is", "temperature": 0.9, "seed": 5, "max_tokens": 12},
    "/v1/messages": {"model": "x", "max_tokens": 12, "temperature": 0, "messages": QUESTION["messages"]},
    "/api/chat": {"model": "default", "messages": QUESTION["messages"], "options": {"seed": 2, "num_predict": 9}},
    "/v1/embeddings": {"input": ["a tree", "a bush"]},
    "/tokenize": {"content": "a tree"},
}
TEXTS = ("choices", "content", "message", "data", "tokens")
"""What of a whole response is the same each time it is asked for."""


@pytest.mark.parametrize("path", BODIES)
def test_answers_are_those_of_a_plain_server(on_ray: OnRay, plain: httpx.Client, path: str) -> None:
    body = {**BODIES[path], "stream": False} if path == "/api/chat" else BODIES[path]
    expected = plain.post(path, json=body)
    assert expected.status_code == 200, expected.text
    with on_ray.client() as client:
        for _ in range(3):  # by whichever replica
            found = client.post(path, json=body)
            assert found.status_code == 200, found.text
            shared = [name for name in TEXTS if name in expected.json()]
            assert shared
            assert {name: found.json()[name] for name in shared} == {name: expected.json()[name] for name in shared}


def text_of(lines: list[str]) -> str:
    """The text of a stream of chat completions, whatever its chunks are."""
    records = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for record in records for choice in record["choices"])


def streamed(client: httpx.Client, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[str]:
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        return [line for line in response.iter_lines() if line]


def test_streams_have_the_text_of_whole_answers(on_ray: OnRay, plain: httpx.Client) -> None:
    whole = plain.post("/v1/chat/completions", json=QUESTION).json()["choices"][0]["message"]["content"]
    with on_ray.client() as client:
        lines = streamed(client, QUESTION)
        assert lines[-1] == "data: [DONE]"
        assert text_of(lines) == whole
        anthropic = streamed(client, BODIES["/v1/messages"], "/v1/messages")
        assert anthropic[0] == "event: message_start"
        assert anthropic[-2] == "event: message_stop"
        assert json.loads(streamed(client, BODIES["/api/chat"], "/api/chat")[-1])["done"] is True


def test_requests_are_checked_before_they_reach_a_replica(on_ray: OnRay) -> None:
    with on_ray.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
        assert client.get("/health", headers={"Origin": "https://evil.example"}).status_code == 403
        refused = client.post("/v1/chat/completions", content=b"{" + b"[" * 100_000)
        assert refused.status_code == 400
        assert client.get("/nothing").json()["error"]["message"] == "there is no GET /nothing"


def test_a_conversation_goes_on_where_it_is_cached(on_ray: OnRay) -> None:
    turns = [{"role": "user", "content": "Tell me of oaks, " + "and of beeches, " * 30}]
    with on_ray.client() as client:
        for turn in range(4):
            body = {**QUESTION, "messages": turns}
            answer = client.post("/v1/chat/completions", json=body).json()
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (cached > 0) == (turn > 0)
            turns += [answer["choices"][0]["message"], {"role": "user", "content": f"And number {turn}?"}]


def test_stored_responses_are_found_on_their_replica(on_ray: OnRay) -> None:
    with on_ray.client() as client:
        asked = [f"What is a {word}?" for word in ("tree", "bush", "fern", "moss")]
        first = [client.post("/v1/responses", json={"input": text, "max_output_tokens": 8}).json() for text in asked]
        for record in first:
            assert client.get(f"/v1/responses/{record['id']}").json()["id"] == record["id"]
            body = {"input": "Why?", "previous_response_id": record["id"], "max_output_tokens": 8}
            later = client.post("/v1/responses", json=body)
            assert later.status_code == 200, later.text
        assert client.get("/v1/responses/resp_none").status_code == 404


def by_replica(client: httpx.Client, name: str) -> list[float]:
    """A metric of each replica."""
    lines = client.get("/metrics").text.splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{")]


def n_active(client: httpx.Client) -> float:
    """The answers that run, on all replicas."""
    return sum(by_replica(client, "edgeinfer_answers_active"))


def test_metrics_are_those_of_all_replicas(on_ray: OnRay) -> None:
    with on_ray.client() as client:
        lines = client.get("/metrics").text.splitlines()
    refused = [line for line in lines if line.startswith("edgeinfer_refused_total{")]
    assert len(refused) == 2
    assert lines.count("# TYPE edgeinfer_refused_total counter") == 1


def test_an_answer_ends_with_its_client(on_ray: OnRay) -> None:
    body = {**QUESTION, "max_tokens": ENDLESS, "stream": True}
    with on_ray.client() as other, on_ray.client() as client:
        assert n_active(other) == 0
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()  # the response is closed with it
            next(lines)
            until(lambda: n_active(other) == 1)
        until(lambda: n_active(other) == 0)
        assert generated(other) < ENDLESS


GENERATED = "edgeinfer_generated_tokens_total"


def generated(client: httpx.Client) -> float:
    """The tokens that all replicas have generated in answers that ended."""
    return sum(by_replica(client, GENERATED))


class Streaming:
    """A stream that is read by a thread until it ends, or until `is_enough` is set."""

    def __init__(self, pool: ThreadPoolExecutor, on_ray: OnRay, number: int) -> None:
        self.lines: list[str] = []
        self.is_enough = threading.Event()
        self.path = PATHS[number % len(PATHS)]
        self.end = pool.submit(self._read, on_ray, number)

    def _read(self, on_ray: OnRay, number: int) -> None:
        body = {**QUESTION, "messages": [{"role": "user", "content": f"{number} trees"}], "max_tokens": ENDLESS}
        with on_ray.client() as client, client.stream("POST", self.path, json={**body, "stream": True}) as response:
            for line in response.iter_lines():
                if line:
                    self.lines.append(line)
                if self.is_enough.is_set():
                    return


PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/messages", "/v1/chat/completions")


def both_answer(on_ray: OnRay, pool: ThreadPoolExecutor) -> bool:
    """Whether of two questions each replica gets one: not before both are known to have the model open."""
    with on_ray.client() as client:
        before = by_replica(client, GENERATED)
        for asked in [pool.submit(client.post, "/v1/chat/completions", json=QUESTION) for _ in range(2)]:
            assert asked.result().status_code == 200
        after = by_replica(client, GENERATED)
        return len(before) == len(after) == 2 and all(map(float.__lt__, before, after))


def require_error(path: str, lines: list[str]) -> None:
    """A stream has ended with an error, in the words of its API."""
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert "the replica that was answering has ended" in error["message"]
    if path == "/v1/messages":
        assert lines[-2] == "event: error"
        assert error["type"] == "overloaded_error"
    else:
        assert error["code"] == "replica_lost"


def test_a_lost_node_costs_its_streams_an_error_and_nothing_else(on_ray: OnRay) -> None:
    with ThreadPoolExecutor(4) as pool:
        until(lambda: both_answer(on_ray, pool))
        streams = list[Streaming]()
        for number in range(4):
            streams.append(Streaming(pool, on_ray, number))
            until(lambda: len(streams[-1].lines) > 2)
        on_ray.cluster.remove_node(on_ray.second, allow_graceful=False)
        until(lambda: any(stream.end.done() for stream in streams))  # what ran on the node may go on for a moment
        lengths = [len(stream.lines) for stream in streams]
        until(
            lambda: all(
                each.end.done() or len(each.lines) > length + 100 for each, length in zip(streams, lengths, strict=True)
            )
        )
        lost, left = ([each for each in streams if each.end.done() == is_over] for is_over in (True, False))
        assert lost
        assert left
        for stream in lost:
            stream.end.result()
            require_error(stream.path, stream.lines)
        for stream in left:
            stream.is_enough.set()
        with on_ray.client() as client:
            for _ in range(4):
                assert client.post("/v1/chat/completions", json=QUESTION).status_code == 200


def test_a_node_that_joins_gets_a_replica(on_ray: OnRay) -> None:
    until(lambda: on_ray.n_running() == 1)
    on_ray.cluster.add_node(**NODE)
    until(lambda: on_ray.n_running() == 2)
    with on_ray.client() as client:
        assert all(client.post("/v1/chat/completions", json=QUESTION).status_code == 200 for _ in range(4))
