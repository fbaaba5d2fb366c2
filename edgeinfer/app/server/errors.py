"""API errors: statuses, error bodies of OpenAI's and Anthropic's APIs, and their description in the OpenAPI schema.

In: exceptions. Out: statuses and bodies that reveal no internals of the program.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeinfer.app.server.validation_words import what_is_wrong
from edgeinfer.errors import (
    BadBundle,
    BadGGUF,
    BadImage,
    BadSetting,
    BadSound,
    BadTemplate,
    ContextOverflow,
    DoesNotFit,
    DownloadFailed,
    EdgeInferError,
    EngineClosed,
    ModelNotFound,
    UnknownKey,
    UnsupportedModel,
)

KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}
"""Error types by status; all other statuses have the type server_error."""
TOO_LONG = "context_length_exceeded"
"""The code of a prompt that is longer than the context, as OpenAI's clients know it."""
TOO_LONG_KIND = "exceed_context_size_error"
"""Its error type, as llama-server's clients know it."""

_PLACE = re.compile(r"(?:messages|input|images|prompt)\b[\w.\[\]-]*")
"""Where a request has an image or a sound, which is also the name by which errors of decoding it begin."""

_STATUSES: tuple[tuple[type[EdgeInferError], int, str | None], ...] = (
    (BadSetting, 400, None),
    (BadTemplate, 400, None),
    (BadImage, 400, "invalid_image"),
    (BadSound, 400, "invalid_audio"),
    (ModelNotFound, 404, "model_not_found"),
    (UnsupportedModel, 400, "model_not_supported"),
    (UnknownKey, 400, None),
    (BadGGUF, 503, "model_damaged"),
    (BadBundle, 503, "model_damaged"),
    (DoesNotFit, 503, "out_of_memory"),
    (DownloadFailed, 503, None),
    (EngineClosed, 503, "model_closed"),
)

OLLAMA_PATHS = "/api/"
"""Paths of Ollama's API, whose errors are a text."""
ANTHROPIC_PATHS = "/v1/messages"
"""Paths of Anthropic's API, whose errors have its form."""
TOO_LONG_WORDS = "prompt is too long: "
"""Words by which agents of all APIs know that a conversation is to be shortened (langchain, litellm, Claude Code …)."""
ALSO_TOO_LONG = "; it is longer than the model's context length"
"""Words by which older versions of litellm know it, such as the one that aider brings."""
ANTHROPIC_KINDS: Mapping[int, str] = {**KINDS, 413: "request_too_large", 503: "overloaded_error"}
"""Anthropic's error types by status; all other statuses have the type api_error."""
REQUEST_ID = "edgeinfer.request_id"
"""The key of a request's scope for the id that its response has in its headers."""
LOG = logging.getLogger("edgeinfer.server")
RETRY_S = "1"
"""The Retry-After header value when the queue is full."""


@dataclass
class APIError(Exception):
    """A request that the server refuses. `code`: an error code for programs; `param`: the request field at fault.

    `numbers`: further fields of the body.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, object]:
        """The error as a JSON body."""
        return {
            "error": {
                "message": self.message,
                "type": TOO_LONG_KIND if self.code == TOO_LONG else KINDS.get(self.status, "server_error"),
                "param": self.param,
                "code": self.status if self.code is None else self.code,
                **self.numbers,
            }
        }

    def anthropic_body(self) -> dict[str, object]:
        """The error as a JSON body of Anthropic's API."""
        kind = ANTHROPIC_KINDS.get(self.status, "api_error")
        details = {} if self.code is None else {"details": {"error_code": self.code}}
        return {"type": "error", "error": {"type": kind, "message": self.message, **details}}

    def body_at(self, path: str) -> dict[str, object]:
        """The error as a JSON body, in the words of the API that a path belongs to."""
        if path.startswith(OLLAMA_PATHS):
            return {"error": self.message}
        return self.anthropic_body() if path.startswith(ANTHROPIC_PATHS) else self.body()


