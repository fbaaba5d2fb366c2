"""Counts the tokens that an agent's conversation makes a server read, with and without restarts of the server.

Run: `python scripts/agent_trace.py --model MODEL --questions QUESTIONS [--turns 30] [--every 5] [--kill] [OPTION ...]`.
Options that are none of the script's go to the server. The conversation has the shape of a coding agent's: a long
system prompt, ten functions, and turn by turn a call (greedy, forced by `tool_choice`) and its result, some hundred
tokens of the articles of Spec-Bench. It is held twice over HTTP with `edgeinfer serve`, each time with an empty store
of prefixes: with one process, and with a new one after every few turns. A turn reads the tokens of its prompt that the
server does not report as cached. Prints a row for each turn and the ratio of both sums, or all of it as JSON. Exits 1
if the two answer differently.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from scripts.long_context.texts import article_text

Record = dict[str, Any]

PATIENCE_S = 600.0
MAX_TOKENS = 64
RULES = (
    "Read a file before you change it, and change as little as the task needs.",
    "Keep the style of the code around: names, quotes, line length, order of imports.",
    "Write a test for each fault that you mend; it must fail without the change.",
    "Run the tests that are concerned before you report, and say which ones you ran.",
    "Never delete files, branches or data that you did not make yourself.",
    "Ask when the task can be understood in two ways that lead to different code.",
    "Do not guess what an interface does: look at its source, or at its documentation.",
    "Quote errors as they are; do not shorten paths, numbers or names in them.",
    "If a command runs longer than two minutes, stop it and say what it was doing.",
    "Do not add dependencies; if one would help much, propose it in the report.",
    "Secrets that you come across are neither printed nor written to a file.",
    "Say what you do not know. A wrong statement costs more than an open question.",
    "When a search finds nothing, try another word before you conclude that nothing is there.",
    "Prefer one clear function to three clever ones; remove what is no longer used.",
    "A plan has at most seven steps; strike out those that are done.",
    "End with a report: what was changed, why, what was tested, and what is left to do.",
)
SYSTEM = "You are an engineer who works in a repository by calling functions, one at a time.\n\nRules:\n" + "\n".join(
    f"{number}. {rule}" for number, rule in enumerate(RULES, 1)
)
TASK = "Find out what the notes in this repository say about each subject, file by file, and keep a list of it."
FUNCTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "read_file": ("Read lines of a file.", {"path": "string", "first": "integer", "last": "integer"}),
    "write_file": ("Write a whole file; makes missing folders.", {"path": "string", "content": "string"}),
    "replace": ("Replace a text that occurs once in a file.", {"path": "string", "old": "string", "new": "string"}),
    "list_files": ("List the files of a folder.", {"folder": "string", "depth": "integer"}),
    "search": ("Search all files for a regular expression.", {"pattern": "string", "folder": "string"}),
    "run": ("Run a command in the shell of the repository.", {"command": "string", "timeout_s": "integer"}),
    "fetch": ("Fetch a page of the documentation as text.", {"address": "string"}),
    "plan": ("Set the steps that are left to do.", {"steps": "string"}),
    "note": ("Keep a note for later turns.", {"title": "string", "text": "string"}),
    "report": ("Report to the user and end.", {"summary": "string", "is_done": "boolean"}),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens of a turn's prompt, those that were cached, and those of its answer; milliseconds to the first of them."""

    n_prompt: int
    n_cached: int
    n_generated: int
    prompt_ms: float
    is_first: bool
    """Whether a new process answered."""

    @property
    def n_read(self) -> int:
        return self.n_prompt - self.n_cached


@dataclass(frozen=True, slots=True)
class Trace:
    """The turns of a conversation, and what was answered."""

    turns: list[Turn]
    answers: list[str]

    @property
    def n_read(self) -> int:
        """Tokens read in all turns."""
        return sum(turn.n_read for turn in self.turns)


