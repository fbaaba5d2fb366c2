"""The examples do what they say, against a server that runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from edgeinfer.app.server.listening import ServerOptions
from tests.server.conftest import served

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = 'Say "hi" to \\ me.\nAnd\tto you.'
needs_curl = pytest.mark.skipif(shutil.which("curl") is None or os.name == "nt", reason="there is no curl")
needs_node = pytest.mark.skipif(shutil.which("node") is None or os.name == "nt", reason="there is no node")


def ask_with_curl(url: str, question: str = QUESTION, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(EXAMPLES / "chat.sh"), question],
        env={**os.environ, "EDGEINFER_URL": url, **environ},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=60,
        check=False,
    )


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.model
@needs_curl
def test_curl(starter_model: Path) -> None:
    with served(starter_model) as running:
        found = ask_with_curl(running.url)
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.split()  # the answer is sampled, and may be a single word
        assert "delta" not in found.stdout


@needs_curl
def test_curl_has_the_key_and_shows_it_to_nobody(tiny_model: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = f'#!/bin/sh\nprintf "%s\\n" "$@" >{seen}\nexec {shutil.which("curl")} "$@"\n'
    path = f"{write_program(tmp_path / 'curl', script).parent}{os.pathsep}{os.environ['PATH']}"
    with served(tiny_model, ServerOptions(key="a-key")) as running:
        found = ask_with_curl(running.url, PATH=path, EDGEINFER_API_KEY="a-key")
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.strip()
        assert "stream" in seen.read_text()
        assert "a-key" not in seen.read_text()
        wrong = ask_with_curl(running.url, EDGEINFER_API_KEY="another")
        assert wrong.returncode == 1
        assert "key" in wrong.stderr


@needs_curl
def test_curl_says_what_is_wrong(tiny_model: Path) -> None:
    with served(tiny_model) as running:
        found = ask_with_curl(running.url, "word " * 600)
        assert found.returncode == 1
        assert "512" in found.stderr
        assert "{" not in found.stderr
    found = ask_with_curl(running.url)
    assert found.returncode == 1
    assert "curl" in found.stderr


@needs_curl
@pytest.mark.parametrize("has_ended", [True, False])
def test_curl_shows_text_as_it_is_meant(tmp_path: Path, has_ended: bool) -> None:
    pieces = ["a\\b", 'x"y', "é☃\n\t", "\x1b[1m", "100%d", "\\0101\\u001b", "q\\"]
    for piece in pieces:
        choice = {"index": 0, "delta": {"content": piece}, "logprobs": None, "finish_reason": None}
        record = json.dumps({"choices": [choice]}, ensure_ascii=False, separators=(",", ":"))
        with (tmp_path / "said").open("a", encoding="utf-8") as said:
            said.write(f"data: {record}\n\n")
    end = 'echo "data: [DONE]"' if has_ended else "exit 18"
    write_program(tmp_path / "curl", f"#!/bin/sh\ncat >/dev/null\ncat {tmp_path / 'said'}\n{end}\n")
    found = ask_with_curl("http://nowhere", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert found.stdout == "".join(pieces).replace("\x1b", "") + "\n"
    assert found.returncode == (0 if has_ended else 1)


def run_sidecar(command: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["node", str(EXAMPLES / "sidecar.mjs"), "the hen"],
        env={**os.environ, "EDGEINFER_COMMAND": command, **environ},
        capture_output=True,
        timeout=120,
        check=False,
    )


@needs_node
def test_node(tiny_model: Path) -> None:
    command = json.dumps([sys.executable, "-m", "edgeinfer"])
    found = run_sidecar(command, EDGEINFER_MODEL=str(tiny_model), EDGEINFER_SPEC="off")
    assert found.returncode == 0, found.stderr.decode()
    assert len(found.stdout) > 20
    left = [process for process in psutil.process_iter(["cmdline"]) if "SIDECAR_KEY" in (process.info["cmdline"] or ())]
    assert left == []


@needs_node
def test_node_says_that_there_is_no_such_program(tmp_path: Path) -> None:
    found = run_sidecar(str(tmp_path / "no program"))
    assert found.returncode == 1
    assert b"ENOENT" in found.stderr
    assert b"    at " not in found.stderr


FAILING_SERVER = """\
#!{python}
import http.server, json

class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: {{"error": {{"message": "no memory is left"}}}}\\n\\n')
    def log_message(self, *said): pass

server = http.server.HTTPServer(("127.0.0.1", 0), Answers)
print(json.dumps({{"url": f"http://127.0.0.1:{{server.server_port}}"}}), flush=True)
server.serve_forever()
"""


@needs_node
def test_node_says_what_failed_within_an_answer(tmp_path: Path) -> None:
    program = write_program(tmp_path / "with spaces" / "edge infer", FAILING_SERVER.format(python=sys.executable))
    found = run_sidecar(str(program))
    assert (found.returncode, found.stderr) == (1, b"no memory is left\n")
