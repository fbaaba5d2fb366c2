"""Slots: what answers leave in the cache is saved to files, restored by another server, and erased."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.slots import CacheSlots
from edgeinfer.errors import BadSetting
from tests.adapter_files import write_adapter
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served

PROMPT = "the hen in the inn then an inn in the hen " * 4
N_NEW = 8


def complete(http: httpx.Client, **fields: object) -> dict:
    body = {"prompt": PROMPT, "n_predict": N_NEW, "temperature": 0, "id_slot": 1, **fields}
    answer = http.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def act(http: httpx.Client, action: str, slot: int | str = 1, name: object = "hen.bin") -> httpx.Response:
    return http.post(f"/slots/{slot}?action={action}", json={"filename": name})


@pytest.fixture
def options(tmp_path: Path) -> ServerOptions:
    folder = tmp_path / "slots"
    folder.mkdir()
    return ServerOptions(port=0, parallel=3, slot_folder=folder)


def test_a_saved_slot_spares_another_server_the_prompt(tiny_model: Path, options: ServerOptions) -> None:
    with served(tiny_model, options) as running:
        http = running.http()
        first = complete(http)
        assert (first["id_slot"], first["timings"]["cache_n"]) == (1, 0)
        n_tokens = first["tokens_evaluated"] + N_NEW - 1  # the last token of an answer is not read
        told = act(http, "save").json()
        size = (options.slot_folder / "hen.bin").stat().st_size
        assert told.pop("timings").keys() == {"save_ms"}
        assert told == {"id_slot": 1, "filename": "hen.bin", "n_saved": n_tokens, "n_written": size}
        assert [slot["n_prompt_tokens_cache"] for slot in http.get("/slots").json()] == [0, n_tokens + 1, 0]
    with served(tiny_model, options) as running:
        http = running.http()
        told = act(http, "restore", 0).json()
        assert told.pop("timings").keys() == {"restore_ms"}
        assert told == {"id_slot": 0, "filename": "hen.bin", "n_restored": n_tokens, "n_read": size}
        again = complete(http, id_slot=0)
        assert (again["content"], again["timings"]["prompt_n"]) == (first["content"], 1)


def test_chats_are_saved_too(tiny_model: Path, options: ServerOptions) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    with served(tiny_model, options) as running:
        http = running.http()
        body = {"messages": messages, "max_tokens": N_NEW, "temperature": 0}
        http.post("/v1/chat/completions", json={**body, "id_slot": 2})
        n_saved = act(http, "save", 2).json()["n_saved"]
        assert act(http, "erase", 2).json() == {"id_slot": 2, "n_erased": n_saved}
        assert act(http, "restore", 0).json()["n_restored"] == n_saved
        usage = http.post("/v1/chat/completions", json=body).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_an_erased_slot_is_read_again(tiny_model: Path, options: ServerOptions) -> None:
    with served(tiny_model, options) as running:
        http = running.http()
        n_prompt = complete(http)["timings"]["prompt_n"]
        assert complete(http)["timings"]["prompt_n"] == 1
        assert act(http, "erase").json()["n_erased"] == n_prompt + N_NEW - 1
        assert complete(http)["timings"]["prompt_n"] == n_prompt
        assert act(http, "erase", 0).json() == {"id_slot": 0, "n_erased": 0}  # others stay
        assert complete(http)["timings"]["prompt_n"] == 1


def test_an_empty_slot_writes_no_file(tiny_model: Path, options: ServerOptions) -> None:
    with served(tiny_model, options) as running:
        told = act(running.http(), "save").json()
        assert (told["n_saved"], told["n_written"]) == (0, 0)
        assert not list(options.slot_folder.iterdir())


def test_what_a_killed_server_had_begun_to_save_is_removed(tiny_model: Path, options: ServerOptions) -> None:
    folder = options.slot_folder
    assert folder is not None
    began = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys; from pathlib import Path; from edgeinfer.temporary import temporary_file\n"
            "temporary_file(Path(sys.argv[1])); os._exit(9)",
            str(folder / "hen.bin"),
        ],
        check=False,
    )
    assert began.returncode == 9
    assert len(list(folder.iterdir())) == 1
    with served(tiny_model, options):
        assert not list(folder.iterdir())


def test_a_full_disk_is_told_and_what_was_saved_stays(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        with served(tiny_model, ServerOptions(port=0, parallel=3, slot_folder=folder)) as running:
            http = running.http()
            complete(http)
            assert act(http, "save").status_code == 200
            saved = (folder / "hen.bin").read_bytes()
            with suppress(OSError), (folder / "filling").open("wb", buffering=0) as filling:
                while True:
                    filling.write(bytes(4096))
            complete(http, prompt=PROMPT + "the net in the ten")
            for name in ("hen.bin", "other.bin"):
                refused = act(http, "save", name=name)
                assert refused.status_code == 400
                assert "No space left on device" in refused.text
            assert sorted(path.name for path in folder.iterdir()) == ["filling", "hen.bin"]
            assert (folder / "hen.bin").read_bytes() == saved
            (folder / "filling").unlink()
            assert act(http, "save", name="other.bin").status_code == 200
            assert act(http, "restore").status_code == 200
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("n_tokens", [1, 2, 15, 16, 17, 40, 63, 64])
def test_short_texts_are_saved_and_come_back(tiny_model: Path, options: ServerOptions, n_tokens: int) -> None:
    with served(tiny_model, options) as running:
        http = running.http()
        tokens = running.llm.tokenize(PROMPT * 3)[:n_tokens]
        complete(http, prompt=tokens, n_predict=1)
        told = act(http, "save").json()
        assert told["n_saved"] >= n_tokens
        assert told["n_written"] == (options.slot_folder / "hen.bin").stat().st_size
        restored = act(http, "restore", 0).json()
        assert (restored["n_restored"], restored["n_read"]) == (told["n_saved"], told["n_written"])


def test_files_are_checked(tiny_model: Path, options: ServerOptions, tmp_path: Path) -> None:
    path = options.slot_folder / "hen.bin"
    with served(tiny_model, options) as running:
        http = running.http()
        complete(http)
        act(http, "save")
        act(http, "erase")
        whole = path.read_bytes()
        for damaged in (whole[:-1], whole[:-100] + b"x" + whole[-99:], b"", b"GGUF" * 100):
            path.write_bytes(damaged)
            refused = act(http, "restore", 0)
            assert refused.status_code == 400
            assert str(tmp_path) not in refused.text
        assert act(http, "restore", 0, "nothing.bin").status_code == 400
        assert complete(http)["timings"]["cache_n"] == 0
    path.write_bytes(whole)
    with served(write_tiny_llama(tmp_path / "other.gguf", seed=5), options) as running:
        refused = act(running.http(), "restore")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "filename")
        assert "belongs to another model" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "name",
    [
        *("../hen.bin", "a/hen.bin", "/tmp/hen.bin", "a\\hen.bin", "C:hen.bin", ".", "..", ".hen", "", "hen.", "h\0"),
        *("x" * 300, "\u00e9" * 150, None, 3, "NUL", "con.bin", "lpt1.x.y"),
    ],
)
@pytest.mark.parametrize("action", ["save", "restore"])
def test_names_reach_no_other_folder(server_with_folder: httpx.Client, action: str, name: object) -> None:
    refused = act(server_with_folder, action, 1, name)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"


@pytest.fixture(scope="module")
def server_with_folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> httpx.Client:
    folder = tmp_path_factory.mktemp("slots")
    with served(tiny_model, ServerOptions(port=0, parallel=3, slot_folder=folder)) as running:
        http = running.http()
        complete(http)
        yield http
        assert not list(folder.iterdir())


@pytest.mark.parametrize("path", ["/slots/3?action=save", "/slots/-1?action=save", "/slots/x?action=save"])
def test_unknown_slots_are_refused(server_with_folder: httpx.Client, path: str) -> None:
    assert server_with_folder.post(path, json={"filename": "hen.bin"}).status_code == 400


def test_unknown_actions_are_refused(server_with_folder: httpx.Client) -> None:
    assert act(server_with_folder, "burn").status_code == 400
    assert server_with_folder.post("/slots/1").status_code == 400


def test_without_a_folder_nothing_is_saved(tiny_model: Path, tmp_path: Path) -> None:
    with served(tiny_model) as running:
        refused = act(running.http(), "save")
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            400,
            "This server does not support slots action. Start it with `--slot-save-path`",
        )
    with pytest.raises(BadSetting, match="there is no such folder"):
        ServerOptions(slot_folder=tmp_path / "none").check()


def test_a_slot_is_that_of_the_text_or_an_empty_one_or_the_oldest() -> None:
    slots = CacheSlots()
    one, two, three = tuple(range(20)), tuple(range(100, 120)), tuple(range(200, 220))
    slots.put(slots.choose(one, None, 2), one)
    assert slots.choose((*one, 7), None, 2) == 0
    slots.put(slots.choose(two, None, 2), two)
    slots.put(slots.choose((*one, 7), None, 2), (*one, 7))
    assert slots.choose(three, None, 2) == 1
    assert slots.choose(three, 0, 2) == 0
    assert slots.choose(three, 9, 2) == slots.choose(three, -1, 2) == 1
    assert (slots.tokens(0), slots.slot(1, 2).tokens) == ((*one, 7), two)
    with pytest.raises(APIError, match="there are 0 to 1"):
        slots.slot(2, 2)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions", "/v1/completions"])
def test_slots_know_the_adapters_of_their_answers(tiny_model: Path, options: ServerOptions, path: str) -> None:
    """Whatever API asked for the answer; with other scales there is nothing to be saved."""
    adapter = write_adapter(tiny_model, options.slot_folder / "adapter.gguf", rank=8, seed=8)
    asked = {"messages": [{"role": "user", "content": PROMPT}], "input": PROMPT}
    limits = {"max_tokens": N_NEW, "max_output_tokens": N_NEW, "temperature": 0}
    body = {**(asked if path != "/v1/completions" else {"prompt": PROMPT}), **limits}
    with served(tiny_model, options, lora=[adapter]) as running:
        http = running.http()
        assert http.post(path, json={**body, "id_slot": 2, "lora": [{"id": 0, "scale": 0.5}]}).status_code == 200
        n_saved = act(http, "save", 2).json()["n_saved"]
        assert n_saved > 0
        assert act(http, "erase", 2).json()["n_erased"] == n_saved
        assert act(http, "restore", 0).json()["n_restored"] == n_saved
        assert act(http, "save", 0, "again.bin").json()["n_saved"] == n_saved


def test_slots_are_chosen_where_they_are_given(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the event loop: an answer that ends meanwhile may add one."""
    threads: list[str] = []
    choose = CacheSlots.choose

    def chosen(slots: CacheSlots, *given: Any) -> int:
        threads.append(threading.current_thread().name)
        return choose(slots, *given)

    monkeypatch.setattr(CacheSlots, "choose", chosen)
    complete(server.http())
    assert set(threads) == {"server"}
