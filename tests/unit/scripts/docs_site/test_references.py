"""The generated references: every command with every option, every public name with its docstring."""

from __future__ import annotations

import re

import pytest

import edgeinfer
from edgeinfer.app.cli import COMMANDS
from edgeinfer.settings import declared_options, flag_of
from scripts.docs_site.api_reference import api_reference, description, signature
from scripts.docs_site.command_reference import command_reference, commands, plain


@pytest.fixture(scope="module")
def reference() -> str:
    return command_reference()


def test_all_commands_are_there(reference: str) -> None:
    titles = {title.split()[0] for title in re.findall(r"(?m)^## (.+)$", reference)}
    assert titles == {key.replace("_", "-") for key in sorted(COMMANDS.keys())}


def test_all_options_are_there(reference: str) -> None:
    sections = {part.partition("\n")[0]: part for part in re.split(r"(?m)^## ", reference)[1:]}
    for command, path in commands():
        section = sections[path.removeprefix("edgeinfer ")]
        context = command.context_class(command, info_name=path)
        for parameter in command.get_params(context):
            if parameter.param_type_name == "option" and not parameter.hidden and "--help" not in parameter.opts:
                assert all(f"`{name}`" in section for name in parameter.opts), (path, parameter.opts)


def test_settings_have_defaults_and_no_variables(reference: str) -> None:
    temp = next(option for option in declared_options().values() if option.name == "temp")
    row = next(line for line in reference.splitlines() if line.startswith(f"| `{flag_of(temp.name)}`"))
    assert row.count("|") == 4
    assert row.rstrip("| ").endswith(plain(temp.default_text))
    assert "EDGEINFER_" not in row


def test_nothing_in_a_help_text_is_markup() -> None:
    assert plain("a <b> | *c*\n d_e `f`") == "a &lt;b&gt; &#124; \\*c\\* d\\_e \\`f\\`"


def test_all_public_names_are_there() -> None:
    text = api_reference()
    for name in edgeinfer.__all__:
        assert name == "__version__" or f"### {name}\n" in text
    for name in ("LLM.chat", "LLM.close", "Session.branch", "Options of answers"):
        assert f"## {name}\n" in text
    assert "<" not in re.sub(r"(?s)```.*?```|`[^`]*`", "", text)


def test_a_name_without_a_docstring_is_an_error() -> None:
    def silent() -> None: ...

    with pytest.raises(ValueError, match="thing is public and has no docstring"):
        list(description("thing", silent))


def test_aligned_names_become_a_table() -> None:
    def load() -> None:
        """Load.

        first   one thing
        second_name
                another `thing`
        """

    assert list(description("load", load)) == [
        *("Load.", "", "| | |", "|---|---|", "| `first` | one thing |", "| `second_name` | another `thing` |", ""),
    ]


def test_a_long_signature_has_a_line_for_each_parameter() -> None:
    def short(a: int, *, b: str = "x") -> None: ...

    def longer(first: dict[str, int], second: dict[str, int], *rest: int, last: bool = False) -> list[str]:
        return []

    assert signature("short", short) == "short(a: int, *, b: str = 'x') -> None"
    assert signature("longer", longer).splitlines() == [
        *("longer(", "    first: dict[str, int],", "    second: dict[str, int],", "    *rest: int,"),
        *("    last: bool = False,", ") -> list[str]"),
    ]
