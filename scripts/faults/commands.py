"""Commands that are run on disks that fail or fill up, and what each of them makes.

In: a home, a model. Out: how a command ended, its result (None: none, or not whole), and what lay there before.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import homes
from campaign import python
from clients import BROKEN, call, free_port, is_ready
from processes import ESCAPE, OPENING_S, QUIT, Running

LIMIT_S = 180.0
CHAT_S = 30.0
"""Time for an answer in the app; where it is not saved, nothing else says that it is over."""
QUESTION = "the cat sat on the mat and looked at a bird. " * 5
STORY = "Tell me of a lighthouse."
OPTIONS = ("--temp", "0", "--device", "cpu", "--max-tokens", "12")
NAMES = ("one", "two")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and all it wrote."""

    code: int
    output: str


class Home(homes.Home):
    """A home of a user; `model` lies elsewhere and is offered at `port`.

    `more`: further variables of commands. `within`: what makes a command line run in a control group.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        port: int,
        more: Mapping[str, str] = MappingProxyType({}),
        within: Callable[[Sequence[str]], list[str]] = list,
    ) -> None:
        super().__init__(folder)
        self.model, self.port, self.more, self.within = model, port, more, within

    @property
    def well(self) -> Home:
        """The same home where nothing disturbs commands."""
        return Home(self.folder, self.model, self.port)

    def run(self, *arguments: str) -> Ended:
        """Run a command of edgeinfer."""
        try:
            done = subprocess.run(
                self.within(python(*arguments)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**self.environment("disk"), **self.more},
                cwd=self.folder.parent.parent,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            return Ended(-9, f"no end in {LIMIT_S:.0f} s: {(late.output or b'').decode(errors='replace')}")
        return Ended(done.returncode, done.stdout.decode(errors="replace"))

    def begin(self, *arguments: str, terminal: bool = False) -> Running:
        """Begin a command of edgeinfer that others talk to."""
        line, variables = self.within(python(*arguments)), {**self.environment("disk"), **self.more}
        return Running(line, variables, self.folder.parent.parent, terminal=terminal)

    def left_behind(self) -> list[str]:
        """Temporary files that were left."""
        return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*.tmp-*")]


@dataclass(frozen=True)
class Target:
    """A command. `result`: what it made, None if it is not there or not whole; ValueError for a part of it.

    `before`: what the home has before, and must have after. `is_quiet`: what is missing need not be told, for it only
    saves time.
    """

    name: str
    run: Callable[[Home], Ended]
    result: Callable[[Home, Ended], object]
    before: Callable[[Home], object] = lambda home: None
    is_quiet: bool = False


def batch(home: Home) -> Ended:
    """Six prompts."""
    asked = home.folder.parents[1] / "asked.jsonl"
    names = ("cat", "dog", "sea", "sky", "sun", "fog")
    asked.write_text("\n".join(json.dumps({"prompt": f"the {name}", "max_tokens": 40}) for name in names))
    answers = home.folder / "answers.jsonl"
    return home.run("batch", str(asked), "-m", str(home.model), "--out", str(answers), "--temp", "0", "--device", "cpu")


def answered(home: Home, ended: Ended) -> object:
    """Answers of a batch by line; None if the file has none or not all."""
    path = home.folder / "answers.jsonl"
    if not path.exists():
        return None
    whole = path.read_text().rpartition("\n")[0]
    rows = [json.loads(line) for line in whole.splitlines()]
    numbers = [row["index"] for row in rows]
    if len(set(numbers)) != len(numbers):
        raise ValueError("a line is answered twice")
    return {row["index"]: row["text"] for row in rows} if len(rows) == 6 else None


def configured(home: Home) -> object:
    """Write a configuration where there is none; what it says of a name."""
    path = home.data / "config.toml"
    if not path.exists():
        path.write_text("# mine\ntop_k = 7\n")
    return [line for line in path.read_text().splitlines() if line != "temp = 0.5"]


def config_set(home: Home, ended: Ended) -> object:
    path = home.data / "config.toml"
    return True if path.exists() and "temp = 0.5" in path.read_text() else None


def pulled(home: Home, ended: Ended) -> object:
    """Whether the model in the store is the one that was pulled."""
    found = [path for path in (home.data / "models").rglob("*.gguf") if not path.name.startswith(".")]
    if not found:
        return None
    if any(path.read_bytes() != home.model.read_bytes() for path in found):
        raise ValueError("a model in the store is not what was pulled")
    return len(found)


def text_of(home: Home, ended: Ended) -> object:
    """The answer of `run --json`."""
    start = ended.output.find("{")
    try:
        return json.loads(ended.output[start : ended.output.rindex("}") + 1])["text"]
    except (ValueError, KeyError):
        return None


def packed(home: Home, ended: Ended) -> object:
    """Whether the bundle file passes its own check."""
    path = home.folder / "bundle"
    if not path.exists():
        return None
    return True if home.run("pack", str(home.model), "--out", str(path), "--verify").code == 0 else None


def chat(home: Home) -> Ended:
    """A question to the app in a terminal, which is left when it is answered."""
    limits = ("--temp", "0", "--max-tokens", "24", "--ctx", "1024")
    n_before = last_chat(home)
    running = home.begin("chat", "-m", str(home.model), *limits, STORY, terminal=True)

    def is_answered() -> bool:
        return last_chat(home) > n_before and [state for *_, state in messages(home)][1:] in (["whole"], ["cut"])

    running.until(is_answered, CHAT_S)
    running.send(QUIT)
    code = running.wait(LIMIT_S)
    shown = ESCAPE.sub(b"", b"".join(data for _, data in running.output))
    return Ended(code, shown.decode(errors="replace"))


def last_chat(home: Home) -> int:
    """The number of the last chat; 0 without any."""
    return int(saved(home, "SELECT max(number) FROM sessions")[0][0] or 0)


def messages(home: Home) -> list[tuple[str, str, str]]:
    """Role, text and state of all messages of the last chat."""
    return saved(home, f"SELECT role, text, state FROM messages WHERE session = {last_chat(home)} ORDER BY number")


def saved(home: Home, query: str) -> list[Any]:
    """Rows of chats.db, read beside the app; one of zeros if it has none yet."""
    path = home.data / "chats.db"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as database:
            return database.execute(query).fetchall()
    except sqlite3.OperationalError:
        return [(0, "", "")]


def chatted(home: Home, ended: Ended) -> object:
    """The saved chat; None if it lacks its answer. Raises ValueError if it is damaged."""
    path = home.data / "chats.db"
    if path.exists() and path.stat().st_size:
        with contextlib.closing(sqlite3.connect(path)) as database:
            if (found := database.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
                raise ValueError(f"chats.db: {found}")
    found = messages(home)
    return found if [role for role, _, _ in found] == ["user", "assistant"] and found[1][1] else None


def serve(home: Home) -> Ended:
    """Two chats and a saved slot of a server, and the slot read again."""
    slots = home.folder / "slots"
    with contextlib.suppress(OSError):
        slots.mkdir(exist_ok=True)
    options = ("-m", str(home.model), "--ctx", "1024", "--slot-save-path", str(slots))
    asked = [_chat(name, id_slot=5) for name in ("a fox", "a bee")]
    saved = [(f"/slots/5?action={action}", {"filename": "kept"}) for action in ("save", "restore")]
    return _served(home, options, [*asked, *saved])


def switch(home: Home) -> Ended:
    """Two models by turns, one of which at a time is loaded, each in a process of its own."""
    models = home.data / "models"
    for name in NAMES:
        with contextlib.suppress(OSError):
            models.mkdir(exist_ok=True)
            os.symlink(home.model, models / f"{name}.gguf")
    options = ("-m", NAMES[0], "--ctx", "512", "--most-models", "1", "--isolate")
    return _served(home, options, [_chat("a bird", model=name) for name in (*NAMES, NAMES[0])])


def _chat(subject: str, **more: object) -> tuple[str, dict[str, object]]:
    content = f"What is {subject}? Say it in a sentence."
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 12}
    return "/v1/chat/completions", {**body, **more}


def _served(home: Home, options: Sequence[str], requests: Sequence[tuple[str, dict[str, object]]]) -> Ended:
    """What a server answers to requests, one after another, as lines of JSON after its own output."""
    port = free_port()
    running = home.begin("serve", *options, "--port", str(port))
    lines = list[str]()
    if running.until(lambda: is_ready(port), OPENING_S):
        for path, body in requests:
            try:
                status, record = call(port, "POST", path, body)
            except BROKEN as reason:
                status, record = 0, {"error": f"{type(reason).__name__}: {reason}"}
            lines.append(json.dumps({"status": status, "answer": record}))
        running.signal(signal.SIGTERM, only_parent=True)
    code = running.wait(LIMIT_S)
    return Ended(code, "\n".join([running.text, *lines]))


def served_texts(home: Home, ended: Ended) -> object:
    """Texts of a server's answers, and numbers of tokens of slots; None if one failed."""
    rows = [json.loads(line) for line in ended.output.splitlines() if line.startswith('{"status"')]
    if not rows or any(row["status"] != 200 for row in rows):
        return None
    answers = [row["answer"] for row in rows]
    return [
        answer["choices"][0]["message"]["content"]
        if "choices" in answer
        else answer.get("n_saved", answer.get("n_restored"))
        for answer in answers
    ]


