"""POST /predict: what Vertex AI sends to a container."""

from __future__ import annotations

import pytest

from tests.server.conftest import Running

CHAT = {"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "the rain"}], "max_tokens": 3}


def test_instances_are_answered_as_chat_completions(server: Running) -> None:
    instances = [{**CHAT, "temperature": 0}, {**CHAT, "temperature": 0, "max_tokens": 5}]
    found = server.http().post("/predict", json={"instances": instances}).json()["predictions"]
    assert [each["usage"]["completion_tokens"] for each in found] == [3, 5]
    body = {key: value for key, value in instances[0].items() if key != "@requestFormat"}
    alone = server.http().post("/v1/chat/completions", json=body).json()
    assert found[0]["choices"] == alone["choices"]


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
