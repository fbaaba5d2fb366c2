"""Files that users write for the program: config.toml, tables of MCP servers, presets of models (TOML and INI)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scratch import scratch
from tiny import ATTENDING, DATA

from edgeinfer.app.config_file import write_setting
from edgeinfer.app.mcp.servers import chat_servers, read_servers
from edgeinfer.app.server.presets import read_presets
from edgeinfer.errors import EdgeInferError
from edgeinfer.settings import load_settings

USUAL_BYTES = 3000
FOLDER = scratch()
CONFIG = b"""temp = 0.7
top_k = 40
top_p = 0.9
device = "cpu"
ctx = 4096
ram = "50%"
threads = 2
system = "Be brief."

[mcp]
chat = ["files"]

[mcp.servers.files]
command = "program"
args = ["a"]
env = {KEY = "value"}
trusted = ["read"]
timeout = 5

[mcp.servers.web]
url = "https://example.org/mcp"
headers = {Authorization = "Bearer x"}
"""
PRESETS = b"""default = "small"

[defaults]
temp = 0.5

["small"]
model = "MODEL"
aliases = ["s"]
ctx = 512
keep_alive = "10m"
"""
INI = b"""version = 1
[*]
ctx-size = 512
temp = 0.5

[small]
model = MODEL
n-gpu-layers = 0
load-on-startup = true
"""


def seeds() -> list[bytes]:
    """One of each; the first byte says which it is."""
    model = str(DATA / f"{ATTENDING}.gguf").encode()
    return [b"C" + CONFIG, b"P" + PRESETS.replace(b"MODEL", model), b"I" + INI.replace(b"MODEL", model)]


def run(data: bytes) -> None:
    """Read it as what it is."""
    kind, text = data[:1], data[1:]
    if kind in b"PI":
        path = FOLDER / ("presets.ini" if kind == b"I" else "presets.toml")
        path.write_bytes(text)
        read_presets(path, load_settings({}, environ={}, cwd=FOLDER / "none", config_path=FOLDER / "none.toml"))
        return
    path = FOLDER / "config.toml"
    path.write_bytes(text)
    for read in (read_servers, lambda path: chat_servers((), path)):
        _tried(read, path)
    _tried(lambda path: write_setting("temp", "0.5", path), path)
    path.write_bytes(text)
    load_settings({}, environ={}, cwd=FOLDER / "none", config_path=path)


def _tried(read: Callable[[Path], object], path: Path) -> None:
    with suppress(EdgeInferError):
        read(path)