class Server:
    """A server in its own process, whose data are in a folder."""

    def __init__(self, model: str, folder: Path, options: Sequence[str]) -> None:
        serve = ["-m", "edgeinfer", "serve", "-m", model, "--port", "0", "--ready-json", "--no-key"]
        command = [sys.executable, *serve, "--device", "cpu", "--parent-pid", str(os.getpid()), *options]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "EDGEINFER_HOME": str(folder)}
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the server ended with {self._process.wait()}")
        self._http = httpx.Client(base_url=json.loads(line)["url"], timeout=PATIENCE_S)

    def answer(self, messages: Sequence[Record], tools: Sequence[Record]) -> Record:
        """The answer to a conversation, which is a call."""
        asked = {"messages": list(messages), "tools": list(tools), "tool_choice": "required", "temperature": 0}
        asked |= {"max_tokens": MAX_TOKENS, "parallel_tool_calls": False}
        response = self._http.post("/v1/chat/completions", json=asked)
        if response.is_error:
            raise SystemExit(response.text)
        found: Record = response.json()
        return found

    def end(self, *, kill: bool) -> None:
        """End the process as a service manager does, or at once."""
        self._http.close()
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def tools() -> list[Record]:
    """The functions in the form of requests."""
    found = []
    for name, (description, types) in FUNCTIONS.items():
        properties = {key: {"type": kind, "description": f"The {key} for {name}."} for key, kind in types.items()}
        schema = {"type": "object", "properties": properties, "required": list(types), "additionalProperties": False}
        function = {"name": name, "description": description, "parameters": schema}
        found.append({"type": "function", "function": function})
    return found


def results(questions: Path, n_words: int) -> Iterator[str]:
    """Results of calls: the articles, so many words at a time."""
    words = article_text(questions).split()
    for first in range(0, len(words), n_words):
        yield " ".join(words[first : first + n_words])


def held(given: argparse.Namespace, every: int | None) -> Trace:
    """Hold the conversation; `every`: a new process after so many turns, None: one for all."""
    messages: list[Record] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    trace, told, server = Trace([], []), results(given.questions, given.words), None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        for number in range(given.turns):
            is_first = server is None or (bool(every) and number % every == 0)
            if is_first:
                opened.close()
                server = Server(given.model, Path(folder), given.serve)
                opened.callback(server.end, kill=given.kill)
            assert server is not None
            answer = server.answer(messages, tools())
            message, usage = answer["choices"][0]["message"], answer["usage"]
            counts = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]
            trace.turns.append(Turn(*counts, answer.get("timings", {}).get("prompt_ms", 0.0), is_first))
            trace.answers.append(json.dumps([message.get("content"), *_calls(message)]))
            messages += [message, *_results(message, next(told))]
    return trace


def _calls(message: Record) -> list[Record]:
    return [call["function"] for call in message.get("tool_calls") or []]


def _results(message: Record, text: str) -> list[Record]:
    """What follows an answer: the results of its calls; if it was cut before it called, what the user says."""
    calls = message.get("tool_calls") or []
    if not calls:
        return [{"role": "user", "content": text}]
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]


def show(one: Trace, other: Trace) -> None:
    """A row for each turn, and the sums."""
    print(f"{'turn':>4}{'prompt':>9}{'read, one process':>19}{'read, restarts':>16}{'more':>7}")
    for number, (turn, again) in enumerate(zip(one.turns, other.turns, strict=True), 1):
        mark = "  new process" if again.is_first else ""
        more = again.n_read - turn.n_read
        print(f"{number:>4}{turn.n_prompt:>9}{turn.n_read:>19}{again.n_read:>16}{more:>7}{mark}")
    n_least = one.turns[-1].n_prompt
    print(f"{'all':>4}{n_least:>9}{one.n_read:>19}{other.n_read:>16}{other.n_read - one.n_read:>7}")
    print(f"restarts read {other.n_read / one.n_read:.3f} times what one process reads")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's file of questions")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--every", type=int, default=5, help="turns after which the server is restarted")
    parser.add_argument("--words", type=int, default=90, help="words of a call's result")
    parser.add_argument("--kill", action="store_true", help="end servers at once, as a crash does")
    parser.add_argument("--json", action="store_true")
    given, given.serve = parser.parse_known_args()
    one, other = held(given, None), held(given, given.every)
    is_same = one.answers == other.answers
    if given.json:
        ratio = other.n_read / one.n_read
        told = {"ratio": ratio, "same_answers": is_same, "one_process": asdict(one), "restarts": asdict(other)}
        print(json.dumps(told))
    else:
        show(one, other)
        print("the same answers" if is_same else "the answers differ")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
