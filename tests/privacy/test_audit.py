"""Nothing leaves the machine: every command on every device, in a fresh home, with its system calls traced.

A connection beyond this computer, a look-up of a name or a file outside edgeinfer's own folders fails. Only pulls from
other computers, and look-ups on hubs, may do that; they are not among the cases.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from edgeinfer.app.cli import COMMANDS
from edgeinfer.app.server.routes.page import PAGE_PATHS
from edgeinfer.backends.base import DEVICES
from edgeinfer.backends.cpu.catalogue import kernel_folder
from tests.conftest import write_tiny_llama
from tests.file_server import Served, serving
from tests.privacy.sandbox import PATIENCE_S, ROOT, Sandbox
from tests.privacy.tracing import missing_reason

pytestmark = pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or "")

CALCULATING = sorted(set(DEVICES.keys()) - {"null"})
Case = Callable[[Sandbox, str], None]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    def noted(run: Case) -> Case:
        CASES[name] = run
        return run

    return noted


@pytest.fixture
def kernels() -> Path:
    """Compiled kernels of this user, which other tests need too."""
    return kernel_folder().parent


@pytest.fixture
def sandbox(tmp_path: Path, kernels: Path) -> Iterator[Sandbox]:
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        yield Sandbox(tmp_path, kernels, Path(temporary))


def require(device: str) -> None:
    """Skip where a device is not installed."""
    kind = DEVICES.get(device)
    modules = kind.modules if hasattr(kind, "modules") else (kind.module,)
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing or device == "cuda":
        pytest.skip(f"{device} needs {', '.join(missing) or 'a GPU'}")


def test_every_command_has_a_case() -> None:
    assert set(CASES) == set(COMMANDS.keys())


@pytest.mark.parametrize("command", sorted(COMMANDS.keys()))
def test_a_command_stays_on_this_machine(sandbox: Sandbox, tiny_model: Path, command: str) -> None:
    CASES[command](sandbox, str(tiny_model))
    sandbox.check()


def test_compiling_stays_on_this_machine(tmp_path: Path) -> None:
    """Into an empty folder, which no other case begins with."""
    sandbox = Sandbox(tmp_path, tmp_path / "kernels")
    code = (
        "from edgeinfer.backends.cpu import catalogue\n"
        "from edgeinfer.steps import no_progress\n"
        "library = catalogue.kernel_library()\n"
        "library.prepare([catalogue.ADD, catalogue.ROUND_ROWS], 2, no_progress)\n"
        "library.keep_note('measured', '1')\n"
        "print(library.n_compiled)\n"
    )
    assert sandbox.run("-P", "-c", code, command=[sys.executable]) == "2\n"
    assert {path.suffix for path in (tmp_path / "kernels").rglob("*.*")} == {".o", ".note", ".json"}
    sandbox.check()


@pytest.mark.parametrize("device", CALCULATING)
def test_a_device_stays_on_this_machine(sandbox: Sandbox, tiny_model: Path, device: str) -> None:
    require(device)
    answer = json.loads(
        sandbox.run("run", "-m", str(tiny_model), "--device", device, "--max-tokens", "8", "--json", "the hen")
    )
    assert answer["devices"] == [device]
    sandbox.check()


@pytest.mark.parametrize("device", ["onnx", "openvino"])
def test_a_device_in_a_process_of_its_own_stays_on_this_machine(
    sandbox: Sandbox, tiny_model: Path, device: str
) -> None:
    require(device)
    sandbox.run("run", "--isolate", "-m", str(tiny_model), "--device", device, "--max-tokens", "8", "the hen")
    sandbox.check()


def test_the_first_choice_of_a_device_stays_on_this_machine(sandbox: Sandbox) -> None:
    for device in ("onnx", "openvino"):
        require(device)
    model = write_tiny_llama(
        sandbox.work / "tall.gguf", n_tokens=90_000
    )  # as large as models are that devices race for
    sandbox.run("run", "-m", str(model), "--max-tokens", "8", "the hen")
    assert (sandbox.home / ".local/share/edgeinfer/devices.json").exists(), "no devices were compared"
    sandbox.check()


def test_comparing_devices_after_an_answer_stays_on_this_machine(sandbox: Sandbox) -> None:
    """What a person's first `run` in a terminal does once it has answered."""
    for device in ("onnx", "openvino"):
        require(device)
    model = write_tiny_llama(sandbox.work / "tall.gguf", n_tokens=90_000)
    with sandbox.on_terminal("run", "-m", str(model), "--max-tokens", "8", "the hen") as terminal:
        assert terminal.ends() == 0
    assert (sandbox.home / ".local/share/edgeinfer/devices.json").exists(), "no devices were compared"
    sandbox.check()


