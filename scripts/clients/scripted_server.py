"""edgeinfer's own server over a model that says what a script tells it to; records requests and answers.

Run from the repository root: `python scripts/clients/scripted_server.py MODEL SCRIPT.json RECORD.jsonl`. It prints its
address, then serves. Clients see the real server: templates, reading, streams, calls; only the choice of tokens is the
script's, a list of rules. The first rule that fits a conversation says its answer: {"role": of the last message that is
not the system's, "has": a regular expression found in it, "tool": a function that there is, "as_schema": true where the
answer must follow a schema, "say": the answer as the model writes it}; all but "say" may be left out.
A call that must be made is the model's own, as is all where no rule fits. With weights that are
random and few, even long prompts are read fast.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeinfer.app.server.app import create_app
from edgeinfer.app.server.listening import ServerOptions, listen
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.constrained.guidance import grammar_of
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.models.store import LocalModel, path_model
from edgeinfer.steps import Progress

Rule = Mapping[str, Any]
KEPT_HEADERS = ("accept", "content-type", "anthropic-version", "anthropic-beta", "originator", "x-stainless-lang")
"""Others have keys, addresses, or facts about the machine."""


@dataclass(frozen=True)
class Scripted(Prompts):
    """Prompts whose requests can only be answered as the rules say."""

    rules: tuple[Rule, ...] = ()

    def chat(self, messages: Any, options: Options, *known: Any) -> Request:
        """The request for a conversation, with the answer of the first rule that fits."""
        request = super().chat(messages, options, *known)
        if options.get("tool_choice", "auto") not in ("auto", "none"):
            return request
        names = {tool["function"]["name"] for tool in options.get("tools") or ()}
        last = [each for each in messages if each["role"] not in ("system", "developer")][-1:] or messages
        for rule in self.rules:
            if ("schema" in options or "as_schema" not in rule) and _fits(rule, last[-1], names):
                grammar = grammar_of(None, f"start: {json.dumps(rule['say'])}", None)
                assert grammar is not None
                return replace(request, constraint=self.guidance.constraint(grammar))
        return request


def _fits(rule: Rule, last: Mapping[str, Any], names: set[str]) -> bool:
    """Whether a rule is for a conversation with this last message and these functions."""
    if "tool" in rule and rule["tool"] not in names:
        return False
    return rule.get("role", last["role"]) == last["role"] and bool(
        re.search(rule.get("has", ""), last.get("content") or "")
    )


class Recorder:
    """Middleware that writes each request with its answer as one line of JSON."""

    def __init__(self, app: ASGIApp, path: Path) -> None:
        self._app, self._path = app, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, sent, got = time.monotonic(), bytearray(), bytearray()
        status = 0

        async def receiving() -> Message:
            message = await receive()
            sent.extend(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            got.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, receiving, sending)
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"] if name.decode() in KEPT_HEADERS}
        told = {"method": scope["method"], "path": scope["path"], "headers": headers, "status": status}
        told |= {"seconds": round(time.monotonic() - begun, 2), "body": _parsed(sent), "answer": got.decode()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told, ensure_ascii=False) + "\n")


def _parsed(data: bytes | bytearray) -> object:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data.decode(errors="replace")


def opened(path: Path, rules: Sequence[Rule], **options: Any) -> LLM:
    """A model that answers as the rules say."""
    llm = load(path, **options)
    own = {each.name: getattr(llm.prompts, each.name) for each in fields(Prompts)}
    llm.prompts = Scripted(**own, rules=tuple(rules))
    return llm


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("script", type=Path, metavar="SCRIPT.json")
    parser.add_argument("record", type=Path, metavar="RECORD.jsonl")
    parser.add_argument("--chat-template-file", type=Path, metavar="FILE", default=None)
    parser.add_argument("--ctx", type=int, default=65536)
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()

    def open_model(model: LocalModel, _: Progress) -> LLM:
        rules = json.loads(options.script.read_text(encoding="utf-8"))
        template, context = options.chat_template_file, options.ctx
        return opened(model.path, rules, chat_template_file=template, n_context=context, n_sessions=2, parallel=8)

    pool = ModelPool(open_model, ModelList(list, path_model(options.model)))
    app = create_app(ServerOptions(port=options.port), pool, {"temperature": 0.7})
    app.add_middleware(Recorder, path=options.record)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    listener = listen("127.0.0.1", options.port)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
