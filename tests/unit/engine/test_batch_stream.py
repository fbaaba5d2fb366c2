"""A batch of prompts over one model and over replicas of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.replicas import Replicas, even_worker_pools, planned_worker_pools
from edgeinfer.engine.scheduler.batcher import Prompt
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.scheduling.machine.catalogue import machine_profile
from tests.unit.scheduling.profiles import GB
from tests.unit.scheduling.workers.test_core_plan import WORK, two_nodes

TEXTS = ["the rain", "in the", "another heat", "then", "a", "the the the"]


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def test_prompts_are_texts_conversations_and_prompts_with_options(tiny_model: Path) -> None:
    chat = [{"role": "user", "content": "the rain"}]
    with load(tiny_model, device="reference", n_context=128) as llm:
        prompts = ["the rain", chat, Prompt("in the", {"max_tokens": 3}), Prompt(chat, {"temperature": -1.0})]
        found = {each.number: each for each in llm.batch(prompts, parallel=3, temperature=0, max_tokens=7)}
        assert found[0].tokens == ended(llm.complete("the rain", temperature=0, max_tokens=7)).tokens
        assert found[1].text == ended(llm.chat(chat, temperature=0, max_tokens=7)).text
        assert len(found[2].tokens) == 3
        assert isinstance(found[3].error, BadSetting)
        assert "temperature" in str(found[3].error)
        with pytest.raises(BadSetting, match="parallel cannot be 0"):
            llm.batch(["the"], parallel=0)


def ended(stream):  # type: ignore[no-untyped-def]
    stream.read()
    return stream


def test_answers_of_the_cpu_are_what_they_are_alone(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu", n_context=128, n_sessions=4) as llm:
        wanted = [ended(llm.complete(text, temperature=0.8, seed=n, max_tokens=40)) for n, text in enumerate(TEXTS)]
        prompts = [Prompt(text, {"seed": n}) for n, text in enumerate(TEXTS)]
        for parallel in (2, 6):
            found = {
                each.number: each for each in llm.batch(prompts, parallel=parallel, temperature=0.8, max_tokens=40)
            }
            assert [found[n].tokens for n in range(len(TEXTS))] == [each.tokens for each in wanted]


def test_replicas_share_one_queue(tiny_model: Path) -> None:
    def opened(cores: tuple[int, ...] | None):  # type: ignore[no-untyped-def]
        return load(tiny_model, device="reference", n_context=128, n_sessions=2)

    with Replicas.open(opened, [(0,), (1,)]) as replicas:
        stream = replicas.batch(TEXTS * 4, parallel=4, temperature=0, max_tokens=8)
        found = {each.number: each.tokens for each in stream}
        alone = [ended(replicas.llms[0].complete(text, temperature=0, max_tokens=8)).tokens for text in TEXTS]
        assert [found[number] for number in range(len(TEXTS) * 4)] == alone * 4
        assert stream.counts.n_generated == sum(map(len, found.values()))
        assert not any(thread.name == "edgeinfer replica" for thread in threading.enumerate())


def test_a_replica_that_fails_ends_the_batch(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        load(tiny_model, device="reference", n_context=128) as first,
        load(tiny_model, device="reference", n_context=128) as second,
    ):

        def fail(batch: object) -> None:
            raise EdgeInferError("broken")

        monkeypatch.setattr(second._pool.executor, "evaluate", fail)
        stream = Replicas([first, second]).batch(
            (text for _ in range(10**6) for text in TEXTS), parallel=2, max_tokens=4
        )
        with pytest.raises(EdgeInferError, match="broken"):
            list(stream)
        assert not any(thread.name == "edgeinfer replica" for thread in threading.enumerate())


def test_giving_up_early_ends_all_replicas(tiny_model: Path) -> None:
    def opened(cores: tuple[int, ...] | None):  # type: ignore[no-untyped-def]
        return load(tiny_model, device="reference", n_context=128, n_sessions=2)

    with Replicas.open(opened, [(0,), (1,)]) as replicas:
        stream = replicas.batch((text for _ in range(10**6) for text in TEXTS), parallel=4, temperature=0, max_tokens=4)
        next(stream)
        stream.close()
        assert not any(thread.name == "edgeinfer replica" for thread in threading.enumerate())


def test_a_batch_over_replicas_that_is_dropped_waits_for_nobody(tiny_model: Path) -> None:
    def opened(cores: tuple[int, ...] | None):  # type: ignore[no-untyped-def]
        return load(tiny_model, device="reference", n_context=128, n_sessions=2)

    with Replicas.open(opened, [(0,), (1,)]) as replicas:
        stream = replicas.batch((text for _ in range(10**6) for text in TEXTS), parallel=4, temperature=0, max_tokens=4)
        next(stream)
        with replicas.llms[1]._pool.lock:  # as another thread's pass does
            dropping = threading.Thread(target=stream._answers.close, daemon=True)
            dropping.start()
            dropping.join(20)
            assert not dropping.is_alive()
        stream.close()
        assert not any(thread.name == "edgeinfer replica" for thread in threading.enumerate())


def test_another_thread_closes_a_batch(tiny_model: Path) -> None:
    with load(tiny_model, device="reference", n_context=128) as llm:
        is_asked, answers = threading.Event(), []

        def prompts() -> Iterator[str]:
            is_asked.set()
            while not stream._batchers[0]._stopped:
                time.sleep(0.001)
            time.sleep(0.05)  # while the other thread closes
            yield "the rain"

        stream = llm.batch(prompts(), parallel=2, max_tokens=4)
        reading = threading.Thread(target=lambda: answers.extend(stream))
        reading.start()
        assert is_asked.wait(20)
        stream.close()
        reading.join(20)
        assert not reading.is_alive()
        assert llm.telemetry.n_requests == 0


def test_what_a_failed_load_opened_is_closed(tiny_model: Path) -> None:
    llms = []

    def opened(cores: tuple[int, ...] | None):  # type: ignore[no-untyped-def]
        if cores == (1,):
            raise EdgeInferError("no room")
        llms.append(load(tiny_model, device="reference", n_context=128))
        return llms[-1]

    with pytest.raises(EdgeInferError, match="no room"):
        Replicas.open(opened, [(0,), (1,)])
    with pytest.raises(EdgeInferError):
        llms[0].complete("the").read()


def test_a_replica_on_each_node_where_that_is_predicted_to_give_more() -> None:
    far = replace(machine_profile("xeon-2node"), devices=(two_nodes(2 * GB),))
    worker_pools = planned_worker_pools(far, WORK, 16, 256)
    assert [set(worker_pool) <= set(range(4 * n, 4 * n + 4)) for n, worker_pool in enumerate(worker_pools)] == [
        True,
        True,
    ]
    assert planned_worker_pools(far, WORK, 1, 256) == ()
    small = replace(far, devices=(two_nodes(2 * GB, 1000),))
    assert planned_worker_pools(small, WORK, 16, 256) == ()
    assert (
        planned_worker_pools(None, WORK, 16, 256)
        == planned_worker_pools(machine_profile("cloud-2core"), WORK, 16, 256)
        == ()
    )


def test_even_worker_pools() -> None:
    assert even_worker_pools([0, 1, 2, 3, 4], 2) == ((0, 1), (2, 3, 4))
    with pytest.raises(BadSetting, match="3 replicas need at least as many cores; there are 2"):
        even_worker_pools([0, 1], 3)
