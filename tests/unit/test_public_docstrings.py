"""Docstrings of the public names: each has one, in a sentence at first, and the examples in them run."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import MemberDescriptorType

import pytest

import edgeinfer
from edgeinfer.engine.several.mapping import Mapped
from edgeinfer.engine.several.outlined import Outlined
from edgeinfer.engine.several.several import Several
from edgeinfer.engine.telemetry import Telemetry

BESIDE = {"Mapped": Mapped, "Outlined": Outlined, "Several": Several, "Telemetry": Telemetry}
"""What methods of public names return."""


def members(owner: type) -> Iterator[tuple[str, object]]:
    """The public members of a class that are its own, or those of our classes that it is made of."""
    found = {
        name: value
        for each in reversed(owner.__mro__)
        if each.__module__.startswith("edgeinfer")
        for name, value in vars(each).items()
    }
    for name, value in sorted(found.items()):
        is_told = inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)
        if not name.startswith("_") and is_told and not isinstance(value, MemberDescriptorType):
            yield name, value


def documented() -> Iterator[tuple[str, str]]:
    """The public names, and of classes their members, with their docstrings."""
    named = {name: getattr(edgeinfer, name) for name in edgeinfer.__all__ if name != "__version__"} | BESIDE
    for name, value in named.items():
        yield name, inspect.getdoc(value) or ""
        if inspect.isclass(value):
            for member, found in members(value):
                yield f"{name}.{member}", inspect.getdoc(getattr(found, "__func__", found)) or ""


NAMES = dict(documented())


def examples(text: str) -> list[str]:
    """The indented paragraphs of a docstring."""
    paragraphs = re.split(r"\n\s*\n", text)
    indented = [part for part in paragraphs[1:] if all(line.startswith("    ") for line in part.split("\n"))]
    return [inspect.cleandoc("\n" + part) for part in indented]


EXAMPLES = [(name, code) for name, text in NAMES.items() for code in examples(text)]


@pytest.mark.parametrize("name", NAMES)
def test_it_begins_with_a_sentence(name: str) -> None:
    first = NAMES[name].split("\n\n")[0].replace("\n", " ")
    assert re.match(r"[A-Z`]", first), "there is none, or it begins with a small letter"
    assert re.search(r"[.:;](\s|$)", first), "no sentence ends"


def test_there_are_examples() -> None:
    told = {name for name, _ in EXAMPLES}
    assert {"load", "LLM", "LLM.chat", "LLM.complete", "LLM.batch", "LLM.several", "Session", "TextStream"} <= told
    for name, code in EXAMPLES:
        ast.parse(code, name)


@pytest.mark.model
@pytest.mark.parametrize(("name", "code"), EXAMPLES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(EXAMPLES)])
def test_the_example_runs(starter_model: Path, home: Path, name: str, code: str) -> None:
    (home / "models").mkdir(parents=True)
    os.symlink(starter_model, home / "models" / starter_model.name)
    with edgeinfer.load(starter_model, n_context=1024, n_sessions=2) as llm:
        scope = {"edgeinfer": edgeinfer, "llm": llm}
        exec(compile(code, name, "exec"), scope)
