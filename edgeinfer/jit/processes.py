"""Compiles kernels in several child processes: the compiler's memory and settings stay out of this process.

In: kernels and functions of the catalogue. Out: object code of each as soon as it is ready. Code that a child fails to
compile is left out, and the caller may compile it itself. A child runs this module's `serve`; requests and answers are
lines of JSON.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from edgeinfer.jit.code import CodeSource, CompiledFunction, Kernel
from edgeinfer.process import command

Wanted = Kernel | CompiledFunction
PROCESSES = 4
"""Most children at a time: each needs some 200 MB."""
LONGEST = ("attention.attention", "growth")
"""Modules that take longest are compiled first, then kernels made for an instruction set."""
CHILD = "edgeinfer.jit.processes"


def compile_apart(wanted: Sequence[Wanted], n_processes: int) -> Iterator[tuple[str, bytes]]:
    """Names and object code, in the order in which they are compiled."""
    waiting: queue.SimpleQueue[list[Wanted]] = queue.SimpleQueue()
    groups = _groups(wanted, n_processes)
    for group in groups:
        waiting.put(group)
    done: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
    n_children = min(n_processes, PROCESSES, len(groups))
    children: list[subprocess.Popen[str]] = []
    threads = [
        threading.Thread(target=_drive, args=(waiting, children, done.put), daemon=True) for _ in range(n_children)
    ]
    for thread in threads:
        thread.start()
    try:
        while n_children:
            result = done.get()
            if result is None:
                n_children -= 1
            else:
                yield result
    finally:  # the caller may have been interrupted
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        for child in children:
            child.kill()


def _groups(wanted: Sequence[Wanted], n_processes: int) -> list[list[Wanted]]:
    """What goes to one child each, the longest first.

    The functions of a module share code, and so do kernels of a module that are made for the same parameters: what one
    child has compiled for the first it does not compile again for the others. Kernels of the longest modules are yet
    distributed one by one where that keeps all children busy.
    """
    sources = {each.name: each.load for each in wanted if isinstance(each.load, CodeSource)}
    long = {(source.module, source.parameters) for source in sources.values() if source.module in LONGEST}
    groups: dict[tuple[object, ...], list[Wanted]] = {}
    for each in wanted:
        if (source := sources.get(each.name)) is None:
            continue
        apart = source.parameters is not None and source.module in LONGEST and len(long) <= 2 * n_processes
        groups.setdefault((source.module, source.parameters, each.name if apart else ""), []).append(each)
    return [groups[of] for of in sorted(groups, key=lambda of: (of[0] not in LONGEST, of[1] is None))]


def _drive(
    waiting: queue.SimpleQueue[list[Wanted]],
    children: list[subprocess.Popen[str]],
    done: Callable[[tuple[str, bytes] | None], None],
) -> None:
    """Send requests to one child and report its answers to `done`; None at the end."""
    try:
        with _child() as child:
            children.append(child)
            assert child.stdin
            assert child.stdout
            try:
                while True:
                    for each in waiting.get_nowait():
                        child.stdin.write(json.dumps(_request(each)) + "\n")
                        child.stdin.flush()
                        done((each.name, base64.b64decode(json.loads(child.stdout.readline())["code"])))
            finally:
                child.kill()
    except (queue.Empty, OSError, ValueError, KeyError):
        pass
    finally:
        done(None)


def _child() -> subprocess.Popen[str]:
    """A child Python with this one's import path, which optimises each kernel once (see `compiler`)."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_OPT": "0"}
    return subprocess.Popen(
        command(CHILD),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def _request(wanted: Wanted) -> dict[str, object]:
    source = wanted.load
    assert isinstance(source, CodeSource)
    return {
        "name": wanted.name,
        "source": [source.module, source.name, source.parameters, source.package],
        "n_arguments": wanted.n_arguments,
        "returns": wanted.returns,
    }


def serve() -> None:
    """Run as a child: answer requests until the parent is gone or has no more, and end then, amid a kernel too."""
    from edgeinfer.jit.machine_code import object_code

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_take, args=(lines,), daemon=True).start()

    with suppress(OSError):  # Linux: if memory runs out, this process is ended, not the program that waits for it
        Path("/proc/self/oom_score_adj").write_text("1000")
    while True:
        asked = json.loads(lines.get())
        module, name, parameters, package = asked["source"]
        source = CodeSource(package, module, name, None if parameters is None else tuple(parameters))
        code = object_code(CompiledFunction(asked["name"], source, asked["n_arguments"], asked["returns"]))
        print(json.dumps({"code": base64.b64encode(code).decode()}), flush=True)


def _take(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    serve()
