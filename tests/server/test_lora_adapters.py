"""LoRA adapters over HTTP, as tests/unit/test_lora.py of llama-server uses them: for all requests, and by request."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeinfer.engine.loading import load
from tests.adapter_files import write_adapter
from tests.server.conftest import Running, served

PROMPT = "Look in thy glass"
LORAS = [
    [{"id": 0, "scale": 0.0}],
    [{"id": 0, "scale": 0.0}],
    [{"id": 0, "scale": 0.3}],
    [{"id": 0, "scale": 0.7}],
    [{"id": 0, "scale": 1.0}],
    [{"id": 0, "scale": 1.0}],
    [{"id": 1, "scale": -1.0}, {"id": 0, "scale": 0.3}],
    [],
]


@pytest.fixture(scope="module")
def files(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(tiny_model, folder / f"{rank}.gguf", rank=rank, seed=rank) for rank in (8, 3)]


@pytest.fixture(scope="module")
def http(tiny_model: Path, files: list[Path]) -> Iterator[httpx.Client]:
    with served(tiny_model, lora=files) as server:
        yield server.http()


@pytest.fixture(scope="module")
def expected(tiny_model: Path, files: list[Path]) -> list[str]:
    """What models loaded with these scales answer."""
    found = []
    for lora in LORAS:
        scales = {each["id"]: each["scale"] for each in lora}
        loaded = [f"{path}:{scales.get(number, 0.0)}" for number, path in enumerate(files)]
        with load(tiny_model, device="cpu", spec="off", lora=loaded) as llm:
            found.append("".join(llm.complete(PROMPT, max_tokens=16, temperature=0)))
    return found


def completed(http: httpx.Client, **fields: Any) -> str:
    response = http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 16, "temperature": 0.0, **fields})
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def test_adapters_are_listed(http: httpx.Client, files: list[Path]) -> None:
    assert http.get("/lora-adapters").json() == [
        {"id": number, "path": str(path), "scale": 1.0} for number, path in enumerate(files)
    ]


def test_scales_are_set_for_all_requests(http: httpx.Client, files: list[Path], expected: list[str]) -> None:
    for lora, text in zip(LORAS, expected, strict=True):
        response = http.post("/lora-adapters", json=lora)
        assert (response.status_code, response.json()) == (200, {"success": True})
        assert completed(http) == text
        scales = {each["id"]: each["scale"] for each in lora}
        listed = {each["id"]: each["scale"] for each in http.get("/lora-adapters").json()}
        assert listed == {0: 0.0, 1: 0.0} | scales
    assert http.post("/lora-adapters", json=[{"id": 0, "scale": 1.0}, {"id": 1, "scale": 1.0}]).status_code == 200


def test_requests_with_other_scales_run_together(http: httpx.Client, expected: list[str]) -> None:
    with ThreadPoolExecutor(len(LORAS)) as threads:
        found = list(threads.map(lambda lora: completed(http, lora=lora), LORAS))
    assert found == expected
    assert len(set(found)) == 5
    assert completed(http) not in expected  # both adapters at 1, as they were loaded


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_conversations_take_scales_too(http: httpx.Client, path: str) -> None:
    def answered(**fields: Any) -> str:
        given = {"messages": [{"role": "user", "content": PROMPT}], "input": PROMPT}
        limits = {"max_tokens": 16, "max_output_tokens": 16, "temperature": 0.0}
        found = http.post(path, json={**given, **limits, **fields}).json()
        part = found["choices"][0]["message"]["content"] if "choices" in found else found["output"][0]["content"][0]
        return part if isinstance(part, str) else str(part["text"])

    assert answered() == answered(lora=[{"id": 0, "scale": 1.0}, {"id": 1, "scale": 1.0}]) != answered(lora=[])


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ([{"id": 2, "scale": 1.0}], "there is no LoRA adapter 2"),
        ([{"scale": 1.0}], "id is missing"),
        ([{"id": -1}], "id must be at least 0"),
        ([{"id": 0, "scale": "much"}], "scale must be a number"),
        ({"id": 0}, "must be a list"),
    ],
)
def test_scales_of_nothing_are_refused(http: httpx.Client, lora: Any, message: str) -> None:
    before = http.get("/lora-adapters").json()
    for response in (
        http.post("/v1/completions", json={"prompt": PROMPT, "lora": lora}),
        http.post("/lora-adapters", json=lora),
    ):
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]
    assert http.get("/lora-adapters").json() == before


def test_a_model_without_adapters(server: Running) -> None:
    http = server.http()
    assert http.get("/lora-adapters").json() == []
    assert http.post("/lora-adapters", json=[]).json() == {"success": True}
    assert "none: load some with --lora" in http.post("/lora-adapters", json=[{"id": 0}]).json()["error"]["message"]
