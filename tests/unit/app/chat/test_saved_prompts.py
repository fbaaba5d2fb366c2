"""Fields of saved prompts: what is one, defaults, what goes into the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.chat.saved_prompts import PromptField, SavedPrompts, fields_of, filled
from edgeinfer.errors import BadSetting


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Hello", ()),
        ("{{name}} and {{ name }}", (PromptField("name"),)),
        ("{{to: English}}, {{source text}}, {{to}}", (PromptField("to", "English"), PromptField("source text"))),
        ("{{größe}} {{a-b_2}}", (PromptField("größe"), PromptField("a-b_2"))),
        ("{{}} {{ }} {{1}} {name} {{a\nb}} {{x{y}}} {{% if %}} {{a.b}}", ()),
    ],
    ids=["none", "once", "default", "letters", "other braces"],
)
def test_fields(text: str, fields: tuple[PromptField, ...]) -> None:
    assert fields_of(text) == fields


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"to": "French", "text": "Sea"}, "To French (French): Sea"),
        ({"text": "Sea"}, "To English (English): Sea"),
        ({"to": "", "text": "{{to}} \\1"}, "To  (): {{to}} \\1"),
    ],
    ids=["all", "default", "values are only text"],
)
def test_values_go_into_the_text(values: dict[str, str], text: str) -> None:
    assert filled("To {{to: English}} ({{to}}): {{ text }}", values) == text


def test_they_are_files_of_their_own_folder(home: Path) -> None:
    prompts = SavedPrompts()
    prompts.save("translate", "Translate {{text}}")
    assert [path.read_text() for path in home.rglob("prompts/translate.md")] == ["Translate {{text}}\n"]
    with pytest.raises(BadSetting, match="no prompt is called 'transalte'; did you mean translate"):
        prompts.find("transalte")
