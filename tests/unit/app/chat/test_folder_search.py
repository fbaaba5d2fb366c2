"""Parts of a folder that suit a question: cutting, ranking, what fits, what is said."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.app.chat.folder_search import FolderSearch, parts_of, words_of
from edgeinfer.app.sessions.records import Attachment

FILLER = "".join(f"Nothing of note stands in line {number} of this text.\n" for number in range(60))
FILES = (
    Attachment("docs/lights.md", f"{FILLER}\nThe lighthouse keeper is called Maren Holt.\n\n{FILLER}"),
    Attachment("docs/boats.md", f"{FILLER}\nThe ferry leaves at nine.\n"),
    Attachment("src/read_text.py", "def readHeader(path):\n    return open(path)\n"),
)


def count(text: str) -> int:
    return len(text.split())


@settings(deadline=None)
@given(st.text(alphabet="ab \n", max_size=6000))
def test_parts_are_the_whole_text(text: str) -> None:
    parts = list(parts_of(0, text, 1200))
    assert "".join(part.text for part in parts) == text
    assert all(len(part.text.splitlines()) == part.last_line - part.first_line + 1 for part in parts)
    assert all(after.first_line == before.last_line + 1 for before, after in itertools.pairwise(parts))


def test_words_of_names_are_parted() -> None:
    assert list(words_of("readHeader read_text, Lighthouses!")) == ["read", "header", "read", "text", "lighthouse"]


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("Who is the keeper of the lighthouses?", "docs/lights.md"),
        ("When does the ferry leave?", "docs/boats.md"),
        ("What does read_header do?", "src/read_text.py"),
        ("What is in boats.md?", "docs/boats.md"),
    ],
    ids=["text", "other", "name in code", "name of a file"],
)
def test_the_part_that_answers_is_sent_first(question: str, name: str) -> None:
    search = FolderSearch("docs", FILES, 400)
    assert search.ranked(question)
    found = search.chosen(question, count)
    assert found is not None
    assert found.attachments[0].name == "files of docs"
    assert any(each.name.startswith(f"{name}, lines ") for each in found.attachments[1:])
    assert "larger than the context" in found.notice
    assert "chosen by the words of the question" in found.notice


def test_no_more_is_sent_than_fits() -> None:
    found = FolderSearch("docs", FILES, 500).chosen("Nothing of note stands in line 7", count)
    assert found is not None
    assert sum(count(each.text) for each in found.attachments) <= 500
    assert len(found.attachments) > 1


def test_neighbours_become_one_part_with_their_lines() -> None:
    found = FolderSearch("docs", FILES, 100_000).chosen("Nothing of note stands in line 7", count)
    assert found is not None
    assert [each.text for each in found.attachments[1:3]] == [FILES[0].text, FILES[1].text]
    assert found.attachments[1].name == f"docs/lights.md, lines 1-{len(FILES[0].text.splitlines())}"


def test_a_question_without_words_of_the_folder_gets_the_beginnings_of_its_files() -> None:
    found = FolderSearch("docs", FILES, 800).chosen("Summarize, please", count)
    assert found is not None
    assert [each.name.partition(",")[0] for each in found.attachments[1:]][-1] == "src/read_text.py"
    assert "the beginnings of its files" in found.notice


def test_what_the_chat_has_already_is_not_sent_again() -> None:
    search = FolderSearch("docs", FILES, 300)
    first = search.chosen("keeper of the lighthouse", count)
    assert first is not None
    again = search.chosen("keeper of the lighthouse", count, {each.name for each in first.attachments})
    assert again is not None
    assert not {each.name for each in again.attachments} & {each.name for each in first.attachments}


def test_a_context_too_small_for_the_list_gets_nothing() -> None:
    assert FolderSearch("docs", FILES, 3).chosen("keeper", count) is None


def test_a_long_list_of_files_is_cut_and_says_so() -> None:
    files = [Attachment(f"f{number}.txt", "x\n") for number in range(100)]
    found = FolderSearch("many", files, 10_000).chosen("anything", count)
    assert found is not None
    assert "… and 40 more" in found.attachments[0].text
