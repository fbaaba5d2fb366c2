"""The protocols that a soaked server is asked in: what a request is, and how a stream of each must end.

In: a text and a number of tokens. Out: bodies of requests; what is wrong with a stream, in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Body = dict[str, object]
_ERROR = re.compile(r'^(data: )?\{"error"|^event: error')


@dataclass(frozen=True, slots=True)
class Protocol:
    """`body`: a request from a text and the most tokens; `last`: matches the last line of a stream."""

    name: str
    path: str
    body: Callable[[str, int], Body]
    last: str


def _said(text: str) -> list[Body]:
    return [{"role": "system", "content": "You are brief."}, {"role": "user", "content": text}]


PROTOCOLS = (
    Protocol(
        "chat",
        "/v1/chat/completions",
        lambda text, n: {"messages": _said(text), "max_tokens": n},
        r"data: \[DONE\]",
    ),
    Protocol("completions", "/v1/completions", lambda text, n: {"prompt": text, "max_tokens": n}, r"data: \[DONE\]"),
    Protocol(
        "responses",
        "/v1/responses",
        lambda text, n: {"input": text, "max_output_tokens": n},
        r'data: \{"type":"response\.(completed|incomplete)"',
    ),
    Protocol(
        "messages",
        "/v1/messages",
        lambda text, n: {"messages": _said(text)[1:], "system": "You are brief.", "max_tokens": n},
        r'data: \{"type":"message_stop"',
    ),
    Protocol(
        "ollama chat",
        "/api/chat",
        lambda text, n: {"model": "default", "messages": _said(text), "options": {"num_predict": n}},
        r'\{.*"done":true',
    ),
    Protocol(
        "ollama generate",
        "/api/generate",
        lambda text, n: {"model": "default", "prompt": text, "options": {"num_predict": n}},
        r'\{.*"done":true',
    ),
    Protocol("native", "/completion", lambda text, n: {"prompt": text, "n_predict": n}, r'data: \{.*"stop":true'),
    Protocol(
        "infill",
        "/infill",
        lambda text, n: {"input_prefix": text, "input_suffix": " the end", "n_predict": n},
        r'data: \{.*"stop":true',
    ),
)


def fault_of_stream(protocol: Protocol, lines: Sequence[str]) -> str | None:
    """What is wrong with the lines of a whole stream that has no empty ones."""
    if wrong := next((line for line in lines if _ERROR.match(line)), None):
        return f"a stream says {wrong[:200]}"
    if not lines or not re.match(protocol.last, lines[-1]):
        return f"a stream ends with {lines[-1][:200] if lines else 'nothing'}"
    return None
