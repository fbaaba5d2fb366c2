"""llm (the command) with a model of its own list, and with llm-ollama."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from check_parts import CALL, NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, run_checks

FUNCTIONS = 'def weather(city: str) -> str:\n    """Rain in a city."""\n    return f"5 mm of rain in {city}"\n'
SCHEMA = "city str, rain_mm int"


def run(address: str, model: str, *words: str, piped: str = "") -> subprocess.CompletedProcess[str]:
    """Run llm with a folder of its own, in which `edgeinfer` is a model."""
    with tempfile.TemporaryDirectory() as folder:
        told = {"model_id": "edgeinfer", "model_name": model, "api_base": f"{address}/v1"}
        told |= {"supports_tools": True, "supports_schema": True}
        nobody = {**told, "model_id": "nobody", "model_name": NO_MODEL}
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps([told, nobody]), encoding="utf-8")  # YAML too
        variables = {**os.environ, "LLM_USER_PATH": folder, "OLLAMA_HOST": address, "OPENAI_API_KEY": "none"}
        command = [str(Path(sys.executable).with_name("llm")), *words]
        return subprocess.run(command, env=variables, capture_output=True, text=True, input=piped)


def said(address: str, model: str, *words: str) -> str:
    done = run(address, model, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def plain(address: str, model: str) -> object:
    return said(address, model, "-m", "edgeinfer", "--no-stream", QUESTION)


def streamed(address: str, model: str) -> object:
    return said(address, model, "-m", "edgeinfer", QUESTION)


def tools(address: str, model: str) -> object:
    done = run(address, model, "-m", "edgeinfer", "--functions", FUNCTIONS, "--td", CALL)
    assert "5 mm of rain in Rome" in done.stderr, done.stderr
    return done.stdout.strip()


def structured(address: str, model: str) -> object:
    return said(address, model, "-m", "edgeinfer", "--schema", SCHEMA, RAIN_QUESTION)


def plain_ollama(address: str, model: str) -> object:
    return said(address, model, "-m", f"ollama/{model}:latest", QUESTION)


def structured_ollama(address: str, model: str) -> object:
    return said(address, model, "-m", f"ollama/{model}:latest", "--schema", SCHEMA, RAIN_QUESTION)


def asked(url: str, body: object = None) -> dict[str, Any]:
    """What the server itself says."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data)) as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def embeddings_ollama(address: str, model: str) -> object:
    """By a model made for them: llm-ollama takes no other."""
    for name in (each["model"] for each in asked(f"{address}/api/tags")["models"]):
        if "embedding" in asked(f"{address}/api/show", {"model": name})["capabilities"]:
            vector = json.loads(said(address, model, "embed", "-m", f"ollama/{name}", "-c", "a text"))
            return f"a vector of {len(vector)}"
    return "not looked into: the server has no model made for embeddings"


def unknown_model(address: str, model: str) -> object:
    done = run(address, model, "-m", "nobody", QUESTION)
    assert done.returncode != 0
    return done.stderr.strip()


def too_long(address: str, model: str) -> object:
    done = run(address, model, "-m", "edgeinfer", piped=TOO_LONG)
    assert done.returncode != 0
    return done.stderr.strip()


if __name__ == "__main__":
    run_checks(
        plain=plain,
        streamed=streamed,
        tools=tools,
        structured=structured,
        plain_ollama=plain_ollama,
        structured_ollama=structured_ollama,
        embeddings_ollama=embeddings_ollama,
        unknown_model=unknown_model,
        too_long=too_long,
    )
