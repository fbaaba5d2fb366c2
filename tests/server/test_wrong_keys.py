"""Who guesses keys has to wait; who has the right one has not."""

from __future__ import annotations

import logging

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from edgeinfer.app.server import wrong_keys
from edgeinfer.app.server.guard import Guard
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.wrong_keys import FREE_KEYS, LONGEST_WAIT_S, TRUSTED_S, WrongKeys, network_of

KEY = "right-BgQ4Zq0zM1v8"


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(wrong_keys, "time", found)
    return found


async def answered(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers everything with 200."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def asked(guard: Guard, key: str | bytes | None, client: tuple[str, int] | None) -> httpx.Response:
    """The answer to a request from an address with a key."""
    sent = key.encode() if isinstance(key, str) else key
    own = [] if sent is None else [(b"authorization", b"Bearer " + sent)]
    scope = {"type": "http", "method": "GET", "path": "/v1/models", "query_string": b"", "client": client}
    scope["headers"] = [*own, (b"host", b"127.0.0.1:8080")]
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        messages.append(message)

    await guard(scope, receive, send)
    return httpx.Response(messages[0]["status"], headers=messages[0]["headers"], content=messages[1]["body"])


def guarded() -> Guard:
    return Guard(answered, ServerOptions(key=KEY))


async def test_a_guesser_waits_and_others_do_not(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    guard, guesser = guarded(), ("10.0.0.7", 4000)
    caplog.set_level(logging.INFO)
    for number in range(FREE_KEYS):
        assert (await asked(guard, f"guess-{number}", guesser)).status_code == 401
    refused = await asked(guard, "guess-last", guesser)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert (await asked(guard, KEY, guesser)).status_code == 429  # or it would know the key
    assert (await asked(guard, KEY, ("10.0.0.8", 4000))).status_code == 200
    assert (await asked(guard, None, guesser)).status_code == 401  # nothing was guessed
    clock.now_s += 1
    assert (await asked(guard, KEY, guesser)).status_code == 200
    assert "10.0.0.7" in caplog.text
    assert "guess" not in caplog.text
    assert KEY not in caplog.text


async def test_waits_grow_up_to_a_limit_and_end(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    guesses, waits = WrongKeys(), list[float]()
    for _ in range(FREE_KEYS + 9):
        waits.append(guesses.wrong("10.0.0.7"))
        clock.now_s += guesses.wait_s("10.0.0.7")
    assert waits == [0.0] * FREE_KEYS + [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    guesses.wrong("10.0.0.7")
    for _ in range(1000):  # who asks during a wait does not make it longer
        assert guesses.wrong("10.0.0.7") <= LONGEST_WAIT_S
    assert guesses.wait_s("10.0.0.7") == LONGEST_WAIT_S
    assert len(caplog.records) == 10  # one a wait, not one a guess
    clock.now_s += wrong_keys.FORGOTTEN_S + 1
    assert guesses.wrong("10.0.0.7") == 0


@pytest.mark.parametrize("client", [("127.0.0.1", 1), ("::1", 1), ("::ffff:127.0.0.1", 1), None])
async def test_the_right_key_is_never_kept_out_where_all_share_an_address(client: tuple[str, int] | None) -> None:
    """This computer's own programs, and a socket that has no address."""
    guard = guarded()
    statuses = [(await asked(guard, "wrong", client)).status_code for _ in range(FREE_KEYS + 2)]
    assert statuses == [401] * FREE_KEYS + [429] * 2
    assert (await asked(guard, KEY, client)).status_code == 200


async def test_an_address_that_had_the_key_is_not_kept_out(clock: Clock) -> None:
    """Many people behind one proxy, of whom one guesses."""
    guard, proxy = guarded(), ("10.0.0.1", 1)
    assert (await asked(guard, KEY, proxy)).status_code == 200
    for _ in range(FREE_KEYS + 5):
        await asked(guard, "wrong", proxy)
    assert (await asked(guard, "wrong", proxy)).status_code == 429
    assert (await asked(guard, KEY, proxy)).status_code == 200
    clock.now_s += TRUSTED_S + 1
    for _ in range(FREE_KEYS + 1):
        await asked(guard, "wrong", proxy)
    assert (await asked(guard, KEY, proxy)).status_code == 429


@pytest.mark.parametrize(
    "key",
    [b"\xff\xfe", "schl\u00fcssel", b"", "x" * 60_000, KEY + "\u00a0", KEY[:-1], "\0"],
    ids=["no text", "not ASCII", "empty", "long", "longer by a space", "shorter", "zero"],
)
async def test_odd_keys_are_wrong(key: str | bytes) -> None:
    assert (await asked(guarded(), key, ("127.0.0.1", 1))).status_code == 401


def test_what_is_remembered_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_keys, "MOST_ADDRESSES", 100)
    guesses = WrongKeys()
    for number in range(1000):
        guesses.wrong(f"10.0.{number // 250}.{number % 250}")
        guesses.right(f"10.1.{number // 250}.{number % 250}")
    assert (len(guesses._guesses), len(guesses._trusted)) == (100, 100)


@pytest.mark.parametrize(
    ("client", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", None),
        (None, None),
        ("x" * 1000, "x" * 64),
    ],
)
def test_an_address_of_ipv6_is_one_of_many(client: str | None, network: str | None) -> None:
    assert network_of(client) == network


def test_errors_do_not_show_the_key() -> None:
    assert KEY not in repr(ServerOptions(key=KEY))
    assert KEY not in f"{guarded()._options}"
