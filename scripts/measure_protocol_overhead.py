"""Measures what each protocol of the server costs: tokens per second of the same greedy answer, against the library's.

Run: `python scripts/measure_protocol_overhead.py [PROTOCOL …] [--model NAME] [--runs 9] [--tokens 400] [--threads N]`,
on a quiet machine. Server and library are processes of their own, with the same options, and answer in turn; the
library's process answers on the same terms: one answer at a time, read to its end. Tokens per second by the client's
clock, for whole answers from the request on, in streams from the first text to the last. Prints, for each protocol,
whole and streamed, the medians, the median ratio of neighbours and the CPU time that a token takes more; and the idle
share around all. Nothing is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
from soak_protocols import PROTOCOLS, Protocol

PROMPT = "Tell me a long story about a lighthouse and the people who live in it."
BEGINNING = "Once upon a time there was a lighthouse"
"""For protocols without messages; what is asked in plain text ends soon."""
LIBRARY = "library"
MEASURED = ("chat", "completions", "responses", "messages", "ollama chat", "ollama generate", "native")
CHATS = frozenset({"chat", "responses", "messages", "ollama chat", "ollama generate"})
TEXT = ('"content":"', '"text":"', '"delta":"', '"response":"')
"""What only lines with text of the answer have."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Tokens per second, and CPU milliseconds per token of the process that made them."""

    tok_s: float
    cpu_ms: float


@dataclass
class Pair:
    """Answers of a protocol, and the library's right before each."""

    protocol: list[Measured] = field(default_factory=list)
    library: list[Measured] = field(default_factory=list)

    def show(self, name: str) -> None:
        both = zip(self.protocol, self.library, strict=True)
        ratio = statistics.median(one.tok_s / other.tok_s for one, other in both)
        one, other = (statistics.median(each.tok_s for each in some) for some in (self.protocol, self.library))
        cpu = [statistics.median(each.cpu_ms for each in some) for some in (self.protocol, self.library)]
        print(
            f"{name:<28}{one:>10.1f}{other:>10.1f}{100 * (1 - ratio):>9.1f} %{1e3 * (cpu[0] - cpu[1]):>12.0f} µs",
            flush=True,
        )


class Child:
    """A process that answers, and the time that it used."""

    def __init__(self, command: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._process = psutil.Process(self._child.pid)
        self.ready = self.line()

    def line(self) -> dict[str, Any]:
        """The next line of standard output."""
        assert self._child.stdout is not None
        return json.loads(self._child.stdout.readline())

    def ask(self, **asked: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(asked).encode() + b"\n")
        self._child.stdin.flush()

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def measured(self, answer: Callable[[], float], n_tokens: int) -> Measured:
        """Run `answer`, which gives tokens per second."""
        began = self.cpu_s()
        tok_s = answer()
        return Measured(tok_s, 1e3 * (self.cpu_s() - began) / n_tokens)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate()
        self._child.wait()


def body_of(protocol: Protocol, n_tokens: int, *, is_streamed: bool) -> dict[str, object]:
    """A request for a greedy answer of so many tokens; those of chats have the library's messages."""
    body = protocol.body(PROMPT if protocol.name in CHATS else BEGINNING, n_tokens)
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": PROMPT}]
    body.pop("system", None)
    options = body.get("options")
    if isinstance(options, dict):
        options["temperature"] = 0
    return {**body, "temperature": 0, "stream": is_streamed}


def over_http(client: httpx.Client, protocol: Protocol, n_tokens: int, *, is_streamed: bool) -> float:
    """Tokens per second of an answer."""
    body = body_of(protocol, n_tokens, is_streamed=is_streamed)
    began = time.perf_counter()
    if not is_streamed:
        client.post(protocol.path, json=body).raise_for_status()
        return n_tokens / (time.perf_counter() - began)
    times = []
    with client.stream("POST", protocol.path, json=body) as response:
        for line in response.iter_lines():
            if any(mark in line for mark in TEXT):
                times.append(time.perf_counter())
    return (n_tokens - 1) / (times[-1] - times[0])


def library(model: str, threads: int) -> None:
    """Answer what standard input asks for: each line a request, each answer a line."""
    import edgeinfer

    with edgeinfer.load(model, device="cpu", spec="off", threads=threads or None, n_sessions=2) as llm:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            options = {"temperature": 0, "max_tokens": asked["n_tokens"]}
            began, times = time.perf_counter(), []
            if asked["is_chat"]:
                stream = llm.chat([{"role": "user", "content": PROMPT}], **options)
            else:
                stream = llm.complete(BEGINNING, **options)
            if asked["is_streamed"]:
                times = [time.perf_counter() for _ in stream]
                tok_s = (len(stream.tokens) - 1) / (times[-1] - times[0])
            else:
                stream.read()
                tok_s = len(stream.tokens) / (time.perf_counter() - began)
            print(json.dumps({"tok_s": tok_s, "n_tokens": len(stream.tokens)}), flush=True)


def measure(given: argparse.Namespace) -> None:
    threads = ["--threads", str(given.threads)] if given.threads else []
    serve = ["-m", "edgeinfer", "serve", "-m", given.model, "--port", "0", "--ready-json", "--no-key", "--no-history"]
    server = [sys.executable, *serve, "--spec", "off", "--device", "cpu", *threads, "--parent-pid", str(os.getpid())]
    own = [sys.executable, __file__, LIBRARY, "--model", given.model, "--threads", str(given.threads)]
    with Child(server) as served, Child(own) as child, httpx.Client(base_url=served.ready["url"], timeout=600) as http:

        def direct(is_chat: bool, is_streamed: bool) -> float:
            child.ask(n_tokens=given.tokens, is_chat=is_chat, is_streamed=is_streamed)
            told = child.line()
            assert told["n_tokens"] == given.tokens, "the answer is too short to time"
            return float(told["tok_s"])

        print(f"{'protocol':<28}{'tok/s':>10}{'library':>10}{'less':>11}{'CPU a token':>15}")
        for protocol in [each for each in PROTOCOLS if each.name in (given.protocols or MEASURED)]:
            for is_streamed in (False, True):
                pair, is_chat = Pair(), protocol.name in CHATS
                for run in range(given.runs + 1):
                    own_one = child.measured(lambda c=is_chat, s=is_streamed: direct(c, s), given.tokens)
                    one = served.measured(
                        lambda p=protocol, s=is_streamed: over_http(http, p, given.tokens, is_streamed=s), given.tokens
                    )
                    if run:  # the first ones read the prompt
                        pair.library.append(own_one)
                        pair.protocol.append(one)
                pair.show(f"{protocol.name}{', streamed' if is_streamed else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--threads", type=int, default=0, help="default: the library's choice")
    given = parser.parse_args()
    if given.protocols == [LIBRARY]:
        library(given.model, given.threads)
        return
    if unknown := set(given.protocols) - {*MEASURED}:
        parser.error(f"there is no {min(unknown)!r}; there are: {', '.join(MEASURED)}")
    print(f"idle {psutil.cpu_times_percent(2).idle / 100:.2f} before")
    measure(given)
    print(f"idle {psutil.cpu_times_percent(2).idle / 100:.2f} after")


if __name__ == "__main__":
    main()
