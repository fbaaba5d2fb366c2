"""Streams whose progress is followed."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.app.server.followed import FollowedStream
from tests.waiting import until


async def read(followed: FollowedStream) -> str:
    return "".join([text async for text in followed.chunks(0.0)])


@pytest.mark.parametrize("is_told", [False, True])
def test_an_answer_is_free_when_nobody_holds_it(uncollected: None, tiny_model: Path, *, is_told: bool) -> None:
    """Not when Python next looks for garbage: a thousand answers later, in a server."""
    with asyncio.Runner() as runner, edgeinfer.load(tiny_model, device="reference") as llm:
        loop = runner.get_loop() if is_told else None
        followed = FollowedStream(partial(llm.chat, "the hen", max_tokens=4), loop)
        assert runner.run(read(followed))
        stream = weakref.ref(followed.stream)
        del followed
        until(lambda: stream() is None)
