"""Answers that share passes of a server are drafted: those of programs, and of a page in several tabs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.engine.loading import load
from tests.server.conftest import Running, served
from tests.unit.engine.watching import watched
from tests.waiting import until

TEXTS = ("the rain in the tin", "an inn", "in the hen and the hen in", "the the the")
N_TOKENS = 48
DRAFTING = {"spec": "on", "verify_cost": {2: 1.0, 64: 1.0}}
"""Passes that cost the same whatever they verify."""
SETTINGS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.7, "repeat_penalty": 1.1}]


@pytest.fixture(scope="module")
def drafting(tiny_model: Path) -> Iterator[Running]:
    """A server that drafts."""
    with served(tiny_model, ServerOptions(port=0, parallel=4, contexts=4), drafting=DRAFTING) as running:
        yield running


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> list[list[str]]:
    """What each text is answered alone and without drafts, with each of the settings."""
    with load(tiny_model, spec="off") as llm:
        return [
            [
                llm.chat([{"role": "user", "content": text}], max_tokens=N_TOKENS, seed=seed, **settings).read()
                for seed, text in enumerate(TEXTS)
            ]
            for settings in SETTINGS
        ]


def asked(server: Running, settings: dict[str, Any], number: int, *, is_tab: bool) -> dict[str, Any]:
    """An answer: its text as "content", and its timings."""
    message = {"role": "user", "content": TEXTS[number]}
    body = {"messages": [message], "max_tokens": N_TOKENS, "seed": number, **settings}
    if not is_tab:
        told = server.http().post("/v1/chat/completions", json=body).json()
        return {"content": told["choices"][0]["message"]["content"], **told["timings"]}
    headers = {"X-Conversation-Id": f"tab {number} {settings}"}
    asks = server.http().stream("POST", "/v1/chat/completions", json={**body, "stream": True}, headers=headers)
    with asks as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    content = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    return {"content": content, **events[-1].get("timings", {})}


@pytest.mark.parametrize("is_tab", [False, True], ids=["programs", "tabs"])
@pytest.mark.parametrize("number", [0, 1], ids=["greedy", "chat"])
def test_answers_that_share_passes_are_drafted(
    drafting: Running, plain: list[list[str]], number: int, is_tab: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = watched(drafting.llm._pool, monkeypatch)

    def ask(place: int) -> dict[str, Any]:
        return asked(drafting, SETTINGS[number], place, is_tab=is_tab)

    with ThreadPoolExecutor(len(TEXTS)) as threads:
        with drafting.llm._pool.lock:  # nothing is evaluated before all have asked
            answers = [threads.submit(ask, place) for place in range(len(TEXTS))]
            until(lambda: drafting.llm.telemetry.n_requests == len(TEXTS))
        found = [answer.result() for answer in answers]
    assert [each["content"] for each in found] == plain[number]
    assert all(each["draft_n"] >= each["draft_n_accepted"] for each in found)
    assert sum(each["draft_n_accepted"] for each in found) > 0
    of_outputs = [batch.sequences[batch.outputs] for batch in batches if len(batch.outputs)]
    drafted = [np.unique(sequences, return_counts=True)[1] > 1 for sequences in of_outputs]
    assert any(each.sum() > 1 for each in drafted)  # for several answers in one pass
