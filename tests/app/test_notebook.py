"""The notebook runs from its first cell to its last one, with the starter model, and is kept without outputs.

Its cells are run as IPython does it as far as they need it: `!` runs a command, `await` may stand outside of functions,
and what the last line is worth is shown.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
KEPT = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
CELLS = [cell for cell in KEPT["cells"] if cell["cell_type"] == "code"]


def command(line: str) -> str:
    """The output of a line that begins with `!`, of a command of ours."""
    words = line.removeprefix("!").split()
    assert words[0] == "edgeinfer"
    ran = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def evaluate(tree: ast.Module | ast.Expression, scope: dict[str, object]) -> object:
    """What code is worth; an event loop runs it if it awaits anything."""
    mode = "eval" if isinstance(tree, ast.Expression) else "exec"
    code = compile(tree, NOTEBOOK.name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(code, scope)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def shown(source: str, scope: dict[str, object]) -> str:
    """What the last line of a cell shows below it."""
    if source.startswith("!"):
        return command(source)
    tree, last = ast.parse(source), None
    if isinstance(tree.body[-1], ast.Expr):
        last = tree.body.pop()
    evaluate(tree, scope)
    if not isinstance(last, ast.Expr):
        return ""
    found = evaluate(ast.Expression(last.value), scope)
    markdown = getattr(found, "_repr_markdown_", None)
    return "" if found is None else repr(found) if markdown is None else str(markdown())


@pytest.mark.model
def test_it_runs(starter_model: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "models").mkdir(parents=True)
    os.symlink(starter_model, home / "models" / starter_model.name)
    scope: dict[str, object] = {}
    results = {cell["id"]: shown("".join(cell["source"]), scope) + capsys.readouterr().out for cell in CELLS}
    assert [name for name, result in results.items() if not result.strip()] == []
    assert "decode " in results["plan"]
    assert results["load"] == "<LLM SmolLM2-135M-Instruct.Q4_1: llama on cpu, 2048 tokens of context>"
    assert results["close"] == "<LLM SmolLM2-135M-Instruct.Q4_1: closed>"
    assert "'city'" in results["schema"]
    assert "('price', 2.5)" in results["tools"]
    assert results["messages"].count("'assistant'") == 2


def test_it_is_kept_without_outputs() -> None:
    assert (KEPT["nbformat"], KEPT["nbformat_minor"]) == (4, 5)
    assert KEPT["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in CELLS:
        assert (cell["outputs"], cell["execution_count"], cell["metadata"]) == ([], None, {})
    assert len({cell["id"] for cell in KEPT["cells"]}) == len(KEPT["cells"])
