"""`edgeinfer plan` on a screen: many layers in few lines, and whether a model fits."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.scheduling.machine.catalogue import machine_names, machine_profile
from edgeinfer.scheduling.machine.topology import read_topology
from tests.app.test_cli_plan import planned, run
from tests.app.test_cli_plan import tiny as tiny
from tests.golden.goldens import DATA
from tests.tiny_models import write_hollow_8b
from tests.unit.scheduling.profiles import machine


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An 8B whose layers differ in formats, as in Q4_K_M."""
    return write_hollow_8b(tmp_path_factory.mktemp("large") / "8b.gguf")


@pytest.mark.parametrize("machine", machine_names())
@pytest.mark.parametrize("more", [(), ("--schedule", "rows"), ("--vram", "2GB")])
def test_a_plan_of_many_layers_fits_on_a_screen_and_every_layer_can_be_seen(
    large: Path, machine: str, more: tuple[str, ...]
) -> None:
    if more and not machine_profile(machine).accelerators:
        pytest.skip("it has no accelerator")
    here = ("-m", str(large), "--machine", machine, *more)
    shown = run(*here).stdout.splitlines()
    assert len(shown) <= 24
    assert any(line.startswith("fits ") for line in shown)
    assert any(line.startswith("blk.0 to blk.") or ": blk." in line for line in shown)
    every = run(*here, "--verbose").stdout.splitlines()
    assert [line.split()[0] for line in every if line.startswith("blk.")] == [f"blk.{n}" for n in range(32)]
    assert {f"blk.{n}.ffn_down" for n in range(32)} <= {stage["ops"] for stage in planned(*here)["stages"]}


def test_layers_that_share_rows_alike_are_one_line_with_the_range_of_shares(large: Path) -> None:
    here = ("-m", str(large), "--machine", "rtx4060-laptop")
    (line,) = [line for line in run(*here).stdout.splitlines() if line.startswith("blk.")]
    found = re.search(r"blk.0 to blk.31 .* ms  home cuda; rows: cpu (\d+) to (\d+) %, cuda (\d+) to (\d+) %", line)
    assert found is not None
    shares: dict[str, list[float]] = {device: [] for device in ("cpu", "cuda")}
    rows = {"attn_q": 4096, "attn_k": 1024, "attn_v": 1024, "attn_output": 4096, "ffn_gate": 14336, "ffn_up": 14336}
    for stage in planned(*here)["stages"]:
        name = stage["ops"].rpartition(".")[2]
        if stage["phase"] == "decode" and name in rows:
            for lane in stage["lanes"]:
                shares[lane["device"]].append(100 * (lane["rows"][1] - lane["rows"][0]) / rows[name])
    low, high = int(found[1]), int(found[2])
    assert low <= round(min(shares["cpu"])) <= round(max(shares["cpu"])) <= high


def test_a_plan_for_another_machine_says_whether_the_model_fits(tiny: Path, large: Path, tmp_path: Path) -> None:
    (path,) = ProfileStore().folder.glob("*.toml")
    text = path.read_text()
    (memory,) = re.findall(r"^memory_gb = .*$", text, re.MULTILINE)[:1]

    def there(gb: int, *more: str) -> Result:
        other = tmp_path / "other.toml"
        other.write_text(text.replace(memory, f"memory_gb = {gb}"))
        return run("-m", str(large), "--machine", str(other), *more)

    roomy = there(16)
    assert roomy.exit_code == 0, roomy.output
    assert "fits      in 16.0 GB of memory\n" in roomy.stdout
    tight = there(4)
    assert tight.exit_code == 1
    (line,) = [line for line in tight.stdout.splitlines() if line.startswith("fits ")]
    found = re.search(r"no, .* \((\d+) bytes\) too much; a smaller model or a smaller quant would fit", line)
    assert found is not None
    record = json.loads(there(4, "--json").stdout)
    need = record["memory"]["total_bytes"]
    assert int(found[1]) == record["fit"]["missing_bytes"] == need - int(4e9 * 0.95)
    assert not record["fit"]["fits"]
    longer = there(8, "--ctx", "131072")
    assert "a context of" in longer.stdout
    assert json.loads(there(16, "--json").stdout)["fit"] == {
        "fits": True,
        "in_part": False,
        "missing_bytes": 0,
        "would_fit": None,
    }


@pytest.mark.parametrize("name", ["bert", "gemma-embedding"])
def test_a_model_that_writes_nothing_is_told_no_decoding(home: Path, name: str) -> None:
    measured = {"fingerprint": fingerprint_of(read_topology()), "measured": "2026-11-22 12:00 UTC", "idle_share": 1.0}
    ProfileStore().save(replace(machine(), **measured))
    result = CliRunner().invoke(build_app(), ["plan", "-m", str(DATA / "embedding" / f"{name}-q8_0.gguf")])
    assert result.exit_code == 0, result.output
    assert ", embedded after " in result.stdout
    assert "decode" not in result.stdout
    assert "drafts" not in result.stdout