def too_long(message: str, n_prompt: int | None, n_context: int | None, param: str | None = None) -> APIError:
    """The error of a prompt that is longer than the context."""
    is_known = n_prompt is not None and n_context is not None
    numbers = {"n_prompt_tokens": n_prompt or 0, "n_ctx": n_context or 0} if is_known else {}
    return APIError(400, TOO_LONG_WORDS + message + ALSO_TOO_LONG, TOO_LONG, param, numbers=numbers)


def invalid(failures: Sequence[Mapping[str, Any]], place: str = "") -> APIError:
    """The error of a body that fails validation, from pydantic's description; `place`: what of a request it is."""
    param, wrong = what_is_wrong([{**each, "loc": (*filter(None, [place]), *each["loc"])} for each in failures])
    return APIError(400, wrong, param=param or None)


def unsupported(message: str, param: str) -> APIError:
    """What edgeinfer cannot do: a client's error, since clients send a request again that fails with 500 or more."""
    return APIError(400, message, "not_supported", param)


def api_error(reason: BaseException) -> APIError:
    """Convert an exception to an API error; details of unexpected exceptions are not shown to clients."""
    if isinstance(reason, APIError):
        return reason
    if isinstance(reason, ContextOverflow):
        return too_long(str(reason), reason.n_prompt, reason.n_context)
    if isinstance(reason, EdgeInferError):
        matches = ((status, code) for kind, status, code in _STATUSES if isinstance(reason, kind))
        status, code = next(matches, (500, None))
        headers = {"Retry-After": "5"} if status == 503 else {}
        place = _PLACE.match(str(reason)) if isinstance(reason, BadImage | BadSound) else None
        return APIError(status, str(reason), code, place and place[0], headers=headers)
    return APIError(500, "the server failed; its log says why")


def told_error(reason: Exception, scope: Mapping[str, Any]) -> APIError:
    """What the client of a request is told of an exception; the log has what it is not told."""
    error = api_error(reason)
    if error.status == 500:
        method, path, identity = (scope.get(name) for name in ("method", "path", REQUEST_ID))
        LOG.error("%s %s failed (%s)", method, path, identity, exc_info=reason)
    return error


def forget_frames(reason: BaseException | None) -> None:
    """Drop what the frames of an answered exception and of its causes hold, such as a body of megabytes.

    Frames and exceptions hold each other, so all of it would live until the garbage collector comes to the oldest.
    """
    while reason is not None:
        traceback.clear_frames(reason.__traceback__)
        reason = reason.__cause__ or reason.__context__


_ERROR_SCHEMA = {
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
    415: "The body is packed in an unknown way.",
    503: "The queue is full, or the model cannot be opened just now.",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": {"application/json": {"schema": _ERROR_SCHEMA}}}
    for status, meaning in _MEANINGS.items()
}
assert set(_MEANINGS) <= set(KINDS)
PART_RESPONSES: dict[int | str, dict[str, Any]] = {
    **ERROR_RESPONSES,
    501: {"description": "This part of the server is off.", "content": ERROR_RESPONSES[400]["content"]},
}
ANSWER_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, whole or as a stream of events.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
    },
    **ERROR_RESPONSES,
}
OLLAMA_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": meaning,
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
            }
        },
    }
    for status, meaning in {**_MEANINGS, 409: "The model is being used."}.items()
}
OLLAMA_ANSWER_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, whole or as lines of JSON.",
        "content": {"application/json": {"schema": {"type": "object"}}, "application/x-ndjson": {}},
    },
    **OLLAMA_RESPONSES,
}
_ANTHROPIC_SCHEMA = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
ANTHROPIC_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": {"application/json": {"schema": _ANTHROPIC_SCHEMA}}}
    for status, meaning in _MEANINGS.items()
}
ANTHROPIC_ANSWER_RESPONSES: dict[int | str, dict[str, Any]] = {200: ANSWER_RESPONSES[200], **ANTHROPIC_RESPONSES}
