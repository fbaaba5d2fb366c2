"""`--approx`: labelled answers, the same tokens from disk and with drafts, and refusals that say what would work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.app.removal import bundles_of
from edgeinfer.backends.base import DeviceOptions, Limits, open_device
from edgeinfer.backends.cpu.bundles.contents import contents_of
from edgeinfer.backends.cpu.bundles.file import BundleFile
from edgeinfer.engine.loading import load
from edgeinfer.engine.offload.weight_placement import place_of
from edgeinfer.errors import BadBundle, BadSetting, DeviceUnavailable, UnsupportedModel
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import open_model
from edgeinfer.models.store import ModelStore
from scripts.sparse_model import SparseShape, write_sparse
from tests.app import sparse_disks
from tests.app.test_cli_plan_streams import measured
from tests.conftest import write_tiny_llama
from tests.golden.goldens import DATA

SHAPE = SparseShape(256, 6, 4096, 4, 2, 268, activation="silu", zeros=0.5)
RAM = ("--ram", "9MB")
"""Less than the weights, and more than what reading takes."""
T = 0.2
PROMPT = "the rain in the"


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


@pytest.fixture(scope="module")
def silu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama whose neurons can be told apart."""
    folder = tmp_path_factory.mktemp("silu")
    write_sparse(SHAPE, write_tiny_llama(folder / "tokenizer.gguf"), folder / "silu.gguf")
    return folder / "silu.gguf"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments))


def answer(model: Path, *arguments: str) -> dict[str, object]:
    given = ("--raw", "--temp", "0", "--max-tokens", "16", "--ctx", "128", "--device", "cpu", "--json", PROMPT)
    result = run("run", "-m", str(model), *given, *arguments)
    assert result.exit_code == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_an_approximate_answer_is_another_one_and_says_so(silu: Path) -> None:
    plain, approximate = answer(silu), answer(silu, "--approx", str(T))
    assert (plain["approx"], plain["skipped_share"]) == (None, None)
    assert plain["tokens"] != approximate["tokens"]
    assert approximate["approx"] == T
    assert 0.05 < float(str(approximate["skipped_share"])) < 0.95
    assert "approx 0.2" in str(approximate["plan"])
    assert any("not what the model itself would say" in notice for notice in approximate["notices"])  # type: ignore[attr-defined]
    shown = run("run", "-m", str(silu), "--raw", "--max-tokens", "2", "--stats", "--approx", str(T), PROMPT)
    assert "% of neurons left out" in shown.stderr
    more = answer(silu, "--approx", str(3 * T))
    assert float(str(more["skipped_share"])) > float(str(approximate["skipped_share"]))


@pytest.mark.parametrize("layout", sorted(sparse_disks.DISKS))
def test_tokens_are_the_same_from_disk_with_drafts_and_in_another_process(silu: Path, layout: str) -> None:
    sparse_disks.measured(sparse_disks.DISKS[layout])
    expected = answer(silu, "--approx", str(T), "--spec", "off")
    ways = (("--spec", "on"), (*RAM, "--spec", "off"), (*RAM, "--spec", "on"), (*RAM, "--isolate"))
    for way in ways:
        found = answer(silu, "--approx", str(T), *way)
        assert found["tokens"] == expected["tokens"], way
        assert found["approx"] == T
        assert float(str(found["skipped_share"])) > 0
        assert bool(found["weights_read_bytes"]) == ("--ram" in way)
        if way == (*RAM, "--spec", "off"):  # later runs know how many fire
            assert (found["reading"]["neurons"] is not None) == (layout == "by neurons")  # type: ignore[index]


def test_bundles_of_the_model_and_of_its_approximation_are_two_files(silu: Path) -> None:
    for approx in ((), ("--approx", str(T)), ("--approx", str(2 * T)), ()):
        run("pack", str(silu), *approx)
    paths = bundles_of(ModelStore().find(str(silu)))
    assert len(paths) == 2
    with open_model(silu) as plain, open_model(silu, approx=T) as approximate, open_model(silu, approx=9.0) as other:
        identity = fingerprint(plain.file)
        assert [place_of(model.spec, model.file.tensors, "silu", identity) for model in (plain, approximate)] == paths
        held, neurons, others = (contents_of(each.spec, each.file.tensors) for each in (plain, approximate, other))
        assert neurons.layers
        assert not held.layers
        BundleFile.open(paths[1], others, identity).close()  # whatever the threshold
        for path, contents in ((paths[0], neurons), (paths[1], held)):
            with pytest.raises(BadBundle, match="lays panels out in another way"):
                BundleFile.open(path, contents, identity)


