"""POST /predict: what Vertex AI sends to a container."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.server.conftest import Running, served

CHAT = {"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "the rain"}], "max_tokens": 3}


def test_instances_are_answered_as_chat_completions(server: Running) -> None:
    instances = [{**CHAT, "temperature": 0}, {**CHAT, "temperature": 0, "max_tokens": 5}]
    found = server.http().post("/predict", json={"instances": instances}).json()["predictions"]
    assert [each["usage"]["completion_tokens"] for each in found] == [3, 5]
    body = {key: value for key, value in instances[0].items() if key != "@requestFormat"}
    alone = server.http().post("/v1/chat/completions", json=body).json()
    assert found[0]["choices"] == alone["choices"]


def test_where_one_is_refused_the_others_end(long_model: Path) -> None:
    refused = {**CHAT, "tool_choice": "required"}  # there are no tools
    with served(long_model) as running:
        found = running.http().post("/predict", json={"instances": [{**CHAT, "max_tokens": 50_000}, refused]})
        assert (found.status_code, found.json()["error"]["param"]) == (400, "tool_choice")
        while running.llm.telemetry.n_requests:
            time.sleep(0.01)
        assert running.llm.telemetry.queue.n_generated < 50_000


@pytest.mark.parametrize(
    ("instance", "param"),
    [
        ({**CHAT, "@requestFormat": "embeddings"}, "instances.1.@requestFormat"),
        ({**CHAT, "stream": True}, "instances.1.stream"),
        ({**CHAT, "temperature": "warm"}, "instances.1.temperature"),
        ({**CHAT, "messages": []}, "instances.1.messages"),
    ],
)
def test_what_is_wrong_is_named(server: Running, instance: dict[str, object], param: str) -> None:
    found = server.http().post("/predict", json={"instances": [CHAT, instance]})
    assert (found.status_code, found.json()["error"]["param"]) == (400, param)
    assert server.http().post("/predict", json={"instances": []}).status_code == 400
