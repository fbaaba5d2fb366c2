"""Object code for this process's CPU, or for the one that NUMBA_CPU_NAME names: what LLVM makes of a kernel.

In: kernels and functions. Out: object code, and the CPU's name and features: those in the feature string ("+avx2,-fma",
as Numba gives it to LLVM) and those that the name ("haswell", "apple-m1") implies. LLVM has no call that lists the
features of a name, but its inliner knows them: it inlines a function only if the caller's features include the
function's own. Imports Numba only when a kernel is compiled. Stores nothing; does not know what features are used for.
"""

from __future__ import annotations

import os

import llvmlite.binding as llvm

from edgeinfer.jit.code import CompiledFunction, Kernel, entry

ASKED = {
    "x86_64": (
        *("avx2", "f16c", "fma", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "avx512bf16"),
        *("avx512fp16", "amx-tile", "amx-int8", "amx-bf16"),
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


def cpu_name() -> str:
    """LLVM's name of the CPU that code is made for: this CPU, or NUMBA_CPU_NAME."""
    return os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()


def cpu_feature_flags() -> str:
    """Features of that CPU in LLVM's form; NUMBA_CPU_FEATURES overrides them, as in Numba."""
    stated = os.environ.get("NUMBA_CPU_FEATURES")
    return llvm.get_host_cpu_features().flatten() if stated is None else stated


def all_features() -> frozenset[str]:
    """Features of that CPU, stated or implied by its name, whether or not this process may use them."""
    return features_of(llvm.get_process_triple(), cpu_name(), cpu_feature_flags())


def target_machine() -> llvm.TargetMachine:
    """LLVM's target machine for this process, configured as Numba does it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return machine_of(llvm.get_process_triple(), cpu_name(), cpu_feature_flags())


def machine_of(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    """LLVM's target machine for any system and CPU whose target is initialised."""
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


def object_code(wanted: Kernel | CompiledFunction) -> bytes:
    """Compile a kernel or function in this process."""
    from edgeinfer.jit import compiler

    machine = target_machine()
    module = compiler.compiled(wanted.load(), wanted.n_arguments, wanted.returns, entry(wanted.name), machine)
    code: bytes = machine.emit_object(module)
    return code
