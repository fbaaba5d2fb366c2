"""Finding, listing, remembering and removing models; paths and Ollama's blobs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from edgeinfer.errors import BadGGUF, EdgeInferError, ModelNotFound
from edgeinfer.models.file_names import quant_of, shard_names, without_quant
from edgeinfer.models.sources import SOURCES, parse_source
from edgeinfer.models.store import STARTER_SOURCE, ModelStore, default_root
from edgeinfer.models.store_files import read_manifest
from tests.tiny_models import write_model


@pytest.fixture
def filled(store: ModelStore) -> ModelStore:
    """A store with three models that someone copied into its folder."""
    store.root.mkdir(parents=True)
    for name in ("SmolLM2-135M-Instruct.Q4_1", "Qwen3-0.6B-Q8_0", "Qwen3-0.6B-Q4_K_M"):
        write_model(store.root / f"{name}.gguf", kib=4)
    return store


@pytest.mark.parametrize(
    "name",
    [
        "SmolLM2-135M-Instruct.Q4_1",
        "smollm2-135m-instruct.q4_1",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "smollm2-135m-instruct",
        "SMOLLM2-135M-INSTRUCT.GGUF",
    ],
)
def test_names_are_found_in_every_spelling(filled: ModelStore, name: str) -> None:
    assert filled.find(name).path == filled.root / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_an_ambiguous_name_lists_its_models(filled: ModelStore) -> None:
    with pytest.raises(ModelNotFound, match=r"Qwen3-0\.6B-Q4_K_M, Qwen3-0\.6B-Q8_0"):
        filled.find("qwen3-0.6b")
    assert filled.find("qwen3-0.6b-q8_0").name == "Qwen3-0.6B-Q8_0"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm-135m-instruct", "did you mean SmolLM2-135M-Instruct.Q4_1"),
        ("zzz", "there are: Qwen3"),
        ("no/such/file.gguf", "there is no file"),
        ("there/is.gguf", "pull one: edgeinfer pull SOURCE"),
        ("someone/a-model:Q4_K_M", "or pull it: edgeinfer pull someone/a-model:Q4_K_M"),
        ("", "no model is called"),
    ],
)
def test_an_unknown_name_says_what_would_work(filled: ModelStore, name: str, message: str) -> None:
    with pytest.raises(ModelNotFound, match=message) as raised:
        filled.find(name)
    assert "edgeinfer pull" in str(raised.value)


def test_an_empty_store(store: ModelStore) -> None:
    assert store.models() == []
    assert store.last_used() is None
    with pytest.raises(ModelNotFound, match="the store is empty"):
        store.find("anything")
    assert not store.root.exists()


def test_paths_are_found_where_they_are(store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "elsewhere.gguf"
    nbytes = len(write_model(path, kib=4))
    model = store.find(str(path))
    assert (model.name, model.path, model.nbytes, model.source) == ("elsewhere", path, nbytes, str(path))
    monkeypatch.chdir(tmp_path)
    assert store.find("elsewhere.gguf").path == path
    with pytest.raises(ModelNotFound, match=r"a folder.*it holds elsewhere\.gguf"):
        store.find(str(tmp_path))


def test_a_path_is_referenced_and_never_deleted(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    write_model(path, kib=4)
    model = store.pull(str(path))
    assert (model.path, model.sha256) == (path, None)
    assert store.find("mine") == model == store.pull(str(path))
    assert store.remove("MINE") == model
    assert path.exists()
    assert store.models() == []
    with pytest.raises(ModelNotFound, match="yours to delete"):
        store.remove(str(path))
    assert path.exists()


def test_shards_on_disk_are_one_model(store: ModelStore, tmp_path: Path) -> None:
    names = shard_names("big-00002-of-00003.gguf")
    for name in names:
        write_model(tmp_path / name, kib=4)
    model = store.find(str(tmp_path / names[2]))
    assert model.paths == tuple(tmp_path / name for name in names)
    assert (model.name, model.path) == ("big", tmp_path / names[0])
    (tmp_path / names[1]).unlink()
    with pytest.raises(ModelNotFound, match="00002-of-00003"):
        store.pull(str(tmp_path / names[0]))


def test_a_file_that_is_no_model_is_not_listed(store: ModelStore, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"hello")
    with pytest.raises(BadGGUF):
        store.pull(str(bad))
    assert store.models() == []


def test_copied_models_are_listed_once_and_removable(filled: ModelStore) -> None:
    names = [model.name for model in filled.models()]
    assert names == ["Qwen3-0.6B-Q4_K_M", "Qwen3-0.6B-Q8_0", "SmolLM2-135M-Instruct.Q4_1"]
    assert filled.remove("qwen3-0.6b-q8_0").name == "Qwen3-0.6B-Q8_0"
    assert [model.name for model in filled.models()] == [names[0], names[2]]


def test_the_last_used_model_is_remembered(filled: ModelStore) -> None:
    filled.remember("Qwen3-0.6B-Q8_0")
    assert ModelStore(filled.root).last_used() == "Qwen3-0.6B-Q8_0"
    filled.remove("Qwen3-0.6B-Q8_0")
    assert filled.last_used() is None


def test_models_used_before_are_remembered_too_each_once(filled: ModelStore) -> None:
    for name in ("a", "b", "a", "two\nlines", "Qwen3-0.6B-Q8_0", *"cdefgh"):
        filled.remember(name)
    assert filled.remembered() == ("h", "g", "f", "e", "d", "c", "Qwen3-0.6B-Q8_0", "a")
    assert filled.last_used() == "Qwen3-0.6B-Q8_0"
    assert filled.forget("h")
    assert not filled.forget("h")
    assert filled.remembered()[0] == "g"


def test_a_file_with_one_name_is_a_list_of_one(filled: ModelStore) -> None:
    (filled.root / ".last-used").write_text("Qwen3-0.6B-Q8_0", encoding="utf-8")
    assert filled.last_used() == "Qwen3-0.6B-Q8_0"
    filled.remember("other")
    assert filled.remembered() == ("other", "Qwen3-0.6B-Q8_0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"format": 1}',
        '{"format": 1, "name": "x", "files": []}',
        "\x00",
        '{"files": [3]}',
        "9" * 5000,
    ],
)
def test_a_broken_manifest_is_passed_over(filled: ModelStore, text: str) -> None:
    (filled.root / "x.json").write_text(text, encoding="utf-8")
    assert read_manifest(filled.root / "x.json") is None
    assert len(filled.models()) == 3


def test_a_manifest_whose_file_is_gone_is_not_listed(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    write_model(path, kib=4)
    store.pull(str(path))
    path.unlink()
    assert store.models() == []
    assert store.remove("mine").name == "mine"


def test_the_folder_can_be_moved(store: ModelStore, tmp_path: Path) -> None:
    store.root.mkdir(parents=True)
    manifest = {
        "format": 1,
        "name": "a",
        "source": "s",
        "key": "k",
        "asked": "s",
        "files": [{"path": "a.gguf", "nbytes": len(write_model(store.root / "a.gguf", kib=4)), "sha256": "0" * 64}],
    }
    (store.root / "a.json").write_text(json.dumps(manifest), encoding="utf-8")
    moved = store.root.rename(tmp_path / "moved")
    model = ModelStore(moved).find("a")
    assert (model.path, model.source) == (moved / "a.gguf", "s")
    assert ModelStore(moved).find("s") == model


def test_the_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path))
    assert default_root() == tmp_path / "models"
    monkeypatch.delenv("EDGEINFER_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_root().name == "models"
    assert "edgeinfer" in default_root().parts


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (STARTER_SOURCE, "PypiSource"),
        ("pypi:a==1.0", "PypiSource"),
        ("hf:user/repo", "HubSource"),
        ("hf:user/repo:Q4_K_M", "HubSource"),
        ("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "HubSource"),
        ("user/repo:Q4_K_M", "HubSource"),
        ("user/repo.gguf", "PathSource"),
        ("../repo", "PathSource"),
        ("tests/no-such-thing", "PathSource"),
        ("https://host/a.gguf", "UrlSource"),
        ("./a.gguf", "PathSource"),
        ("C:\\models\\a.gguf", "PathSource"),
        ("path:a", "PathSource"),
        ("ollama:llama3.2:1b", "OllamaSource"),
    ],
)
def test_sources_are_recognised(text: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    assert type(parse_source(text)).__name__ == kind
    assert sum(kind.matches(text) for kind in SOURCES.entries().values()) == 1


@pytest.mark.parametrize(
    "page",
    [
        "https://huggingface.co/user/repo",
        "https://huggingface.co/user/repo/",
        "http://huggingface.co/user/repo/tree/main",
    ],
)
def test_the_page_of_a_repository_means_it(page: str) -> None:
    assert parse_source(page).text == parse_source("user/repo").text == "hf:user/repo"


@pytest.mark.parametrize(
    ("page", "source"),
    [
        ("hf.co/u/r", "hf:u/r"),
        ("hf.co/u/r:latest", "hf:u/r"),
        ("huggingface.co/u/r:Q8_0", "hf:u/r:Q8_0"),
        ("https://huggingface.co/u/r?show_file_info=m.gguf", "hf:u/r"),
        ("https://huggingface.co/u/r/tree/main/UD-Q4_K_XL", "hf:u/r:UD-Q4_K_XL"),
        ("https://huggingface.co/u/r/blob/main/Q8_0/m-Q8_0.gguf", "hf:u/r:m-Q8_0.gguf"),
    ],
)
def test_addresses_that_people_copy_name_repositories_and_files(page: str, source: str) -> None:
    assert parse_source(page).text == source


def test_what_is_no_source_is_told_what_to_try() -> None:
    with pytest.raises(ModelNotFound) as raised:
        parse_source("xyzzy")
    assert str(raised.value) == (
        "Don't know where to find 'xyzzy'. Try hf:USER/REPO[:QUANT], a name of edgeinfer models --recommend, "
        "ollama:NAME[:TAG], a path to a .gguf file, pypi:PACKAGE[==VERSION] or https://…/MODEL.gguf"
    )


@pytest.mark.parametrize(
    "text", ["", "smollm", "ftp://host/a.gguf", "hf:repo", "hf:a/b/c", "hf:../b", "ollama:", "ollama:a/../../b", "s3:x"]
)
def test_what_is_no_source(store: ModelStore, text: str) -> None:
    with pytest.raises(ModelNotFound):
        store.pull(text)


@pytest.mark.parametrize(
    ("name", "quant", "rest"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", "Q4_1", "SmolLM2-135M-Instruct"),
        ("Qwen3-0.6B-Q4_K_M.gguf", "Q4_K_M", "Qwen3-0.6B"),
        ("model-IQ4_XS", "IQ4_XS", "model"),
        ("model.bf16", "BF16", "model"),
        ("gpt-oss-20b-MXFP4", "MXFP4", "gpt-oss-20b"),
        ("Qwen3.5-9B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", "Qwen3.5-9B"),
        ("model-NVFP4", "NVFP4", "model"),
        ("plain", None, "plain"),
        ("big-Q8_0-00001-of-00002.gguf", "Q8_0", "big"),
    ],
)
def test_quants_in_names(name: str, quant: str | None, rest: str) -> None:
    assert quant_of(name) == quant
    assert without_quant(name) == rest


def write_ollama(folder: Path, name: str, content: bytes) -> Path:
    """Lay out a model as Ollama does; gives its blob."""
    digest = hashlib.sha256(content).hexdigest()
    blob = folder / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64, "size": 1},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(content)},
    ]
    manifest = folder / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}), encoding="utf-8")
    return blob


def test_models_of_ollama_are_used_in_place(store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ollama"
    content = write_model(tmp_path / "m.gguf", kib=4)
    blob = write_ollama(folder, "registry.ollama.ai/library/llama3.2/1b", content)
    write_ollama(folder, "hf.co/user/repo/latest", content)
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    model = store.pull("ollama:llama3.2:1b")
    assert (model.name, model.path, model.sha256) == ("llama3.2:1b", blob, hashlib.sha256(content).hexdigest())
    assert store.pull("ollama:hf.co/user/repo").name == "hf.co/user/repo:latest"
    store.remove("llama3.2:1b")
    assert blob.exists()
    with pytest.raises(ModelNotFound, match=r"it has: ollama:hf\.co/user/repo:latest, ollama:llama3\.2:1b"):
        store.pull("ollama:llama3.2:3b")


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "../../etc/passwd"}]}'],
)
def test_a_broken_manifest_of_ollama(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    manifest = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "a" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(text, encoding="utf-8")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    with pytest.raises(EdgeInferError, match="no manifest of Ollama"):
        store.pull("ollama:a")
