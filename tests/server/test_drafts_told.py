"""What was drafted in passes that requests share is told with their answers, and in the metrics."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.server.listening import ServerOptions
from tests.server.conftest import Running, served
from tests.waiting import until

QUESTIONS = ["the rain", "in the inn and in the", "another heat", "the the the"]
MOST = 60
DRAFTING = {"spec": "on", "threads": 1, "verify_cost": {2: 1.0, 64: 1.0}}
"""Passes that cost the same whatever they verify."""


@pytest.fixture(scope="module")
def drafting(long_model: Path) -> Iterator[Running]:
    """A server that drafts."""
    with served(long_model, ServerOptions(port=0, parallel=4), drafting=DRAFTING) as running:
        yield running


def body(question: str, **fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "max_tokens": MOST, "temperature": 0, "cache_prompt": False, **fields}


def together(running: Running) -> list[dict[str, Any]]:
    """All questions at once; half of the answers are streamed. What is told of each at its end."""
    found: list[dict[str, Any]] = [{}] * len(QUESTIONS)

    def ask(number: int) -> None:
        reply = running.http().post("/v1/chat/completions", json=body(QUESTIONS[number], stream=number % 2 == 1))
        reply.raise_for_status()
        if number % 2:
            chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
            text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
            found[number] = {"text": text, **next(chunk for chunk in reversed(chunks) if "timings" in chunk)}
        else:
            found[number] = {"text": reply.json()["choices"][0]["message"]["content"], **reply.json()}

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(QUESTIONS))]
    scheduler = running.llm._driver.scheduler
    with scheduler.pool.lock:  # no pass runs before all of them are there
        for thread in threads:
            thread.start()
        until(lambda: len(scheduler.admission.sequences) == len(QUESTIONS))
    for thread in threads:
        thread.join(120)
    return found


def metric(running: Running, name: str) -> float:
    text = running.http().get("/metrics").text
    found = re.search(rf"^{name}(?:\{{.*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def test_what_was_drafted_is_told_with_answers_and_in_metrics(drafting: Running) -> None:
    """The same numbers everywhere: those that the scheduler counts."""
    ours = {"edgeinfer_drafted_tokens_total": "n_drafted", "edgeinfer_accepted_tokens_total": "n_accepted"}
    theirs = {"llamacpp:spec_decode_num_draft_tokens_total": "n_drafted"}
    theirs["llamacpp:spec_decode_num_accepted_tokens_total"] = "n_accepted"
    counts = drafting.llm._driver.scheduler.counts
    before = {name: metric(drafting, name) for name in (*ours, *theirs)}
    began = {key: getattr(counts, key) for key in ("n_drafted", "n_accepted")}
    n_drafts, seconds = metric(drafting, "llamacpp:spec_decode_num_drafts_total"), "edgeinfer_drafting_seconds_total"
    spent_s, passes = metric(drafting, seconds), counts.passes
    timings = [each["timings"] for each in together(drafting)]
    for key, name in (("n_drafted", "draft_n"), ("n_accepted", "draft_n_accepted")):
        assert sum(each[name] for each in timings) == getattr(counts, key) - began[key] > 0
    for name, key in (ours | theirs).items():
        assert metric(drafting, name) - before[name] == getattr(counts, key) - began[key]
    assert all(each["draft_n"] >= each["draft_n_accepted"] > 0 for each in timings)
    n_drafts = metric(drafting, "llamacpp:spec_decode_num_drafts_total") - n_drafts
    assert 0 < n_drafts < len(QUESTIONS) * (counts.passes - passes)
    assert metric(drafting, seconds) > spent_s
