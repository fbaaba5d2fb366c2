"""Recorded requests as compact text: every request of a run tells only what differs from the one before.

In: the requests of a client's runs, by scene and mode. Out: JSON, with one request a line; and the requests again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

Record = dict[str, Any]
Runs = Mapping[tuple[str, str], list[Record]]
GROWING = ("messages", "input")
"""Fields of a body that mostly begin as in the request before."""
STREAM = frozenset({"stream", "stream_options"})


def history_file(version: str, runs: Runs) -> str:
    """The text of a client's file. Runs that stream say only so if all else is as in those that do not."""
    tools: list[Any] = []
    told = []
    for (scene, mode), requests in runs.items():
        whole = runs.get((scene, "whole"))
        if mode == "stream" and whole is not None and _unstreamed(whole) == _unstreamed(requests):
            added = {name: value for name, value in requests[0]["body"].items() if name in STREAM}
            told.append(_line({"scene": scene, "mode": mode, "as": "whole", "with": added}))
            continue
        lines = ",\n".join(map(_line, _differences(requests, tools)))
        told.append(f'{{"scene": {_line(scene)}, "mode": {_line(mode)}, "requests": [\n{lines}\n]}}')
    listed = ",\n".join(map(_line, tools))
    return f'{{"client": {_line(version)},\n"tools": [\n{listed}\n],\n"runs": [\n{_joined(told)}\n]}}\n'


def _joined(told: list[str]) -> str:
    return ",\n".join(told)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _unstreamed(requests: list[Record]) -> list[Record]:
    """Requests without what only says that the answer is to be streamed."""
    return [
        {"path": each["path"], "body": {name: value for name, value in each["body"].items() if name not in STREAM}}
        for each in requests
    ]


def _differences(requests: list[Record], tools: list[Any]) -> list[Record]:
    """What each request changes in the one before; lists of tools are numbers in `tools`."""
    before: Record = {}
    told = []
    for request in requests:
        body = dict(request["body"])
        if "tools" in body:
            if body["tools"] not in tools:
                tools.append(body["tools"])
            body["tools"] = tools.index(body["tools"])
        difference: Record = {"path": request["path"], "headers": request["headers"]} if not before else {}
        for name, value in body.items():
            if name in GROWING and isinstance(value, list):
                n_same = _n_same(before.get(name, []), value)
                difference.setdefault("more", {})[name] = [n_same, *value[n_same:]]
            elif name not in before or before[name] != value:
                difference.setdefault("set", {})[name] = value
        if gone := sorted(before.keys() - body.keys()):
            difference["without"] = gone
        told.append(difference)
        before = body
    return told


def _n_same(before: Any, now: list[Any]) -> int:
    """The number of items that both lists begin with."""
    n = 0
    for old, new in zip(before if isinstance(before, list) else [], now, strict=False):
        if old != new:
            break
        n += 1
    return n


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a client. `number`: how many requests of its run were before it."""

    client: str
    scene: str
    mode: str
    number: int
    path: str
    headers: dict[str, str]
    body: Record


def recorded_requests(text: str) -> Iterator[RecordedRequest]:
    """The requests in a client's file, in full."""
    found = json.loads(text)
    client = found["client"]
    whole: dict[str, list[RecordedRequest]] = {}
    for run in found["runs"]:
        scene, mode = run["scene"], run["mode"]
        if "as" in run:
            requests = [replace(each, mode=mode, body={**each.body, **run["with"]}) for each in whole[scene]]
        else:
            bodies = _bodies(run["requests"], found["tools"])
            path, headers = run["requests"][0]["path"], run["requests"][0]["headers"]
            requests = [
                RecordedRequest(client, scene, mode, number, path, headers, body) for number, body in enumerate(bodies)
            ]
        whole.setdefault(scene, requests)
        yield from requests


def _bodies(differences: list[Record], tools: list[Any]) -> Iterator[Record]:
    """The bodies of one run."""
    before: Record = {}
    for difference in differences:
        body = {name: value for name, value in before.items() if name not in difference.get("without", ())}
        body |= difference.get("set", {})
        for name, (n_same, *more) in difference.get("more", {}).items():
            body[name] = [*before.get(name, [])[:n_same], *more]
        before = body
        yield {**body, "tools": tools[body["tools"]]} if "tools" in body else body
