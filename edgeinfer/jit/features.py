"""Which instruction sets LLVM uses for a CPU: those in the feature string and those that the CPU's name implies.

In: a target triple, a CPU name ("haswell", "apple-m1") and features ("+avx2,-fma"), as Numba gives them to LLVM. Out: a
set of names. LLVM has no call that lists the features of a CPU name, but its inliner knows them: it inlines a function
only if the caller's features include the function's own. Knows nothing of the use of features.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

import llvmlite.binding as llvm

TILE_FEATURES = ("amx-tile", "amx-int8")
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18

ASKED = {
    "x86_64": (
        *("avx2", "f16c", "fma", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "avx512bf16"),
        *TILE_FEATURES,
    ),
    "aarch64": ("neon", "dotprod", "fullfp16", "i8mm", "bf16"),
}
"""The features that matter to kernels, per architecture."""

ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


def features_of(triple: str, cpu: str, features: str) -> frozenset[str]:
    """The stated features, and those of ASKED that the CPU name implies and the string does not remove."""
    stated = {feature[1:]: feature[0] == "+" for feature in features.split(",") if feature}
    architecture = triple.split("-")[0].lower()
    asked = ASKED.get(ALIASES.get(architecture, architecture), ())
    unknown = [name for name in asked if name not in stated]
    implied = _implied(triple, cpu, features, unknown) if unknown else frozenset()
    return implied | {name for name, is_there in stated.items() if is_there}


@functools.cache
def may_use_tiles() -> bool:
    """Whether this process may use tile registers. Linux requires one request per process and can refuse it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)


def _implied(triple: str, cpu: str, features: str, names: list[str]) -> frozenset[str]:
    """The names that change nothing when they are added to the CPU's features."""

    def attributes(*more: str) -> str:
        return f'"target-cpu"="{cpu}" "target-features"="{",".join(part for part in (features, *more) if part)}"'

    llvm.initialize_native_target()
    probes = [
        f'define internal void @"{name}"() {attributes("+" + name)} {{ store volatile i8 0, ptr null\n ret void }}'
        for name in names
    ]
    calls = "\n".join(f'call void @"{name}"()' for name in names)
    caller = f"define void @caller() {attributes()} {{ {calls}\n ret void }}"
    module = llvm.parse_assembly("\n".join([f'target triple = "{triple}"', *probes, caller]))
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    left = {function.name for function in module.functions if not function.is_declaration}  # inlined ones are gone
    return frozenset(names) - left
