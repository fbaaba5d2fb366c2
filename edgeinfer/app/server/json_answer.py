"""JSON as the body of a response, in which texts may hold what UTF-8 has no form for."""

from __future__ import annotations

import json

from fastapi.responses import JSONResponse


class JSONAnswer(JSONResponse):
    """JSON whose lone surrogates are escaped, as in `json_line`: clients cut emoji in two, and models write halves."""

    def render(self, content: object) -> bytes:
        """The body's bytes. Raises ValueError for a number that JSON does not have."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode(errors="backslashreplace")
