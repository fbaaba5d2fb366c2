"""Measures how concurrent answers affect each other: throughput, interactive answers, the server.

Run: `python scripts/measure_serving.py [WHAT ...] [--model NAME] [--runs N]`: together watched server leaving.
together: total tokens per second of eight sequences against one, and against llama.cpp with eight sequences per
`llama_decode` (llama-cpp-python's low-level API), alternating. watched: time between tokens (95th percentile) and to
the first token of a 200-token prompt beside four background answers, against alone. server: tokens per second of a
stream over HTTP against the Python API, alternating. leaving: how soon an answer ends after its client disconnects. The
idle share of the machine is printed around each. Nothing is judged.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import psutil

import edgeinfer

WORDS = "a cat|the sea|two kings|a robot|a lost key|a storm|a garden|the moon|an old house|a train|bread|a mountain"
PROMPTS = [f"Write a long story about {word}. Once upon a time" for word in WORDS.split("|")]
N_TOKENS, N_TOGETHER, N_STREAMED = 200, 8, 1200
KEPT: list[object] = []  # llama.cpp calls it for the life of the process
MESSAGES = [{"role": "user", "content": "Tell me a long story about a lighthouse and the people who live in it."}]


def idle() -> float:
    return psutil.cpu_times_percent(2).idle / 100


def show(name: str, values: Sequence[float]) -> None:
    print(f"  {name}: median {statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g}, {len(values)} runs)")


def together(model: str, runs: int) -> None:
    """Eight sequences against one, and against llama.cpp's eight."""
    with edgeinfer.load(model, device="cpu", spec="off", n_sessions=N_TOGETHER, n_context=1024) as llm:
        long = [
            answer.number
            for answer in llm.batch(PROMPTS, parallel=N_TOGETHER, max_tokens=N_TOKENS, temperature=0)
            if len(answer.tokens) == N_TOKENS
        ]
        prompts = [PROMPTS[number] for number in long][:N_TOGETHER]
        tokens = [llm.tokenize(prompt) for prompt in prompts]
        peer = LlamaCpp(str(llm.info.path), len(prompts))

        def own(parallel: int, some: Sequence[str]) -> float:
            began, answers = time.perf_counter(), llm.batch(some, parallel=parallel, max_tokens=N_TOKENS, temperature=0)
            return sum(len(answer.tokens) for answer in answers) / (time.perf_counter() - began)

        one, many, other, other_one = [], [], [], []
        for _ in range(runs):
            one.append(own(1, prompts[:2]))
            many.append(own(N_TOGETHER, prompts))
            other_one.append(peer.rate(tokens[:1]))
            other.append(peer.rate(tokens))
        peer.close()
    show("one sequence, tok/s", one)
    show(f"{len(prompts)} sequences, tok/s in all", many)
    show("times one", [a / b for a, b in zip(many, one, strict=True)])
    show("llama.cpp, one sequence", other_one)
    show(f"llama.cpp, {len(prompts)} sequences", other)
    show("times llama.cpp", [a / b for a, b in zip(many, other, strict=True)])


class LlamaCpp:
    """Sequences that llama.cpp decodes together, taking the likeliest token of each."""

    def __init__(self, path: str, n_sequences: int) -> None:
        import llama_cpp

        self._api = api = llama_cpp
        silent = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(silent, ctypes.c_void_p(0))
        KEPT.append(silent)
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        wanted = api.llama_context_default_params()
        wanted.n_ctx, wanted.n_seq_max, wanted.n_batch = 1024 * n_sequences, n_sequences, 512
        wanted.n_threads = wanted.n_threads_batch = len(psutil.Process().cpu_affinity())
        self._context = api.llama_init_from_model(self._model, wanted)
        self._n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(512, 0, n_sequences)

    def rate(self, prompts: Sequence[Sequence[int]]) -> float:
        """Total tokens per second, from the first token of the prompts to the last of the answers."""
        import numpy as np

        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        began, last = time.perf_counter(), []
        for sequence, prompt in enumerate(prompts):
            self._run([(token, place, sequence, place == len(prompt) - 1) for place, token in enumerate(prompt)])
            last.append(self._likeliest(len(prompt) - 1, np))
        for step in range(N_TOKENS - 1):
            self._run([(token, len(prompts[sequence]) + step, sequence, True) for sequence, token in enumerate(last)])
            last = [self._likeliest(row, np) for row in range(len(prompts))]
        return N_TOKENS * len(prompts) / (time.perf_counter() - began)

    def _run(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        for row, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, position, 1
            batch.seq_id[row][0], batch.logits[row] = sequence, wanted
        batch.n_tokens = len(rows)
        assert self._api.llama_decode(self._context, batch) == 0

    def _likeliest(self, row: int, np: object) -> int:
        logits = self._api.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._n_vocab,)).argmax())  # type: ignore[attr-defined]

    def close(self) -> None:
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


