"""`edgeinfer plan`: sizes are exact, nothing is loaded, and what does not fit says by how much."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.app.fit import check_fits, plan_for, size_in_bytes
from edgeinfer.backends.base import DEVICES, DeviceOptions
from edgeinfer.engine.limits import limits_for
from edgeinfer.errors import BadSetting, DoesNotFit
from edgeinfer.models.gguf import GGUFFile, parse_header
from edgeinfer.models.load import open_model
from tests.conftest import write_tiny_llama


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return write_tiny_llama(tmp_path / "tiny.gguf")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["plan", *arguments])


def test_json_has_the_contract_keys_and_exact_sizes(tiny):
    result = run("-m", str(tiny), "--ctx", "256", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    with GGUFFile.open(tiny) as file:
        assert plan["model"]["weight_bytes"] == sum(info.nbytes for info in file.tensors.values())
    assert plan["model"]["arch"] == "llama"
    assert plan["model"]["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2  # layers, k and v, heads, width, bytes
    predicted = plan["predicted"]
    assert predicted["decode_tok_s"] is None
    assert predicted["prefill_tok_s"] is None
    assert predicted["vram_bytes"] == predicted["flash_bytes_per_token"] == 0
    assert plan["memory"]["n_context"] == 256
    stages = plan["stages"]
    assert {"phase", "ops", "lanes", "seconds"} <= set(stages[0])
    down = next(stage for stage in stages if stage["ops"] == "blk.1.ffn_down")
    assert down["lanes"] == [{"device": "cpu", "rows": [0, 64], "seconds": None}]


@pytest.mark.parametrize("device", ["cpu", "reference", "null"])
def test_the_footprint_is_what_a_lane_then_holds(tiny, device):
    limits = limits_for(256)
    with open_model(tiny, 256) as model:
        _, plan = plan_for(model.file.metadata, model.file.tensors, device=device, n_context=256)
        kind = DEVICES.get(device)
        opened = kind.open(DeviceOptions(n_workers=1))
        lane = opened.compile(model.spec, model.file, limits)
        taken = kind.footprint(model.spec, model.file.tensors, limits)
        assert lane.resident_bytes == taken.weight_bytes + taken.kv_bytes + taken.buffer_bytes
        assert plan.need.weight_bytes == taken.weight_bytes
        lane.close()
        opened.close()


def test_text_names_device_sizes_and_context(tiny):
    result = run("-m", str(tiny))
    assert result.exit_code == 0
    assert "on cpu" in result.stdout
    assert "512 tokens" in result.stdout
    assert "not measured yet" in result.stdout


def test_a_plan_that_does_not_fit_says_by_how_much(tiny):
    result = run("-m", str(tiny), "--ram", "1MB")
    assert result.exit_code == 1
    assert "too much" in result.stderr
    assert "would fit" in result.stderr


def test_a_header_alone_is_enough(tiny):
    raw = tiny.read_bytes()
    with GGUFFile.open(tiny) as file:
        first_tensor = min(info.offset for info in file.tensors.values())
    header = parse_header(raw[:first_tensor], 10**15)
    check_fits(header, 10**6)
    with pytest.raises(DoesNotFit, match="GB"):
        check_fits(header, 10**6, n_context=2**30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6GB", 6_000_000_000),
        ("512MiB", 512 << 20),
        ("60%", 600),
        ("1000", 1000),
        ("1.5k", 1500),
        ("2g", 2_000_000_000),
    ],
)
def test_sizes_are_read(text, expected):
    assert size_in_bytes(text, 1000) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5 parsecs", "0", "nan%%"])
def test_other_sizes_are_refused(text):
    with pytest.raises(BadSetting, match="such as"):
        size_in_bytes(text, 1000)
