"""Compiled kernels on disk: a second process compiles nothing and loads no compiler; changed sources are seen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from edgeinfer.backends import base
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.pages import PageLayout
from edgeinfer.backends.cpu.layout.panels import FloatPanel, IntegerPanel
from edgeinfer.graph import step
from edgeinfer.jit import library as library_module
from edgeinfer.jit.code import CompiledFunction
from edgeinfer.jit.library import KernelLibrary, cache_folder
from edgeinfer.jit.machine_code import object_code
from edgeinfer.jit.processes import _groups, _request, compile_apart
from edgeinfer.offload import slot_records
from edgeinfer.steps import no_progress
from tests.waiting import PATIENCE_S, until

COMPILE = """
import json, sys
from pathlib import Path
from edgeinfer.backends.cpu import catalogue
from edgeinfer.engine.probing.memory import READ_PATTERNS
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.backends.cpu.layout.pages import PageLayout
from edgeinfer.backends.cpu.layout.panels import FloatPanel
library = KernelLibrary(Path(sys.argv[1]))
library.function(READ_PATTERNS["read_one_stream"][1])
for element in ("f16", "f32"):
    library.address(catalogue.product_float(FloatPanel(element), "portable"))
library.address(catalogue.ADD)
ticks = library.function(catalogue.READ_TICKS)
assert 0 < ticks() < ticks()
print(json.dumps([library.n_compiled, "numba" in sys.modules]))
"""


def compiled_in(folder: Path) -> tuple[int, bool]:
    """How many kernels a fresh process has to compile with this folder, and whether it loads the compiler."""
    done = subprocess.run([sys.executable, "-c", COMPILE, folder], capture_output=True, text=True, check=True)
    n_compiled, has_numba = json.loads(done.stdout)
    return n_compiled, has_numba


def test_a_second_process_compiles_nothing_and_loads_no_compiler(tmp_path: Path) -> None:
    assert compiled_in(tmp_path / "cache") == (5, True)
    assert compiled_in(tmp_path / "cache") == (0, False)
    names = {path.name for path in (tmp_path / "cache").iterdir()}
    assert names == {"read_one_stream.o", "product-f16-narrow.o", "product-f32-narrow.o", "add_rows.o", "read_ticks.o"}


PREPARE = """
import sys
from pathlib import Path
from edgeinfer.backends.cpu import catalogue
from edgeinfer.jit.library import KernelLibrary
library = KernelLibrary(Path(sys.argv[1]))
wanted = [catalogue.ADD, catalogue.READ_TICKS, catalogue.DOZE]
library.prepare(wanted, 2, lambda what, done, total: print(what, done, total))
assert all(library.address(each) for each in wanted)
assert library.n_compiled == 3, library.n_compiled
assert "numba" not in sys.modules
"""


@pytest.mark.parametrize("kept", [True, False])
def test_other_processes_compile(tmp_path: Path, kept: bool) -> None:
    folder = tmp_path / "cache"
    if not kept:
        folder.write_text("no folder")
    done = subprocess.run([sys.executable, "-c", PREPARE, folder], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"compiling for this CPU, once {number} 3" for number in range(4)]
    assert folder.is_dir() == kept


def test_what_no_other_process_can_compile_is_left_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    library = KernelLibrary(tmp_path)
    library.prepare([catalogue.NOTHING], 2, no_progress)
    assert library.n_compiled == 0
    assert library.address(catalogue.NOTHING)
    assert library.n_compiled == 1


MANY = ["avx2", "avxvnni", "portable", "neon", "avx512vnni"]


@pytest.mark.parametrize(("isas", "n_together"), [(["avx2"], 1), (MANY, 2)])
def test_attention_comes_first_and_together_where_all_compilers_have_enough(isas: list[str], n_together: int) -> None:
    pairs = [catalogue.attention(PageLayout("q8", 1, 1), isa) for isa in isas]
    attention = [each for pair in pairs for each in (pair.by_chunk, pair.by_tile)]
    other = catalogue.product(IntegerPanel.parse("i4-32-f16"), "avx2")
    groups = _groups([catalogue.NOTHING, other, *attention, catalogue.LEAD], 2)
    assert groups[-2:] == [[other], [catalogue.NOTHING, catalogue.LEAD]]  # the last two are of one module
    assert {each.name for group in groups[:-2] for each in group} == {each.name for each in attention}
    assert [len(group) for group in groups[:-2]] == [n_together] * (len(attention) // n_together)


def test_what_a_program_compiles_with_numba_itself_runs_after_kernels_were_compiled() -> None:
    """Kernels are compiled without machine code of the functions within them."""
    import numba

    assert object_code(catalogue.NOTHING)
    assert numba.njit(lambda number: number + 1)(1) == 2
    called = numba.cfunc("int64(int64)")(lambda number: number + 1)
    assert called.ctypes(1) == 2


def test_an_interrupted_compilation_leaves_no_process() -> None:
    longer = [catalogue.product_float(FloatPanel(element), "portable") for element in ("f16", "bf16", "f32")]
    found = compile_apart([catalogue.NOTHING, *longer], 1)
    next(found)
    (child,) = (process for process in psutil.Process().children() if "jit.processes" in " ".join(process.cmdline()))
    found.close()
    child.wait(timeout=30)


COMPILES_FOR_LONG = """
import time
from edgeinfer.jit import machine_code, processes
machine_code.object_code = lambda *_: time.sleep(600)
processes.serve()
"""


def test_a_compiler_ends_with_its_parent_amid_a_kernel() -> None:
    """The parent may have been killed, and a kernel may take half a minute."""
    child = subprocess.Popen([sys.executable, "-c", COMPILES_FOR_LONG], stdin=subprocess.PIPE, text=True)
    child.communicate(json.dumps(_request(catalogue.ADD)) + "\n", timeout=PATIENCE_S)
    assert child.returncode == 0


def score_of(pid: int) -> int:
    """How readily the kernel ends a process; the highest where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
    except OSError:
        return 1000


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's out-of-memory killer")
def test_where_memory_runs_short_a_compiler_ends_and_nothing_is_lost(tmp_path: Path) -> None:
    longer = [catalogue.product_float(FloatPanel(element), "portable") for element in ("f16", "bf16", "f32")]
    killed: list[int] = []

    def kill(_what: str, done: int, _total: int) -> None:
        if done == 1:
            of = [each for each in psutil.Process().children() if "jit.processes" in " ".join(each.cmdline())]
            until(lambda: all(score_of(each.pid) == 1000 for each in of))  # each says so itself once it runs
            killed.append(of[0].pid)
            of[0].kill()

    library = KernelLibrary(tmp_path)
    library.prepare([catalogue.NOTHING, *longer], 2, kill)
    assert killed
    assert all(library.address(each) for each in (catalogue.NOTHING, *longer))


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:40] + b"x" + content[41:]])
def test_damaged_code_is_compiled_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    KernelLibrary(tmp_path).address(catalogue.NOTHING)
    kept = tmp_path / "nothing.o"
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    again = KernelLibrary(tmp_path)
    assert again.address(catalogue.NOTHING)
    assert again.n_compiled == 1
    assert len(kept.read_bytes()) == len(whole)
    third = KernelLibrary(tmp_path)
    assert third.address(catalogue.NOTHING)
    assert third.n_compiled == 0


