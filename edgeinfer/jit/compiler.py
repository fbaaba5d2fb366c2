"""The only module that calls Numba's compiler: sets its flags and makes machine code that runs without Numba.

In: functions of int64s. Out: optimised LLVM modules. Imported only when something must be compiled. Knows nothing of
what a kernel computes or where code is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from numba import cfunc, njit, types
from numba.core import codegen, config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

inline = njit(forceinline=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorator of functions that kernels call: they are compiled into the kernel, never on their own.

Numba compiles such a function anew for every literal argument; np.int64(…) is not a literal: use it for arguments whose
value need not be part of the type.
"""

WRAPPER_PREFIX = "cfunc."
"""Prefix that Numba adds to a function's symbol to name its C wrapper."""
RAISED = "edgeinfer_raised"
"""Name of a function that code would call after an exception; no such function exists."""
PYTHON_PREFIXES = ("Py", "_Py", "NRT_", "numba_", RAISED)


def compiled(
    function: Callable[..., Any], n_arguments: int, returns: bool, entry: str, machine: llvm.TargetMachine
) -> llvm.ModuleRef:
    """Optimised code with one visible symbol, a C function of int64s that returns an int64 or nothing.

    Raises RuntimeError if the code can raise or would call Python or Numba, since neither may be loaded where it runs.
    """
    return optimised(unoptimised(function, n_arguments, returns, entry), entry, machine)


def unoptimised(function: Callable[..., Any], n_arguments: int, returns: bool, entry: str) -> str:
    """The textual IR that Numba makes of a function, with a C function named `entry` around it.

    Numba's own C wrapper reports exceptions to Python. Kernels raise none, so this wrapper needs no Python: it calls
    the compiled function (status = f(result, exception, arguments)) and returns the result.
    """
    signature = (types.int64 if returns else types.void)(*[types.int64] * n_arguments)
    with _text_alone():
        wrapped = cfunc(signature, nopython=True, error_model="numpy")(function)
    inner = wrapped.native_name.removeprefix(WRAPPER_PREFIX)
    text: str = wrapped.inspect_llvm()
    return text + _wrapper(entry, inner, n_arguments, returns)


def optimised(text: str, entry: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """The module of a textual IR, optimised for a machine; all symbols but `entry` are internal, named after it.

    Numba numbers its symbols by what the process compiled before, and code must not depend on that.
    """
    module = llvm.parse_assembly(text)
    for symbol in [*module.functions, *module.global_variables]:
        if not symbol.is_declaration and symbol.name != entry:
            symbol.linkage = "internal"
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, tuning)
    passes = builder.getModulePassManager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, builder)
    for place, symbol in enumerate([*module.functions, *module.global_variables]):
        if symbol.is_declaration:
            if symbol.name.startswith(PYTHON_PREFIXES):
                raise RuntimeError(f"{entry} needs {symbol.name}: kernels must not raise or allocate")
        elif symbol.name != entry:
            symbol.name = f"{entry}.{place}"
    return module


def _finished(library: codegen.JITCodeLibrary, name: str) -> int:
    """In place of the address of a function that nobody calls."""
    library._ensure_finalized()
    return 1


@contextmanager
def _text_alone() -> Iterator[None]:
    """Have Numba neither optimise what it makes of a function nor make machine code of it: once at the end is enough.

    Each function that is compiled into a kernel would become machine code that nobody runs. Numba's lock keeps other
    threads' functions out of this; what Numba itself runs is compiled before.
    """
    instead: list[tuple[type, str, Callable[..., Any]]] = [
        (codegen.JITCodeLibrary, "get_pointer_to_function", _finished),
        (codegen.JITCodeLibrary, "_finalize_specific", lambda library: None),
        (codegen.JITCPUCodegen, "_add_module", lambda code, module: None),
        (codegen.JITCPUCodegen, "set_env", lambda code, name, environment: None),
    ]
    with global_compiler_lock:
        cpu_target.target_context.refresh()
        level, before = config.OPT, [getattr(owner, name) for owner, name, _ in instead]
        config.OPT = type(level)(0)
        try:
            for owner, name, other in instead:
                setattr(owner, name, other)
            yield
        finally:
            config.OPT = level
            for (owner, name, _), own in zip(instead, before, strict=True):
                setattr(owner, name, own)


def _wrapper(entry: str, inner: str, n_arguments: int, returns: bool) -> str:
    """Textual IR of the visible function."""
    arguments = [f"i64 %a{place}" for place in range(n_arguments)]
    lines = [
        f'define {"i64" if returns else "void"} @"{entry}"({", ".join(arguments)}) {{',
        "%result = alloca i64",
        "%exception = alloca ptr",
        f'%status = call i32 @"{inner}"({", ".join(["ptr %result", "ptr %exception", *arguments])})',
        "%raised = icmp ne i32 %status, 0",
        "br i1 %raised, label %failed, label %done",
        "failed:",
        f"call void @{RAISED}()",
        "br label %done",
        "done:",
        *(["%value = load i64, ptr %result", "ret i64 %value"] if returns else ["ret void"]),
        "}",
        f"declare void @{RAISED}()",
    ]
    return "\n" + "\n".join(lines) + "\n"
