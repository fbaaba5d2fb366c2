"""Kept chats among other programs, and on bad ground: crashes, locks, full disks, damaged files."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.app.sessions import database
from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.conversation import messages_of
from edgeinfer.app.sessions.database import STEPS, is_alive, this_process
from edgeinfer.app.sessions.exporting import export_chat, json_text
from edgeinfer.app.sessions.kept_images import kept_image
from edgeinfer.app.sessions.records import Attachment, Figures
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import SessionsFailed
from tests.pictures import picture


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db") as opened:
        yield opened


def started(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another program that has imported the store."""
    begin = "import sys, time; from pathlib import Path; from edgeinfer.app.sessions.store import SessionStore\n"
    return subprocess.Popen(
        [sys.executable, "-c", begin + code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


# Other programs


def test_answers_of_a_program_that_died_are_over(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    child = started(
        "store = SessionStore(Path(sys.argv[1]))\n"
        "chat = store.create(None, None).number\n"
        "print(store.add(chat, None, 'assistant', 'half', state='writing').number, flush=True)\n"
        "time.sleep(600)",
        path,
    )
    try:
        number = int(line_of(child))
        with SessionStore(path) as store:
            assert [message.state for message in store.messages(1)] == ["writing"]
            mine = store.add(1, None, "assistant", "mine", state="writing").number
            child.kill()
            child.wait()
            with SessionStore(path) as other:
                assert {message.number: message.state for message in other.messages(1)} == {
                    number: "stopped",
                    mine: "writing",
                }
                assert [hit.message for hit in other.search("half")] == [number]
    finally:
        child.kill()
        child.communicate()


def test_the_writer_is_known_by_its_start_too() -> None:
    number, _, start = this_process().partition("@")
    assert is_alive(this_process())
    assert is_alive(f"{number}@{float(start) + 0.5}")
    for other in (f"{number}@{float(start) - 1000}", f"{2**40}@{start}", "", "x", "1@x", None):
        assert not is_alive(other)


@pytest.mark.skipif(sys.platform == "win32", reason="has no zombies")
def test_a_writer_that_only_its_parent_remembers_is_dead() -> None:
    code = "from edgeinfer.app.sessions.database import this_process; print(this_process(), flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", code], **pipes)  # type: ignore[call-overload]
    writer = child.stdout.readline().strip()
    assert is_alive(writer)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not forgotten
    assert not is_alive(writer)
    child.communicate()


def test_kill_loses_less_than_a_second_of_text(tmp_path: Path) -> None:
    """Half a second between two writes, and what the machine takes to write one, which may be long now and then."""
    assert any(lost_s(tmp_path / f"{number}.db") < 1 for number in range(10))


def lost_s(path: Path) -> float:
    """Seconds of text that are lost where a program is killed that has written for some."""
    child = started(
        "from edgeinfer.app.sessions.autosave import Autosave\n"
        "store = SessionStore(Path(sys.argv[1])); save = Autosave(store)\n"
        "answer = store.add(store.create(None, None).number, None, 'assistant', '', state='writing').number\n"
        "text = ''\n"
        "while True:\n"
        "    text += f'{time.time()} '; save.note(answer, text); print(time.time(), flush=True); time.sleep(0.02)",
        path,
    )
    assert child.stdout is not None
    said = [float(line_of(child))]
    while said[-1] < said[0] + 2:
        said.append(float(line_of(child)))
    os.kill(child.pid, signal.SIGKILL)
    said += [float(line) for line in child.communicate()[0].split()]
    with SessionStore(path) as store:
        (answer,) = store.messages(1)
        assert answer.state == "stopped"
        return said[-1] - max([said[0], *map(float, answer.text.split())])


def test_two_programs_write_at_once(tmp_path: Path) -> None:
    code = (
        "with SessionStore(Path(sys.argv[1])) as store:\n"
        "    chat = store.create(None, None).number; parent = None\n"
        "    for each in range(60): parent = store.add(chat, parent, 'user', f'{chat} {each}').number\n"
    )
    children = [started(code, tmp_path / "chats.db") for _ in range(3)]
    for child in children:
        child.communicate()
    assert [child.returncode for child in children] == [0, 0, 0]
    with SessionStore(tmp_path / "chats.db") as store:
        assert sorted(session.n_messages for session in store.sessions()) == [60, 60, 60]
        for session in store.sessions():
            assert [m.text for m in store.messages(session.number)] == [f"{session.number} {i}" for i in range(60)]


def test_threads_take_turns(store: SessionStore) -> None:
    chat = store.create(None, None).number
    threads = [
        threading.Thread(target=lambda: [store.add(chat, None, "user", "x") for _ in range(30)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.messages(chat)) == 120


# Bad files


def test_a_long_lock_is_told_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_MS", 50)
    with SessionStore(tmp_path / "chats.db") as store:
        chat = store.create(None, None).number
        other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SessionsFailed, match="another program holds it locked; close that one"):
            store.add(chat, None, "user", "x")
        assert store.messages(chat) == ()  # reading goes on
        other.execute("ROLLBACK")
        other.close()
        assert store.add(chat, None, "user", "x").text == "x"


def test_a_file_that_another_program_keeps_to_itself_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_MS", 50)
    other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    other.execute("CREATE TABLE x (y)")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SessionsFailed, match="another program holds it locked"):
        SessionStore(tmp_path / "chats.db")
    other.close()


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    SessionStore(path).close()
    other = sqlite3.connect(path)
    other.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    other.close()
    before = path.read_bytes()
    with pytest.raises(SessionsFailed, match="written by a later version of edgeinfer; install that one"):
        SessionStore(path)
    assert path.read_bytes() == before


def test_a_step_that_fails_leaves_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chats.db"
    with SessionStore(path) as store:
        store.add(store.create(None, None).number, None, "user", "kept")
    migrations = "edgeinfer.app.sessions.database.STEPS"
    monkeypatch.setattr(migrations, (*STEPS, "CREATE TABLE more (x);\nCREATE TABLE sessions (y);\n"))
    with pytest.raises(SessionsFailed, match="already exists"):
        SessionStore(path)
    monkeypatch.setattr(migrations, (*STEPS, "CREATE TABLE more (x);\n"))
    with SessionStore(path) as store:
        assert [message.text for message in store.messages(1)] == ["kept"]


@pytest.mark.parametrize("content", [b"not a database, but long enough to look at" * 100, b"SQLite format 3\0" * 300])
def test_a_damaged_file_is_told_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(content)
    with pytest.raises(SessionsFailed, match=r"damaged .*; move it away"):
        SessionStore(path)
    assert path.read_bytes() == content


def test_a_file_without_a_column_is_told_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    SessionStore(path).close()
    with sqlite3.connect(path, timeout=0) as other:
        other.execute("ALTER TABLE messages RENAME COLUMN writer TO author")
    other.close()
    with pytest.raises(SessionsFailed, match=r"damaged \(no such column: writer\); move it away") as failed:
        SessionStore(path)
    other = sqlite3.connect(path, timeout=0)
    assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)  # nobody else has it open
    other.close()
    assert failed.value.__traceback__ is not None


