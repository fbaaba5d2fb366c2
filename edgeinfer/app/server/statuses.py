"""What routes may answer besides what they are for, for the description of the API."""

from __future__ import annotations

from typing import Any

from edgeinfer.app.server.failures import KINDS

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "param"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": ["string", "integer"]},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}
_MEANINGS = {
    400: "The request cannot be met as it is.",
    401: "The key is missing or wrong.",
    403: "The server is not called so, or the page may not use it.",
    404: "There is no such model.",
    413: "The request is too large.",
    501: "edgeinfer cannot do this.",
    503: "The queue is full, or the model cannot be opened just now.",
}
FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": {"application/json": {"schema": _ERROR}}}
    for status, meaning in _MEANINGS.items()
}
assert set(_MEANINGS) <= set(KINDS)
ANSWERED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, whole or as a stream of events.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
    },
    **FAILURES,
}
