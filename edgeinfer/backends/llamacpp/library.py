"""The llama.cpp library: imported once, its messages kept off the terminal; models and contexts opened with our limits.

In: a file, limits, options. Out: the module of its functions, and llama.cpp's handles, with the objects that must live
as long; a failure to open one becomes a message with the last errors that the library reported. Independent of tokens.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.meanings import FORMS
from edgeinfer.errors import BadSetting, DeviceUnavailable, DoesNotFit, UnsupportedModel
from edgeinfer.graph.step import PAGE
from edgeinfer.steps import Progress

KEY = "llamacpp"
INSTALL = "pip install 'edgeinfer[llamacpp]'"
ERROR, CONTINUED = 4, 5
"""Log levels: error, and continuation of the previous message."""
MOST_LINES = 6
NEEDED = ("llama_memory_seq_cp", "llama_state_seq_set_data", "llama_init_from_model", "llama_set_abort_callback")


class Library:
    """llama.cpp's functions as `api`, and its messages. One per process, since its message callback is process-wide."""

    def __init__(self, install: str) -> None:
        """Raises DeviceUnavailable if the package is missing, broken or too old."""
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # otherwise it first runs a debugger on itself, which may hang
        try:
            import llama_cpp
        except ImportError as reason:
            missing = reason.name == "llama_cpp"
            what = "llama-cpp-python is not installed" if missing else f"llama-cpp-python cannot be used: {reason}"
            raise DeviceUnavailable(f"{what}: {install}") from None
        except (OSError, RuntimeError) as reason:  # its shared library is missing, or was built for another CPU
            raise DeviceUnavailable(f"llama-cpp-python cannot be used: {reason}; {install}") from None
        self.api: Any = llama_cpp
        self.version = importlib.metadata.version("llama_cpp_python")
        if lacking := [name for name in NEEDED if name not in dir(llama_cpp)]:
            raise DeviceUnavailable(
                f"llama-cpp-python {self.version} is too old: it has no {lacking[0]}; {install} --upgrade"
            )
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._sizes: list[str] = []
        self._level = 0
        self._callback = llama_cpp.llama_log_callback(self._listen)
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def forget(self) -> None:
        """Forget earlier messages."""
        self._lines.clear()
        self._sizes.clear()

    @property
    def errors(self) -> str:
        """The last errors in one line; "" if there were none."""
        return "; ".join(dict.fromkeys(line for line in self._lines if line))

    @property
    def sizes(self) -> tuple[str, ...]:
        """Messages that report the size of a buffer."""
        return tuple(self._sizes)

    def _listen(self, level: int, text: bytes, _: object) -> None:
        line = text.decode(errors="replace").strip()
        if level != CONTINUED:
            self._level = level
        if self._level == ERROR:
            self._lines.append(line)
        elif "buffer size" in line:
            self._sizes.append(line)


@cache
def library(install: str) -> Library:
    """The library. Raises DeviceUnavailable."""
    return Library(install)


MOST_SEQUENCES = 128
"""Number of llama.cpp sequences: inactive ones, and one more per further leaf of a tree."""
FEW_SEQUENCES = 8
"""The same for a model that keeps a state per sequence, however short the sequence."""
ALL_LAYERS = 1 << 20
TARGETS = ("", "cpu", "gpu")
SIZE = re.compile(r"buffer size\s*=\s*([\d.]+) MiB")


@dataclass(frozen=True, slots=True)
class LlamaHandles:
    """Handles of a llama.cpp model and its context. `is_recurrent`: its memory cannot be truncated."""

    model: Any
    context: Any
    memory: Any
    limits: Limits
    n_sequences: int
    resident_bytes: int
    is_recurrent: bool

    def close(self, api: Any) -> None:
        """Free both."""
        api.llama_free(self.context)
        api.llama_model_free(self.model)


