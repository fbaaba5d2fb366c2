"""The cache of compiled kernels: a second process compiles nothing, a changed source is never stale."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.backends.cpu import jit
from edgeinfer.backends.cpu.jit import KernelLibrary
from edgeinfer.backends.cpu.kernels import activations, launch, rows

COMPILE = """
import json, sys
from pathlib import Path
from edgeinfer.backends.cpu.jit import KernelLibrary
from edgeinfer.backends.cpu.kernels import launch, product_float, rows
from edgeinfer.backends.cpu.panels import FloatPanel
library = KernelLibrary(Path(sys.argv[1]))
for element in ("f16", "f32"):
    library.address(product_float.product_float_kernel(FloatPanel(element)))
library.address(rows.ADD)
library.function("int64(intp, int64)", launch.doze)
print(json.dumps(library.n_compiled))
"""


def n_compiled_in(folder: Path) -> int:
    """Kernels that a fresh process has to compile with this cache folder."""
    done = subprocess.run([sys.executable, "-c", COMPILE, folder], capture_output=True, text=True, check=True)
    found: int = json.loads(done.stdout)
    return found


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    assert n_compiled_in(tmp_path / "cache") == 4
    assert n_compiled_in(tmp_path / "cache") == 0
    indexes = [path.parent for path in (tmp_path / "cache").rglob("*.nbi")]
    assert len(set(indexes)) == 4  # kernels made from one function do not share an index


def test_addresses_are_kept(library: KernelLibrary) -> None:
    before = library.n_compiled
    assert library.address(rows.ADD) == library.address(rows.ADD)
    assert library.address(rows.ADD) != library.address(rows.SOFT_CAP)
    function = library.function("int64(intp, int64)", launch.doze)
    assert library.function("int64(intp, int64)", launch.doze) is function
    assert library.n_compiled <= before + 3


@pytest.mark.parametrize("changed", ["cpu/simd.py", "cpu/kernels/product.py", "cpu/targets/avx2.py", "base.py"])
def test_a_changed_source_changes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    own = jit.cache_folder()
    copy = tmp_path / "backends"
    shutil.copytree(Path(jit.__file__).parent.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(jit, "__file__", str(copy / "cpu" / "jit.py"))
    assert jit.cache_folder() == own
    with (copy / changed).open("a") as source:
        source.write("\n")
    assert jit.cache_folder() != own


def test_the_folder_depends_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    own = jit.cache_folder()
    monkeypatch.setattr(jit, "cpu_features", lambda: frozenset({"sse2"}))
    assert jit.cache_folder() != own


def test_without_a_place_to_write_kernels_are_compiled_all_the_same(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("no folder")
    library = KernelLibrary(blocker / "cache")
    assert library.address(activations.ROUND_ROWS)
    assert library.n_compiled == 1
    assert not list(Path(jit.__file__).parent.rglob("*.nbi"))
