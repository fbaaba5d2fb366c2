"""Files as a release writes them, kept for later releases to open.

Run: `python -m tests.promises.files` writes into `written/VERSION`, as a step of a release. Out: a database of chats
with a branch, an attachment, figures and a deleted chat; that chat exported in both forms; a machine's profile.
`config.toml` is written by hand, with a value for each setting of the time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import edgeinfer
from edgeinfer.app.sessions.exporting import export_chat
from edgeinfer.app.sessions.records import Attachment, Figures
from edgeinfer.app.sessions.store import SessionStore

WRITTEN = Path(__file__).with_name("written")
QUESTION, ANSWERS = "What is a monad? — «λ»", ("A burrito.", "A monoid in the category of endofunctors.")
NOTES = Attachment("notes.txt", "x = 1\n")
FIGURES = Figures(5, 2, 3, "stop", ttft_s=0.5, seed=7)


def clock() -> Callable[[], float]:
    """Seconds since the epoch, one more at each look."""
    seconds: Iterator[int] = count(1_700_000_000)
    return lambda: float(next(seconds))


def write(folder: Path) -> None:
    """Write everything into a folder, over what was written before."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("chats.db", "chat.json", "chat.md", "machine.toml"):
        (folder / name).unlink(missing_ok=True)
    with SessionStore(folder / "chats.db", clock()) as store:
        chat = store.create("be brief", "tiny")
        question = store.add(chat.number, None, "user", QUESTION, attachments=(NOTES,))
        for text in ANSWERS:
            answer = store.add(chat.number, question.number, "assistant", "", state="writing", model="tiny")
            store.finish(answer.number, text, "whole", FIGURES)
        store.rename(chat.number, "Monads")
        other = store.create(None, None)
        store.add(other.number, None, "user", "to be deleted")
        store.delete(other.number)
        for name in ("chat.json", "chat.md"):
            export_chat(store, chat.number, folder / name)
    (machine, *_) = Path(edgeinfer.__file__).parent.rglob("cloud-2core.toml")
    shutil.copy(machine, folder / "machine.toml")


if __name__ == "__main__":
    write(WRITTEN / edgeinfer.__version__)