def test_measuring_a_device_stays_on_this_machine(sandbox: Sandbox) -> None:
    """With small models, few passes, and none again because other tests run too: the system is asked for the same."""
    require("openvino")
    code = (
        "from edgeinfer.engine.probing import accelerator, combination, probe\n"
        "combination.USUAL = accelerator.Amount({1: 2, 8: 1}, (64, 256), 1, 2, 1)\n"
        "accelerator.MOST_TRIES = 1\n"
        "probe.FOOTPRINT_LEAST = probe.FOOTPRINT_MOST = 8 << 20\n"
        "from edgeinfer.__main__ import main\n"
        "main()\n"
    )
    measured = json.loads(
        sandbox.run("-P", "-c", code, "probe", "--device", "openvino", "--json", command=[sys.executable])
    )
    assert "openvino" in [device["name"] for device in measured["device"]]
    sandbox.check()


def test_a_program_that_embeds_it_stays_on_this_machine(sandbox: Sandbox, tiny_model: Path) -> None:
    code = (
        "import sys, edgeinfer\n"
        "with edgeinfer.load(sys.argv[1]) as llm:\n"
        "    print(llm.complete('the hen', max_tokens=8).read())\n"
        "    print(llm.embed(['the hen'])[0].shape)\n"
    )
    sandbox.run("-P", "-c", code, str(tiny_model), command=[sys.executable])
    sandbox.check()


def test_the_window_stays_on_this_machine(sandbox: Sandbox, tiny_model: Path) -> None:
    pytest.importorskip("PySide6.QtWidgets", reason="PySide6 cannot be used here", exc_type=ImportError)
    fonts = Path("/var/cache/fontconfig"), sandbox.home / ".cache/fontconfig"  # the desktop's list of its fonts
    sandbox.own = (*sandbox.own, *fonts)
    code = (
        "import sys, runpy\n"
        "from PySide6.QtCore import QTimer\n"
        "from PySide6.QtWidgets import QApplication\n"
        "app = QApplication(sys.argv)\n"
        "window = runpy.run_path(sys.argv[1])['ChatWindow'](sys.argv[2])\n"
        "window.show()\n"
        "def close():\n"
        "    if window.input.isEnabled():\n"  # the model is open
        "        window.close()\n"
        "        app.quit()\n"
        "timer = QTimer()\n"
        "timer.timeout.connect(close)\n"
        "timer.start(50)\n"
        "app.exec()\n"
    )
    sandbox.run("-P", "-c", code, str(ROOT / "examples/chat_window.py"), str(tiny_model), command=[sys.executable])
    sandbox.check()


@case("run")
def _run(sandbox: Sandbox, model: str) -> None:
    assert sandbox.run("run", "-m", model, "--max-tokens", "8", "--stats", "the hen")


@case("chat")
def _chat(sandbox: Sandbox, model: str) -> None:
    assert sandbox.run("chat", "-m", model, "--max-tokens", "8", stdin="the hen\n")
    with sandbox.on_terminal("chat", "-m", model, "--max-tokens", "8") as terminal:
        terminal.shows("tiny")
        terminal.press("the hen")
        terminal.shows("hen")
        time.sleep(0.5)  # else Return would be part of what is pasted
        terminal.press("\r")
        terminal.shows("8 tokens")
        terminal.press("\x11")
        assert terminal.ends() == 0


@case("serve")
def _serve(sandbox: Sandbox, model: str) -> None:
    with sandbox.started("serve", "--port", "0", "--ready-json", "--no-key", "-m", model) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        body = {"messages": [{"role": "user", "content": "the hen"}], "max_tokens": 8}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S).status_code == 200
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "the hen"}, timeout=PATIENCE_S).status_code == 200
        assert httpx.get(f"{url}/metrics").status_code == 200
        assert {httpx.get(f"{url}{path}").status_code for path in PAGE_PATHS} == {200}


@case("service")
def _service(sandbox: Sandbox, model: str) -> None:
    """Installing writes where the operating system looks, outside our folders, and is told before."""
    assert "serve" in sandbox.run("service", "install", "--dry-run", "--", "-m", model)
    sandbox.run("service", "status")
    sandbox.run("service", "uninstall")


@case("mcp")
def _mcp(sandbox: Sandbox, model: str) -> None:
    """Servers are what the user names; without any there is nothing to start."""
    sandbox.run("mcp", "list")


@case("batch")
def _batch(sandbox: Sandbox, model: str) -> None:
    assert sandbox.run("batch", "-", "-m", model, "--system", "be brief", stdin="the hen\nthe men\n")


