"""Makes wheels of `edgeinfer-kernels`: kernels compiled beforehand for common CPUs, for first starts without compiling.

Run: `python scripts/make_kernel_wheel.py OUT_FOLDER`, with `--system linux windows macos` for other systems than this
one and `--only NAME…` for some kernels. LLVM makes object files for every system; they can be loaded only there. A
wheel serves exactly the sources and the compiler that it was made with: their hash is in its index (`jit.prebuilt`).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import multiprocessing
import os
import platform
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import llvmlite.binding as llvm

from edgeinfer import __version__
from edgeinfer.jit.code import CodeSource, CompiledFunction, Kernel
from edgeinfer.jit.prebuilt import INDEX, PACKAGE, TARGETS, CodeTarget, machine_name


@dataclass(frozen=True, slots=True)
class System:
    """An operating system: its object files, LLVM's name of it, and the tags of its wheels by architecture."""

    object_format: str
    triple: str
    tags: Mapping[str, str]

    def targets(self, machine: str) -> list[CodeTarget]:
        """The targets of one of its architectures."""
        return [target for target in TARGETS.values() if target.machine == machine]


SYSTEMS = MappingProxyType(
    {
        "linux": System(
            "elf",
            "{machine}-unknown-linux-gnu",
            {"x86_64": "manylinux_2_17_x86_64", "aarch64": "manylinux_2_17_aarch64"},
        ),
        "windows": System("coff", "{machine}-pc-windows-msvc", {"x86_64": "win_amd64"}),
        "macos": System("macho", "arm64-apple-macosx11.0.0", {"aarch64": "macosx_11_0_arm64"}),
    }
)
THIS_SYSTEM = {"linux": "linux", "win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")

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


def compiled(code: Code, target: CodeTarget, triple: str) -> tuple[str, bytes]:
    """The name and object code of a kernel or function; in a process that compiles elsewhere."""
    from edgeinfer.jit.compiler import compiled as module_of
    from edgeinfer.jit.machine_code import entry

    options = {"opt": 3, "reloc": "default", "codemodel": "jitdefault", "jit": True}
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=target.cpu, features=target.flags, **options)
    module = module_of(code.load(), code.n_arguments, code.returns, entry(code.name), machine)
    return code.name, machine.emit_object(module)


def compile_all(codes: Sequence[Code], target: CodeTarget, triple: str, n_processes: int) -> dict[str, bytes]:
    """Object code by name."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, compile_elsewhere, (target, triple)) as pool:
        tasks = [pool.submit(compiled, code, target, triple) for code in slowest_first(codes)]
        return dict(task.result() for task in tasks)


def slowest_first(codes: Iterable[Code]) -> list[Code]:
    """Attention and products take longest."""
    return sorted(codes, key=lambda code: not code.name.startswith(("attend", "product", "grow")))


def contents(isa: str, only: Sequence[str]) -> dict[str, tuple[str, list[Code]]]:
    """What is compiled for an instruction set: the hash of its sources, and the code, by the name of an archive."""
    from edgeinfer.backends.cpu.catalogue import kernel_sources
    from edgeinfer.backends.cpu.lowering.needs import all_kernels
    from edgeinfer.engine.speculation.drafters import DRAFTERS
    from edgeinfer.engine.speculation.drafts import loop_sources, loops_of
    from edgeinfer.jit.library import sources_hash

    def chosen(codes: Iterable[Code]) -> list[Code]:
        named = {code.name: code for code in codes if isinstance(code.load, CodeSource)}
        return [code for name, code in named.items() if not only or name in only]

    loops = loops_of(DRAFTERS.entries())
    return {
        "kernels": (sources_hash(*kernel_sources()), chosen(all_kernels(isa))),
        "loops": (sources_hash(*loop_sources()), chosen(loops)),
    }


def write_wheel(path: Path, tag: str, files: Mapping[str, bytes]) -> None:
    """A wheel of one package of these files."""
    info = f"{PACKAGE}-{__version__}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: edgeinfer-kernels\nVersion: {__version__}\n"
        "Summary: Kernels of edgeinfer, compiled beforehand\nLicense: Apache-2.0\n"
    )
    wheel = f"Wheel-Version: 1.0\nGenerator: edgeinfer\nRoot-Is-Purelib: true\nTag: py3-none-{tag}\n"
    about = {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    inside = {f"{PACKAGE}/__init__.py": b'"""Object code of edgeinfer\'s kernels."""\n'}
    inside |= {f"{PACKAGE}/{name}": data for name, data in files.items()} | about
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in inside.items())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (inside | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}).items():
            archive.writestr(name, data)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def archived(codes: Mapping[str, bytes], path: Path) -> bytes:
    """Object code as an archive whose files are stored as they are; the wheel is compressed as a whole."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, code in sorted(codes.items()):
            archive.writestr(f"{name}.o", code)
    data = path.read_bytes()
    path.unlink()
    return data


def make(system_name: str, machine: str, options: argparse.Namespace) -> Path:
    """Write the wheel of an architecture on a system."""
    system = SYSTEMS[system_name]
    triple = system.triple.format(machine=machine)
    index: dict[str, dict[str, str]] = {}
    files: dict[str, bytes] = {}
    for target in system.targets(machine):
        for kind, (sources, codes) in contents(target.isa, options.only).items():
            made = compile_all(codes, target, triple, options.processes)
            name = f"{kind}-{target.name}.zip"
            files[name] = archived(made, options.out / name)
            index.setdefault(sources, {})[target.name] = name
            print(f"{system_name} {target.name}: {len(made)} {kind}, {len(files[name]) / 1e6:.1f} MB", flush=True)
    files[INDEX] = json.dumps({"format": system.object_format, "code": index}).encode()
    path = options.out / f"{PACKAGE}-{__version__}-py3-none-{system.tags[machine]}.whl"
    write_wheel(path, system.tags[machine], files)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_FOLDER")
    parser.add_argument("--system", nargs="+", choices=SYSTEMS, default=[THIS_SYSTEM])
    parser.add_argument("--machine", nargs="+", help="architectures (default: this one if the system has it, else all)")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these kernels and functions alone")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.system:
        tags = SYSTEMS[name].tags
        usual = [machine_name()] if machine_name() in tags else list(tags)
        for machine in options.machine or usual:
            path = make(name, machine, options)
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