def check_target(library: Library, target: str) -> None:
    """Raises BadSetting for an unknown target, DeviceUnavailable for a GPU that this build cannot use."""
    if target not in TARGETS:
        raise BadSetting(f"llamacpp has no target {target!r}: it is llamacpp, llamacpp:cpu or llamacpp:gpu")
    if target == "gpu" and not library.api.llama_supports_gpu_offload():
        raise DeviceUnavailable(
            f"this build of llama-cpp-python ({library.version}) cannot use a GPU; install one that was built for "
            "yours (https://llama-cpp-python.readthedocs.io), or use --device llamacpp"
        )


def open_model(library: Library, path: Path, target: str, progress: Progress) -> Any:
    """llama.cpp's model. Raises UnsupportedModel with llama.cpp's reason."""
    api = library.api
    wanted = api.llama_model_default_params()
    wanted.n_gpu_layers = ALL_LAYERS if target == "gpu" else 0

    def tell(share: float, _: object) -> bool:
        progress("loading weights", int(100 * share), 100)
        return True

    callback = api.llama_progress_callback(tell)
    wanted.progress_callback = callback
    library.forget()
    model = api.llama_model_load_from_file(str(path).encode(), wanted)
    if not model:
        raise UnsupportedModel(f"llama.cpp {library.version} cannot load {path}: {library.errors or 'no reason given'}")
    if api.llama_model_has_encoder(model) or not api.llama_model_has_decoder(model):
        api.llama_model_free(model)
        raise UnsupportedModel(f"{path} has an encoder, or no decoder; edgeinfer runs models that continue a text")
    return model


def open_context(library: Library, model: Any, limits: Limits, options: DeviceOptions) -> LlamaHandles:
    """A context of a model; it then owns the model. Raises DoesNotFit."""
    api = library.api
    is_recurrent = bool(api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model))
    n_sequences = FEW_SEQUENCES if is_recurrent else MOST_SEQUENCES
    if is_recurrent:
        limits = replace(limits, max_outputs=1)
    n_decode, n_prefill = threads(options)
    wanted = api.llama_context_default_params()
    wanted.n_ctx = limits.n_pages * PAGE
    wanted.n_batch = wanted.n_ubatch = limits.max_tokens
    wanted.n_seq_max = n_sequences
    wanted.n_threads, wanted.n_threads_batch = n_decode, n_prefill
    wanted.offload_kqv = wanted.op_offload = options.target == "gpu"
    wanted.kv_unified = True
    wanted.swa_full = True
    wanted.no_perf = True
    forms = FORMS[limits.kv]
    if forms is not None:
        types = {"q8": api.GGML_TYPE_Q8_0, "q4": api.GGML_TYPE_Q4_0}
        wanted.type_k, wanted.type_v = (types[form] for form in forms)
    library.forget()
    context = api.llama_init_from_model(model, wanted)
    if not context:
        if forms is not None and "cache type" in library.errors:
            raise BadSetting(
                f"llama.cpp cannot keep this model's cache as {limits.kv}: {library.errors}; use kv f16 (--kv f16)"
            )
        raise DoesNotFit(
            f"llama.cpp cannot run this model with a context of {limits.n_context} tokens and kv {limits.kv}: "
            f"{library.errors or 'no reason given'}; a smaller context may fit (--ctx)"
        )
    told = [float(found[1]) for line in library.sizes if (found := SIZE.search(line))]
    resident_bytes = int(api.llama_model_size(model)) + int(sum(told) * (1 << 20))
    return LlamaHandles(
        model, context, api.llama_get_memory(context), limits, n_sequences, resident_bytes, is_recurrent
    )


def threads(options: DeviceOptions) -> tuple[int, int]:
    """Threads for decode and for prefill: as many as requested, or as the plans of each kind use."""
    most = options.n_workers or len(options.cores or ()) or 1
    return tuple(  # type: ignore[return-value]
        sum(share > 0 for share in shares) or most for shares in (options.decode_shares, options.prefill_shares)
    )
