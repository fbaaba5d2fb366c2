"""A server for clients under record: plays scripted answers and keeps the bodies of requests.

In: requests to /CLIENT/SCENE/MODE/v1/chat/completions or …/responses on loopback. Out: answers in OpenAI's form; the
bodies. It only looks at `stream` and `stream_options` of a body.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from clients.played_responses import response_events, response_object
from clients.scripted_answers import SCENES, Answer, call_count

KEPT_HEADERS = ("accept", "content-type")
"""Others have keys, versions, or facts about the machine."""
MODEL = "test-model"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

Record = dict[str, Any]


@dataclass
class Recordings:
    """What clients have sent, by client, scene and mode."""

    requests: dict[tuple[str, str, str], list[Record]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, place: tuple[str, str, str], request: Record) -> int:
        """Keep a request, and return its number."""
        with self.lock:
            kept = self.requests.setdefault(place, [])
            kept.append(request)
            return len(kept) - 1


def serve(recordings: Recordings) -> ThreadingHTTPServer:
    """A server on a free port of loopback, in a thread of its own."""

    class Handler(_Handler):
        records = recordings

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    records: Recordings

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Keep the body and play the next answer of its scene."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        client, scene, mode, _, route = self.path.strip("/").split("/", 4)
        headers = {name: self.headers[name] for name in KEPT_HEADERS if self.headers[name]}
        number = self.records.add((client, scene, mode), {"path": f"/v1/{route}", "headers": headers, "body": body})
        answers = SCENES[scene.removesuffix("-responses")]
        if number >= len(answers):
            self.records.failures.append(f"{client} {scene} {mode}: more requests than answers")
            self._send(json.dumps({"error": {"message": "there are no more answers"}}).encode(), status=400)
            return
        answer, first = answers[number], call_count(scene.removesuffix("-responses"), number)
        if route == "responses":
            whole = response_object(answer, first, number)
            events = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in response_events(whole))
        else:
            whole = _completion(answer, first)
            usage = (body.get("stream_options") or {}).get("include_usage")
            events = (f"data: {line}\n\n" for line in [*map(json.dumps, _chunks(answer, first, usage)), "[DONE]"])
        if body.get("stream"):
            self._send("".join(events).encode(), kind="text/event-stream")
        else:
            self._send(json.dumps(whole).encode())

    def _send(self, data: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _completion(answer: Answer, first: int) -> Record:
    message: Record = {"role": "assistant", "content": answer.content}
    if answer.thoughts:
        message["reasoning_content"] = answer.thoughts
    if answer.calls:
        message["tool_calls"] = answer.call_records(first)
    reason = "tool_calls" if answer.calls else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    envelope = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    return {**envelope, "choices": [choice], "usage": USAGE}


def _deltas(answer: Answer, first: int) -> Iterator[Record]:
    """Text in two pieces, and calls as OpenAI streams them: the name first, then the arguments in pieces."""
    yield {"role": "assistant", "content": ""}
    for name, text in (("reasoning_content", answer.thoughts), ("content", answer.content)):
        for piece in (text[:5], text[5:]) if text else ():
            yield {name: piece}
    for index, call in enumerate(answer.call_records(first)):
        function = call["function"]
        begun = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [begun]}
        for at in range(0, len(function["arguments"]), 9):
            yield {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"][at : at + 9]}}]}


def _chunks(answer: Answer, first: int, with_usage: object) -> Iterator[Record]:
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    for delta in _deltas(answer, first):
        yield {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    reason = "tool_calls" if answer.calls else "stop"
    yield {**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    if with_usage:
        yield {**envelope, "choices": [], "usage": USAGE}
