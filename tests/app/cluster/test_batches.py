"""Batches on a Ray cluster: the answers of one computer, once each, whatever happens to nodes and the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.batch_files import read_entries
from edgeinfer.app.cli import build_app
from edgeinfer.app.cluster.batches import ClusterAnswers, ClusterBatch
from edgeinfer.app.cluster.nodes import on_node
from edgeinfer.app.cluster.weights import FileSender, SentModel, bring, pieces_of
from edgeinfer.models.store import ModelStore, path_model
from edgeinfer.settings import Settings, load_settings
from tests.app.cluster.conftest import OTHER, SLOW, Nodes
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
LINES = [
    "the rain",
    '{"id": "b", "prompt": "in the heat", "max_tokens": 3}',
    '{"text": "then", "temp": 0.5, "seed": 7, "stop": ["zzz"]}',
    '{"prompt": "what is this", "images": ["none.png"]}',
    *(f"the {number}. line" for number in range(8)),
]
OPTIONS = ("--device", "cpu", "--ctx", "128", "--temp", "0", "--seed", "1", "--max-tokens", "8", "--spec", "off")
TIMES = ("ttft_s",)


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def batch(model: Path, lines: list[str], *arguments: str) -> Result:
    command = ["batch", "-", "-m", str(model), *OPTIONS, *arguments]
    return CliRunner().invoke(build_app(), command, input="\n".join(lines))


def records(text: str) -> dict[int, Mapping[str, object]]:
    """Answers by index, without what differs by run. Each index comes once."""
    found = [json.loads(line) for line in text.splitlines()]
    assert len({each["index"] for each in found}) == len(found)
    return {each["index"]: {key: value for key, value in each.items() if key not in TIMES} for each in found}


def settings_for(model: Path) -> Settings:
    return load_settings({"model": str(model), "device": "cpu", "ctx": 128, "temp": 0.0, "seed": 1, "max_tokens": 4})


def answers_of(model: Path, lines: list[str], *, lets_in: bool = False) -> ClusterAnswers:
    settings = settings_for(model)
    entries = read_entries(lines, settings.generation.system)
    return ClusterAnswers(path_model(model), entries, ClusterBatch(settings, 1, lets_in=lets_in))


def test_answers_are_those_of_one_computer_on_two_instruction_sets(nodes: Nodes, tiny_model: Path) -> None:
    alone = batch(tiny_model, LINES)
    together = batch(tiny_model, LINES, "--ray", nodes.cluster.address, "--stats")
    assert (alone.exit_code, together.exit_code) == (1, 1), together.output  # one line names an image that is not there
    assert records(together.stdout) == records(alone.stdout)
    assert "1 of 12 prompts could not be answered" in together.stderr
    assert "other bits" not in together.stderr


def test_nodes_come_and_go_and_no_line_is_lost_or_doubled(nodes: Nodes, tiny_model: Path) -> None:
    victim, slow, n_lines = nodes.add(SLOW.format(seconds=3)), nodes.add(SLOW.format(seconds=2)), 50
    answers = answers_of(tiny_model, [f"line {number}" for number in range(n_lines)])
    found: list[object] = []
    joiner = None
    for line in answers:
        found.append(line["index"])
        if joiner is None and answers.counts.lines_by_node[victim.node_id]:  # it has others under way
            nodes.kill(victim)
            joiner = nodes.add()
    by_node = answers.counts.lines_by_node
    assert sorted(map(str, found)) == sorted(map(str, range(n_lines)))
    assert answers.counts.n_doubled == 0
    assert joiner is not None
    assert by_node[slow.node_id] < n_lines / 2  # it held up nobody
    nodes.kill(slow)
    nodes.kill(joiner)


def test_a_node_with_another_version_is_left_out_or_told_apart(nodes: Nodes, tiny_model: Path) -> None:
    other, lines = nodes.add(OTHER), [f"line {number}" for number in range(6)]
    try:
        strict = answers_of(tiny_model, lines)
        assert len([line for line in strict if "computed_by" not in line]) == 6
        assert other.node_id not in strict.counts.lines_by_node
        assert "left out: edgeinfer 0.0.9" in strict.counts.notes[0]
        mixed = answers_of(tiny_model, lines, lets_in=True)
        told = [line for line in mixed if "computed_by" in line]
        assert len(told) == mixed.counts.lines_by_node[other.node_id]
        assert all("edgeinfer 0.0.9" in str(line["computed_by"]) for line in told)
    finally:
        nodes.kill(other)


def test_a_killed_driver_goes_on_where_it_was(nodes: Nodes, tiny_model: Path, tmp_path: Path) -> None:
    lines, out = [f"line {number}" for number in range(16)], tmp_path / "out.jsonl"
    (tmp_path / "prompts.txt").write_text("\n".join(lines))
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "edgeinfer",
        "batch",
        str(tmp_path / "prompts.txt"),
        "-m",
        str(tiny_model),
    ]
    command += [*OPTIONS, "--out", str(out), "--parallel", "1", "--ray", nodes.cluster.address]
    slow = nodes.add(SLOW.format(seconds=1))
    running = subprocess.Popen(command, env={**os.environ}, stderr=subprocess.DEVNULL)
    until(lambda: out.exists() and out.read_text().count("\n") >= 2)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = out.read_text().splitlines()
    result = batch(tiny_model, lines, "--out", str(out), "--ray", nodes.cluster.address)
    assert result.exit_code == 0, result.output
    assert out.read_text().splitlines()[: len(before)] == before
    assert records(out.read_text()) == records(batch(tiny_model, lines).stdout)
    nodes.kill(slow)


def test_weights_reach_nodes_over_the_object_store_and_only_once(
    nodes: Nodes, tiny_model: Path, tmp_path: Path
) -> None:
    import ray

    sent = SentModel.of(path_model(tiny_model))
    files = tuple(replace(file, path=f"/no/such/{Path(file.path).name}") for file in sent.files)
    there = replace(sent, files=files, source="no such model")
    here = on_node(ray.get_runtime_context().get_node_id())
    sender = ray.remote(FileSender).options(num_cpus=0, scheduling_strategy=here).remote(sent.files)

    def fetched() -> str:
        return str(bring(there, pieces_of(sender), ModelStore(tmp_path / "models"), tmp_path / "fetched")[0])

    task = ray.remote(num_cpus=0)(fetched)
    on_nodes = [task.options(scheduling_strategy=on_node(node["NodeID"])) for node in ray.nodes() if node["Alive"]]
    paths = set(ray.get([each.remote() for each in on_nodes]))
    assert len(on_nodes) > 1
    assert [Path(path).read_bytes() for path in paths] == [tiny_model.read_bytes()]
    assert ray.get(sender.n_sent.remote()) == sent.files[0].n_pieces
