"""Models of a hub: choosing files, and the hub's own client against a local hub."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgeinfer.app.catalogue.forecast import forecast_of
from edgeinfer.engine.opening.seeing import fetched_projector
from edgeinfer.errors import DownloadFailed, ModelNotFound
from edgeinfer.models.download.header import file_header
from edgeinfer.models.model_projectors import projectors_of
from edgeinfer.models.repository_files import choose_files
from edgeinfer.models.store import ModelStore
from tests.golden.goldens import DATA
from tests.tiny_models import write_model

ROOT = Path(__file__).resolve().parents[3]
COMMIT = "a" * 40
PULL = """
import json, sys
from pathlib import Path
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.store import ModelStore
reports, sizes, kinds = [], [], []
def kind_of(header):
    return None if header is None else header.metadata.text("general.architecture")
try:
    model = ModelStore(Path(sys.argv[1])).pull(
        sys.argv[2],
        progress=lambda *report: reports.append(report[:2]),
        approve=lambda header, nbytes: (sizes.append(nbytes), kinds.append(kind_of(header.projector))),
    )
    print(json.dumps({"name": model.name, "paths": [str(path) for path in model.paths], "source": model.source,
                      "sha256": model.sha256, "reports": reports, "sizes": sizes, "projectors": kinds}))
except EdgeInferError as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
"""


LIST = """
import json, sys
from pathlib import Path
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.store import ModelStore
store = ModelStore(Path(sys.argv[1]))
try:
    found = store.listed(sys.argv[2])
    look = store.look(found[0].source)
    print(json.dumps({"listed": [[each.source, each.name, each.quant, each.nbytes, each.n_files] for each in found],
                      "look": [look.name, look.nbytes, len(look.header.tensors)]}))
except EdgeInferError as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
"""
PAUSE = """
import json, sys
from pathlib import Path
from edgeinfer.models.download.policy import DownloadPolicy, PullStopped
from edgeinfer.models.store import ModelStore
store = ModelStore(Path(sys.argv[1]), DownloadPolicy(chunk_bytes=1 << 14, report_every_s=0))
def stop(done, total, rate):
    if done > int((sys.argv[4:] or ["100000"])[0]):
        raise PullStopped(keeps=sys.argv[3] == "keep")
try:
    store.pull(sys.argv[2], progress=stop)
except PullStopped:
    print(json.dumps({"kept": [[each.source, each.name, each.nbytes, each.done_bytes] for each in store.unfinished()],
                      "parts": [str(part) for each in store.unfinished() for part in each.parts]}))
