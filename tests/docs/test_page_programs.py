"""Code of the documentation: Python and Node programs run as they stand there, with the starter model; data is valid.

Blocks that their page marks as parsed only, and those of `py`, code of other packages, are compiled, and name nothing
of edgeinfer that does not exist.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import edgeinfer
from tests.docs.code_blocks import ROOT, Block, blocks, blocks_of, pages
from tests.server.conftest import served

PYTHON, NODE = blocks("python", "py"), blocks("js", "mjs", "ts")
CLIENT = "http://127.0.0.1:8080"


def runs(found: tuple[Block, ...]) -> list[Block]:
    return [block for block in found if block.reason is None and block.language != "py"]


@pytest.mark.model
@pytest.mark.parametrize("block", runs(PYTHON), ids=lambda block: block.name)
def test_python_runs(block: Block, starter_model: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = block.text
    if "import edgeinfer" not in code and "edgeinfer.load" in code:
        code = "import edgeinfer\n" + code
    (home / "models").mkdir(parents=True)
    os.symlink(starter_model, home / "models" / starter_model.name)
    if CLIENT in code:
        with served(starter_model) as running:
            scope: dict[str, object] = {}
            exec(compile(code.replace(CLIENT, running.url), block.page, "exec"), scope)
            scope["client"].close()  # type: ignore[attr-defined]
    else:
        exec(compile(code, block.page, "exec"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_python_names_what_exists(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "edgeinfer":
            assert node.attr in edgeinfer.__all__, node.attr


@pytest.mark.model
@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
@pytest.mark.parametrize("block", runs(NODE), ids=lambda block: block.name)
def test_node_runs(block: Block, starter_model: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.mjs"
    with served(starter_model) as running:
        program.write_text(block.text.replace(CLIENT, running.url), encoding="utf-8")
        ended = subprocess.run(["node", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


@pytest.mark.parametrize("block", blocks("json"), ids=lambda block: block.name)
def test_json_is_valid(block: Block) -> None:
    if block.reason is None:
        json.loads(block.text)


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.name)
def test_toml_is_valid(block: Block) -> None:
    if block.reason is None:
        tomllib.loads(block.text)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_seen(page: Path) -> None:
    fences = re.findall(r"(?m)^ *```", page.read_text(encoding="utf-8"))
    assert len(fences) == 2 * len(list(blocks_of(page)))


def test_there_is_something_to_run() -> None:
    assert len(runs(PYTHON)) >= 10
    assert len(runs(NODE)) >= 1
