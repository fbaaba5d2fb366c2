"""`edgeinfer plan` tells what a trained head or a draft model takes beside the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.loading import load
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.engine.speculation.draft_model import draft_bytes
from edgeinfer.engine.speculation.head_model import MOST_WAITING
from edgeinfer.models.load import head_in, open_model
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.setting_values import SelfDraftBudget
from edgeinfer.text_values import size_text
from tests.golden.goldens import DATA
from tests.head_files import write_assistant, write_eagle, write_with_head
from tests.unit.scheduling.profiles import machine

LLAMA, QWEN, GEMMA = (DATA / "converted" / f"{name}-bf16.gguf" for name in ("llama", "qwen35", "gemma4"))


@pytest.fixture(autouse=True)
def measured(home: Path) -> None:
    """A machine that was measured before."""
    known = {"fingerprint": fingerprint_of(read_topology()), "measured": "2026-11-22 12:00 UTC", "idle_share": 1.0}
    ProfileStore().save(replace(machine(), **known))  # type: ignore[arg-type]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_app(), ["plan", "--ctx", "256", *map(str, arguments)])


def told_bytes(*arguments: str | Path, key: str = "drafter_bytes") -> int:
    """The bytes that the plan tells."""
    result = run("--json", *arguments)
    assert result.exit_code == 0, result.output
    found: int = json.loads(result.stdout)["model"][key]
    return found


def test_a_head_counts_without_what_the_model_has(tmp_path: Path) -> None:
    model = write_with_head(QWEN, tmp_path / "model.gguf")
    with open_model(model, 256) as opened:
        head = head_in(opened.file.metadata, opened.file.tensors, 256)
        assert head is not None
        need = memory_need("cpu", head.spec, opened.file.tensors, limits_for(256, 2))
        of_model = memory_need("cpu", opened.spec, opened.file.tensors, limits_for(256))
    waiting = told_bytes("-m", model, key="drafter_waiting_bytes")
    assert need.beside_bytes - of_model.weight_bytes < told_bytes("-m", model) - waiting < need.beside_bytes
    assert ": a trained head" in run("-m", model).stdout
    assert told_bytes("-m", model, "--spec", "off") == 0
    assert "beside" not in run("-m", model, "--spec", "off").stdout


def shown_bytes(model: Path, *sources: Path) -> int:
    """What the buffers of a model that is opened with a head take more than without one."""
    found = list[int]()
    for how in ({"spec": "off"}, {"spec": 4, "draft_from": sources}):
        with load(model, device="cpu", threads=1, n_context=256, **how) as llm:  # type: ignore[arg-type]
            assert llm.info.need is not None
            found.append(llm.info.need.buffer_bytes)
    return found[1] - found[0]


def test_rows_of_the_model_that_wait_for_a_head_count(tmp_path: Path) -> None:
    """Those that are shown, as the open model has them, and those that wait: of MOST_WAITING tokens and of a pass.

    Of two sessions, as spare pages serve one.
    """
    key, waiting = "drafter_waiting_bytes", 2 * 4 * 32 * (MOST_WAITING + limits_for(256).max_tokens)
    model, assistant = write_with_head(QWEN, tmp_path / "model.gguf"), write_assistant(GEMMA, tmp_path / "head.gguf")
    eagle, blocks = write_eagle(tmp_path / "eagle.gguf", vocabulary=320), tmp_path / "blocks.gguf"
    assert told_bytes("-m", model, key=key) == waiting + shown_bytes(model) > waiting + 32_000
    assert f", {size_text(told_bytes('-m', model, key=key))} of it for rows" in run("-m", model).stdout
    of_eagle = told_bytes("-m", LLAMA, "--draft-from", eagle, key=key)
    assert of_eagle == 3 * waiting + shown_bytes(LLAMA, eagle)  # it reads rows of three layers
    of_assistant = told_bytes("-m", GEMMA, "--draft-from", assistant, key=key)
    assert of_assistant == 2 * 4 * 32 * 2 + shown_bytes(GEMMA, assistant)  # it keeps the last one
    write_with_head(QWEN, blocks, n_blocks=3)
    assert told_bytes("-m", blocks, key=key) == 3 * waiting + shown_bytes(blocks)
    assert told_bytes("-m", LLAMA, "--draft-from", LLAMA, key=key) == 0
    assert "of it for rows" not in run("-m", LLAMA, "--draft-from", LLAMA).stdout


def test_drafters_in_files_of_their_own_count_too(tmp_path: Path) -> None:
    eagle = write_eagle(tmp_path / "eagle.gguf", vocabulary=320)
    assert told_bytes("-m", LLAMA) == 0
    assert told_bytes("-m", LLAMA, "--draft-from", eagle) > 100_000
    assistant = write_assistant(GEMMA, tmp_path / "assistant.gguf")
    of_assistant = told_bytes("-m", GEMMA, "--draft-from", assistant)
    assert 100_000 < of_assistant == told_bytes("-m", GEMMA, "--draft-from", assistant, "--kv", "q4")  # it has no cache
    assert told_bytes("-m", LLAMA, "--draft-from", LLAMA) == draft_bytes([LLAMA], limits_for(256)) > 0


def test_a_head_of_another_model_is_refused(tmp_path: Path) -> None:
    wide = write_eagle(tmp_path / "wide.gguf", target=64)
    result = run("-m", LLAMA, "--draft-from", wide)
    assert result.exit_code == 1
    assert "hidden rows of 64 numbers" in f"{result.output}{result.exception}"


def test_what_idle_cores_could_draft_is_told_with_why_they_do_not() -> None:
    """A laptop whose small cores are left out when decoding; on a machine without such cores nothing is told."""
    planned = "-m", LLAMA, "--machine", "rtx4060-laptop", "--device", "cpu"
    told = run(*planned, "--draft-from", LLAMA).stdout
    record = json.loads(run("--json", *planned, "--draft-from", LLAMA).stdout)["cores"]
    found = record["idle_drafting"]
    assert set(found["cores"]) <= set(record["prefill"]["cores"]) - set(record["decode"]["cores"])
    assert found["cores"]
    assert ("refused, not faster" in told) == (found["idle_s"] >= found["used_s"])
    assert "when decoding: a token of the draft model is predicted to take " in told
    assert "idle" not in run(*planned).stdout
    assert json.loads(run("--json", *planned).stdout)["cores"]["idle_drafting"] is None
    for machine_name in ("raspberry-pi-5", "cloud-2core", "arc-laptop"):
        arguments = "--json", "-m", LLAMA, "--draft-from", LLAMA, "--device", "cpu", "--machine", machine_name
        record = json.loads(run(*arguments).stdout)["cores"]
        is_idle = bool(set(record["prefill"]["cores"]) - set(record["decode"]["cores"]))
        assert (record["idle_drafting"] is not None) == is_idle


def test_a_model_that_drafts_for_itself_takes_what_the_plan_says() -> None:
    """Summaries of pages and lists of chunks, as the open model has them; none where it does not draft."""

    def told(*arguments: str) -> Result:
        same = ["plan", "-m", str(LLAMA), "--ctx", "4096", *arguments]
        return CliRunner().invoke(build_app(), same)

    wanted: tuple[SelfDraftBudget, ...] = ("off", "auto")
    needs = list[int]()
    for self_draft in wanted:
        with load(LLAMA, device="cpu", threads=1, n_context=4096, self_draft=self_draft) as llm:
            assert llm.info.need is not None
            needs.append(llm.info.need.total_bytes)
    drafts = "--self-draft", "auto"
    ways = drafts, (), (*drafts, "--spec", "off"), (*drafts, "--approx", "kv=512")
    found = {how: told("--json", *how) for how in ways}
    drafter_bytes = {how: json.loads(each.stdout)["model"]["drafter_bytes"] for how, each in found.items()}
    assert drafter_bytes == {how: 0 if how != drafts else needs[1] - needs[0] for how in found}
    assert needs[1] - needs[0] > 4 * 4096 // 64
    assert "to draft for long texts by itself; --self-draft off leaves it out" in told(*drafts).stdout
    refused = told("--self-draft", "3000")
    assert refused.exit_code == 1
    assert "is not 2 times as long" in refused.output
