"""Pulling from a web server: no half file is taken for a model; the next pull resumes, and the checksum is right."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from campaign import python
from homes import Home
from processes import Running

from tests.file_server import FileServer, Served

PIECE_BYTES, PAUSE_S = 1 << 16, 0.02
FIRST_LOOK_BYTES = 1 << 20


class SlowServer(FileServer):
    """Sends a piece at a time, so that a pull has a middle."""

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, whose client may be gone."""
        super().shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request slowly."""
        super().process_request_thread(_Slow(request), client_address)


class _Slow:
    """A socket that sends slowly."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def sendall(self, data: Any) -> None:
        for place in range(0, len(data), PIECE_BYTES):
            self._socket.sendall(data[place : place + PIECE_BYTES])
            time.sleep(PAUSE_S * len(data) / PIECE_BYTES if len(data) < PIECE_BYTES else PAUSE_S)


class Target:
    """A model of 4 MB, whose header is at its beginning."""

    def __init__(self, home: Home, model: Path | None) -> None:
        self._home = home
        self._server = SlowServer()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._data = _model(home.folder / "served.gguf")
        self._hash = hashlib.sha256(self._data).hexdigest()
        self._server.files["/small.gguf"] = Served(self._data)
        self._n_kept = 0
        self.life_s = 0.0

    def prepare(self) -> None:
        running = self.start()
        if running.wait():
            raise SystemExit(f"the undisturbed pull failed: {running.text}")
        self.life_s = running.passed_s()
        if problems := self._whole():
            raise SystemExit(f"the undisturbed pull failed: {problems}")

    def start(self) -> Running:
        self._home.empty()
        return self._begun("pull")

    def _begun(self, run: str) -> Running:
        command = python("pull", self._server.url("/small.gguf"))
        return Running(command, self._home.environment(run), self._home.folder)

    @property
    def _models(self) -> Path:
        return self._home.data / "models"

    def has_written(self) -> bool:
        return self._models.is_dir() and any(self._models.iterdir())

    def judge(self, running: Running) -> list[str]:
        problems = self._half_files()
        n_part_bytes = sum(path.stat().st_size for path in self._models.glob("*.part"))
        n_before = len(self._server.log)
        again = self._begun("again")
        if code := again.wait():
            problems.append(f"the next pull ends with {code}: {again.text[-300:]}")
        n_sent = sum(request.sent_bytes for request in self._server.log[n_before:])
        most_bytes = len(self._data) - n_part_bytes + 2 * FIRST_LOOK_BYTES
        if n_part_bytes > FIRST_LOOK_BYTES and n_sent > most_bytes:
            problems.append(f"{n_sent} bytes were sent again although {n_part_bytes} were there")
        return problems + self._whole()

    def finish(self, running: Running) -> list[str]:
        code = running.wait()
        return ([f"the pull ends with {code}: {running.text[-300:]}"] if code else []) + self._whole()

    def _half_files(self) -> list[str]:
        """Models that are listed or lie under their final name, and are not whole."""
        found = [path for path in self._models.glob("*.gguf") if path.read_bytes() != self._data]
        problems = [f"{path.name} is not whole" for path in found]
        listed = [model for model in self._listed() if "small" in str(model.get("name"))]
        if listed and not any(self._models.glob("*.gguf")):
            problems.append("a model is listed whose file is not there")
        return problems

    def _listed(self) -> list[dict[str, Any]]:
        command = python("ls", "--json")
        environment = self._home.environment("list")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        found = json.loads(done.stdout)
        return list(found["models"] if isinstance(found, dict) else found)

    def _whole(self) -> list[str]:
        hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self._models.glob("*.gguf")]
        problems = [] if hashes == [self._hash] else ["the model's checksum is another one"]
        if not any("small" in str(model.get("name")) for model in self._listed()):
            problems.append("the model is not listed")
        ends = (".part", ".part.json", ".pull")
        return problems + [f"{path.name} is left" for path in self._models.iterdir() if path.name.endswith(ends)]


def _model(path: Path) -> bytes:
    """Write a GGUF file with random weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(0)
    writer.add_block_count(1)
    draw = np.random.default_rng(random.Random(1).randrange(1 << 30))
    writer.add_tensor("token_embd.weight", draw.standard_normal((4096, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()
