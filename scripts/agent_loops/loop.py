"""One agent's loop of five steps: what it asks for is drawn, and what comes back is judged.

In: a wire, a random generator, the prompts that the model was given. Out: what was seen, and every fault. The model is
told every word of the user, every result and every number of a call, whatever the template and the API.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .functions import FUNCTIONS, REPORT, fault_of_call, fault_of_json, result_of
from .wires import Answer, AnthropicWire, Ask, Call, ChatWire, OllamaWire, ResponsesWire, Result, Wire

N_STEPS = 5
MAX_TOKENS, MAX_TOKENS_FREE = 320, 60
WIRES: dict[str, Callable[[str, random.Random], Wire]] = {
    "chat": lambda url, draw: ChatWire(url, draw, is_streamed=False),
    "chat, streamed": lambda url, draw: ChatWire(url, draw, is_streamed=True),
    "responses": lambda url, draw: ResponsesWire(url, draw, is_streamed=False, is_stored=False),
    "responses, by id": lambda url, draw: ResponsesWire(url, draw, is_streamed=True, is_stored=True),
    "anthropic": lambda url, draw: AnthropicWire(url, draw, is_streamed=draw.random() < 0.5),
    "ollama": lambda url, draw: OllamaWire(url, draw, is_streamed=draw.random() < 0.5),
}
CALL_BEGUN = re.compile(rf"\s*<\|?tool_call\|?>\s*(?:call:|<function=)?({'|'.join(FUNCTIONS)})\b")
"""The beginning of a call in tags, whose texts have no quotes that could be closed when the tokens run out."""
CHAT_SHARE = 0.5
"""Of all loops, those through chat completions."""


class WatchedPrompts:
    """The last prompt of each loop, as text with all marks; found by the loop's name in it."""

    def __init__(self, llm: Any) -> None:
        self._prompts: dict[str, str] = {}
        self._lock = threading.Lock()
        self._chat = llm.chat
        self._llm = llm
        llm.chat = self._watched

    def _watched(self, messages: Any, **options: Any) -> Any:
        stream = self._chat(messages, **options)
        prompt = self._llm.detokenize(stream.prompt)
        with self._lock:
            for name in re.findall(r"loop\d+x", prompt)[:1]:
                self._prompts[name] = prompt
        return stream

    def of(self, name: str) -> str:
        """The last prompt of a loop."""
        with self._lock:
            return self._prompts[name]


@dataclass
class Seen:
    """What was seen in loops: counts by word, and faults in words."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass
class Loop:
    """An agent's loop. `kind`: a key of WIRES."""

    number: int
    kind: str
    url: str
    prompts: WatchedPrompts
    seen: Seen = field(default_factory=Seen)

    def run(self) -> Seen:
        """Run all steps, or those up to the first fault."""
        draw = random.Random(self.number)
        wire, marks = WIRES[self.kind](self.url, draw), [f"loop{self.number}x"]
        wire.say(f"I am {marks[0]}. What is the weather in São Paulo, <b>now</b>?")
        for step in range(N_STEPS):
            ask = drawn_ask(draw, step)
            try:
                answer = wire.ask(ask)
            except Exception as reason:  # whatever an SDK does not take
                self._fault(step, ask, f"{type(reason).__name__}: {reason}")
                return self.seen
            self.seen.counts["steps"] += 1
            faults = [*faults_of(ask, answer, is_choosable=self.kind != "ollama"), *self._untold(marks)]
            self._count(ask, answer)
            if faults:
                for fault in faults:
                    self._fault(step, ask, fault)
                return self.seen
            marks += self._go_on(wire, answer, draw, f"{self.number}-{step}")
        self.seen.counts["whole loops"] += 1
        return self.seen

    def _go_on(self, wire: Wire, answer: Answer, draw: random.Random, name: str) -> list[str]:
        """Give results, or say something. Returns what the next prompt must have."""
        results = [self._result(call, draw, f"result{name}-{number}x") for number, call in enumerate(answer.calls)]
        wire.give(results) if results else None
        marks = [f"result{name}-{number}x" for number in range(len(results))]
        marks += [ticket for call in answer.calls for ticket in re.findall(r'"ticket":\s*(\d{5})', call.arguments)]
        if not results or draw.random() < 0.2:
            marks.append(f"said{name}x")
            wire.say(f'And then? {marks[-1]} Use "functions" & don\'t guess.')
        return marks

    def _result(self, call: Call, draw: random.Random, mark: str) -> Result:
        text, is_error = result_of(call.name, draw, mark)
        self.seen.counts["errors given"] += is_error
        return Result(call, text, is_error)

    def _untold(self, marks: Sequence[str]) -> list[str]:
        with suppress(KeyError):
            prompt = self.prompts.of(marks[0])
            missing = [mark for mark in marks if mark not in prompt]
            return [f"the model was not told {missing}: {prompt[-1500:]}"] if missing else []
        return ["the model was never asked"]

    def _count(self, ask: Ask, answer: Answer) -> None:
        counts = self.seen.counts
        counts["calls"] += len(answer.calls)
        counts["calls by choice"] += len(answer.calls) * (ask.choice == "auto")
        counts["several at once"] += len(answer.calls) > 1
        counts["reports"] += ask.schema is not None and not answer.calls
        counts["cut"] += answer.is_cut

    def _fault(self, step: int, ask: Ask, fault: str) -> None:
        form = " with a schema" if ask.schema else ""
        self.seen.faults.append(f"loop {self.number} ({self.kind}), step {step}, {ask.choice}{form}: {fault}")


