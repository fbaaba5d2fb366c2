"""Kept chats: what was said is on disk, found again, and shared with other programs that have the file open."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.app.sessions import database
from edgeinfer.app.sessions.migrations import FIRST, STEPS
from edgeinfer.app.sessions.records import MARK_BEGIN, MARK_END, Attachment, Figures
from edgeinfer.app.sessions.store import SessionStore, default_path, title_of
from edgeinfer.app.sessions.writer import is_alive, this_process
from edgeinfer.errors import SessionsFailed


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db", clock) as opened:
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


def test_the_file_is_where_the_home_is(home: Path) -> None:
    assert default_path() == home / "chats.db"


def test_everything_of_a_message_comes_back(store: SessionStore, tmp_path: Path, clock: Clock) -> None:
    chat = store.create("be brief", "a")
    assert (chat.title, chat.system, chat.leaf, chat.n_messages) == ("", "be brief", None, 0)
    clock.now_s = 1001.0
    files = (Attachment("a.py", "x = '\ud800'"), Attachment("b", ""))
    question = store.add(chat.number, None, "user", "\n  first line \nmore", attachments=files)
    answer = store.add(chat.number, question.number, "assistant", "", state="writing", model="b")
    figures = Figures(5, 2, 3, "stop", ttft_s=0.5, seed=None)
    store.finish(answer.number, "an \ud800swer", "whole", figures)
    with SessionStore(tmp_path / "chats.db", clock) as again:
        first, second = again.messages(chat.number)
        assert first == question
        assert first.attachments == files
        assert (second.text, second.state, second.figures, second.model) == ("an ?swer", "whole", figures, "b")
        session = again.session(chat.number)
        assert (session.title, session.leaf, session.changed_s, session.n_messages) == (
            "first line",
            answer.number,
            1001.0,
            2,
        )
        assert session.model == "b"


def test_only_the_user_may_read_the_file(store: SessionStore, tmp_path: Path) -> None:
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "chats.db").stat().st_mode) == 0o600


def test_a_title_comes_by_itself_until_there_is_another(store: SessionStore) -> None:
    chat = store.create(None, None).number
    store.add(chat, None, "user", "x" * 100)
    assert store.session(chat).title == "x" * 59 + "…"
    store.rename(chat, "  mine\nand \ud800 ")
    store.add(chat, None, "user", "other")
    assert store.session(chat).title == "mine and ?"
    store.rename(chat, " ")
    assert store.session(chat).title == "x" * 59 + "…"
    assert title_of(" \n\n ") == ""


def test_newest_first_without_deleted_ones(store: SessionStore, clock: Clock) -> None:
    chats = []
    for each in range(3):
        clock.now_s += 1
        chats.append(store.create(None, None).number)
        store.add(chats[-1], None, "user", f"question {each}")
    clock.now_s += 1
    store.add(chats[0], None, "user", "more")
    assert [session.number for session in store.sessions()] == [chats[0], chats[2], chats[1]]
    assert len(store.sessions(limit=2)) == 2
    store.delete(chats[2])
    assert [session.number for session in store.sessions()] == [chats[0], chats[1]]
    assert chats[2] not in {hit.session for hit in store.search("question")}
    assert store.session(chats[2]).deleted_s == clock.now_s
    store.undelete(chats[2])
    assert len(store.sessions()) == 3


def test_purging_takes_what_was_deleted_long_ago(store: SessionStore, clock: Clock) -> None:
    old, new, kept = (store.create(None, None).number for _ in range(3))
    for each in (old, new, kept):
        store.add(each, None, "user", "word")
    store.delete(old)
    clock.now_s += 100
    store.delete(new)
    assert store.purge(older_than_s=50) == 1
    with pytest.raises(SessionsFailed, match="removed for good"):
        store.session(old)
    assert store.messages(old) == ()
    with pytest.raises(SessionsFailed, match="removed for good meanwhile"):
        store.add(old, None, "user", "late")
    store.undelete(new)
    assert {hit.session for hit in store.search("word")} == {new, kept}
    assert store.add(new, None, "user", "it goes on").number > 0


def test_search_finds_words_and_marks_them(store: SessionStore) -> None:
    chat = store.create(None, None).number
    question = store.add(chat, None, "user", "How did the Café in Straße 7 begin?")
    answer = store.add(chat, question.number, "assistant", "", state="writing")
    store.write_text(answer.number, "With chairs and", "writing")
    assert store.search("chairs") == ()  # not while it is written: it would be read anew with each piece
    store.finish(answer.number, "With chairs and tables", "whole", None)
    (hit,) = store.search("tables chairs")
    assert (hit.message, hit.role, hit.title) == (answer.number, "assistant", "How did the Café in Straße 7 begin?")
    assert f"{MARK_BEGIN}chairs{MARK_END} and {MARK_BEGIN}tables{MARK_END}" in hit.snippet
    assert [hit.message for hit in store.search("cafe")] == [-1, question.number]
    assert [hit.message for hit in store.search("tab")] == [answer.number]
    assert store.search("tab ") == ()
    store.finish(answer.number, "nothing", "stopped", None)
    assert store.search("tables") == ()


def test_titles_count_most_then_questions(store: SessionStore) -> None:
    found = []
    for role, text, title in (
        ("assistant", "a zebra", "one"),
        ("user", "a zebra", "two"),
        ("user", "nothing", "zebra and others"),
    ):
        chat = store.create(None, None).number
        store.add(chat, None, role, text)
        store.rename(chat, title)
        found.append(chat)
    assert [hit.session for hit in store.search("zebra")] == found[::-1]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionStore]:
    """One store for all examples."""
    with SessionStore(tmp_path_factory.mktemp("shared") / "chats.db") as opened:
        opened.add(opened.create(None, None).number, None, "user", "a b c")
        yield opened


@settings(max_examples=200, deadline=None)
@given(
    st.text() | st.lists(st.sampled_from(['"', "*", "AND", "NEAR(", ")", "_", "a", "-", ":", " ", "^"])).map("".join)
)
def test_no_query_is_an_error(shared: SessionStore, query: str) -> None:
    shared.search(query)


def test_a_long_chat_is_read_at_once(store: SessionStore) -> None:
    chat = store.create(None, None).number
    parent = None
    for place in range(450):
        parent = store.add(chat, parent, "assistant" if place % 2 else "user", f"text {place} " * 50).number
    assert len(store.messages(chat)) == 450
    assert store.session(chat).n_messages == 450


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


def test_kill_loses_less_than_a_second_of_text(tmp_path: Path) -> None:
    child = started(
        "from edgeinfer.app.sessions.autosave import Autosave\n"
        "store = SessionStore(Path(sys.argv[1])); save = Autosave(store)\n"
        "answer = store.add(store.create(None, None).number, None, 'assistant', '', state='writing').number\n"
        "text = ''\n"
        "while True:\n"
        "    text += f'{time.time()} '; save.note(answer, text); print(time.time(), flush=True); time.sleep(0.02)",
        tmp_path / "chats.db",
    )
    assert child.stdout is not None
    said = [float(line_of(child))]
    while said[-1] < said[0] + 2:
        said.append(float(line_of(child)))
    os.kill(child.pid, signal.SIGKILL)
    said += [float(line) for line in child.communicate()[0].split()]
    with SessionStore(tmp_path / "chats.db") as store:
        (answer,) = store.messages(1)
        kept = [float(each) for each in answer.text.split()]
        assert answer.state == "stopped"
        late = [each for each in said if each > kept[-1] + 0.001]
        # half a second between two writes, and what a busy machine takes to write one
        assert said[-1] - kept[-1] < 1
        assert len(late) < 50


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
    migrations = "edgeinfer.app.sessions.migrations.STEPS"
    monkeypatch.setattr(migrations, (FIRST, "CREATE TABLE more (x);\nCREATE TABLE sessions (y);\n"))
    with pytest.raises(SessionsFailed, match="already exists"):
        SessionStore(path)
    monkeypatch.setattr(migrations, (FIRST, "CREATE TABLE more (x);\n"))
    with SessionStore(path) as store:
        assert [message.text for message in store.messages(1)] == ["kept"]


@pytest.mark.parametrize("content", [b"not a database, but long enough to look at" * 100, b"SQLite format 3\0" * 300])
def test_a_damaged_file_is_told_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(content)
    with pytest.raises(SessionsFailed, match=r"damaged one .*; move it away"):
        SessionStore(path)
    assert path.read_bytes() == content


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
