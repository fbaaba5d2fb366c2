"""Patterns of the names and origins that may use a server: `*`, `*.example.org`, `https://example.org:*`.

In: what `--allow-host` and `--allow-origin` say. Out: whether a `Host` or an `Origin` matches; BadSetting for what
could never match. In a pattern `*` stands for labels of a name, and after a colon for any port, or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from edgeinfer.errors import BadSetting

ALL = "*"
_NAME = r"(?:[\w*](?:[\w*.-]*[\w*])?|\[[0-9a-f:.]+\])"
_HOST = re.compile(rf"{_NAME}(?::(?:\d{{1,5}}|\*))?", re.IGNORECASE)
_ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://{_NAME}(?::(?:\d{{1,5}}|\*))?", re.IGNORECASE)


def check_hosts(patterns: Iterable[str]) -> None:
    """Raises BadSetting for patterns that no `Host` matches."""
    for pattern in patterns:
        if pattern != ALL and not _is_address(pattern) and not _HOST.fullmatch(pattern):
            raise BadSetting(
                f"--allow-host {pattern!r} is no host name; say example.org, *.example.org, example.org:8080 or *"
            )


def check_origins(patterns: Iterable[str]) -> None:
    """Raises BadSetting for patterns that no `Origin` matches."""
    for pattern in patterns:
        if pattern not in (ALL, "null") and not _ORIGIN.fullmatch(pattern):
            raise BadSetting(
                f"--allow-origin {pattern!r} is no origin; say https://example.org, https://*.example.org, "
                "http://localhost:* or *, without a path"
            )


def allows_host(patterns: Iterable[str], host: str, name: str) -> bool:
    """Whether a `Host`, or its `name` without the port, matches one of the patterns."""
    return any(re.fullmatch(_expression(each), text, re.IGNORECASE) for each in patterns for text in (host, name))


def origin_expression(patterns: Iterable[str]) -> str:
    """A regular expression that matches the origins that may use the server."""
    return "|".join(f"(?i:{_expression(each)})" for each in patterns) or r"(?!)"


def allows_origin(patterns: Iterable[str], origin: str) -> bool:
    """Whether an `Origin` matches one of the patterns."""
    return re.fullmatch(origin_expression(patterns), origin) is not None


def _expression(pattern: str) -> str:
    if pattern == ALL:
        return r"(?s:.*)"
    name, is_any_port = (pattern[:-2], True) if pattern.endswith(":*") else (pattern, False)
    labels = re.escape(name.strip("[]") if _is_address(name) else name).replace(r"\*", r"[\w-]+(?:\.[\w-]+)*")
    return rf"\[?{labels}\]?" if _is_address(name) else labels + (r"(?::\d+)?" if is_any_port else "")


def _is_address(pattern: str) -> bool:
    """Whether it is an IPv6 address, whose colons begin no port."""
    return pattern.count(":") > 1 and "/" not in pattern and re.fullmatch(r"\[?[0-9a-fA-F:.]+\]?", pattern) is not None
