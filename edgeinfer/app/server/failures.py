"""What clients are told when something is wrong: a status and OpenAI's form of an error.

In: exceptions. Out: statuses and bodies. Tells nothing of the inside of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgeinfer.errors import (
    BadBundle,
    BadGGUF,
    BadSetting,
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
    501: "not_supported_error",
    503: "unavailable_error",
}
"""The type of an error by its status; of others it is server_error."""

_STATUSES: tuple[tuple[type[EdgeInferError], int, str | None], ...] = (
    (ContextOverflow, 400, "context_length_exceeded"),
    (BadSetting, 400, None),
    (BadTemplate, 400, None),
    (ModelNotFound, 404, "model_not_found"),
    (UnsupportedModel, 400, "model_not_supported"),
    (UnknownKey, 400, None),
    (BadGGUF, 503, "model_damaged"),
    (BadBundle, 503, "model_damaged"),
    (DoesNotFit, 503, "out_of_memory"),
    (DownloadFailed, 503, None),
    (EngineClosed, 503, "model_closed"),
)

RETRY_S = "1"
"""When a client may ask again where a place was missing."""


@dataclass
class Refusal(Exception):
    """A request that is not answered. `code`: a word for programs; `param`: the field of the request it is about."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, object]:
        """What the client gets."""
        return {
            "error": {
                "message": self.message,
                "type": KINDS.get(self.status, "server_error"),
                "param": self.param,
                "code": self.status if self.code is None else self.code,
            }
        }


def refusal_of(reason: BaseException) -> Refusal:
    """What a client is told of an exception; nothing of what is not meant for users."""
    if isinstance(reason, Refusal):
        return reason
    if isinstance(reason, EdgeInferError):
        found = next(((status, code) for kind, status, code in _STATUSES if isinstance(reason, kind)), (500, None))
        headers = {"Retry-After": "5"} if found[0] == 503 else {}
        return Refusal(found[0], str(reason), found[1], headers=headers)
    return Refusal(500, "the server failed; its log says why")