"""


MIXED = ["m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf", "mtp-m-Q8_0.gguf", "m.mmproj-q8_0.gguf", "imatrix_unsloth.gguf"]
TWICE = ["m-q4_k_m.gguf", *(f"m-{quant}-0000{n}-of-00002.gguf" for quant in ("q4_k_m", "q8_0") for n in (1, 2))]
FOLDERS = ["Q4_K_M/model.gguf", "Q8_0/model.gguf"]


@pytest.mark.parametrize(
    ("files", "quant", "chosen"),
    [
        (["a-Q8_0.gguf", "a-Q4_K_M.gguf", "README.md"], None, ["a-Q4_K_M.gguf"]),
        (["a-Q8_0.gguf", "a-Q4_K_M.gguf"], "q8_0", ["a-Q8_0.gguf"]),
        (["a-Q2_K.gguf", "mmproj-a-F16.gguf"], None, ["a-Q2_K.gguf"]),
        (["plain.gguf"], None, ["plain.gguf"]),
        (MIXED, "UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        (MIXED, "q4_k_xl", ["m-UD-Q4_K_XL.gguf"]),
        (MIXED, "m-UD-Q4_K_XL.gguf", ["m-UD-Q4_K_XL.gguf"]),
        (MIXED, None, ["m-Q4_K_M.gguf"]),
        (["m-UD-Q4_K_XL.gguf", "m-UD-Q2_K_XL.gguf"], None, ["m-UD-Q4_K_XL.gguf"]),
        (["m-UD-IQ2_M.gguf", "m-IQ2_M.gguf"], "IQ2_M", ["m-IQ2_M.gguf"]),
        (["m-UD-IQ2_M.gguf", "m-IQ2_M.gguf"], "UD-IQ2_M", ["m-UD-IQ2_M.gguf"]),
        (["m-NVFP4.gguf", "m-BF16.gguf"], "NVFP4", ["m-NVFP4.gguf"]),
        (["m.i1-Q4_K_M.gguf", "m.i1-Q4_K_S.gguf"], "i1-Q4_K_M", ["m.i1-Q4_K_M.gguf"]),
        (["m-IQ4_XS-imat.gguf", "m-Q4_K_M-imat.gguf"], None, ["m-Q4_K_M-imat.gguf"]),
        (["m-imatrix-Q4_K_M.gguf", "m-imatrix.gguf", "imatrix-Q8_0.gguf"], None, ["m-imatrix-Q4_K_M.gguf"]),
        (["Q4_K_M.gguf", "Q8_0.gguf"], "q8_0", ["Q8_0.gguf"]),
        (["m-fp16.gguf"], "F16", ["m-fp16.gguf"]),
        (["m-Q4_K_M.gguf", "m-assistant-Q8_0.gguf"], None, ["m-Q4_K_M.gguf"]),
        (["m-it-assistant.Q8_0.gguf", "m-it.Q4_0.gguf", "m-it.Q8_0.gguf"], "Q8_0", ["m-it.Q8_0.gguf"]),
        (["open-assistant-Q8_0.gguf", "open-assistant-Q4_0.gguf"], "Q8_0", ["open-assistant-Q8_0.gguf"]),
        (TWICE, None, ["m-q4_k_m.gguf"]),
        (TWICE, "q8_0", ["m-q8_0-00001-of-00002.gguf", "m-q8_0-00002-of-00002.gguf"]),
        (FOLDERS, "Q8_0", ["Q8_0/model.gguf"]),
        (FOLDERS, None, ["Q4_K_M/model.gguf"]),
        (["x-UD-Q3_K_XL/model.gguf", "mmproj/model.gguf"], None, ["x-UD-Q3_K_XL/model.gguf"]),
        (
            ["Q4_0/m-00001-of-00002.gguf", "Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf"],
            None,
            ["Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf"],
        ),
        (
            ["q/a-F16-00002-of-00002.gguf", "q/a-F16-00001-of-00002.gguf", "a-Q2_K.gguf"],
            None,
            ["q/a-F16-00001-of-00002.gguf", "q/a-F16-00002-of-00002.gguf"],
        ),
    ],
)
def test_one_model_is_chosen(files: list[str], quant: str | None, chosen: list[str]) -> None:
    assert list(choose_files(files, quant, "u/r")) == chosen


@pytest.mark.parametrize(
    ("files", "quant", "message"),
    [
        (["README.md"], None, "holds no .gguf"),
        (["a-Q8_0.gguf"], "Q4_0", "hf:u/r:Q8_0"),
        (["a-Q2_K.gguf", "a-Q3_K_S.gguf"], None, "hf:u/r:Q2_K, hf:u/r:Q3_K_S"),
        (["a-F16-00001-of-00002.gguf"], "F16", "no complete F16"),
        (["m-Q4_K_M.gguf", "m-assistant-Q8_0.gguf"], "Q8_0", "no complete Q8_0; there are: hf:u/r:Q4_K_M$"),
        (MIXED, "Q8_0", "no complete Q8_0; there are: hf:u/r:Q4_K_M, hf:u/r:UD-Q4_K_XL$"),
        (
            ["mmproj-F16.gguf", "imatrix.gguf", "mtp-a-Q8_0.gguf", "a-Q4_0/mtp.gguf"],
            None,
            "holds no .gguf file of a model",
        ),
    ],
)
def test_what_cannot_be_chosen_is_listed(files: list[str], quant: str | None, message: str) -> None:
    with pytest.raises(ModelNotFound, match=message):
        choose_files(files, quant, "u/r")


def test_without_the_client(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "huggingface_hub" else real(name))
    with pytest.raises(DownloadFailed, match=r"pip install 'edgeinfer\[hub\]'"):
        store.pull("hf:u/r")


class Hub(ThreadingHTTPServer):
    """As much of a hub as its client asks for."""

    daemon_threads = True
    files: dict[str, bytes]
    token: str | None = None
    ranges: list[str]


class HubHandler(BaseHTTPRequestHandler):
    """Lists and serves the files of the repository u/r."""

    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._answer(401, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        if path.startswith("/api/models/u/r/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": "0"}
                for name, data in self.server.files.items()
            ]
            return self._answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        if path.startswith("/api/models/u/r"):
            siblings = [{"rfilename": name} for name in self.server.files]
            record = {"id": "u/r", "modelId": "u/r", "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0}
            return self._answer(200, json.dumps(record).encode(), {"Content-Type": "application/json"})
        data = self.server.files.get(path.rpartition("/")[2]) if path.startswith("/u/r/resolve/") else None
        if data is None:
            return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        self.server.ranges.append(wanted)
        if not wanted:
            return self._answer(200, data, headers)
        first, _, last = wanted.partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        return self._answer(
            206, part, {**headers, "Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"}
        )

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with one repository of two models."""
    pytest.importorskip("huggingface_hub")
    with Hub(("127.0.0.1", 0), HubHandler) as server:
        server.ranges = []
        server.files = {
            "tiny-Q4_K_M.gguf": write_model(tmp_path / "a.gguf"),
            "tiny-Q8_0.gguf": write_model(tmp_path / "b.gguf", seed=1),
        }
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def pull_from(
    hub: Hub, tmp_path: Path, source: str, script: str = PULL, *arguments: str, **environment: str
) -> dict[str, object]:
    """Pull in a process of its own: the client reads its environment once."""
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "models"), source, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_client_brings_a_model_into_its_cache(hub: Hub, tmp_path: Path) -> None:
    answer = pull_from(hub, tmp_path, "hf:u/r")
    data = hub.files["tiny-Q4_K_M.gguf"]
    assert (answer["name"], answer["source"], answer["sizes"]) == ("tiny-Q4_K_M", "hf:u/r:Q4_K_M", [len(data)])
    (path,) = answer["paths"]  # type: ignore[misc]
    assert Path(path).read_bytes() == data
    assert Path(path).is_relative_to(tmp_path / "hf")
    assert answer["sha256"] == hashlib.sha256(data).hexdigest()
    assert ModelStore(tmp_path / "models").find("tiny").path == Path(path)


