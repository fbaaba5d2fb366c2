"""Models in the folders of Ollama, LM Studio and the hub's cache: listed by name, used where they are."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeinfer.errors import ModelNotFound
from edgeinfer.models.elsewhere import models_elsewhere
from edgeinfer.models.elsewhere.hub_cache import hub_folders
from edgeinfer.models.elsewhere.lm_studio import lm_studio_folders
from edgeinfer.models.file_facts import header_facts
from edgeinfer.models.store import ModelStore
from tests.tiny_models import write_model
from tests.unit.models.test_store import write_ollama


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return tmp_path / "ollama"


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which LM Studio and the hub may have folders."""
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("edgeinfer.models.elsewhere.lm_studio.HOMES", (".lmstudio", ".cache/lm-studio"))
    monkeypatch.setattr("edgeinfer.models.elsewhere.lm_studio.POINTER", ".lmstudio-home-pointer")
    (tmp_path / "user").mkdir()
    return tmp_path / "user"


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return write_model(tmp_path / "m.gguf", kib=4)


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def put_in_cache(cache: Path, repo: str, revision: str, name: str, content: bytes) -> Path:
    """A file as the hub's client keeps it: a blob, and a link of its name."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    blob = put(folder / "blobs" / hashlib.sha256(content).hexdigest(), content)
    link = folder / "snapshots" / revision / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    return link


def listed(store: ModelStore) -> list[tuple[str, str, str]]:
    return [(model.name, model.place, model.source) for model in store.models()]


def test_models_of_ollama_have_their_names(store: ModelStore, ollama: Path, content: bytes) -> None:
    blob = write_ollama(ollama, "registry.ollama.ai/library/llama3.2/3b", content)
    write_ollama(ollama, "registry.ollama.ai/somebody/poet/latest", content + b"1")
    write_ollama(ollama, "hf.co/user/repo/Q4_K_M", content + b"22")
    assert listed(store) == [
        ("hf.co/user/repo:Q4_K_M", "Ollama", "ollama:hf.co/user/repo:Q4_K_M"),
        ("llama3.2:3b", "Ollama", "ollama:llama3.2:3b"),
        ("somebody/poet:latest", "Ollama", "ollama:somebody/poet:latest"),
    ]
    for name in ("llama3.2:3b", "LLAMA3.2:3B", "llama3.2", "ollama:llama3.2:3b", str(blob)):
        assert (store.find(name).name, store.find(name).path) == ("llama3.2:3b", blob)
    assert store.find("hf.co/user/repo").name == "hf.co/user/repo:Q4_K_M"
    assert not store.root.exists()


def test_of_several_tags_the_latest_is_meant(store: ModelStore, ollama: Path, content: bytes) -> None:
    for tag in ("1b", "3b"):
        write_ollama(ollama, f"registry.ollama.ai/library/llama3.2/{tag}", content + tag.encode())
    with pytest.raises(ModelNotFound, match=r"could be any of llama3\.2:1b, llama3\.2:3b"):
        store.find("llama3.2")
    write_ollama(ollama, "registry.ollama.ai/library/llama3.2/latest", content + b"1b")
    store = ModelStore(store.root)
    assert store.find("llama3.2").name == "llama3.2:latest"
    with pytest.raises(ModelNotFound, match=r"did you mean llama3\.2:3b"):
        store.find("lama3.2:3b")


def test_pulling_what_ollama_has_links_it_under_the_same_name(store: ModelStore, ollama: Path, content: bytes) -> None:
    blob = write_ollama(ollama, "registry.ollama.ai/library/llama3.2/3b", content)
    for source in ("ollama:llama3.2:3b", str(blob)):
        assert store.pull(source).name == "llama3.2:3b"
        assert listed(store) == [("llama3.2:3b", "linked", "ollama:llama3.2:3b")]
        store.remove("llama3.2:3b")
        assert listed(store) == [("llama3.2:3b", "Ollama", "ollama:llama3.2:3b")]
    assert blob.exists()


def test_what_is_taken_off_the_list_stays_off_until_it_is_pulled(
    store: ModelStore, ollama: Path, content: bytes
) -> None:
    blob = write_ollama(ollama, "registry.ollama.ai/library/llama3.2/3b", content)
    assert store.remove("llama3.2:3b").path == blob
    assert ModelStore(store.root).models() == []
    assert blob.exists()
    store.pull("ollama:llama3.2:3b")
    assert [name for name, _, _ in listed(store)] == ["llama3.2:3b"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "[" * 100_000,
        "\x00\xff",
        '{"layers": 3}',
        '{"layers": [3]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "../../etc/passwd"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:' + "0" * 64 + '"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.projector", "digest": "sha256:' + "0" * 64 + '"}]}',
        " " * (1 << 21),
    ],
)
def test_a_malformed_manifest_is_passed_over(store: ModelStore, ollama: Path, content: bytes, text: str) -> None:
    write_ollama(ollama, "registry.ollama.ai/library/sound/1b", content)
    put(ollama / "manifests/registry.ollama.ai/library/odd/latest", text.encode("latin-1"))
    assert [name for name, _, _ in listed(store)] == ["sound:1b"]


@pytest.mark.skipif(sys.platform == "win32", reason="makes pipes and links")
def test_hostile_folders_do_no_harm(store: ModelStore, ollama: Path, content: bytes) -> None:
    blob = write_ollama(ollama, "registry.ollama.ai/library/sound/1b", content)
    library = ollama / "manifests/registry.ollama.ai/library"
    manifest = (library / "sound/1b").read_bytes()
    for name in ("a\x1b[2Jb", "a\nb", "..odd", "a b"):
        put(library / name / "latest", manifest)
    os.mkfifo(library / "sound" / "pipe")
    (library / "sound" / "loop").symlink_to("loop")
    (library / "round").symlink_to(library)
    put(library / "sound" / "deeper" / "still" / "latest", manifest)
    (blob.parent / f"sha256-{'1' * 64}").mkdir()
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'1' * 64}"}
    put(library / "folder" / "latest", json.dumps({"layers": [layer]}).encode())
    assert [name for name, _, _ in listed(store)] == ["sound:1b"]


def test_models_of_lm_studio_are_listed(store: ModelStore, user: Path, content: bytes) -> None:
    path = put(user / ".lmstudio/models/publisher/repo/Tiny-Q8_0.gguf", content)
    put(user / ".lmstudio/models/publisher/repo/mmproj-model-f16.gguf", content)
    put(user / ".lmstudio/models/publisher/repo/Tiny-mmproj-f16.gguf", content)
    put(user / ".lmstudio/models/publisher/repo/empty.gguf", b"")
    put(user / ".lmstudio/models/publisher/repo/readme.txt", content)
    put(user / ".cache/lm-studio/models/a/b/old.gguf", content)
    assert listed(store) == [
        ("old", "LM Studio", "lmstudio:a/b/old"),
        ("Tiny-Q8_0", "LM Studio", "lmstudio:publisher/repo/Tiny-Q8_0"),
    ]
    assert store.find("tiny").path == path


def test_lm_studio_may_have_been_moved(user: Path, tmp_path: Path) -> None:
    (user / ".lmstudio-home-pointer").write_text(f"{tmp_path / 'moved'}\n")
    put(tmp_path / "moved/settings.json", json.dumps({"downloadsFolder": str(tmp_path / "large disk")}).encode())
    put(user / ".lmstudio/settings.json", b"[" * 100_000)
    folders = lm_studio_folders()
    assert folders[-2:] == (tmp_path / "moved/models", tmp_path / "large disk")
    for text in (b"\xff\xfe", b"relative", b"\0"):
        (user / ".lmstudio-home-pointer").write_bytes(text)
        assert len(lm_studio_folders()) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="makes links")
def test_models_in_the_hubs_cache_are_listed(store: ModelStore, user: Path, content: bytes) -> None:
    cache = user / ".cache/huggingface/hub"
    put_in_cache(cache, "owner/name-GGUF", "new", "name-Q4_K_M.gguf", content)
    main = put_in_cache(cache, "owner/name-GGUF", "zzz", "name-Q4_K_M.gguf", content + b"1")
    put_in_cache(cache, "owner/name-GGUF", "zzz", "mmproj-name-f16.gguf", content)
    put(cache / "models--owner--name-GGUF/refs/main", b"zzz")
    put_in_cache(cache, "owner/tensors", "a", "model.safetensors", content)
    gone = put_in_cache(cache, "owner/gone", "a", "gone-Q8_0.gguf", content + b"22")
    gone.resolve().unlink()
    put(cache / "datasets--owner--texts/snapshots/a/data.gguf", content)
    assert listed(store) == [("name-Q4_K_M", "HF cache", "hf:owner/name-GGUF:Q4_K_M")]
    assert store.find("hf:owner/name-GGUF:Q4_K_M").path == main


def test_the_hubs_cache_is_where_its_variables_say(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_folders() == (user / ".cache/huggingface/hub",)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert hub_folders() == (Path("/x/huggingface/hub"),)
    monkeypatch.setenv("HF_HOME", "/h")
    assert hub_folders() == (Path("/h/hub"),)
    monkeypatch.setenv("HF_HUB_CACHE", "/c")
    assert hub_folders() == (Path("/c"),)


def test_shards_are_one_model_and_need_all_of_them(store: ModelStore, user: Path, content: bytes) -> None:
    folder = user / ".lmstudio/models/p/r"
    paths = [put(folder / f"big-0000{number}-of-00003.gguf", content) for number in (1, 2, 3)]
    put(folder / "half-00001-of-00002.gguf", content)
    (model,) = store.models()
    assert (model.name, model.paths, model.nbytes) == ("big", tuple(paths), 3 * len(content))


def test_names_that_are_taken_are_told_apart(store: ModelStore, user: Path, ollama: Path, content: bytes) -> None:
    own = put(store.root / "Tiny-Q8_0.gguf", content)
    put(user / ".lmstudio/models/p/one/tiny-Q8_0.gguf", content)
    put(user / ".lmstudio/models/p/two/tiny-Q8_0.gguf", content)
    assert [name for name, _, _ in listed(store)] == [
        "lmstudio:p/one/tiny-Q8_0",
        "lmstudio:p/two/tiny-Q8_0",
        "Tiny-Q8_0",
    ]
    assert store.find("tiny-q8_0").path == own
    assert store.find("tiny").path == own
    assert store.find("lmstudio:p/two/tiny-Q8_0").path.parent.name == "two"


@pytest.mark.skipif(sys.platform == "win32", reason="makes links")
def test_links_do_not_list_a_file_twice(store: ModelStore, user: Path, content: bytes) -> None:
    path = put(user / ".lmstudio/models/p/r/tiny.gguf", content)
    (user / ".cache").mkdir()
    (user / ".cache/lm-studio").symlink_to(user / ".lmstudio")
    (user / ".lmstudio/models/p/round").symlink_to(user / ".lmstudio/models")
    assert len(store.models()) == 1
    store.pull(str(path))
    assert [(name, place) for name, place, _ in listed(store)] == [("tiny", "linked")]


def opened_by(work: Callable[[], object]) -> list[str]:
    """The files that are opened meanwhile."""
    opened: list[str] = []
    on = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if on and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)
    work()
    on = False
    return opened


def test_listing_hundreds_opens_no_model_and_a_list_reads_little_of_each(
    store: ModelStore, user: Path, ollama: Path, tmp_path: Path
) -> None:
    content = write_model(tmp_path / "vocabulary.gguf", kib=4, tokens=20_000)
    for number in range(150):
        write_ollama(ollama, f"registry.ollama.ai/library/m{number}/1b", content + bytes(number))
        put(user / f".lmstudio/models/p/r{number}/n{number}.gguf", content)
    opened = opened_by(store.models)
    assert len(store.models()) == 300
    assert not [name for name in opened if "blobs" in name or name.endswith(".gguf")]
    assert len(opened) < 400
    assert not [name for name in opened_by(store.models) if "manifests" in name]
    (facts,) = {header_facts(model.path) for model in store.models()}
    assert (facts.architecture, facts.quant) == ("llama", "F32")


def test_a_home_that_is_not_there_lists_nothing(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert list(models_elsewhere()) == []


def test_what_lies_beside_a_model_is_not_listed_and_folders_name_quants(
    store: ModelStore, user: Path, content: bytes
) -> None:
    folder = user / ".lmstudio" / "models" / "maker" / "m-GGUF"
    for name in ("m-Q4_0.gguf", "mmproj-m.gguf", "m.mmproj-f16.gguf", "imatrix_x.gguf", "mtp-m-Q8_0.gguf"):
        put(folder / name, content + name.encode())
    cache = user / ".cache" / "huggingface" / "hub"
    for name in ("Q8_0/model.gguf", "UD-Q4_K_XL/model.gguf"):
        put_in_cache(cache, "u/r", "abc", name, content + name.encode())
    assert listed(store) == [
        ("m-Q4_0", "LM Studio", "lmstudio:maker/m-GGUF/m-Q4_0"),
        ("model-Q8_0", "HF cache", "hf:u/r:Q8_0"),
        ("model-UD-Q4_K_XL", "HF cache", "hf:u/r:UD-Q4_K_XL"),
    ]