def prefixes(home: Home) -> Ended:
    """A text long enough for its keys and values to be saved."""
    text = home.folder.parents[1] / "long.md"
    text.write_text("\n".join(f"{number}. {QUESTION}" for number in range(8)))
    limits = (*OPTIONS, "--ctx", "2048", "--json")
    return home.run("run", "-m", str(home.model), *limits, "-f", str(text), "Who sat on the mat?")


def stored(home: Home) -> object:
    """Pack the model where that was not done, on a disk that is well."""
    if not (home.data / "bundles").exists():
        done = home.well.run("pack", str(home.model))
        if done.code:
            raise SystemExit(f"the model was not packed: {done}")
    return sorted(path.name for path in (home.data / "bundles").iterdir())


def streamed(home: Home) -> Ended:
    """An answer of a model of which a part at a time is in memory."""
    options = ("--ram", "90MB", "--ctx", "256", "--spec", "off", "--json")
    return home.run("run", "-m", str(home.model), *OPTIONS, *options, "Who sat on the mat?")


def targets() -> dict[str, Target]:
    """All commands, by name."""

    def pull(home: Home) -> Ended:
        return home.run("pull", f"http://127.0.0.1:{home.port}/{home.model.name}")

    def pack(home: Home) -> Ended:
        return home.run("pack", str(home.model), "--out", str(home.folder / "bundle"))

    def run(home: Home) -> Ended:
        return home.run("run", "-m", str(home.model), *OPTIONS, "--json", QUESTION)

    found = [
        Target("batch", batch, answered),
        Target("chat", chat, chatted),
        Target("config", lambda home: home.run("config", "set", "temp", "0.5"), config_set, configured),
        Target("pack", pack, packed),
        Target("prefixes", prefixes, text_of, is_quiet=True),
        Target("pull", pull, pulled),
        Target("run", run, text_of, is_quiet=True),
        Target("serve", serve, served_texts),
        Target("streamed", streamed, text_of, stored),
        Target("switch", switch, served_texts, is_quiet=True),
    ]
    return {target.name: target for target in found}


@contextlib.contextmanager
def offered(folder: Path) -> Iterator[int]:
    """A web server with the files of a folder; gives its port."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def copyfile(self, source: object, outputfile: object) -> None:
            with contextlib.suppress(OSError):  # whoever pulls has no room
                super().copyfile(source, outputfile)  # type: ignore[arg-type]

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
