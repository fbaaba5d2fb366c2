"""Nothing that comes from a file or the network is run: the sources contain no way to do so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgeinfer

PACKAGE = Path(edgeinfer.__file__).parent
CALLS = frozenset({"eval", "exec", "compile", "__import__", "os.system", "os.popen"})
"""Functions that run a text."""
MODULES = frozenset(
    {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "torch", "code"}
)
"""Modules whose files are programs, or can be."""
ATTRIBUTES = frozenset({"extractall", "getoutput", "getstatusoutput", "mktemp", "execv", "execvp"})
"""Functions that run a text, unpack what they are given wherever it says, or use names that others can foresee."""
ALLOWED: dict[str, frozenset[str]] = {}
"""What else is allowed where: file and call."""


def dotted(node: ast.expr) -> str:
    """The name of what is called, as far as it is one."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def findings(tree: ast.AST) -> Iterator[str]:
    """What in a source would run what it is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"imports {name}" for name in names if name.split(".")[0] in MODULES)
        if not isinstance(node, ast.Call):
            continue
        name, options = dotted(node.func), {each.arg: each.value for each in node.keywords}
        last = name.rpartition(".")[2]
        if name in CALLS or (name != last and last in ATTRIBUTES):
            yield f"calls {name}"
        for option in ("shell", "allow_pickle"):
            value = options.get(option)
            if value is not None and not (isinstance(value, ast.Constant) and value.value is False):
                yield f"calls {name} with {option}"


def test_sources_run_nothing() -> None:
    found, n_files = list[str](), 0
    for path in sorted(PACKAGE.rglob("*.py")):
        n_files += 1
        where = path.relative_to(PACKAGE).as_posix()
        found += [
            f"{where} {each}" for each in findings(ast.parse(path.read_bytes())) if each not in ALLOWED.get(where, ())
        ]
    assert n_files > 500
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "exec(x)",
        "compile(x, '', 'exec')",
        "import pickle",
        "from torch import load",
        "import yaml.constructor",
        "np.load(x, allow_pickle=True)",
        "np.load(x, allow_pickle=flag)",
        "subprocess.run(x, shell=True)",
        "os.system(x)",
        "archive.extractall()",
        "tempfile.mktemp()",
        "__import__(x)",
    ],
)
def test_such_a_source_would_be_found(source: str) -> None:
    assert list(findings(ast.parse(source)))


@pytest.mark.parametrize("source", ["re.compile(x)", "model.eval", "np.load(x, allow_pickle=False)", "evaluate(x)"])
def test_others_are_not(source: str) -> None:
    assert not list(findings(ast.parse(source)))