def test_addresses_are_kept(library: KernelLibrary) -> None:
    before = library.n_compiled
    assert library.address(catalogue.ADD) == library.address(catalogue.ADD)
    assert library.address(catalogue.ADD) != library.address(catalogue.SOFT_CAP)
    assert library.n_compiled <= before + 2


def twice(value: int) -> int:
    return 2 * value


def value_or_error(value: int) -> int:
    if value < 0:
        raise ValueError
    return value


def test_code_from_outside_the_package_is_not_kept(tmp_path: Path) -> None:
    library = KernelLibrary(tmp_path)
    assert library.function(CompiledFunction("twice", lambda: twice, 1))(21) == 42
    assert not list(tmp_path.iterdir())


def test_code_that_needs_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="raises needs"):
        KernelLibrary(tmp_path).function(CompiledFunction("raises", lambda: value_or_error, 1))


@pytest.mark.parametrize("changed", ["jit/simd.py", "jit/targets/avx2.py"])
def test_a_changed_compiler_changes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    own = cache_folder()
    shutil.copytree(Path(library_module.__file__).parent, tmp_path / "jit")
    monkeypatch.setattr(library_module, "__file__", str(tmp_path / "jit" / "library.py"))
    assert cache_folder() == own
    with (tmp_path / changed).open("a") as source:
        source.write("\n")
    assert cache_folder() != own