def test_what_is_cached_needs_no_network(hub: Hub, tmp_path: Path) -> None:
    assert "error" not in pull_from(hub, tmp_path, "hf:u/r:Q8_0")
    ModelStore(tmp_path / "models").remove("tiny-Q8_0")
    hub.files.clear()
    answer = pull_from(hub, tmp_path, "hf:u/r:q8_0", HF_ENDPOINT="http://127.0.0.1:9")
    assert (answer["name"], answer["sizes"]) == ("tiny-Q8_0", [])


def test_a_projector_comes_with_its_model(hub: Hub, tmp_path: Path) -> None:
    data, projector = hub.files["tiny-Q4_K_M.gguf"], (DATA / "vision" / "mmproj-idefics3.gguf").read_bytes()
    hub.files |= {"mmproj-tiny-F16.gguf": projector, "mmproj-tiny-BF16.gguf": data}
    listed = pull_from(hub, tmp_path, "hf:u/r", LIST)["listed"]
    assert [each[3] for each in listed] == [len(data) + len(projector)] * 2  # type: ignore[attr-defined]
    answer = pull_from(hub, tmp_path, "hf:u/r")
    assert (answer["sizes"], answer["projectors"]) == ([len(data) + len(projector)], ["clip"])
    (path,) = map(Path, answer["paths"])  # type: ignore[call-overload]
    assert [each.name for each in projectors_of(path)] == ["mmproj-tiny-F16.gguf"]
    assert projectors_of(path)[0].read_bytes() == projector


@pytest.mark.parametrize("part", [0.1, 0.9, 1.1])
def test_a_pull_that_was_stopped_between_two_files_fetches_both(hub: Hub, tmp_path: Path, part: float) -> None:
    hub.files["mmproj-tiny-F16.gguf"] = (DATA / "vision" / "mmproj-idefics3.gguf").read_bytes()
    n_bytes = int(part * len(hub.files["tiny-Q4_K_M.gguf"]))
    assert pull_from(hub, tmp_path, "hf:u/r", PAUSE, "keep", str(n_bytes))["kept"]
    (path,) = map(Path, pull_from(hub, tmp_path, "hf:u/r")["paths"])  # type: ignore[call-overload]
    assert path.read_bytes() == hub.files["tiny-Q4_K_M.gguf"]
    assert [each.name for each in projectors_of(path)] == ["mmproj-tiny-F16.gguf"]


def test_a_projector_without_a_header_stops_no_pull(hub: Hub, tmp_path: Path) -> None:
    hub.files["mmproj-tiny-F16.gguf"] = b"no model at all"
    answer = pull_from(hub, tmp_path, "hf:u/r")
    assert (answer["name"], answer["projectors"]) == ("tiny-Q4_K_M", [None])


