"""Parameters beside Ollama's files: read with care, applied below what the user says, and told."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeinfer.engine.loading import load
from edgeinfer.models.ollama_params import OllamaParams, ollama_params
from tests.adapter_files import write_adapter
from tests.conftest import write_tiny_llama
from tests.unit.models.test_store import write_ollama

LIBRARY = "registry.ollama.ai/library"


def with_params(
    folder: Path, name: str, content: bytes, params: object, system: str | None = None, **layers: bytes
) -> Path:
    """A model as Ollama keeps it, with a layer of parameters, one with a template and `layers`; gives its blob."""
    blob = write_ollama(folder, name, content)
    path = folder / "manifests" / name
    manifest = json.loads(path.read_text())
    manifest["layers"].append({"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "1" * 64})
    texts = {"params": params if isinstance(params, bytes) else json.dumps(params).encode()}
    if system is not None:
        texts["system"] = system.encode()
    texts |= layers
    for kind, text in texts.items():
        digest = hashlib.sha256(text).hexdigest()
        (folder / "blobs" / f"sha256-{digest}").write_bytes(text)
        layer = {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"}
        manifest["layers"].append(layer)
    path.write_text(json.dumps(manifest))
    return blob


def blob_of(file: Path, folder: Path) -> Path:
    """Where Ollama keeps what a file holds."""
    return folder / "blobs" / f"sha256-{hashlib.sha256(file.read_bytes()).hexdigest()}"


def test_parameters_have_our_names(tmp_path: Path) -> None:
    params = {
        "stop": ["<|im_end|>", ""],
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0,
        "repeat_penalty": 1,
        "repeat_last_n": -1,
        "num_ctx": 4096,
        "mirostat": 0,
    }
    found = ollama_params(with_params(tmp_path, f"{LIBRARY}/qwen3/8b", b"model", params))
    assert found.sampling == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repeat_penalty": 1,
        "penalty_window": -1,
    }
    assert found.stops == ("<|im_end|>",)
    assert found.unused == ("mirostat", "num_ctx")


def test_names_of_one_file_count_where_they_agree(tmp_path: Path) -> None:
    with_params(tmp_path, f"{LIBRARY}/a/latest", b"model", {"temperature": 0.6, "top_k": 20, "stop": ["x"]})
    blob = with_params(tmp_path, f"{LIBRARY}/b/latest", b"model", {"temperature": 0.9, "top_k": 20, "stop": "y"})
    assert ollama_params(blob) == OllamaParams({"top_k": 20})
    write_ollama(tmp_path, f"{LIBRARY}/c/latest", b"model")
    assert ollama_params(blob) == OllamaParams()


def test_systems_of_one_file_count_where_they_agree(tmp_path: Path) -> None:
    with_params(tmp_path, f"{LIBRARY}/a/latest", b"model", {}, "Be brief.")
    blob = with_params(tmp_path, f"{LIBRARY}/b/latest", b"model", {"top_k": 3}, "Be brief.")
    assert ollama_params(blob) == OllamaParams(system="Be brief.")
    with_params(tmp_path, f"{LIBRARY}/c/latest", b"model", {}, "Be long.")
    assert ollama_params(blob) == OllamaParams()


def test_the_name_that_is_asked_for_counts(tmp_path: Path) -> None:
    blob = with_params(tmp_path, f"{LIBRARY}/base/latest", b"model", {"temperature": 0.6, "top_k": 20})
    with_params(tmp_path, f"{LIBRARY}/poet/v2", b"model", {"temperature": 0}, "In verse.", messages=b"[]", adapter=b"a")
    poet = ollama_params(blob, "ollama:poet:v2")
    assert (poet.sampling, poet.system, poet.unused) == ({"temperature": 0}, "In verse.", ("messages",))
    assert [path.read_bytes() for path in poet.adapters] == [b"a"]
    assert ollama_params(blob, "ollama:base:latest") == OllamaParams({"temperature": 0.6, "top_k": 20})
    assert ollama_params(blob, "ollama:gone:latest") == ollama_params(blob) == OllamaParams()


def test_a_name_opens_with_its_adapter_and_system_prompt(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgeinfer.app.cli import build_app

    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    content = write_tiny_llama(tmp_path / "t.gguf").read_bytes()
    adapter = write_adapter(tmp_path / "t.gguf", tmp_path / "verse.gguf")
    with_params(tmp_path, f"{LIBRARY}/base/1b", content, {})
    with_params(tmp_path, f"{LIBRARY}/poet/1b", content, {}, "In verse.", adapter=adapter.read_bytes())
    answers: dict[tuple[str, bool], str] = {}
    added = {"base:1b": str(adapter), "poet:1b": f"{adapter}:-1"}
    for name, lora in (*((name, []) for name in added), *((name, [file]) for name, file in added.items())):
        with load(name, spec="off", device="cpu", lora=lora) as llm:
            answers[name, bool(lora)] = llm.complete("the hen", max_tokens=12, temperature=0).read()
            rendered = llm.prompts.render([{"role": "user", "content": "the hen"}])
            assert ("In verse." in rendered) == (name == "poet:1b")
    assert answers["poet:1b", False] == answers["base:1b", True] != answers["base:1b", False]
    assert answers["poet:1b", True] == answers["base:1b", False]  # the user's takes back what the name adds
    asked = ["-m", "poet:1b", "--device", "cpu"]
    answered = CliRunner().invoke(build_app(), ["run", *asked, "--raw", "--temp", "0", "--max-tokens", "12", "the hen"])
    assert answered.stdout.strip() == answers["poet:1b", False].strip()
    assert "sha256-" in answered.stderr  # the notice of the adapter
    assert "sha256-" in CliRunner().invoke(build_app(), ["plan", *asked]).stdout
    shown = json.loads(CliRunner().invoke(build_app(), ["show", "poet:1b", "--json"]).stdout)
    assert (shown["adapters"], shown["system"]) == ([str(blob_of(adapter, tmp_path))], "In verse.")


def test_a_system_prompt_goes_before_chats_without_one(tmp_path: Path) -> None:
    blob = with_params(
        tmp_path, f"{LIBRARY}/tiny/1b", write_tiny_llama(tmp_path / "t.gguf").read_bytes(), {}, "the rain"
    )
    ask, own = {"role": "user", "content": "the hen"}, {"role": "system", "content": "the rain"}
    with load(blob, spec="off", device="reference") as llm:
        prompts = llm.prompts
        assert prompts.render([ask]) == prompts.render([own, ask]) != prompts.render([ask])[:-1]
        assert prompts.chat([ask], {}).prompt == prompts.chat([own, ask], {}).prompt
        assert prompts.n_tokens([ask]) == len(prompts.chat([ask], {}).prompt)
        other = {"role": "developer", "content": "at sea"}
        assert "the rain" not in prompts.render([other, ask])


@pytest.mark.parametrize(
    "params", [b"", b"\xff", b"[1]", b"[" * 5000, b'{"temperature": ' + b" " * 70000 + b"1}", {"temperature": "hot"}]
)
def test_what_is_no_parameter_counts_as_absent(tmp_path: Path, params: object) -> None:
    blob = with_params(tmp_path, f"{LIBRARY}/a/latest", b"model", params)
    assert not ollama_params(blob).sampling
    assert not ollama_params(blob).stops


def test_other_files_have_none(tmp_path: Path) -> None:
    blob = with_params(tmp_path, f"{LIBRARY}/a/latest", b"model", {"temperature": 0.6})
    copied = tmp_path / "m.gguf"
    copied.write_bytes(blob.read_bytes())
    assert ollama_params(blob).sampling
    assert ollama_params(copied) == OllamaParams()
    assert ollama_params(tmp_path / "blobs" / f"sha256-{'0' * 64}") == OllamaParams()


def test_a_chat_follows_them_unless_the_user_says_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edgeinfer.app.cli import main

    content = write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    params = {"temperature": 0, "stop": ["<|x|>"], "num_ctx": 64}
    blob = with_params(tmp_path, f"{LIBRARY}/tiny/1b", content, params, "Be brief.")
    messages = [{"role": "user", "content": "the hen"}]
    with load(blob, spec="off") as llm:
        request = llm.prompts.chat(messages, {})
        assert (request.sampling.temperature, request.stop) == (0, ("<|x|>",))
        request = llm.prompts.chat(messages, {"temperature": 0.5, "stop": ["hen"]})
        assert (request.sampling.temperature, request.stop) == (0.5, ("hen",))
        assert llm.prompts.text("the hen", {}).stop == ()
    with pytest.raises(SystemExit):
        main(["show", str(blob)])
    shown = capsys.readouterr().out
    assert "temperature 0" in shown
    assert "'<|x|>'" in shown
    assert "Be brief." in shown
    assert "num_ctx of Ollama's parameters" in shown