@pytest.mark.parametrize(
    ("table", "column"),
    [("sessions", "system"), ("messages", "number"), ("messages", "rounds"), ("images", "data"), ("sounds", "seconds")],
)
def test_a_file_without_a_column_that_is_read_later_is_told(tmp_path: Path, table: str, column: str) -> None:
    path = tmp_path / "chats.db"
    with SessionStore(path) as store:
        Chat(store).ask("Why?", [], None)
    with sqlite3.connect(path) as other:
        other.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO something")
    other.close()
    with pytest.raises(SessionsFailed, match=r"damaged .*; move it away"), SessionStore(path) as store:
        Chat(store, store.sessions()[0])


def test_a_message_that_does_not_stay_is_told(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with SessionStore(path) as store:
        chat = store.create(None, None).number
    with sqlite3.connect(path) as other:
        other.execute(
            "CREATE TRIGGER gone AFTER INSERT ON messages BEGIN DELETE FROM messages WHERE number = new.number; END"
        )
    other.close()
    with pytest.raises(SessionsFailed, match=r"damaged .*is not there"), SessionStore(path) as store:
        store.add(chat, None, "user", "Why?")


def test_a_version_below_zero_is_told(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    SessionStore(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = -3")
    other.close()
    with pytest.raises(SessionsFailed, match=r"damaged \(version -3\); move it away"):
        SessionStore(path)


def test_an_index_of_words_that_asks_for_gigabytes_is_told(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with SessionStore(path) as store:
        Chat(store).ask("text code", [], None)
    with sqlite3.connect(path) as other:  # row 10 has the counts of the index's parts
        other.execute(
            "UPDATE texts_data SET block = substr(block, 1, 8) || x'ffffff7f' || substr(block, 9) WHERE id = 10"
        )
    other.close()
    with pytest.raises(SessionsFailed, match="too little memory for it, or it is damaged"), SessionStore(path) as store:
        store.search("text")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionsFailed, match=r"cannot be made: .*; set EDGEINFER_HOME"):
        SessionStore(tmp_path / "file" / "chats.db")
    with pytest.raises(SessionsFailed, match="it cannot be written"):
        SessionStore(tmp_path)


FULL = """
import resource
from edgeinfer.errors import SessionsFailed
store = SessionStore(Path(sys.argv[1]))
chat = store.create(None, None).number
store.add(chat, None, 'user', 'before')
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    for _ in range(100): store.add(chat, None, 'user', 'word ' * 10_000)
except SessionsFailed as error:
    print(error)
n = len(store.messages(chat))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.add(chat, None, 'user', 'after')
print(n, len(store.messages(chat)))
"""


def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("limits the size of files, which this system cannot")
    told, counts, *_ = started(FULL, tmp_path / "chats.db").communicate()[0].splitlines()
    assert "then it goes on" in told
    before, after = map(int, counts.split())
    assert after == before + 1
    with SessionStore(tmp_path / "chats.db") as store:
        messages = store.messages(1)
        assert len(messages) == after
        assert (messages[0].text, messages[-1].text) == ("before", "after")


def test_columns_that_cannot_be_read_cost_nothing_else(store: SessionStore, tmp_path: Path) -> None:
    chat = store.create(None, None).number
    store.add(chat, None, "user", "text", attachments=[Attachment("a", "b")], figures=Figures(1, 1, 1, "stop"))
    other = sqlite3.connect(tmp_path / "chats.db")
    for figures, attachments in (("{", "[1]"), ('{"n_prompt": 1}', "{}"), ("[1]", '[["a"]]')):
        other.execute("UPDATE messages SET figures = ?, attachments = ?", (figures, attachments))
        other.commit()
        (message,) = store.messages(chat)
        assert (message.text, message.figures, message.attachments) == ("text", None, ())
    other.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("text", b"text\xff"), ("text", 5), ("role", "robot"), ("role", 1.5), ("state", "gone"), ("created_s", "x")),
        *(
            ("created_s", float("inf")),
            ("model", b"\xff"),
            ("parent", "x"),
            ("writer", b"\xff"),
            ("beside", "[" * 99_999),
        ),
        *((name, value) for name in ("figures", "attachments", "rounds") for value in (5, b"\xff", "[" * 99_999)),
    ],
)
def test_columns_of_another_kind_cost_no_chat(store: SessionStore, tmp_path: Path, column: str, value: object) -> None:
    chat = Chat(store)
    chat.ask("text", [], None)
    chat.finish(chat.branch[-1].number, "answer", "whole", None)
    assert chat.number is not None
    with sqlite3.connect(tmp_path / "chats.db") as other:
        other.execute(f"UPDATE messages SET {column} = ?", (value,))
    other.close()
    with SessionStore(tmp_path / "chats.db") as again:
        (session,) = again.sessions()
        opened = Chat(again, session)
        assert len(again.messages(session.number)) == 2
        assert messages_of(opened.branch, opened.system) is not None
        for suffix in (".md", ".json"):
            exported = export_chat(again, session.number, tmp_path / f"chat{suffix}").read_text()
            assert column == "text" or "answer" in exported
        opened.ask("And?", [], None)


