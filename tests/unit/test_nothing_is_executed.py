"""Nothing that comes from a file or the network is run: the sources contain no way to do so."""

from __future__ import annotations

import ast
import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.store import ModelStore

PACKAGE = Path(edgeinfer.__file__).parent
CALLS = frozenset({"eval", "exec", "compile", "__import__", "os.system", "os.popen"})
"""Functions that run a text."""
MODULES = frozenset(
    {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "torch", "code"}
)
"""Modules whose files are programs, or can be."""
ATTRIBUTES = frozenset({"extractall", "getoutput", "getstatusoutput", "mktemp", "execv", "execvp"})
"""Functions that run a text, unpack what they are given wherever it says, or use names that others can foresee."""
ALLOWED: dict[str, frozenset[str]] = {
    "app/cluster/answering.py": frozenset({"imports pickle"}),  # on the way to a node: Ray pickles all it carries
    "app/cluster/batches.py": frozenset({"imports pickle"}),
    "app/sessions/other_chats.py": frozenset({"imports yaml"}),  # `safe_load` alone, of chats that a person imports
}
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


class _Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._mark),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf", "adapter.pt", "model.safetensors"])
def test_files_of_other_programs_are_refused_and_not_run(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    for content in (pickle.dumps(_Trap(mark)), _zipped(pickle.dumps(_Trap(mark)))):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(EdgeInferError):
            GGUFFile.open(path)
        with pytest.raises(EdgeInferError):
            ModelStore(tmp_path / "store").pull(str(path))
    assert not mark.exists()
    pickle.loads(pickle.dumps(_Trap(mark)))  # it is one
    assert mark.exists()


def _zipped(content: bytes) -> bytes:
    """A file of torch.save: a pickle in an archive."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return held.getvalue()