@case("map")
def _map(sandbox: Sandbox, model: str) -> None:
    assert sandbox.run("map", "say it again", "-m", model, "--max-tokens", "8", stdin="the hen\nthe men\n")


@case("bench")
def _bench(sandbox: Sandbox, model: str) -> None:
    peers = [name for name in ("llama_cpp", "openvino") if importlib.util.find_spec(name) is not None]
    against = ",".join({"llama_cpp": "llama-cpp-python", "openvino": "openvino"}[name] for name in peers)
    options = ["--tests", "decode", "--runs", "1", "--gen", "8", "--prompt-tokens", "16"]
    code = (
        "from edgeinfer.app.bench import machine, rounds\n"
        "machine.TRIES, rounds.REPEATS = 1, 0\n"  # none again because other tests run too
        "from edgeinfer.__main__ import main\n"
        "main()\n"
    )
    words = ["bench", "-m", model, *options, *(["--against", against] if against else [])]
    sandbox.run("-P", "-c", code, *words, command=[sys.executable])


@case("tokenize")
def _tokenize(sandbox: Sandbox, model: str) -> None:
    assert json.loads(sandbox.run("tokenize", "-m", model, "the hen", "--json"))["tokens"]


@case("detokenize")
def _detokenize(sandbox: Sandbox, model: str) -> None:
    assert sandbox.run("detokenize", "-m", model, stdin="5 6 7\n")


@case("score")
def _score(sandbox: Sandbox, model: str) -> None:
    assert len(json.loads(sandbox.run("score", "-m", model, "the", "hen", "inn", "--json"))["scores"]) == 2


@case("plan")
def _plan(sandbox: Sandbox, model: str) -> None:
    assert sandbox.run("plan", "-m", model)
    assert sandbox.run("plan", "-m", model, "--machine", "rtx4060-laptop", "--vram", "6GB")


@case("probe")
def _probe(sandbox: Sandbox, model: str) -> None:
    assert sandbox.run("probe", "--short", "--json")  # all parts of the machine, each once


@case("doctor")
def _doctor(sandbox: Sandbox, model: str) -> None:
    assert sandbox.run("doctor")


@case("models")
def _models(sandbox: Sandbox, model: str) -> None:
    sandbox.run("pull", model)
    assert "tiny" in sandbox.run("models")
    sandbox.run("models", "--prime", "tiny")
    sandbox.run("models", "--clear-history")
    sandbox.run("models", "--clear-prefixes")
    sandbox.run("models", "--remove", "tiny")


@case("ls")
def _ls(sandbox: Sandbox, model: str) -> None:
    sandbox.run("pull", model)
    assert "tiny" in sandbox.run("ls")


@case("rm")
def _rm(sandbox: Sandbox, model: str) -> None:
    sandbox.run("pull", model)
    assert "removed from the list" in sandbox.run("rm", "tiny", "--yes")
    assert Path(model).exists()


@case("ps")
def _ps(sandbox: Sandbox, model: str) -> None:
    with sandbox.started("serve", "--port", "0", "--ready-json", "--no-key", "-m", model) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert url in sandbox.run("ps")
    assert not json.loads(sandbox.run("ps", "--json"))["processes"]


@case("show")
def _show(sandbox: Sandbox, model: str) -> None:
    assert "llama" in sandbox.run("show", model)
    assert sandbox.run("show", model, "--template")


@case("pull")
def _pull(sandbox: Sandbox, model: str) -> None:
    sandbox.run("pull", model)
    with serving() as server:
        server.files["/other.gguf"] = Served(Path(model).read_bytes())
        sandbox.run("pull", server.url("/other.gguf"))
    assert "other" in sandbox.run("models")


@case("config")
def _config(sandbox: Sandbox, model: str) -> None:
    sandbox.run("config", "set", "temp", "0.3")
    assert "0.3" in sandbox.run("config", "show")
    assert sandbox.run("config", "path")


@case("export")
def _export(sandbox: Sandbox, model: str) -> None:
    if importlib.util.find_spec("onnx") is None:
        pytest.skip("export needs onnx")
    sandbox.own = (*sandbox.own, sandbox.work)  # the user names a folder there
    sandbox.run("export", "--onnx", "folder", "-m", model)


@case("pack")
def _pack(sandbox: Sandbox, model: str) -> None:
    sandbox.run("pack", model)
    sandbox.run("pack", model, "--verify")
    assert sandbox.run("run", "-m", model, "--ram", "300KB", "--max-tokens", "8", "the hen")