def watched(model: str, runs: int) -> None:
    """An interactive answer, alone and beside four background answers."""
    with edgeinfer.load(model, device="cpu", spec="off", n_sessions=6, n_context=2048) as llm:
        text = "the keeper climbs the stairs of the lighthouse and looks out at the sea " * 40
        prompt = llm.tokenize(text)[:200]

        def measured() -> tuple[float, float]:
            began, times = time.perf_counter(), []
            for _ in llm.complete([llm.tokenize("x")[0], *prompt[1:]], temperature=0, max_tokens=N_TOKENS):
                times.append(time.perf_counter())
            gaps = sorted(after - before for before, after in itertools.pairwise(times))
            llm.complete(prompt[:1] * 20, max_tokens=1).read()
            return 1e3 * gaps[int(0.95 * len(gaps))], 1e3 * (times[0] - began)

        def beside() -> tuple[float, float]:
            going, streams = threading.Event(), []

            def work(number: int) -> None:
                while not going.is_set():
                    stream = llm.complete(PROMPTS[number], priority="background", temperature=0.9, max_tokens=400)
                    streams.append(stream)
                    stream.read()

            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            found = measured()
            going.set()
            for stream in streams:
                stream.stop()
            for thread in threads:
                thread.join()
            return found

        alone_gap, alone_first, gap, first = [], [], [], []
        measured()
        for number in range(runs):
            prompt = [prompt[0], *prompt[2:], prompt[1 + number]]  # no part of it has been read before
            one = measured()
            prompt = [prompt[0], *prompt[2:], prompt[1 + number]]
            other = beside()
            alone_gap.append(one[0]), alone_first.append(one[1]), gap.append(other[0]), first.append(other[1])
    show("between tokens alone, p95, ms", alone_gap)
    show("beside four, p95, ms", gap)
    show("ratio", [a / b for a, b in zip(gap, alone_gap, strict=True)])
    show("first token of 200 alone, ms", alone_first)
    show("beside four, ms", first)
    show("ratio", [a / b for a, b in zip(first, alone_first, strict=True)])


def server(model: str, runs: int) -> None:
    """A stream over HTTP against the Python API."""
    import httpx

    body = {
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": N_STREAMED,
        "stream": True,
    }
    own = edgeinfer.load(model, device="cpu", spec="off", n_sessions=2)
    with serving(model) as url, own as llm, httpx.Client(timeout=60) as client:

        def over_http() -> float:
            """Tokens per second by the client's clock, from the first chunk to the last."""
            times: list[float] = []
            with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
                for line in response.iter_lines():
                    if '"content":' in line:
                        times.append(time.perf_counter())
                    if "timings" in line:
                        n_tokens = json.loads(line.removeprefix("data: "))["timings"]["predicted_n"]
            assert n_tokens == N_STREAMED, "the answer is too short to time"
            return (n_tokens - 1) / (times[-1] - times[1])  # the first chunk has no text

        def direct() -> float:
            stream = llm.chat(MESSAGES, temperature=0, max_tokens=N_STREAMED)
            times = [time.perf_counter() for _ in stream]
            return (N_STREAMED - 1) / (times[-1] - times[0])

        http, api = [], []
        over_http(), direct()
        for _ in range(runs):
            api.append(direct())
            http.append(over_http())
    show("Python API, tok/s", api)
    show("over HTTP, tok/s", http)
    show("ratio of neighbours", [a / b for a, b in zip(http, api, strict=True)])


def leaving(model: str, runs: int) -> None:
    """From the end of a connection during an answer until generation has stopped."""
    import httpx

    with serving(model) as url, httpx.Client(timeout=60) as client:
        body = {"messages": MESSAGES, "temperature": 0.9, "max_tokens": 5000}

        def active() -> bool:
            text = client.get(f"{url}/metrics").text
            lines = [line for line in text.splitlines() if line.startswith("edgeinfer_answers_active")]
            return any(float(line.rpartition(" ")[2]) for line in lines)

        def seconds_after(leave: Callable[[], None]) -> float:
            leave()
            left = time.perf_counter()
            while active():
                assert time.perf_counter() - left < 20, "it goes on"
            return time.perf_counter() - left

        def leave_stream() -> None:
            with client.stream("POST", f"{url}/v1/chat/completions", json=body | {"stream": True}) as response:
                next(response.iter_lines())

        def leave_waiting() -> None:
            with contextlib.suppress(httpx.TimeoutException):
                httpx.post(f"{url}/v1/chat/completions", json=body, timeout=0.5)

        for name, leave in (("a stream", leave_stream), ("an answer that is waited for", leave_waiting)):
            show(f"{name} is left, ms", [1e3 * seconds_after(leave) for _ in range(2 * runs)])


@contextlib.contextmanager
def serving(model: str) -> Iterator[str]:
    """Run a server; yields its address."""
    command = [sys.executable, "-m", "edgeinfer", "serve", "-m", model, "--port", "0", "--ready-json", "--no-key"]
    process = subprocess.Popen(
        [*command, "--spec", "off", "--device", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait()


WHAT: dict[str, Callable[[str, int], None]] = {
    "together": together,
    "watched": watched,
    "server": server,
    "leaving": leaving,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="WHAT")  # as choices, none would not be one
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    for what in given.what:
        if what not in WHAT:
            parser.error(f"there is no {what!r}; there are: {', '.join(WHAT)}")
    for what in given.what or list(WHAT):
        print(f"{what}: idle {idle():.2f} before")
        WHAT[what](given.model, given.runs)
        print(f"{what}: idle {idle():.2f} after")


if __name__ == "__main__":
    main()
