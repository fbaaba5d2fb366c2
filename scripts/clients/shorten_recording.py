"""Makes tests/server/histories/CLIENT.json of what a coding agent sent to `scripted_server.py`, without long texts.

Run from the repository root: `PYTHONPATH=scripts python scripts/clients/shorten_recording.py RECORD.jsonl
"NAME VERSION" OUT.json --folder /where/it/ran --tools read,bash`. Prompts and descriptions are cut, tools that are not
named are left out, and folders, identities and days are replaced: what stays is the shape of requests, and
what was said and called.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from clients.compact_histories import history_file, recorded_requests

ROUTES = ("/v1/messages", "/v1/chat/completions", "/v1/responses")
KEPT_HEADERS = ("accept", "content-type")
MOST_TEXT, MOST_DESCRIPTION = 160, 60
HOME = "/home/user/project"
REPLACED = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "00000000-0000-0000-0000-000000000000"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "0" * 64),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "2026-01-01"),
)
DAYS = re.compile(r"(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, \w+ \d+, \d{4}|\w{3} \w{3} \d\d \d{4}")
UNTOLD = ("metadata", "client_metadata")
"""Fields of bodies that only tell the client's maker who asks."""


def shortened(body: Mapping[str, Any], folder: str, tools: Collection[str]) -> dict[str, Any]:
    """A body with short texts and few tools, that tells nothing of where it was made."""
    plain = json.dumps({name: value for name, value in body.items() if name not in UNTOLD}, ensure_ascii=False)
    for place, text in ((folder, HOME), (str(Path(folder).parent), "/home")):
        plain = plain.replace(place, text).replace(place.replace("/", "-"), text.replace("/", "-"))
    plain = DAYS.sub("Thursday, January 1, 2026", plain)
    for pattern, text in REPLACED:
        plain = pattern.sub(text, plain)
    body = json.loads(plain)
    if "tools" in body:
        body["tools"] = [_cut(tool, MOST_DESCRIPTION) for tool in body["tools"] if _names(tool) & set(tools)]
    return {name: value if name == "tools" else _cut(value, MOST_TEXT) for name, value in body.items()}


def _names(tool: Mapping[str, Any]) -> set[str]:
    """The names of a tool, or its type if it has none."""
    return {tool.get("name") or tool.get("function", {}).get("name") or tool["type"]}


def _cut(value: Any, most: int) -> Any:
    """A value whose long texts are cut; a text that begins with a call's JSON stays."""
    if isinstance(value, str):
        return value if len(value) <= most or value.startswith("{") else value[:most].rstrip() + " …"
    if isinstance(value, list):
        return [_cut(each, most) for each in value]
    return {name: _cut(each, most) for name, each in value.items()} if isinstance(value, dict) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("record", type=Path, metavar="RECORD.jsonl")
    parser.add_argument("client", metavar="NAME VERSION")
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--folder", required=True, help="where the agent ran")
    parser.add_argument("--tools", required=True, help="tools that are kept, with commas")
    options = parser.parse_args()
    requests = [
        {
            "path": told["path"],
            "headers": {name: told["headers"][name] for name in KEPT_HEADERS if name in told["headers"]},
            "body": shortened(told["body"], options.folder, options.tools.split(",")),
        }
        for told in map(json.loads, options.record.read_text(encoding="utf-8").splitlines())
        if told["path"] in ROUTES
    ]
    text = history_file(options.client, {("coding", "stream"): requests})
    assert [each.body for each in recorded_requests(text)] == [each["body"] for each in requests]
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
