"""Measures what `--kv-ram` saves and costs: memory and speed after a long prompt, with a part of the KV cache on disk.

Run from the repository root: `python scripts/measure_kv_ram.py MODEL TEXT [48MB ...] [--context 8192] [--tokens 7000]
[--answer 128] [--approx kv=1024] [--kv f16]`. MODEL is a path or a name, TEXT a file whose first tokens are the prompt.
Each size has a process of its own, and so has the whole cache in memory. Prints tokens per second of the prompt and of
the answer, the peak of the process's memory, of which pages of the cache in memory or in a file, and what was read from
disk and written to it by then. The tokens have to be the same.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from edgeinfer.engine.loading import load

LOOK_S = 0.05


def memory_in_file(memory: Any) -> int:
    """Bytes of a mapped file that are in memory."""
    n_pages = memory.nbytes // mmap.PAGESIZE
    found = (ctypes.c_ubyte * n_pages)()
    if ctypes.CDLL(None).mincore(ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes), found):
        raise OSError("mincore failed")
    return sum(bytes(found).translate(bytes(byte & 1 for byte in range(256)))) * mmap.PAGESIZE


class Peak:
    """Looks how much of a file is in memory while other things go on."""

    def __init__(self, memory: Any) -> None:
        self.n_bytes, self._memory, self._over = 0, memory, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self.n_bytes = max(self.n_bytes, memory_in_file(self._memory))

    def stop(self) -> int:
        """The largest number of bytes."""
        self._over.set()
        self._thread.join()
        return self.n_bytes


def measured(asked: argparse.Namespace, kv_ram: str | None) -> dict[str, Any]:
    """Answer in this process."""
    options = {"device": "cpu", "n_context": asked.context, "approx": asked.approx, "kv": asked.kv, "spec": "off"}
    with load(asked.model, kv_ram=kv_ram, **options) as llm:
        prompt = llm.prompts.tokenizer.encode(Path(asked.text).read_text(encoding="utf-8"))[: asked.tokens]
        filed = getattr(llm._pool.executor._lane, "_filed", None)  # type: ignore[attr-defined]
        peak = None if filed is None else Peak(filed._file.memory)
        stream = llm.complete(prompt, max_tokens=asked.answer, temperature=0.0, ignore_eos=True)
        stream.read()
        stats, io = stream.stats, psutil.Process().io_counters()
        assert stats is not None
        status = Path("/proc/self/status").read_text().split()
        return {
            "tokens": list(stream.tokens),
            "n_prompt": len(prompt),
            "prefill": stats.prefill_tok_s,
            "decode": stats.decode_tok_s,
            "peak": int(status[status.index("VmHWM:") + 1]) * 1024,
            "file": None if peak is None else peak.stop(),
            "read": io.read_bytes,
            "written": io.write_bytes,
        }


def child(kv_ram: str) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", kv_ram]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("sizes", nargs="*", default=["48MB"])
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=7000)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--approx", default="kv=1024")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child is not None:
        print(json.dumps(measured(asked, None if asked.child == "none" else asked.child)))
        return
    first: list[int] | None = None
    for kv_ram in ("none", *asked.sizes):
        found = child(kv_ram)
        first = first or found["tokens"]
        in_file = "" if found["file"] is None else f" ({found['file'] / 1e6:.0f} of them pages of the file)"
        said = (
            f"{kv_ram:8} prompt of {found['n_prompt']} {found['prefill']:.1f} tok/s, answer {found['decode']:.1f} tok/s"
        )
        peak = f"at most {found['peak'] / 1e6:.0f} MB{in_file}"
        disk = f"read {found['read'] / 1e6:.0f} MB, written {found['written'] / 1e6:.0f} MB"
        same = "same" if found["tokens"] == first else "OTHER"
        print(f"{said}; {peak}; {disk}; {same} tokens", flush=True)


if __name__ == "__main__":
    main()
