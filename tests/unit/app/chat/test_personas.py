"""Personas: one file each, found by name in any case, names that cannot be files refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.chat.personas import LONGEST_CHARACTERS, NamedText, Personas
from edgeinfer.errors import BadSetting


@pytest.fixture
def personas(tmp_path: Path) -> Personas:
    return Personas(tmp_path / "personas")


def test_there_are_none_before_one_is_kept(personas: Personas) -> None:
    assert personas.all() == ()
    assert not personas.folder.exists()


def test_one_is_a_file_that_any_editor_opens(personas: Personas) -> None:
    assert personas.save(" Pirate ", "\nSpeak like a pirate.\n\n") == NamedText("Pirate", "Speak like a pirate.")
    assert (personas.folder / "Pirate.md").read_text() == "Speak like a pirate.\n"
    assert personas.all() == (NamedText("Pirate", "Speak like a pirate."),)


def test_one_of_the_same_name_is_replaced(personas: Personas) -> None:
    personas.save("a", "one")
    personas.save("a", "two")
    assert personas.all() == (NamedText("a", "two"),)


def test_the_same_name_in_another_case_is_the_same_persona(personas: Personas) -> None:
    personas.save("pirate", "one")
    personas.save("Pirate", "two")
    assert [persona.text for persona in personas.all()] == ["two"]


def test_they_are_in_the_order_of_their_names(personas: Personas) -> None:
    for name in ("zeta", "Beta", "alpha"):
        personas.save(name, name)
    assert [persona.name for persona in personas.all()] == ["alpha", "Beta", "zeta"]


def test_names_are_found_in_any_case(personas: Personas) -> None:
    personas.save("Straße 1", "text")
    assert personas.find("STRASSE 1").name == "Straße 1"


def test_an_unknown_name_says_what_is_near(personas: Personas) -> None:
    with pytest.raises(BadSetting, match="there are none yet"):
        personas.find("pirate")
    personas.save("pirate", "text")
    with pytest.raises(BadSetting, match="did you mean pirate"):
        personas.find("pirat")
    with pytest.raises(BadSetting, match="there are: pirate"):
        personas.find("zzz")


@pytest.mark.parametrize("name", ["", " ", "../up", "a/b", "a\\b", ".hidden", "a\0b", "a\nb", "x" * 61, "a\x1b[31m"])
def test_names_that_cannot_be_files_are_refused(personas: Personas, name: str) -> None:
    with pytest.raises(BadSetting, match="cannot be called"):
        personas.save(name, "text")
    assert personas.all() == ()


def test_what_was_removed_can_be_saved_again(personas: Personas) -> None:
    personas.save("Pirate", "text")
    removed = personas.remove("pirate")
    assert personas.all() == ()
    personas.save(removed.name, removed.text)
    assert personas.all() == (NamedText("Pirate", "text"),)


def test_files_that_cannot_be_read_are_left_out(personas: Personas) -> None:
    personas.save("good", "text")
    (personas.folder / "bytes.md").write_bytes(b"\xff\xfe\x00")
    (personas.folder / "folder.md").mkdir()
    (personas.folder / "other.txt").write_text("not one")
    assert [persona.name for persona in personas.all()] == ["good"]


def test_a_text_without_end_is_cut(personas: Personas) -> None:
    personas.save("long", "x" * (LONGEST_CHARACTERS + 5))
    assert len(personas.find("long").text) == LONGEST_CHARACTERS


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="cannot be written"):
        Personas(tmp_path / "file" / "personas").save("a", "text")
