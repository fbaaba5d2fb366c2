"""The app that `measure_chat.py` measures, driven from within its own process as a user at the keyboard would.

In: a mode, a model, a file for the figures. Out: the figures as JSON. Not a command of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import psutil
from measure_chat import FENCED, PRESS_ESCAPE, PROMPT, STREAM_S, TOKENS_PER_S, Watch
from textual.message import Message

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.sessions.store import SessionStore, default_path
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.engine_messages import Answered
from edgeinfer.app.tui.launch import open_model, opened
from edgeinfer.app.tui.screens.chat_parts import Prompted
from edgeinfer.settings import Settings
from tests.app.tui.scripted import Script, ScriptedModel

Figures = dict[str, float]


async def until(happened: Callable[[], object], patience_s: float = 200, look_s: float = 0.02) -> None:
    """Poll at long intervals, to put little load on the measured loop."""
    ends = time.monotonic() + patience_s
    while not happened():
        if time.monotonic() > ends:
            raise TimeoutError
        await asyncio.sleep(look_s)


async def say(app: ChatApp, text: str) -> None:
    """Type a text and send it."""
    app.chat_screen.composer.put(text)
    await asyncio.sleep(0.1)
    app.chat_screen.composer.action_send()
    await until(lambda: app.chat_screen.writing is not None)


def thread_s(thread: int) -> float:
    """CPU seconds that a thread of this process has used."""
    return next(t.user_time + t.system_time for t in psutil.Process().threads() if t.id == thread)


def words_of(text: str) -> list[str]:
    """A text in pieces the size of tokens, about four characters each."""
    return [text[at : at + 4] for at in range(0, len(text), 4)]


async def stream(app: ChatApp, script: Script) -> Figures:
    """Stream code fences at 50 tokens a second: the share of a core that the main thread uses."""
    main = threading.get_native_id()
    script.answers.append(words_of(FENCED))
    script.hold()
    stopped = threading.Event()

    def drip() -> None:
        while not stopped.wait(1 / TOKENS_PER_S):
            script.step()

    await until(lambda: app.state.model is not None)
    await say(app, "Write a program.")
    threading.Thread(target=drip, daemon=True).start()
    await asyncio.sleep(2)
    shares = []
    for _ in range(int(STREAM_S / 5)):
        before, began = thread_s(main), time.perf_counter()
        await asyncio.sleep(5)
        shares.append((thread_s(main) - before) / (time.perf_counter() - began))
    stopped.set()
    return {"share of a core": sum(shares) / len(shares), "share in the last 5 s": shares[-1]}


async def gap(app: ChatApp, script: Script) -> Figures:
    """The longest pause of the loop while the model is opened, its prompt is read, and it answers."""
    watch = Watch()
    turning = asyncio.create_task(watch.run())
    began = time.perf_counter()
    await until(lambda: app.state.model is not None)
    found = {"opening took, s": time.perf_counter() - began, "opening, ms": 1e3 * watch.take()}
    screen = app.chat_screen
    await say(app, "word " * 3000)
    await until(lambda: screen.writing is not None and screen.writing.pieces)
    found["reading the prompt, ms"] = 1e3 * watch.take()
    await until(lambda: screen.writing is None)
    found["answering, ms"] = 1e3 * watch.take()
    turning.cancel()
    return found


async def stop(app: ChatApp, script: Script) -> Figures:
    """From Escape until the answer ends, and one step's time. `typed` includes the way to the terminal and back."""
    screen = app.chat_screen
    await until(lambda: app.state.model is not None)
    await say(app, PROMPT)
    await until(lambda: screen.writing is not None and screen.writing.pieces)
    await asyncio.sleep(0.2)
    seen: dict[str, float] = {}
    stopping, posting = screen.engine.stop, screen.post_message

    def stop_and_note() -> None:
        seen["key"] = time.monotonic()
        stopping()

    def post_and_note(message: Message) -> bool:
        if isinstance(message, Answered):
            seen["quiet"] = time.monotonic()
        return posting(message)

    screen.engine.stop = stop_and_note  # type: ignore[method-assign]
    screen.post_message = post_and_note  # type: ignore[method-assign]
    typed = time.monotonic()
    os.write(2, PRESS_ESCAPE.encode())  # bypasses the app, which captures what is printed
    while screen.writing is not None:
        await asyncio.sleep(0.001)
    shown = time.monotonic()
    last = screen.chat.branch[-1]
    rate = None if last.figures is None else last.figures.decode_tok_s
    assert last.state == "stopped"
    return {
        "typed to key, ms": 1e3 * (seen["key"] - typed),
        "key to quiet engine, ms": 1e3 * (seen["quiet"] - seen["key"]),
        "key to kept and shown, ms": 1e3 * (shown - seen["key"]),
        "a step, ms": 1e3 / rate if rate else 0.0,
    }