def test_read_whole_a_model_and_its_approximation_have_a_file_each(silu: Path, home: Path) -> None:
    """Gates are read together with their up matrices in one of the two alone."""
    sparse_disks.measured(sparse_disks.DISKS["whole"])
    ways = (("--spec", "off"), ("--spec", "off", "--approx", str(T)))
    files = []
    for way in (*ways, *ways):
        found = answer(silu, *way, *RAM)
        assert found["tokens"] == answer(silu, *way)["tokens"]
        assert found["reading"]["neurons"] is None  # type: ignore[index]
        files.append({path: path.stat().st_ino for path in (home / "bundles").glob("*.bundles")})
    assert len(files[1]) == 2
    assert files[1] == files[2] == files[3]


def test_what_is_said_of_a_file_that_is_none_makes_one(silu: Path, home: Path) -> None:
    sparse_disks.measured(sparse_disks.DISKS["whole"])
    given = ("run", "-m", str(silu), "--approx", str(T), *RAM, "--no-pack", "--max-tokens", "1", "--ctx", "128", PROMPT)
    refused = run(*given)
    assert refused.exit_code == 1
    assert "edgeinfer pack MODEL --approx T --whole writes it" in refused.stderr
    assert run("pack", str(silu), "--approx", str(T), "--whole").exit_code == 0
    assert run(*given).exit_code == 0
    (path,) = (home / "bundles").glob("*.bundles")
    path.write_bytes(path.read_bytes()[:-1])
    assert "edgeinfer pack MODEL --repair --approx T --whole makes it anew" in run(*given).stderr
    assert run("pack", str(silu), "--repair", "--approx", str(T), "--whole").exit_code == 0
    assert run(*given).exit_code == 0


def test_states_of_a_model_are_not_those_of_its_approximation(silu: Path) -> None:
    found = set()
    for approx in (None, T, 2 * T):
        with load(silu, approx=approx, n_context=64, spec="off") as llm:
            found.add(llm.info.fingerprint)
            assert llm.info.approx == approx
    assert len(found) == 3


@pytest.mark.parametrize("threshold", ["0", "-1", "nan", "inf", "1e-40"])
def test_thresholds_that_are_none(silu: Path, threshold: str) -> None:
    result = run("run", "-m", str(silu), "--approx", threshold, "--max-tokens", "1", PROMPT)
    assert result.exit_code == 2
    assert "--approx needs a threshold of activations such as 0.05" in result.stderr


@pytest.mark.parametrize(("name", "why"), [("llama-relu-q4_0", "exact zeros"), ("mixtral-q8_0", "experts")])
def test_models_that_have_nothing_to_leave_out(name: str, why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        load(DATA / f"{name}.gguf", approx=T)


@pytest.mark.parametrize("device", ["openvino", "onnx", "cuda", "llamacpp", "cpu,onnx"])
def test_other_devices_refuse(silu: Path, device: str) -> None:
    with pytest.raises(BadSetting, match=r"use --device cpu with --approx"):
        load(silu, device=device, approx=T)


@pytest.mark.parametrize("name", ["openvino", "onnx"])
def test_devices_of_whole_graphs_refuse_such_a_model_themselves(silu: Path, name: str) -> None:
    try:
        device = open_device(name, DeviceOptions(n_workers=1))
    except DeviceUnavailable as reason:
        pytest.skip(str(reason))
    with open_model(silu, 64, T) as model, pytest.raises(UnsupportedModel, match="--device cpu runs --approx"):
        device.compile(model.spec, model.file, Limits(64, 1))
    device.close()


def test_the_plan_says_it(silu: Path) -> None:
    measured(1e9)
    found = json.loads(run("plan", "-m", str(silu), "--approx", str(T), "--json").stdout)
    assert (found["approx"], found["schedule"]) == (T, "cpu")
    assert "count as zero" in run("plan", "-m", str(silu), "--approx", str(T)).stdout
    refused = run("plan", "-m", str(silu), "--approx", str(T), "--schedule", "rows")
    assert refused.exit_code == 1
    assert "leave it out" in refused.stderr


def test_chat_and_batches_say_it(silu: Path, tmp_path: Path) -> None:
    given = ("-m", str(silu), "--approx", str(T), "--max-tokens", "3", "--ctx", "128", "--device", "cpu")
    chat = CliRunner().invoke(build_app(), ["chat", *given], input="hello\n")
    assert "not what the model itself would say" in chat.stderr
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    batch = run("batch", str(prompts), *given)
    assert [json.loads(line)["approx"] for line in batch.stdout.splitlines()] == [T, T]
