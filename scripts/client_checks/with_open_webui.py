"""Open WebUI: its own server is started beside, and asked as its page asks it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from check_parts import CALL, NO_MODEL, QUESTION, TOO_LONG, run_checks

SETTINGS = {
    "WEBUI_AUTH": "False",
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "ENABLE_VERSION_UPDATE_CHECK": "False",
    "SCARF_NO_ANALYTICS": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "OPENAI_API_KEY": "none",
    "RAG_EMBEDDING_ENGINE": "openai",
    "RAG_OPENAI_API_KEY": "none",
}
LONGEST_START_S = 600.0
WEATHER = {
    "name": "weather",
    "description": "Rain in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class WebUI:
    """The address of Open WebUI's server, and a session there."""

    def __init__(self, port: int) -> None:
        self._address, self._token = f"http://127.0.0.1:{port}", ""

    def sign_in(self) -> None:
        self._token = self.json("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def text(self, path: str, body: object = None) -> str:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, headers)
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()

    def json(self, path: str, body: object = None) -> Any:
        return json.loads(self.text(path, body))


@contextmanager
def started(address: str, model: str) -> Iterator[WebUI]:
    """Open WebUI with a new folder, connected by both protocols."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        variables = {**os.environ, **SETTINGS, "DATA_DIR": folder, "WEBUI_SECRET_KEY": "x", "OLLAMA_BASE_URL": address}
        variables |= {"OPENAI_API_BASE_URL": f"{address}/v1", "RAG_OPENAI_API_BASE_URL": f"{address}/v1"}
        variables["RAG_EMBEDDING_MODEL"] = model
        command = [
            str(Path(sys.executable).with_name("open-webui")),
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        with subprocess.Popen(
            command, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as p:
            try:
                yield signed_in(port)
            finally:
                p.terminate()


def signed_in(port: int) -> WebUI:
    """The server as soon as it answers."""
    there, end = WebUI(port), time.monotonic() + LONGEST_START_S
    while True:
        try:
            there.sign_in()
            return there
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(2)


def asked(model: str, content: str, **options: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **options}


def names(there: WebUI, model: str) -> object:
    return [each["id"] for each in there.json("/api/models")["data"] if each["id"] in (model, f"{model}:latest")]


def plain(there: WebUI, model: str) -> object:
    return there.json("/api/chat/completions", asked(model, QUESTION))["choices"][0]["message"]["content"]


def streamed(there: WebUI, model: str) -> object:
    lines = there.text("/api/chat/completions", asked(model, QUESTION, stream=True)).splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk.get("choices")]
    return f"{len(deltas)} deltas: {''.join(deltas)}"


def tools(there: WebUI, model: str) -> object:
    options = {"tools": [{"type": "function", "function": WEATHER}]}
    message = there.json("/api/chat/completions", asked(model, CALL, **options))["choices"][0]["message"]
    return [call["function"] for call in message["tool_calls"]]


def embeddings(there: WebUI, model: str) -> object:
    return (
        f"a vector of {len(there.json('/api/embeddings', {'model': model, 'input': 'a text'})['data'][0]['embedding'])}"
    )


def error(there: WebUI, name: str, content: str) -> object:
    try:
        there.text("/api/chat/completions", asked(name, content))
    except urllib.error.HTTPError as reason:
        return f"{reason.code} {reason.read().decode()}"
    raise AssertionError("no error")


def main() -> None:
    address, model = sys.argv[1:3]
    ollamas = f"{model}:latest"
    with started(address, model) as there:
        run_checks(
            names=lambda *_: names(there, model),
            plain=lambda *_: plain(there, model),
            streamed=lambda *_: streamed(there, model),
            tools=lambda *_: tools(there, model),
            plain_ollama=lambda *_: plain(there, ollamas),
            streamed_ollama=lambda *_: streamed(there, ollamas),
            tools_ollama=lambda *_: tools(there, ollamas),
            embeddings=lambda *_: embeddings(there, model),
            unknown_model=lambda *_: error(there, NO_MODEL, QUESTION),
            too_long=lambda *_: error(there, model, TOO_LONG),
        )


if __name__ == "__main__":
    main()
