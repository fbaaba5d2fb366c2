"""Importing chats of other programs: their trees, what is left out, files of each kind, what is damaged."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.importing import import_chats
from edgeinfer.app.sessions.other_chats import chats_of_other
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.tui.text.thinking import Section, sections_of
from edgeinfer.errors import SessionsFailed


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db") as found:
        yield found


def shown(store: SessionStore, number: int) -> list[tuple[str, str]]:
    """The branch that is shown of a chat."""
    return [(each.role, each.text) for each in Chat(store, store.session(number)).branch]


def gpt_node(parent: str | None, role: str, *parts: Any, kind: str = "text", **metadata: Any) -> dict[str, Any]:
    message = {
        "author": {"role": role},
        "create_time": 1_736_209_412.3,
        "content": {"content_type": kind, "parts": list(parts)},
        "metadata": {"model_slug": "gpt-4o", **metadata},
    }
    return {"parent": parent, "message": message}


CHATGPT = {
    "title": "Lists",
    "create_time": 1_736_209_400,
    "current_node": "e2",
    "mapping": {
        "e2": gpt_node("t1", "assistant", "Sorted returns a list."),
        "root": {"parent": None, "message": None},
        "s": gpt_node("root", "system", "You are ChatGPT", is_visually_hidden_from_conversation=True),
        "a": gpt_node("s", "user", {"asset_pointer": "file://x"}, "Sort a list?", kind="multimodal_text"),
        "b": gpt_node("a", "assistant", "Use sorted."),
        "c": gpt_node("b", "user", "Why?"),
        "d": gpt_node("b", "user", "What does it return?"),
        "e1": gpt_node("d", "assistant", "Let me check."),
        "t0": gpt_node("e1", "assistant", "print(1)", kind="code"),
        "t1": gpt_node("t0", "tool", "1", kind="execution_output"),
    },
}


def test_of_chatgpt_the_tree_stays_and_tools_are_left_out(store: SessionStore, tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([CHATGPT]))
    (number,) = import_chats(store, path)
    assert shown(store, number) == [
        ("user", "Sort a list?"),
        ("assistant", "Use sorted."),
        ("user", "What does it return?"),
        ("assistant", "Let me check.\n\nSorted returns a list."),
    ]
    messages = store.messages(number)
    assert [each.text for each in messages if each.role == "user"].count("Why?") == 1
    assert len(messages) == 5
    assert messages[1].model == "gpt-4o"
    session = store.session(number)
    assert (session.title, session.created_s) == ("Lists", 1_736_209_400.0)


@pytest.mark.parametrize("name", ["conversations.json", "export/conversations-001.json"], ids=["root", "part"])
def test_an_export_is_read_as_the_archive_that_comes(store: SessionStore, tmp_path: Path, name: str) -> None:
    other = {**CHATGPT, "title": "Later", "create_time": 1_800_000_000}
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr(name, json.dumps([other, CHATGPT]))
        archive.writestr("user.json", "{}")
    numbers = import_chats(store, tmp_path / "export.zip")
    assert [store.session(number).title for number in numbers] == ["Lists", "Later"]


CLAUDE = [
    {
        "uuid": "1",
        "name": "Review",
        "created_at": "2024-01-01T12:00:00Z",
        "chat_messages": [
            {"sender": "human", "text": "Review this?", "created_at": "2024-01-01T12:00:00Z"},
            {"sender": "assistant", "text": "old", "content": [{"type": "text", "text": "Looks fine."}]},
        ],
    },
    {"uuid": "2", "name": "", "created_at": "2024-01-02T12:00:00Z", "chat_messages": []},
]
OPEN_WEBUI = [
    {
        "title": "Sea",
        "created_at": 1_700_000_000,
        "chat": {
            "models": ["llama3.2"],
            "params": {"system": "Be brief."},
            "history": {
                "currentId": "2b",
                "messages": {
                    "1": {"id": "1", "parentId": None, "role": "user", "content": "The sea?"},
                    "2a": {"id": "2a", "parentId": "1", "role": "assistant", "content": "Wet."},
                    "2b": {"id": "2b", "parentId": "1", "role": "assistant", "content": "Salt.", "model": "llama3.2"},
                },
            },
        },
    }
]
LM_STUDIO = {
    "name": "Sea",
    "createdAt": 1_700_000_000_000,
    "systemPrompt": "Be brief.",
    "lastUsedModel": {"identifier": "qwen3-4b"},
    "messages": [
        {
            "currentlySelected": 0,
            "versions": [{"type": "singleStep", "role": "user", "content": [{"type": "text", "text": "The sea?"}]}],
        },
        {
            "currentlySelected": 1,
            "versions": [
                {
                    "type": "multiStep",
                    "role": "assistant",
                    "steps": [{"type": "contentBlock", "content": [{"type": "text", "text": "Wet."}]}],
                },
                {
                    "type": "multiStep",
                    "role": "assistant",
                    "steps": [
                        {"type": "debugInfoBlock", "debugInfo": "x"},
                        {"type": "contentBlock", "content": [{"type": "text", "text": "Salt."}]},
                    ],
                },
            ],
        },
    ],
}


def test_thoughts_of_open_webui_are_thoughts_here(store: SessionStore, tmp_path: Path) -> None:
    thought = (
        '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>\n'
        "> Salt &lt; sugar?\n> Yes.\n</details>\n"
    )
    written = json.dumps(OPEN_WEBUI).replace('"Salt."', json.dumps(f"{thought}Salt."))
    (tmp_path / "chats.json").write_text(written)
    (number,) = import_chats(store, tmp_path / "chats.json")
    text = shown(store, number)[-1][1]
    assert sections_of(text) == (Section(True, "Salt < sugar?\nYes."), Section(False, "Salt."))
    (tmp_path / "chats.json").write_text(written.replace("</details>", ""))
    (number,) = import_chats(store, tmp_path / "chats.json")
    assert "Salt." in shown(store, number)[-1][1]


@pytest.mark.parametrize(
    ("found", "said", "n_messages", "system"),
    [
        (CLAUDE, [("user", "Review this?"), ("assistant", "Looks fine.")], 2, None),
        (OPEN_WEBUI, [("user", "The sea?"), ("assistant", "Salt.")], 3, "Be brief."),
        (LM_STUDIO, [("user", "The sea?"), ("assistant", "Salt.")], 3, "Be brief."),
    ],
    ids=["claude", "open webui", "lm studio"],
)
def test_json_of_other_programs(
    store: SessionStore,
    tmp_path: Path,
    found: object,
    said: list[tuple[str, str]],
    n_messages: int,
    system: str | None,
) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(found))
    (number,) = import_chats(store, path)
    assert shown(store, number) == said
    assert len(store.messages(number)) == n_messages
    assert store.session(number).system == system
    assert 1_600_000_000 < store.session(number).created_s < 1_800_000_000


def test_a_session_of_aichat(store: SessionStore, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "sea talk.yaml"
    path.write_text(
        "model: ollama:llama3.2\ntemperature: null\nmessages:\n- role: system\n  content: Be brief.\n"
        "- role: user\n  content: |-\n    The sea?\n    And why?\n- role: assistant\n  content: Salt.\n"
    )
    (number,) = import_chats(store, path)
    assert shown(store, number) == [("user", "The sea?\nAnd why?"), ("assistant", "Salt.")]
    assert store.session(number).system == "Be brief."
    assert store.session(number).title == "sea talk"


@pytest.mark.parametrize("tag", ["object/apply:os.mkdir", "object/new:os.mkdir", "name:os.mkdir"])
def test_yaml_runs_nothing(store: SessionStore, tmp_path: Path, tag: str) -> None:
    pytest.importorskip("yaml")
    path, mark = tmp_path / "chat.yaml", tmp_path / "mark"
    path.write_text(f"model: x\nmessages: !!python/{tag} ['{mark}']\n")
    with pytest.raises(SessionsFailed, match="not valid YAML"):
        import_chats(store, path)
    assert not mark.exists()


def oterm(path: Path, message_columns: str = "id INTEGER PRIMARY KEY, chat_id INTEGER, author TEXT, text TEXT") -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE chat (id INTEGER PRIMARY KEY, name TEXT, model TEXT, system TEXT)")
    connection.execute(f"CREATE TABLE message ({message_columns})")
    connection.execute("INSERT INTO chat VALUES (1, 'Sea', 'llama3.2', 'Be brief.'), (2, 'Empty', 'x', NULL)")
    if "author" in message_columns:
        connection.execute(
            "INSERT INTO message (chat_id, author, text) VALUES (1, 'user', 'The sea?'), (1, 'assistant', 'Salt.')"
        )
    connection.commit()
    connection.close()


def test_the_store_of_oterm_is_read_and_not_changed(store: SessionStore, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    oterm(path)
    before = path.read_bytes()
    (number,) = import_chats(store, path)
    assert shown(store, number) == [("user", "The sea?"), ("assistant", "Salt.")]
    assert store.session(number).system == "Be brief."
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.glob("store.db*")] == ["store.db"]


CIRCLE = {"mapping": {"a": gpt_node("b", "user", "x"), "b": gpt_node("a", "assistant", "y")}}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([{"mapping": {}}], "no messages"),
        ([CHATGPT, {"other": 1}], "1 of its 2 chats are of an unknown form"),
        (CIRCLE, "in a circle"),
        ({"mapping": {"a": {"message": {"content": 5, "author": []}}, "b": 7}}, "no messages"),
        ({"chat_messages": [None, 5, {"sender": []}]}, "no messages"),
        ({"messages": [{"versions": 5}, {"versions": [None]}]}, "no messages"),
        ({"chat": {"history": {"messages": []}}}, "no messages"),
    ],
    ids=["empty", "mixed", "circle", "gpt types", "claude types", "lm studio types", "open webui types"],
)
def test_what_is_damaged_says_why_and_adds_nothing(
    store: SessionStore, tmp_path: Path, found: object, reason: str
) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(found))
    with pytest.raises(SessionsFailed, match=reason):
        import_chats(store, path)
    assert store.sessions() == ()


@pytest.mark.parametrize("kind", ["no oterm", "other columns", "no chats in it", "damaged archive", "yaml"])
def test_files_that_are_something_else(store: SessionStore, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file.yaml"
    reasons = {
        "no oterm": "not oterm's",
        "other columns": "other columns",
        "no chats in it": r"no conversations\.json",
        "damaged archive": "damaged|cannot be imported|UTF-8",
        "yaml": "not valid YAML|pyyaml",
    }
    if kind == "no oterm":
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE x (y)")
        connection.commit()
        connection.close()
    elif kind == "other columns":
        oterm(path, "x INTEGER")
    elif kind == "no chats in it":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("user.json", "{}")
    elif kind == "damaged archive":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("conversations.json", json.dumps([CHATGPT]))
        data = bytearray(path.read_bytes())
        data[60:90] = bytes(30)
        path.write_bytes(data)
    else:
        path.write_text("messages: [a: b: c")
    with pytest.raises(SessionsFailed, match=reasons[kind]):
        import_chats(store, path)
    assert store.sessions() == ()


def test_what_is_no_chat_of_another_program_is_left_to_others() -> None:
    assert chats_of_other([{"role": "user", "content": "x"}]) is None
    assert chats_of_other({"messages": [{"role": "user", "content": "x"}]}) is None
    assert chats_of_other(5) is None