@pytest.mark.parametrize("changed", ["cpu/layout/pages.py", "cpu/kernels/matmul/integers.py"])
def test_a_changed_kernel_changes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    own = catalogue.kernel_folder()
    shutil.copytree(Path(catalogue.__file__).parent, tmp_path / "cpu")
    monkeypatch.setattr(catalogue, "__file__", str(tmp_path / "cpu" / "catalogue.py"))
    assert catalogue.kernel_folder() == own
    with (tmp_path / changed).open("a") as source:
        source.write("\n")
    assert catalogue.kernel_folder() != own


@pytest.mark.parametrize("seam", [base, step, slot_records])
def test_a_changed_constant_of_the_seams_changes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: ModuleType
) -> None:
    own = catalogue.kernel_folder()
    changed = tmp_path / "seam.py"
    changed.write_text(Path(str(seam.__file__)).read_text() + "\n")
    monkeypatch.setattr(seam, "__file__", str(changed))
    assert catalogue.kernel_folder() != own


@pytest.mark.parametrize(("variable", "value"), [("NUMBA_CPU_NAME", "haswell"), ("NUMBA_CPU_FEATURES", "+sse2")])
def test_the_folder_depends_on_the_cpu(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    own = cache_folder()
    monkeypatch.setenv(variable, value)
    assert cache_folder() != own


def test_without_a_place_to_write_kernels_are_compiled_all_the_same(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("no folder")
    library = KernelLibrary(blocker / "cache")
    assert library.address(catalogue.NOTHING)
    assert library.n_compiled == 1


def test_notes_are_kept_beside_the_code(tmp_path: Path) -> None:
    assert KernelLibrary(tmp_path).note("speed") is None
    KernelLibrary(tmp_path).keep_note("speed", "much")
    assert KernelLibrary(tmp_path).note("speed") == "much"
    (tmp_path / "speed.note").write_bytes(b"damaged")
    assert KernelLibrary(tmp_path).note("speed") is None


def test_two_programs_compile_each_kernel_once(tmp_path: Path) -> None:
    """The second program waits for the first, then finds everything there; its progress goes on meanwhile."""
    code = PREPARE.replace("assert library.n_compiled == 3, library.n_compiled", "print(library.n_compiled)")
    folder = tmp_path / "cache"
    programs = [
        subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    written = [program.communicate(timeout=120)[0].splitlines() for program in programs]
    assert [program.returncode for program in programs] == [0, 0]
    assert sorted(int(lines[-1]) for lines in written) == [0, 3]
    for lines in written:
        shares = [line.rsplit(" ", 2)[1:] for line in lines[:-1]]
        assert shares[0] == ["0", "3"]
        assert shares == sorted(shares)
    assert not (folder / "compiling.lock").exists()


def test_a_program_that_was_killed_while_compiling_keeps_nobody_waiting(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    owner = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (folder / "compiling.lock").write_text(json.dumps({"pid": int(owner.stdout), "started": 1.0}))
    done = subprocess.run([sys.executable, "-c", PREPARE, folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not (folder / "compiling.lock").exists()
