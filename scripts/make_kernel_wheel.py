"""Makes wheels of `edgeinfer-kernels`: kernels compiled beforehand for common CPUs, for first starts without compiling.

Run: `python scripts/make_kernel_wheel.py OUT_FOLDER`, with `--system linux windows macos --machine x86_64 aarch64` for
all wheels and `--only NAME…` for some kernels. LLVM makes object files for every system. A wheel serves exactly the
sources that it was made from: their hash is in its index (`jit.prebuilt`). The same sources and compiler give the same
bytes, on any machine.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import multiprocessing
import os
import platform
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import llvmlite.binding as llvm

from edgeinfer import __version__
from edgeinfer.jit.code import CompiledFunction, Kernel
from edgeinfer.jit.prebuilt import INDEX, PACKAGE, TARGETS, CodeTarget, machine_name


@dataclass(frozen=True, slots=True)
class System:
    """An operating system: its object files, and by architecture LLVM's name of it and the tag of its wheel."""

    object_format: str
    triples: Mapping[str, str]
    tags: Mapping[str, str]


SYSTEMS = MappingProxyType(
    {
        "linux": System(
            "elf",
            {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"},
            {"x86_64": "manylinux_2_17_x86_64", "aarch64": "manylinux_2_17_aarch64"},
        ),
        "windows": System("coff", {"x86_64": "x86_64-pc-windows-msvc"}, {"x86_64": "win_amd64"}),
        "macos": System(
            "macho",
            {"x86_64": "x86_64-apple-macosx10.15.0", "aarch64": "arm64-apple-macosx11.0.0"},
            {"x86_64": "macosx_10_15_x86_64", "aarch64": "macosx_11_0_arm64"},
        ),
    }
)
THIS_SYSTEM = {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")
MACHINES = ("x86_64", "aarch64")
TASKS_PER_PROCESS = 30
"""A process grows by some 10 MB with each function that it compiles."""
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The earliest date of a zip archive."""
LAYOUT_LINE = re.compile('^target datalayout = ".*"$', re.MULTILINE)
TRIPLE_LINE = re.compile('^target triple = ".*"$', re.MULTILINE)
ROOT = Path(__file__).parents[1]
DESCRIPTION = f"""\
# edgeinfer-kernels

Object code of edgeinfer's kernels for common CPUs, so that its first start compiles nothing:
`pip install 'edgeinfer[app,kernels]'`. There is no code in it that Python runs. It serves edgeinfer {__version__}
alone; any other version compiles its own kernels, as it does without this package.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where code runs: a CPU on a system."""

    system: str
    target: CodeTarget

    @property
    def triple(self) -> str:
        """LLVM's name of the system and architecture."""
        return SYSTEMS[self.system].triples[self.target.machine]


Code = Kernel | CompiledFunction


def compile_elsewhere(target: CodeTarget, triple: str) -> None:
    """Make Numba compile for another CPU and system in this process; nothing that it compiles can be called."""
    platform.machine = lambda: target.machine
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: triple
    os.environ["NUMBA_OPT"] = "0"
    from numba.core import codegen, config

    def only_finish(library: codegen.JITCodeLibrary, name: str) -> int:
        library._ensure_finalized()
        return 1

    config.CPU_NAME, config.CPU_FEATURES = target.cpu, target.flags
    codegen.JITCodeLibrary.get_pointer_to_function = only_finish
    codegen.JITCodeLibrary._finalize_specific = lambda library: None
    codegen.JITCPUCodegen.set_env = lambda *_: None


def compiled(code: Code, places: Sequence[Place]) -> tuple[str, list[bytes]]:
    """The name and object code of a kernel or function for each place; in a process that compiles elsewhere.

    Numba's part is done once: what it makes depends neither on the system nor on the features of the CPU.
    """
    from edgeinfer.jit.code import entry
    from edgeinfer.jit.compiler import optimised, unoptimised
    from edgeinfer.jit.machine_code import machine_of

    text = unoptimised(code.load(), code.n_arguments, code.returns, entry(code.name))
    objects = []
    for place in places:
        machine = machine_of(place.triple, place.target.cpu, place.target.flags)
        of_place = LAYOUT_LINE.sub(f'target datalayout = "{machine.target_data}"', text)
        of_place = TRIPLE_LINE.sub(f'target triple = "{place.triple}"', of_place)
        objects.append(machine.emit_object(optimised(of_place, entry(code.name), machine)))
    return code.name, objects


def compile_all(machine: str, systems: Sequence[str], options: argparse.Namespace) -> dict[Place, dict[str, bytes]]:
    """Object code by name, for each system and target of an architecture."""
    places = [Place(system, target) for system in systems for target in targets(system, machine)]
    codes = {code.name: code for place in places for code in all_code(place.target.isa, options.only)}
    tasks: dict[str, list[Place]] = {name: [] for name in slowest_first(codes)}
    for place in places:
        for code in all_code(place.target.isa, options.only):
            tasks[code.name].append(place)
    made: dict[Place, dict[str, bytes]] = {place: {} for place in places}
    first = places[-1]  # the least demanding CPU
    context = multiprocessing.get_context("spawn")
    pool_options = options.processes, context, compile_elsewhere, (first.target, first.triple)
    names, done = list(tasks), 0
    size = options.processes * TASKS_PER_PROCESS
    for start in range(0, len(names), size):  # new processes each time; max_tasks_per_child may wait forever
        with ProcessPoolExecutor(*pool_options) as pool:
            running = [pool.submit(compiled, codes[name], tasks[name]) for name in names[start : start + size]]
            for each in as_completed(running):
                name, objects = each.result()
                for place, data in zip(tasks[name], objects, strict=True):
                    made[place][name] = data
                done += 1
                print(f"\r{machine}: {done} of {len(names)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return made


def targets(system: str, machine: str) -> list[CodeTarget]:
    """CPUs of an architecture that a wheel for a system serves; `jit.cpu` uses tile registers under Linux alone."""
    of_machine = [target for target in TARGETS.values() if target.machine == machine]
    return [target for target in of_machine if system == "linux" or target.isa != "amx"]


def slowest_first(names: Iterable[str]) -> list[str]:
    """Attention and products take longest."""
    return sorted(names, key=lambda name: not name.startswith(("attend", "product", "grow")))


def all_code(isa: str, only: Sequence[str] = ()) -> list[Code]:
    """What is compiled for an instruction set."""
    return [code for _, codes in contents(isa).values() for code in codes if not only or code.name in only]


@cache
def contents(isa: str) -> Mapping[str, tuple[str, list[Code]]]:
    """The hash of sources and the code made of them, by the name of an archive."""
    from edgeinfer.backends.cpu.catalogue import kernel_sources
    from edgeinfer.backends.cpu.lowering.needs import all_kernels
    from edgeinfer.engine.probing.memory import READ_PATTERNS
    from edgeinfer.engine.speculation.drafters import DRAFTERS
    from edgeinfer.engine.speculation.drafts import loop_sources, loops_of
    from edgeinfer.jit.library import sources_hash

    loops = {code.name: code for code in loops_of(DRAFTERS.entries())}
    kernels = [*all_kernels(isa), *(function for _, function in READ_PATTERNS.values())]
    return {
        "kernels": (sources_hash(*kernel_sources()), kernels),
        "loops": (sources_hash(*loop_sources()), list(loops.values())),
    }


def metadata() -> str:
    """What the package index shows; the addresses are edgeinfer's own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    urls = "".join(f"Project-URL: {name}, {address}\n" for name, address in project["urls"].items())
    return (
        f"Metadata-Version: 2.4\nName: edgeinfer-kernels\nVersion: {__version__}\n"
        "Summary: Kernels of edgeinfer, compiled beforehand\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n"
        f"Requires-Python: {project['requires-python']}\n{urls}Description-Content-Type: text/markdown\n\n{DESCRIPTION}"
    )


def write_wheel(path: Path, tag: str, files: Mapping[str, bytes]) -> None:
    """A wheel of one package of these files."""
    info = f"{PACKAGE}-{__version__}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: edgeinfer\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"
    inside = {f"{PACKAGE}/__init__.py": b'"""Object code of edgeinfer\'s kernels."""\n'}
    inside |= {f"{PACKAGE}/{name}": data for name, data in files.items()}
    inside |= {f"{info}/METADATA": metadata().encode(), f"{info}/WHEEL": wheel.encode()}
    inside |= {f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes()}
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in inside.items())
    inside |= {f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}
    path.write_bytes(archived(inside, zipfile.ZIP_DEFLATED))


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def archived(files: Mapping[str, bytes], compression: int) -> bytes:
    """A zip archive in which nothing states when or where it was made."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, EARLIEST)
            info.compress_type, info.create_system, info.external_attr = compression, 3, 0o644 << 16
            archive.writestr(info, data)
    return whole.getvalue()


def make(system: str, machine: str, made: Mapping[Place, Mapping[str, bytes]], options: argparse.Namespace) -> Path:
    """Write the wheel of an architecture on a system."""
    index: dict[str, dict[str, str]] = {}
    files: dict[str, bytes] = {}
    for target in [place.target for place in made if place.system == system]:
        for kind, (sources, codes) in contents(target.isa).items():
            objects = made[Place(system, target)]
            inside = {f"{name}.o": objects[name] for name in sorted(code.name for code in codes) if name in objects}
            name = f"{kind}-{target.name}.zip"
            files[name] = archived(inside, zipfile.ZIP_STORED)  # the wheel is compressed as a whole
            index.setdefault(sources, {})[target.name] = name
            print(f"{system} {target.name}: {len(inside)} {kind}, {len(files[name]) / 1e6:.2f} MB", flush=True)
    compiler = f"numba {version('numba')}, llvmlite {version('llvmlite')}"
    about = {"version": __version__, "format": SYSTEMS[system].object_format, "compiler": compiler, "code": index}
    files[INDEX] = json.dumps(about, indent=1).encode()
    tag = SYSTEMS[system].tags[machine]
    path: Path = options.out / f"{PACKAGE}-{__version__}-py3-none-{tag}.whl"
    write_wheel(path, tag, files)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_FOLDER")
    parser.add_argument("--system", nargs="+", choices=SYSTEMS, default=[THIS_SYSTEM])
    parser.add_argument("--machine", nargs="+", choices=MACHINES, default=[machine_name()], help="architectures")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these kernels and functions alone")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for machine in options.machine:
        systems = [name for name in options.system if machine in SYSTEMS[name].tags]
        made = compile_all(machine, systems, options) if systems else {}
        for name in systems:
            path = make(name, machine, made, options)
            print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