def test_a_fit_before_a_download_counts_the_encoder() -> None:
    parts = [file_header(DATA / "vision" / name) for name in ("idefics3.gguf", "mmproj-idefics3.gguf")]
    both, other = replace(parts[0], projector=parts[1]), replace(parts[0], projector=parts[0])
    found = fetched_projector(both)
    assert found is not None
    assert fetched_projector(other) is None
    assert fetched_projector(parts[0]) is None
    blind, seen = (forecast_of(both, 10**5, 256, profile=None, projector=each) for each in (None, found))
    assert seen.weight_bytes - blind.weight_bytes > 0
    assert seen.ram_bytes - blind.ram_bytes > seen.weight_bytes - blind.weight_bytes


def test_the_token_is_the_clients(hub: Hub, tmp_path: Path) -> None:
    hub.token = "secret"
    refused = pull_from(hub, tmp_path, "hf:u/r")
    assert "HF_TOKEN" in str(refused["error"])
    assert pull_from(hub, tmp_path, "hf:u/r", HF_TOKEN="secret")["name"] == "tiny-Q4_K_M"


def test_failures_of_the_hub_are_explained(hub: Hub, tmp_path: Path) -> None:
    assert "ModelNotFound" in str(pull_from(hub, tmp_path, "hf:no/such")["error"])
    assert "hf:u/r:Q8_0" in str(pull_from(hub, tmp_path, "hf:u/r:Q2_K")["error"])
    unreachable = pull_from(hub, tmp_path, "hf:u/r", HF_ENDPOINT="http://127.0.0.1:9")
    assert "DownloadFailed" in str(unreachable["error"])
    assert "could not be reached (Connection refused)" in str(unreachable["error"])
    offline = pull_from(hub, tmp_path, "hf:u/r", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in str(offline["error"])
    assert ModelStore(tmp_path / "models").models() == []


def test_a_repository_lists_what_it_offers(hub: Hub, tmp_path: Path) -> None:
    hub.files |= {"README.md": b"text", "tiny-F16-00001-of-00002.gguf": b"half of a model"}
    answer = pull_from(hub, tmp_path, "hf:u/r", LIST)
    data = hub.files["tiny-Q4_K_M.gguf"]
    assert sorted(answer["listed"]) == [  # type: ignore[call-overload]
        ["hf:u/r:Q4_K_M", "tiny-Q4_K_M", "Q4_K_M", len(data), 1],
        ["hf:u/r:Q8_0", "tiny-Q8_0", "Q8_0", len(data), 1],
    ]
    assert answer["look"][1:] == [len(data), 1]  # type: ignore[index]
    assert not any((tmp_path / "hf").rglob("*.gguf"))
    one = pull_from(hub, tmp_path, "hf:u/r:q8_0", LIST)
    assert [each[0] for each in one["listed"]] == ["hf:u/r:Q8_0"]  # type: ignore[attr-defined]
    assert "hf:u/r:Q8_0" in str(pull_from(hub, tmp_path, "hf:u/r:Q2_K", LIST)["error"])
    hub.token = "secret"
    assert "gated" in str(pull_from(hub, tmp_path, "hf:u/r", LIST)["error"])


def test_a_stopped_pull_goes_on_where_it_ended(hub: Hub, tmp_path: Path) -> None:
    answer = pull_from(hub, tmp_path, "hf:u/r:Q8_0", PAUSE, "keep")
    data = hub.files["tiny-Q8_0.gguf"]
    ((source, name, nbytes, kept),) = answer["kept"]  # type: ignore[misc]
    assert (source, name, nbytes) == ("hf:u/r:Q8_0", "tiny-Q8_0", len(data))
    assert 100_000 < kept < len(data)
    hub.ranges.clear()
    whole = pull_from(hub, tmp_path, "hf:u/r:Q8_0")
    assert f"{kept}-" in hub.ranges
    assert Path(whole["paths"][0]).read_bytes() == data  # type: ignore[index]
    assert not list((tmp_path / "hf").rglob("*.part"))


def test_a_cancelled_pull_leaves_no_part(hub: Hub, tmp_path: Path) -> None:
    assert pull_from(hub, tmp_path, "hf:u/r:Q8_0", PAUSE, "drop") == {"kept": [], "parts": []}
    assert not list((tmp_path / "hf").rglob("*.part*"))
