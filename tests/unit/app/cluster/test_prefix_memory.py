"""A request goes where its text need not be read again, unless too much waits there."""

from __future__ import annotations

import json

from edgeinfer.app.cluster.prefix_memory import PrefixMemory, ReplicaLoad, ranked
from edgeinfer.app.cluster.request_keys import RequestKeys, request_keys


def keys_of(*texts: str, model: str = "", session: str = "") -> RequestKeys:
    body = {"model": model, "messages": [{"role": "user", "content": text} for text in texts]}
    return request_keys("/v1/chat/completions", json.dumps(body).encode(), session)


def loads(*n_requests: int, parallel: int = 4, models: tuple[str, ...] | None = None) -> list[ReplicaLoad]:
    known = None if models is None else frozenset(models)
    return [ReplicaLoad(name, n, parallel, known) for name, n in zip("abcdef", n_requests, strict=False)]


LONG = "words " * 5000


def test_a_long_conversation_goes_to_its_replica_even_if_others_have_less_to_do() -> None:
    memory = PrefixMemory()
    memory.note(keys_of(LONG), "b")
    assert ranked(loads(0, 2, 0), keys_of(LONG, "and now?"), memory)[0] == "b"


def test_a_short_one_goes_wherever_nothing_runs() -> None:
    memory = PrefixMemory()
    memory.note(keys_of("hello"), "b")
    assert ranked(loads(0, 1, 1), keys_of("hello", "and now?"), memory)[0] == "a"


def test_a_replica_with_a_queue_is_left_alone() -> None:
    memory = PrefixMemory()
    memory.note(keys_of(LONG), "b")
    assert ranked(loads(1, 6), keys_of(LONG, "and now?"), memory)[0] == "a"


def test_of_two_that_know_a_text_the_one_with_less_to_do_is_taken() -> None:
    memory = PrefixMemory()
    for name in "ab":
        memory.note(keys_of(LONG), name)
    assert ranked(loads(1, 0, 0), keys_of(LONG, "x"), memory)[0] == "b"


def test_the_longest_known_beginning_counts() -> None:
    memory = PrefixMemory()
    memory.note(keys_of(LONG), "a")
    memory.note(keys_of(LONG, LONG), "b")
    assert ranked(loads(0, 0), keys_of(LONG, LONG, "x"), memory)[0] == "b"
    assert memory.known_bytes(keys_of(LONG, "other")) == {"a": keys_of(LONG).n_bytes, "b": keys_of(LONG).n_bytes}


def test_unknown_texts_spread_over_replicas_and_are_ranked_alike_everywhere() -> None:
    memory = PrefixMemory()
    first = [ranked(loads(0, 0, 0), keys_of(f"question {n}"), memory)[0] for n in range(60)]
    assert {first.count(name) > 8 for name in "abc"} == {True}
    assert first == [ranked(loads(0, 0, 0)[::-1], keys_of(f"question {n}"), PrefixMemory())[0] for n in range(60)]


def test_a_model_goes_where_it_is_loaded_until_a_queue_is_longer_than_loading_it() -> None:
    memory, request = PrefixMemory(), keys_of("hello", model="large")
    with_it = ReplicaLoad("b", 3, 4, frozenset({"large"}))
    without = ReplicaLoad("a", 0, 4, frozenset({"small", ""}))
    assert ranked([without, with_it], request, memory)[0] == "b"
    queued = ReplicaLoad("b", 20, 4, frozenset({"large"}))
    assert ranked([without, queued], request, memory)[0] == "a"


def test_what_one_replica_keeps_is_asked_of_it_alone() -> None:
    memory = PrefixMemory()
    assert ranked(loads(9, 0), RequestKeys(holder="a"), memory) == ["a"]
    memory.note(keys_of("hello", session="s1"), "a")
    assert ranked(loads(9, 0), keys_of("else", session="s1"), memory) == ["a"]
    assert set(ranked(loads(9, 0), RequestKeys(holder="gone"), memory)) == {"a", "b"}


def test_what_a_lost_replica_knew_is_forgotten() -> None:
    memory = PrefixMemory()
    for name in "ab":
        memory.note(keys_of(LONG, session="s"), name)
    memory.forget({"b"})
    assert set(memory.known_bytes(keys_of(LONG))) == {"a"}
    memory.forget({"a"})
    assert len(memory) == 0


def test_memory_is_limited() -> None:
    memory = PrefixMemory(most=10)
    for n in range(100):
        memory.note(keys_of(f"question {n}"), "a")
    assert len(memory) == 10
    assert memory.known_bytes(keys_of("question 99"))
    assert not memory.known_bytes(keys_of("question 1"))
