"""The requests of llama.vim, an editor's plugin for llama-server, with all their fields.

Answers are read as the plugin reads them (https://github.com/ggml-org/llama.vim, autoload/llama.vim).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served

SHOWN = ("prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second")
"""Without one of these timings the plugin shows none."""
CHUNK = {"text": "def rain(tin):\n    return tin\n" * 8, "time": [12, 345678], "filename": "rain.py"}
FIRST = {
    "id_slot": 0,
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": [CHUNK],
    "prompt": "",
    "n_predict": 0,
    "temperature": 0.0,
    "samplers": [],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
    "response_fields": [""],
}
"""Chunks of other files, to be read before they are needed."""
FILL = {
    "id_slot": 0,
    "input_prefix": "import rain\n\n",
    "input_suffix": ")\n\nprint(tin)\n",
    "input_extra": [CHUNK],
    "prompt": "    tin = rain(",
    "n_predict": 12,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.90,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 250,
    "response_fields": [
        "content",
        *(f"timings/{name}" for name in (*SHOWN, "prompt_per_token_ms", "predicted_per_token_ms")),
        "truncated",
        "tokens_cached",
    ],
}
MESSAGES = [{"role": "system", "content": "You edit text. " * 40}, {"role": "user", "content": "INSTRUCTION: shorter"}]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = write_tiny_llama(tmp_path_factory.mktemp("vim") / "gap.gguf", gap=(3, 4, 5), context=4096)
    with served(path) as running:
        yield running.http()


def test_gaps_are_filled_after_chunks_that_were_read_before(http: httpx.Client) -> None:
    assert http.post("/infill", json=FIRST).json() == {}
    full = http.post("/infill", json={**FILL, "response_fields": []}).json()
    assert full["timings"]["cache_n"] > len(CHUNK["text"]) // 2
    found = http.post("/infill", json=FILL)
    assert found.text.count("\n") == 0, "Vim reads line by line"
    answer = found.json()
    assert set(answer) == set(FILL["response_fields"])
    assert (type(answer["content"]), answer["truncated"]) == (str, False)
    for name in SHOWN:
        assert answer[f"timings/{name}"] >= 0


def test_streams_have_the_same_fields(http: httpx.Client) -> None:
    whole = http.post("/infill", json={**FILL, "seed": 3}).json()
    lines = http.post("/infill", json={**FILL, "seed": 3, "stream": True}).text.splitlines()
    parts = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert set(parts[-1]) == set(FILL["response_fields"])
    assert [part["stop"] for part in parts[:-1]] == [False] * (len(parts) - 1)
    assert "".join(part["content"] for part in parts[:-1]) == whole["content"]


def test_files_that_do_not_fit_are_read_once(http: httpx.Client) -> None:
    """A chunk that is read before, and keys that are typed then, leave the prompt's beginning as it was."""
    chunks = [{**CHUNK, "text": f"# {number}\n{CHUNK['text']}", "filename": f"{number}.py"} for number in range(40)]
    http.post("/infill", json={**FIRST, "input_extra": chunks})
    for prompt in ("    ", "    t", "    tin", "    tin = rain"):
        body = {**FILL, "input_extra": chunks, "prompt": prompt, "response_fields": ["timings/cache_n"]}
        assert http.post("/infill", json=body).json()["timings/cache_n"] >= 4096 // 2


def test_texts_are_edited_by_instruction(http: httpx.Client) -> None:
    warm = {"id_slot": 1, "messages": [MESSAGES[0], {"role": "user", "content": ""}], "samplers": [], "n_predict": 0}
    warm |= {"stream": False, "cache_prompt": True, "response_fields": [""]}
    assert http.post("/v1/chat/completions", json=warm).status_code == 200
    edit: dict[str, Any] = {"id_slot": 1, "messages": MESSAGES, "min_p": 0.1, "temperature": 0.1, "cache_prompt": True}
    edit |= {"samplers": ["min_p", "temperature"], "stream": True, "max_tokens": 12}
    lines = http.post("/v1/chat/completions", json=edit).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert events[-1]["timings"]["cache_n"] > len(MESSAGES[0]["content"]) // 2
    pieces = [event["choices"][0]["delta"].get("content") for event in events]
    assert "".join(piece for piece in pieces if isinstance(piece, str))


def test_a_model_without_tokens_for_gaps_says_so(server: Running) -> None:
    answer = server.http().post("/infill", json=FILL)
    assert answer.status_code == 400
    assert "tiny has no tokens for filling in gaps (FIM)" in answer.json()["error"]["message"]
