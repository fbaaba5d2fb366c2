"""Completions: where an @path begins, which files it could mean, which commands a line could mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeinfer.app.chat import completion
from edgeinfer.app.chat.attachments import mentions
from edgeinfer.app.chat.completion import PathFragment, complete_command, complete_path, fragment_at, match_rank


@pytest.mark.parametrize(
    ("line", "fragment"),
    [
        ("@", PathFragment(0, "")),
        ("see @src/a", PathFragment(4, "src/a")),
        ('see (@"my fi', PathFragment(5, "my fi")),
        ("mail me@home", None),
        ("@done and", None),
        ('@"closed" ', None),
        ("", None),
    ],
)
def test_the_fragment_at_the_end_of_a_line(line: str, fragment: PathFragment | None) -> None:
    assert fragment_at(line) == fragment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("notes.txt", "my file.md", "src/main.py", "src/deep/notes.py", ".hidden", "node_modules/notes.js"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return tmp_path


def labels(path: str, folder: Path) -> list[str]:
    return [each.label for each in complete_path(path, folder)]


def test_paths_are_found_below_the_folder_nearest_first(folder: Path) -> None:
    assert labels("notes", folder) == ["notes.txt", "src/deep/notes.py"]
    assert labels("", folder) == ["src/", "notes.txt", "my file.md", "node_modules/"]
    assert labels("src/", folder) == ["src/deep/", "src/main.py"]
    assert labels("mpy", folder) == ["src/main.py"]
    assert labels("src/../no", folder) == ["src/../notes.txt", "src/../node_modules/"]


def test_hidden_files_only_when_asked_for(folder: Path) -> None:
    assert labels(".", folder) == [".hidden"]
    assert labels("hidden", folder) == []


def test_what_is_inserted_is_a_mention_of_that_file(folder: Path) -> None:
    (plain,) = complete_path("main", folder)
    spaced = complete_path("my", folder)[0]
    assert (plain.insertion, spaced.insertion) == ("@src/main.py ", '@"my file.md" ')
    assert mentions(plain.insertion + spaced.insertion, folder) == [folder / "src/main.py", folder / "my file.md"]
    assert complete_path("sr", folder)[0].goes_on


@given(st.text(max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
def test_nothing_typed_breaks_it(folder: Path, text: str) -> None:
    found = fragment_at(f"@{text}")
    assert found is None or isinstance(complete_path(found.path, folder), list)


def test_names_that_cannot_be_typed_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m").write_text("x")
    (tmp_path / 'a"b').write_text("x")
    (tmp_path / "abc").write_text("x")
    assert labels("a", tmp_path) == ["abc"]
    assert labels("~nobody-has-this-name/a", tmp_path) == []
    assert labels("gone/a", tmp_path) == []


def test_large_folders_are_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "ENTRIES_CAP", 50)
    for number in range(200):
        (tmp_path / f"file{number}").write_text("")
    found = labels("file", tmp_path)
    assert len(found) == completion.COMPLETIONS_CAP


COMMANDS = (("help", "show this"), ("model [NAME]", "switch"), ("temp [NUMBER]", "temperature"), ("exit", "leave"))


def test_commands_by_their_beginning_then_by_their_letters() -> None:
    assert [each.insertion for each in complete_command("/", COMMANDS)] == ["/help", "/model ", "/temp ", "/exit"]
    assert [each.insertion for each in complete_command("/te", COMMANDS)] == ["/temp "]
    assert [each.insertion for each in complete_command("/e", COMMANDS)] == ["/exit", "/help", "/model ", "/temp "]
    for line in ("/temp ", "//te", "te", "/temp\n"):
        assert complete_command(line, COMMANDS) == []


@given(st.text(max_size=6), st.text(max_size=12))
def test_a_match_has_the_signs_in_order(wanted: str, name: str) -> None:
    rank = match_rank(wanted, name)
    rest = iter(name.casefold())
    assert (rank is not None) == all(sign in rest for sign in wanted.casefold())
