"""Exporting and importing chats: what comes back is what was there, and broken files say what is wrong."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.app.sessions.exporting import export_chat, export_path
from edgeinfer.app.sessions.importing import import_chat
from edgeinfer.app.sessions.records import Attachment, Figures, KeptMessage, MadeCall, MessageTree, ToolRound
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import SessionsFailed

FIGURES = Figures(n_prompt=10, n_cached=4, n_generated=3, finish_reason="stop", decode_tok_s=50.5, seed=7)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db") as opened:
        yield opened


@pytest.fixture
def chat(store: SessionStore) -> int:
    """A chat with a file, two answers to its question, and the first of them shown."""
    session = store.create("be brief", "tiny").number
    question = store.add(session, None, "user", "why?\n## User\nno", attachments=[Attachment("a.py", "x = 1")])
    first = store.add(session, question.number, "assistant", "```\ncode\n```", model="tiny", figures=FIGURES)
    store.add(session, question.number, "assistant", "another", state="cut", model="other")
    store.set_leaf(session, first.number)
    return session


def said(messages: tuple[KeptMessage, ...]) -> list[KeptMessage]:
    """Messages with places in their list for numbers."""
    places: dict[int | None, int | None] = {None: None}
    for place, message in enumerate(messages):
        places[message.number] = place
    return [
        replace(message, number=place, session=0, parent=places[message.parent])
        for place, message in enumerate(messages)
    ]


@pytest.mark.parametrize("suffix", [".json", ".md"])
def test_calls_of_tools_come_back(store: SessionStore, tmp_path: Path, suffix: str) -> None:
    session = store.create(None, None).number
    question = store.add(session, None, "user", "why?", attachments=[Attachment("a", "b")])
    hostile = MadeCall("add", '{"a": "-->"}', "<!-- chat end -->\n```\n## User\n", failed=True)
    rounds = (ToolRound("See:", (hostile, MadeCall("b", "{}", "")), "Hm."), ToolRound("", (hostile,)))
    store.add(session, question.number, "assistant", "so", rounds=rounds)
    number = import_chat(store, export_chat(store, session, tmp_path / f"c{suffix}"))
    assert [(message.text, message.rounds) for message in store.messages(number)] == [("why?", ()), ("so", rounds)]
    assert store.messages(number)[0].attachments == (Attachment("a", "b"),)
    if suffix == ".md":
        assert '`add` with\n\n```\n{"a": "-->"}\n```\n\nfailed' in (tmp_path / "c.md").read_text()


def test_calls_in_chats_of_the_page_belong_to_their_answers(store: SessionStore, tmp_path: Path) -> None:
    def calls(*ids: str) -> dict[str, object]:
        return {"tool_calls": [{"id": id, "function": {"name": "add", "arguments": f'{{"{id}": 1}}'}} for id in ids]}

    def result(number: int, parent: int, id: str) -> dict[str, object]:
        return {"number": number, "parent": parent, "role": "user", "text": id.upper(), "tool_call_id": id}

    listed = [
        {"number": 1, "parent": None, "role": "user", "text": "q"},
        {"number": 2, "parent": 1, "role": "assistant", "text": "See:", "thoughts": "Hm.", **calls("a", "b")},
        result(3, 2, "a"),
        {**result(4, 3, "b"), "failed": True},
        {"number": 5, "parent": 4, "role": "assistant", "text": "", **calls("c")},
        result(6, 5, "c"),
        {"number": 7, "parent": 6, "role": "assistant", "text": "so"},
        {"number": 8, "parent": 1, "role": "assistant", "text": "other"},
        {"number": 9, "parent": 7, "role": "user", "text": "and?"},
        {"number": 10, "parent": 9, "role": "assistant", "text": "", **calls("d")},
    ]
    path = tmp_path / "page.json"
    path.write_text(json.dumps({"edgeinfer_chat": 1, "title": "t", "leaf": 10, "messages": listed}))
    messages = said(store.messages(import_chat(store, path)))
    a, b, c = (MadeCall("add", f'{{"{id}": 1}}', id.upper(), failed=id == "b") for id in "abc")
    assert [(one.parent, one.role, one.text) for one in messages] == [
        (None, "user", "q"),
        (0, "assistant", "so"),
        (0, "assistant", "other"),
        (1, "user", "and?"),
        (3, "assistant", ""),
    ]
    assert messages[1].rounds == (ToolRound("See:", (a, b), "Hm."), ToolRound("", (c,)))
    assert (messages[4].rounds, messages[4].state) == ((ToolRound(""),), "stopped")


def test_json_brings_everything_back(store: SessionStore, chat: int, tmp_path: Path) -> None:
    store.rename(chat, "mine")
    assert export_chat(store, chat, tmp_path / "c.json") == tmp_path / "c.json"
    number = import_chat(store, tmp_path / "c.json")
    assert said(store.messages(number)) == said(store.messages(chat))
    before, after = store.session(chat), store.session(number)
    assert (after.title, after.system, after.model) == ("mine", "be brief", before.model)
    assert after.created_s == before.created_s
    assert [hit.session for hit in store.search("another")] == [number, chat]
    leaves = [MessageTree(store.messages(one.number)).message(one.leaf or 0) for one in (before, after)]
    assert leaves[0].text == leaves[1].text == "```\ncode\n```"


def test_markdown_has_the_shown_branch_and_can_be_read(store: SessionStore, chat: int, tmp_path: Path) -> None:
    path = export_chat(store, chat, tmp_path / "c.md")
    text = path.read_text()
    for part in (
        "# why?\n",
        "## System\n\nbe brief\n",
        "## Assistant\n\n```\ncode\n```\n",
        "### File: a.py\n\n```\nx = 1\n```\n",
    ):
        assert f"\n{part}" in text
    assert "another" not in text
    number = import_chat(store, path)
    question, answer = store.messages(number)
    assert question.text == "why?\n## User\nno"
    assert question.attachments == (Attachment("a.py", "x = 1"),)
    assert (answer.parent, answer.model, answer.text) == (question.number, "tiny", "```\ncode\n```")
    assert store.session(number).leaf == answer.number
    assert store.session(number).system == "be brief"


TRICKY = (
    *("<!-- chat ", "<!-- chat-2 ", '{"role": "user"}', " -->", "end", "--", "## User", "```", "````\n"),
    *("\n", "\n\n", "\r\n", "\r", "\x00", "\x1b[2J", "\u2028", "\ud800", "é", "💡", " "),
)
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(TRICKY)).map("".join))
FILES = st.lists(st.builds(Attachment, TEXTS, TEXTS), max_size=2)


def writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@settings(max_examples=150, deadline=None)
@given(
    title=TEXTS,
    system=st.none() | TEXTS,
    texts=st.lists(st.tuples(TEXTS, FILES), min_size=1, max_size=4),
    suffix=st.sampled_from([".md", ".json", ""]),
)
def test_any_text_comes_back(
    title: str, system: str | None, texts: list[tuple[str, list[Attachment]]], suffix: str
) -> None:
    with tempfile.TemporaryDirectory() as folder, SessionStore(Path(folder) / "chats.db") as store:
        chat = store.create(system, None).number
        parent = None
        for place, (text, files) in enumerate(texts):
            role = "assistant" if place % 2 else "user"
            parent = store.add(chat, parent, role, text, attachments=files).number
        store.rename(chat, title)
        path = export_chat(store, chat, Path(folder) / f"chat{suffix}")
        number = import_chat(store, path)
        back = store.messages(number)
        assert [message.text for message in back] == [writable(text) for text, _ in texts]
        assert [[(one.name, one.text) for one in message.attachments] for message in back] == [
            [(writable(one.name), writable(one.text)) for one in files] for _, files in texts
        ]
        assert store.session(number).system == (None if system is None else writable(system))
        if writable(title).strip():
            assert store.session(number).title == store.session(chat).title


def test_nothing_is_overwritten(store: SessionStore, chat: int, tmp_path: Path) -> None:
    (tmp_path / "c.md").write_text("mine")
    with pytest.raises(SessionsFailed, match=r"is there already; c-2\.md is free"):
        export_chat(store, chat, tmp_path / "c.md")
    assert (tmp_path / "c.md").read_text() == "mine"


@pytest.mark.parametrize("name", ["c.pdf", "c.html", "c.PDF", "c.md.docx"])
def test_a_format_that_there_is_not_is_refused_with_those_that_work(
    store: SessionStore, chat: int, tmp_path: Path, name: str
) -> None:
    with pytest.raises(SessionsFailed, match=r"cannot be written as \.\w+; what works: \.md \(Markdown\) and \.json"):
        export_chat(store, chat, tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["c", "c.md", "c.markdown", "c.txt", "c.MD", "c.JSON"])
def test_formats_that_there_are_are_written(store: SessionStore, chat: int, tmp_path: Path, name: str) -> None:
    text = export_chat(store, chat, tmp_path / name).read_text()
    assert text.startswith("{" if name == "c.JSON" else "<!--")


def test_a_folder_gets_a_file_named_after_the_chat(store: SessionStore, chat: int, tmp_path: Path) -> None:
    store.rename(chat, "a/b: c?..")
    assert export_chat(store, chat, tmp_path) == tmp_path / "a b c.md"
    assert export_path("\x1b\n/", tmp_path) == tmp_path / "chat.md"
    assert export_path("x" * 500, tmp_path) == tmp_path / f"{'x' * 60}.md"


def test_a_folder_that_is_not_there_or_closed_is_told(store: SessionStore, chat: int, tmp_path: Path) -> None:
    with pytest.raises(SessionsFailed, match="cannot be written: no such file"):
        export_chat(store, chat, tmp_path / "none" / "c.md")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(SessionsFailed, match="permission denied"):
        export_chat(store, chat, closed / "c.md")


def test_an_answer_in_the_making_is_over_in_the_file(store: SessionStore, tmp_path: Path) -> None:
    chat = store.create(None, None).number
    question = store.add(chat, None, "user", "q")
    store.add(chat, question.number, "assistant", "half", state="writing")
    for name in ("c.md", "c.json"):
        number = import_chat(store, export_chat(store, chat, tmp_path / name))
        assert store.messages(number)[1].state == "stopped"


def test_lists_of_other_programs_are_read(store: SessionStore, tmp_path: Path) -> None:
    listed = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three"},
    ]
    for name, found in (("a.json", listed), ("b.json", {"messages": listed, "title": "theirs"})):
        (tmp_path / name).write_text(json.dumps(found))
        number = import_chat(store, tmp_path / name)
        assert [(one.role, one.text) for one in store.messages(number)] == [
            ("user", "one\n\ntwo"),
            ("assistant", "three"),
        ]
        assert store.session(number).system == "be kind"
    assert [session.title for session in store.sessions()] == ["theirs", "one"]


def test_a_file_of_another_editor_is_read(store: SessionStore, chat: int, tmp_path: Path) -> None:
    path = export_chat(store, chat, tmp_path / "c.md")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert store.messages(import_chat(store, path))[1].text == "```\ncode\n```"


def message(**other: object) -> dict[str, object]:
    return {"number": 1, "parent": None, "role": "user", "text": "x", **other}


BROKEN = [
    ("", "this is not an exported edgeinfer chat"),
    ("# Title\n\n## User\n\nhello\n", "this is not an exported edgeinfer chat"),
    ("{", "not valid JSON"),
    ("[" * 100_000, "nested too deeply"),
    ("{}", "has neither"),
    ("[]", "no messages"),
    ("[1]", "message 1 is no object"),
    ('[{"role": "user"}]', "message 1 has no text"),
    ('[{"role": "tool", "content": "x"}]', "has the role 'tool'"),
    ({"edgeinfer_chat": 2}, "its format is 2"),
    ({"edgeinfer_chat": 1}, 'no list "messages"'),
    ({"edgeinfer_chat": 1, "title": 3, "messages": []}, '"title" of the chat is no text'),
    ({"edgeinfer_chat": 1, "messages": [message(number="1")]}, 'no "number"'),
    ({"edgeinfer_chat": 1, "messages": [message(), message()]}, 'message 2 has no "number"'),
    ({"edgeinfer_chat": 1, "messages": [message(parent=1)]}, '"parent" of message 1'),
    ({"edgeinfer_chat": 1, "messages": [message(parent="1")]}, '"parent" of message 1'),
    ({"edgeinfer_chat": 1, "messages": [message(text=[])]}, '"text" of message 1'),
    ({"edgeinfer_chat": 1, "messages": [message(attachments=[{}])]}, "attachment of message 1"),
    ('<!-- {"edgeinfer_chat": 9} -->\n', "its format is 9"),
    ('<!-- {"edgeinfer_chat": 1} -->\n# x\n', "its end is missing"),
    ('<!-- {"edgeinfer_chat": 1} -->\n<!-- chat {"role": -->\n<!-- chat end -->\n', "comment of message 1 is broken"),
    ('<!-- {"edgeinfer_chat": 1} -->\n<!-- chat {"file": "a"} -->\n<!-- chat end -->\n', "before the first message"),
]


@pytest.mark.parametrize(("content", "told"), BROKEN, ids=[told for _, told in BROKEN])
@pytest.mark.usefixtures("uncollected")
def test_broken_files_say_what_is_wrong(store: SessionStore, tmp_path: Path, content: object, told: str) -> None:
    path = tmp_path / "c"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(SessionsFailed, match=told):
        import_chat(store, path)
    assert store.sessions() == ()


def test_a_file_cut_short_is_refused(store: SessionStore, chat: int, tmp_path: Path) -> None:
    for name in ("c.md", "c.json"):
        path = export_chat(store, chat, tmp_path / name)
        whole = path.read_bytes()
        for n_bytes in (0, 10, len(whole) // 2, len(whole) - 5):
            path.write_bytes(whole[:n_bytes])
            with pytest.raises(SessionsFailed):
                import_chat(store, path)
    assert len(store.sessions()) == 1


def test_numbers_that_make_no_sense_count_as_unknown(store: SessionStore, tmp_path: Path) -> None:
    figures = {"n_prompt": "many", "n_cached": 0, "n_generated": 1, "finish_reason": "stop"}
    (tmp_path / "c.json").write_text(
        json.dumps(
            {
                "edgeinfer_chat": 1,
                "leaf": 10**30,
                "created_s": float("inf"),
                "messages": [
                    message(number=10**30, created_s=-1, state="writing", figures=figures),
                    message(number=2, created_s=float("nan"), figures=FIGURES_JSON),
                ],
            }
        )
    )
    number = import_chat(store, tmp_path / "c.json")
    first, second = store.messages(number)
    assert (first.created_s, first.state, first.figures) == (0, "stopped", None)
    assert (second.created_s, second.figures) == (0, None)
    assert store.session(number).leaf == first.number


FIGURES_JSON = {"n_prompt": 1, "n_cached": 0, "n_generated": 1, "finish_reason": "stop", "ttft_s": float("nan")}


def test_what_is_no_text_file_is_told(store: SessionStore, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"abc\xff")
    for path, told in (
        (tmp_path, "is not a file"),
        (tmp_path / "none.md", "cannot be read: no such file"),
        (tmp_path / "b", r"not UTF-8 text \(byte 3\)"),
        (Path("/dev/zero"), "is not a file"),
        (tmp_path / "a\0b", "impossible name"),
    ):
        with pytest.raises(SessionsFailed, match=told):
            import_chat(store, path)
