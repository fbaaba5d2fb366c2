"""What the scripts that check clients share: questions, a tool, and a command line. Imports no client.

A client's script runs in its own environment as `with_X.py ADDRESS MODEL [CHECK …]`, against a server that
`edgeinfer serve --strict-names` runs at ADDRESS (http://127.0.0.1:8080). Every check returns what was seen, or raises;
each is printed as one JSON object.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

QUESTION = "Name three colours."
CALL = "How wet is Rome?"
"""Said to a model that is too small to choose a tool by itself: it repeats the call, and so makes it."""
TOLD = "5 mm of rain"
RAIN_QUESTION = "In Rome there are 5 mm of rain. Answer in JSON."
NO_MODEL = "no-such-model"
TOO_LONG = "one two three " * 20_000
"""More tokens than the context of any model that these checks are meant for."""

Check = Callable[[str, str], object]


def weather(city: str) -> str:
    """Rain in a city.

    Args:
        city: Its name.
    """
    return f"{TOLD} in {city}"


def error_of(run: Callable[[], object]) -> str:
    """The type of the error that a call raises, and its text."""
    try:
        run()
    except Exception as reason:
        return told_error(reason)
    raise AssertionError("no error")


async def error_while(waiting: Awaitable[object]) -> str:
    """The same of what is awaited."""
    try:
        await waiting
    except Exception as reason:
        return told_error(reason)
    raise AssertionError("no error")


def told_error(reason: BaseException) -> str:
    kind = type(reason)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}: {reason}"


def one_line(text: object) -> str:
    """The beginning of what was seen."""
    seen = text if isinstance(text, str) else json.dumps(text, default=str, ensure_ascii=False)
    seen = " ".join(seen.split())
    return seen if len(seen) <= 160 else f"{seen[:159]}…"


def run_checks(**checks: Callable[[str, str], Any]) -> None:
    """Run all checks, or those that the command line names."""
    address, model, *chosen = sys.argv[1:]
    with asyncio.Runner() as runner:
        for name, check in checks.items():
            if chosen and name not in chosen:
                continue
            try:
                seen = check(address, model)
                seen = runner.run(seen) if inspect.iscoroutine(seen) else seen
                assert seen, "nothing was seen"
                told = {"check": name, "seen": one_line(seen)}
            except Exception as reason:
                told = {"check": name, "failed": told_error(reason)[:1000]}
            print(json.dumps(told, ensure_ascii=False), flush=True)