@pytest.mark.parametrize(("column", "value"), [("title", b"\xff"), ("leaf", "x"), ("changed_s", "x"), ("system", 5)])
def test_columns_of_sessions_of_another_kind(store: SessionStore, tmp_path: Path, column: str, value: object) -> None:
    Chat(store).ask("text", [], None)
    with sqlite3.connect(tmp_path / "chats.db") as other:
        other.execute(f"UPDATE sessions SET {column} = ?", (value,))
    other.close()
    (session,) = store.sessions()
    chat = Chat(store, session)
    assert [message.text for message in chat.branch] == ["text", ""]
    assert json_text(session, store.messages(session.number))
    assert store.search("text")


@pytest.mark.parametrize("column", ["data", "width", "preview_width", "preview"])
@pytest.mark.parametrize("value", [1.5, "x", b"\xff"])
def test_columns_of_images_of_another_kind(store: SessionStore, tmp_path: Path, column: str, value: object) -> None:
    chat = Chat(store)
    chat.ask("text", [Attachment.of_medium("a.png", kept_image(picture(8, 6), "a.png"))], None)
    assert chat.number is not None
    with sqlite3.connect(tmp_path / "chats.db") as other:
        other.execute(f"UPDATE images SET {column} = ?", (value,))
    other.close()
    assert "text" in export_chat(store, chat.number, tmp_path / "chat.md").read_text()
