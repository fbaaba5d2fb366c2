"""A model with zeros in its activations: by single neurons or whole, as a plan says before, with the same tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.engine.offload.neurons.firing import LEAST_TOKENS, firing_of, keep_firing
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.bundle_file import WHOLE, bundle_path, firing_path
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.scheduling.offload.neurons.firing import USUAL_SHARE
from scripts.sparse_model import SparseShape, write_sparse
from tests.app.sparse_disks import DISKS, SIZES, measured
from tests.golden.goldens import DATA

SHAPE = SparseShape(512, 4, 4096, 8, 4, 264)
RAM = "9MB"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sparse") / "sparse.gguf"
    write_sparse(SHAPE, DATA / "llama-relu-q4_0.gguf", path)
    return path


@pytest.fixture
def identity(file: Path, home: Path) -> str:
    with GGUFFile.open(file) as opened:
        return fingerprint(opened)


def called(command: str, file: Path, *arguments: str) -> dict[str, object]:
    """What a command prints as JSON."""
    options = [command, "-m", str(file), "--ctx", "256", "--device", "cpu", *arguments, "--json"]
    result = CliRunner().invoke(build_app(), options)
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def predicted(file: Path) -> dict[str, object]:
    found = called("plan", file, "--ram", RAM)["predicted"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("layout", sorted(DISKS))
def test_the_layout_that_is_predicted_to_be_faster_is_read(file: Path, identity: str, layout: str) -> None:
    measured(DISKS[layout])
    plan, is_by_neurons = predicted(file), layout == "by neurons"
    assert plan["by_neurons"] is is_by_neurons
    assert "assumed" in str(plan["why_layout"])
    asked = ("--spec", "off", "--temp", "0", "--max-tokens", "24", "the rain")
    whole, part = called("run", file, *asked), called("run", file, "--ram", RAM, *asked)
    assert part["tokens"] == whole["tokens"]
    assert bundle_path("x", identity, "" if is_by_neurons else WHOLE).exists()
    assert not bundle_path("x", identity, WHOLE if is_by_neurons else "").exists()
    reading = part["reading"]
    assert isinstance(reading, dict)
    if not is_by_neurons:
        assert reading["neurons"] is None
        assert not firing_path(identity).exists()
        return
    counts = reading["neurons"]
    assert counts["dense_bytes"] > counts["firing_bytes"] >= counts["union_bytes"] >= counts["missing_bytes"] > 0
    assert counts["read_bytes"] >= counts["missing_bytes"]
    seen = firing_of(identity)
    assert seen.n_tokens >= 24
    assert seen.share == pytest.approx(1 - SHAPE.zeros, abs=0.03)
    assert len(seen.found) >= 3
    assert "seen of" in str(predicted(file)["why_layout"])


def test_both_files_are_packed_checked_and_removed(file: Path, identity: str) -> None:
    def pack(*arguments: str) -> Result:
        return CliRunner().invoke(build_app(), ["pack", str(file), *arguments])

    assert pack().exit_code == pack("--whole").exit_code == 0
    singly, whole = (bundle_path("sparse", identity, each) for each in ("", WHOLE))
    assert singly.exists()
    with whole.open("r+b") as held:
        held.seek(whole.stat().st_size - 5000)
        held.write(bytes(range(100)))
    damaged = pack("--whole", "--verify")
    assert damaged.exit_code == 1
    assert "--repair --whole makes it anew" in damaged.output
    assert pack("--verify").exit_code == 0
    assert "whole again" in pack("--whole", "--repair").output
    assert pack("--whole", "--verify").exit_code == 0
    assert pack("--remove").exit_code == 0
    assert not singly.exists()
    assert not whole.exists()


def test_models_without_neurons_have_no_second_file(home: Path) -> None:
    result = CliRunner().invoke(build_app(), ["pack", str(DATA / "llama-q4_0.gguf"), "--whole"])
    assert result.exit_code == 1
    assert "leave it out" in result.output


def test_what_was_seen_to_fire_decides(file: Path, identity: str) -> None:
    disk = Disk({4: Curve(SIZES, (1e8, 2e9, 2e9)), 16: Curve(SIZES, (1e8, 2e9, 2e9))})
    measured(disk)
    record = {"share": 0.5, "found": [[0.5, 0.5]], "n_tokens": 100}
    firing_path(identity).parent.mkdir(parents=True)
    firing_path(identity).write_text(json.dumps(record))
    assert predicted(file)["by_neurons"] is False
    firing_path(identity).write_text(json.dumps({**record, "share": 0.01, "found": [[0.02, 0.9], [0.1, 0.99]]}))
    few = predicted(file)
    assert few["by_neurons"] is True
    assert "1 % of neurons fire for a token (seen of 100 tokens)" in str(few["why_layout"])


def test_memory_is_kept_to_though_everything_that_fires_is_expected_to_be_there(file: Path, identity: str) -> None:
    record = {"share": 0.05, "found": [[0.05, 0.9], [0.2, 1.0]], "n_tokens": 100}
    firing_path(identity).parent.mkdir(parents=True)
    firing_path(identity).write_text(json.dumps(record))
    plan = called("plan", file, "--ram", "14MB")["predicted"]
    assert isinstance(plan, dict)
    assert plan["by_neurons"] is True
    assert plan["flash_bytes_per_token"] == 0
    asked = ("--spec", "off", "--temp", "0", "--max-tokens", "8", "the rain")
    part = called("run", file, "--ram", "14MB", *asked)
    assert part["tokens"] == called("run", file, *asked)["tokens"]
    assert int(str(part["weights_read_bytes"])) > 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"share": 2, "found": [], "n_tokens": 100}',
        '{"share": 0.1, "found": [[1, 2, 3]], "n_tokens": 100}',
        '{"share": 0.1, "found": 7, "n_tokens": 100}',
        '{"share": 0.1, "found": [], "n_tokens": 1}',
        '{"share": 0.1, "found": [], "n_tokens": 1e999}',
    ],
)
def test_what_is_no_record_counts_as_none(home: Path, content: str) -> None:
    path = firing_path("0" * 32)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert firing_of("0" * 32).share == USUAL_SHARE
    assert firing_of("0" * 32).n_tokens == 0


def test_short_runs_are_not_kept(home: Path) -> None:
    from edgeinfer.offload.weights import RecordUse

    keep_firing("0" * 32, RecordUse(0.2, (), LEAST_TOKENS - 1))
    assert not firing_path("0" * 32).exists()
    keep_firing("0" * 32, RecordUse(0.2, ((0.2, 0.5),), LEAST_TOKENS))
    assert firing_of("0" * 32).found == ((0.2, 0.5),)
