"""The instruction set that kernels are compiled for, and CPU features that they cannot use."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edgeinfer.app.doctor import Check, Finding, Status
from edgeinfer.app.doctor.machine import ExaminedMachine, cpu_flags
from edgeinfer.errors import BadSetting

NAME = "instruction-set"
BITS = MappingProxyType({"amx": 512, "avx512fp16": 512, "avx512vnni": 512, "avxvnni": 256, "avx2": 256, "neon": 128})
"""Width in bits of the vectors that kernels compute with."""
LLVM_NAMES = MappingProxyType(
    {
        "avx512_vnni": "avx512vnni",
        "avx512_fp16": "avx512fp16",
        "avx_vnni": "avxvnni",
        "amx_tile": "amx-tile",
        "amx_int8": "amx-int8",
        "amx_bf16": "amx-bf16",
        "asimd": "neon",
        "asimddp": "dotprod",
    }
)
"""Features whose names differ between Linux and LLVM; all others have one name."""
VECTORS = MappingProxyType({"x86_64": ("avx2", "fma", "f16c"), "aarch64": ("neon", "dotprod")})
"""The minimum features that fast kernels need, per architecture."""
ARCHITECTURES = MappingProxyType({"AMD64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"})


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """CPU features: `flags` as Linux reports them, `features` as LLVM does (None: LLVM is not available).

    `forced`: EDGEINFER_SIMD; `stated`: names of variables that set the CPU to compile for, regardless of this one.
    """

    architecture: str = ""
    flags: frozenset[str] = frozenset()
    features: frozenset[str] | None = None
    forced: str = ""
    stated: tuple[str, ...] = ()


def read(machine: ExaminedMachine) -> CpuFeatures:
    """Read the features of this CPU, from Linux and from LLVM."""
    try:
        from edgeinfer.jit.cpu import cpu_features
    except ImportError:
        features = None
    else:
        features = cpu_features()
    names = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
    return CpuFeatures(
        architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
        flags=cpu_flags(machine.root),
        features=features,
        forced=machine.environ.get("EDGEINFER_SIMD", ""),
        stated=tuple(name for name in names if machine.environ.get(name)),
    )


def judge(facts: CpuFeatures) -> Sequence[Finding]:
    """Whether kernels use the best available features."""
    if facts.features is None:
        return ()
    from edgeinfer.jit.targets import NEEDS, choose

    used, order = choose(facts.features), list(NEEDS)
    if facts.forced and facts.forced != used:
        return [_forced(facts.features, facts.forced, used)]
    best = choose(frozenset(LLVM_NAMES.get(flag, flag) for flag in facts.flags))
    if order.index(best) < order.index(used):
        return [_not_to_be_had(facts, best, used)]
    missing = [name for name in VECTORS.get(facts.architecture, ()) if name not in facts.features]
    if missing:
        return [_without_vectors(missing, is_virtual="hypervisor" in facts.flags)]
    message = f"kernels use {used}{_width(used)}"
    if facts.stated:
        return [_finding("note", f"{message}, as {facts.stated[0]} states", _unset(facts.stated), used)]
    return [Finding(NAME, "ok", message, value=BITS.get(used), unit="bit")]


def _forced(features: frozenset[str], forced: str, used: str) -> Finding:
    from edgeinfer.jit.targets import choose

    try:
        choose(features, forced)
    except BadSetting as reason:
        return Finding(NAME, "wrong", f"EDGEINFER_SIMD: {reason}", _unset(("EDGEINFER_SIMD",)))
    return _finding("slow", f"EDGEINFER_SIMD forces {forced}, {used} is faster", _unset(("EDGEINFER_SIMD",)), forced)


def _not_to_be_had(facts: CpuFeatures, best: str, used: str) -> Finding:
    """The CPU reports features that code is not compiled for."""
    if facts.stated:
        return _finding("slow", f"{facts.stated[0]} allows {used}, the CPU has {best}", _unset(facts.stated), used)
    if best == "amx":
        fix = "needs Linux 5.16 or later, and a container whose seccomp profile lets arch_prctl through"
        return _finding("slow", f"the system does not permit tiles (AMX), kernels use {used}", fix, used)
    fix = "a newer llvmlite may know it: pip install --upgrade numba llvmlite"
    return _finding("slow", f"the CPU has {best}, LLVM makes code for {used}", fix, used)


def _without_vectors(missing: list[str], *, is_virtual: bool) -> Finding:
    names = ", ".join(missing)
    if is_virtual:
        fix = 'let the virtual machine have the host\'s CPU (libvirt: cpu mode="host-passthrough"; Proxmox: type host)'
        return _finding("slow", f"this virtual machine shows no {names}: kernels are portable code", fix, "portable")
    fix = "no setting changes that: a smaller model or a smaller quant answers faster"
    return _finding("slow", f"this CPU has no {names}: kernels are portable code", fix, "portable")


def _finding(status: Status, message: str, fix: str, used: str) -> Finding:
    bits = BITS.get(used)
    return Finding(NAME, status, message, fix, bits, None if bits is None else "bit")


def _width(used: str) -> str:
    return f", {BITS[used]} bits at a time" if used in BITS else ""


def _unset(names: Sequence[str]) -> str:
    return f"unset {' '.join(names)}"


CHECK = Check(order=10, summary="instruction set of the kernels", read=read, judge=judge, unknown=CpuFeatures())