async def session(app: ChatApp, script: Script) -> Figures:
    """Chats of 4,000 and 400 messages: from selecting one to its last message on the screen."""
    await until(lambda: app.state.model is not None)
    figures = {}
    for kept in app.state.store.sessions(len(SESSIONS)):
        began = time.perf_counter()
        await app.chat_screen.open_chat(kept.number)
        painted = asyncio.Event()
        app.chat_screen.call_after_refresh(painted.set)
        await painted.wait()
        figures[f"{kept.n_messages} messages, ms"] = 1e3 * (time.perf_counter() - began)
    return figures


async def machine(app: ChatApp, script: Script) -> Figures:
    """The share of a core that the main thread uses on the machine screen, at rest and during an answer."""
    main = threading.get_native_id()
    await until(lambda: app.state.model is not None)
    app.chat_screen.action_machine()
    await asyncio.sleep(3)

    async def share(seconds: float) -> float:
        before, began = thread_s(main), time.perf_counter()
        await asyncio.sleep(seconds)
        return (thread_s(main) - before) / (time.perf_counter() - began)

    found = {"share of a core, at rest": await share(10)}
    await app.chat_screen.ask(Prompted(PROMPT))
    await asyncio.sleep(1)
    found["share of a core, answering"] = await share(3)
    assert app.chat_screen.writing is not None
    app.chat_screen.action_stop()
    return found


async def speed(app: ChatApp, script: Script) -> Figures:
    """Tokens per second by the answer's own stats. Polls rarely, as polling takes a core from the model."""
    screen = app.chat_screen
    await until(lambda: app.state.model is not None)
    await say(app, PROMPT)
    await until(lambda: screen.writing is None and screen.chat.branch, look_s=0.25)
    figures = screen.chat.branch[-1].figures
    return {"tok_s": 0.0 if figures is None or figures.decode_tok_s is None else figures.decode_tok_s}


MODES: dict[str, Callable[[ChatApp, Script], Coroutine[None, None, Figures]]] = {
    "stream": stream,
    "machine": machine,
    "gap": gap,
    "stop": stop,
    "session": session,
    "speed": speed,
}
SCRIPTED = ("stream", "session")
SESSIONS = (400, 4000)
"""Messages of the chats that are opened."""


def fill(n_messages: int) -> None:
    """Store a chat with that many messages."""
    answer = "Some **text** with a list:\n\n- one\n- two\n\n```python\nprint('hello')\n```\n\nAnd an end. " * 2
    with SessionStore(default_path()) as store:
        kept = store.create(None, "scripted")
        parent = None
        for number in range(n_messages // 2):
            parent = store.add(kept.number, parent, "user", f"Question {number}?").number
            parent = store.add(kept.number, parent, "assistant", answer).number


def run_child(mode: str, model: str, result: Path) -> None:
    """Run the app, measure, exit."""
    script = Script()
    overrides = {
        "model": model,
        "temp": 0.0,
        "max_tokens": 4000 if mode in ("stop", "machine") else 300,
        "spec": "off",
        "device": "cpu",
    }
    if mode == "session":
        for n_messages in SESSIONS:
            fill(n_messages)

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        return LoadedModel(ScriptedModel(script))

    with opened(overrides, opening if mode in SCRIPTED else open_model) as app:
        _run(app, mode, script, result)


def _run(app: ChatApp, mode: str, script: Script, result: Path) -> None:
    async def measure() -> None:
        found = await MODES[mode](app, script)
        result.write_text(json.dumps(found))
        script.go()
        app.exit(0)

    tasks: list[asyncio.Task[None]] = []
    app.call_later(lambda: tasks.append(asyncio.create_task(measure())))  # a returned task would be awaited
    app.run()
