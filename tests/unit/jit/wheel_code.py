"""Object files of wheels that `scripts/make_kernel_wheel.py` makes: unpacked, linked for any system, run if possible.

Knows nothing of what a kernel does. A `WheelLibrary` takes the place of a `KernelLibrary` whose code comes from a wheel
for x86 on any system: LLVM links all kinds of object files, and functions that are called as Windows does get a
function before them that is called as this system does.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import llvmlite.binding as llvm

from edgeinfer.jit.code import CompiledFunction, Kernel, entry
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.machine_code import machine_of
from edgeinfer.jit.prebuilt import PACKAGE, TARGETS

ROOT = Path(__file__).parents[3]
TRIPLES = {
    "manylinux_2_17_x86_64": "x86_64-unknown-linux-gnu",
    "manylinux_2_17_aarch64": "aarch64-unknown-linux-gnu",
    "win_amd64": "x86_64-pc-windows-msvc",
    "macosx_10_15_x86_64": "x86_64-apple-macosx10.15.0",
    "macosx_11_0_arm64": "arm64-apple-macosx11.0.0",
}
"""LLVM's name of the system of each wheel, by the wheel's tag."""
EVERY_WHEEL = ("--system", "linux", "windows", "macos", "--machine", "x86_64", "aarch64")
LINKED = """
import sys
from pathlib import Path
import llvmlite.binding as llvm
from edgeinfer.jit.machine_code import machine_of
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
triple, cpu, features, *paths = sys.argv[1:]
for path in map(Path, paths):
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine_of(triple, cpu, features))
    engine.add_object_file(llvm.ObjectFileRef.from_data(path.read_bytes()))
    engine.finalize_object()
    assert engine.get_function_address(f"edgeinfer.{path.stem}"), path
"""
"""Links object files as `KernelLibrary` does. A reference that leads nowhere becomes zero there."""


def make(folder: Path, *options: str) -> list[Path]:
    """The wheels that the script makes."""
    command = [sys.executable, "scripts/make_kernel_wheel.py", str(folder), "--processes", "2", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(folder.glob("*.whl"))


def unpack(wheels: list[Path], folder: Path) -> Path:
    """Put object files into FOLDER/WHEEL_TAG/TARGET."""
    for wheel in wheels:
        tag = wheel.stem.partition("-py3-none-")[2]
        with zipfile.ZipFile(wheel) as whole:
            for name in whole.namelist():
                if name.startswith(f"{PACKAGE}/") and name.endswith(".zip"):
                    target = Path(name).stem.partition("-")[2]
                    with whole.open(name) as inner, zipfile.ZipFile(inner) as codes:
                        codes.extractall(folder / tag / target)
    return folder


def link(folder: Path, tag: str, target: str) -> None:
    """Link all object files of a target, in a process of its own."""
    of = TARGETS[target]
    command = [sys.executable, "-c", LINKED, TRIPLES[tag], of.cpu, of.flags, *sorted((folder / tag / target).iterdir())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class WheelLibrary:
    """Addresses of code of a wheel's target; what the wheel lacks comes from `others`."""

    def __init__(self, folder: Path, tag: str, target: str, others: KernelLibrary) -> None:
        self._folder, self._others, self._tag = folder / tag / target, others, tag
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = machine_of(TRIPLES[tag], TARGETS[target].cpu, TARGETS[target].flags)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._callers: list[llvm.ExecutionEngine] = []
        self.names: set[str] = set()

    def address(self, wanted: Kernel | CompiledFunction) -> int:
        """As of `KernelLibrary`."""
        path = self._folder / f"{wanted.name}.o"
        if not path.exists():
            return self._others.address(wanted)
        if wanted.name not in self.names:
            self.names.add(wanted.name)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(path.read_bytes()))
            self._engine.finalize_object()
        found: int = self._engine.get_function_address(entry(wanted.name))
        return self._caller(found) if self._tag.startswith("win") else found

    def _caller(self, address: int) -> int:
        """A function of three arguments that calls the one at an address as Windows does."""
        text = f"""define void @caller(i64 %a, i64 %b, i64 %c) {{
            call win64cc void inttoptr (i64 {address} to ptr)(i64 %a, i64 %b, i64 %c)
            ret void
        }}"""
        here = machine_of(llvm.get_process_triple(), "", "")
        self._callers.append(llvm.create_mcjit_compiler(llvm.parse_assembly(text), here))
        self._callers[-1].finalize_object()
        found: int = self._callers[-1].get_function_address("caller")
        return found