def drawn_ask(draw: random.Random, step: int) -> Ask:
    """What a step asks for; calls are forced more often at first."""
    names = draw.sample(list(FUNCTIONS), draw.randint(1, len(FUNCTIONS)))
    weights = (1, 2, 2, 0) if step < 2 else (3, 1, 1, 1)
    choice = draw.choices(["auto", "required", "named", "none"], weights)[0]
    choice = draw.choice(names) if choice == "named" else choice
    schema = REPORT if choice in ("auto", "none") and draw.random() < 0.5 else None
    max_tokens = MAX_TOKENS_FREE if choice in ("auto", "none") and schema is None else MAX_TOKENS
    return Ask(names, choice, draw.random() < 0.7, schema, max_tokens, draw.randrange(999))


def faults_of(ask: Ask, answer: Answer, *, is_choosable: bool) -> list[str]:
    """What is wrong with an answer. One whose tokens ran out may lack its call: a call that is cut is none."""
    calls, choice = answer.calls, ask.choice
    faults = [fault_of_call(call.name, call.arguments, ask.names, answer.schemas) for call in calls]
    if choice == "none" and calls:
        faults.append(f"{len(calls)} calls")
    is_cut = answer.is_cut and not calls
    if is_choosable:
        if choice in ask.names and [call.name for call in calls] != [choice] and not is_cut:
            faults.append(f"calls of {[call.name for call in calls]}, {answer.reason}: {answer.text!r}")
        if choice == "required" and not calls and not is_cut:
            faults.append(f"no call, {answer.reason}: {answer.text!r}")
        if not ask.is_parallel and len(calls) > 1:
            faults.append(f"{len(calls)} calls at a time")
    is_json = not calls and not (is_cut and CALL_BEGUN.match(answer.text))
    if ask.schema is not None and is_json and (fault := fault_of_json(answer.text, ask.schema)):
        faults.append(f"{fault}, {answer.reason}")
    if calls and answer.reason in ("stop", "end_turn") and is_choosable:
        faults.append(f"{answer.reason} beside calls")
    return [fault for fault in faults if fault is not None]


def kinds_of(n: int) -> list[str]:
    """The wires of loops: half of them chat completions, the others in turn."""
    chats, others = list(WIRES)[:2], list(WIRES)[2:]
    n_chats = round(CHAT_SHARE * n)
    return [chats[number % 2] if number < n_chats else others[number % len(others)] for number in range(n)]
