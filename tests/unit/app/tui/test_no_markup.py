"""The app shows texts as they are: no widget reads markup, by which a text could be a link or an action."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import edgeinfer.app.tui

PACKAGE = Path(edgeinfer.app.tui.__file__).parent
READERS = frozenset({"Static", "Label", "notify"})
"""What reads markup unless it is told not to."""


def is_plain(call: ast.Call) -> bool:
    """Whether a call says `markup=False`."""
    return any(
        option.arg == "markup" and isinstance(option.value, ast.Constant) and option.value.value is False
        for option in call.keywords
    )


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def findings(tree: ast.AST) -> Iterator[int]:
    """Lines of calls and classes by which a text would be markup."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in READERS and not is_plain(node):
            yield node.lineno
        if isinstance(node, ast.ClassDef) and any(name_of(base) in READERS for base in node.bases):
            calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and name_of(each.func) == "__init__"]
            if not any(map(is_plain, calls)):
                yield node.lineno


def test_no_widget_reads_markup() -> None:
    found, n_calls = list[str](), 0
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        n_calls += text.count("markup=False")
        found += [f"{path.relative_to(PACKAGE).as_posix()}:{line}" for line in findings(ast.parse(text))]
    assert n_calls > 20
    assert found == []


def test_one_that_did_would_be_found() -> None:
    assert list(findings(ast.parse("Static(text)\nself.notify(text, markup=True)"))) == [1, 2]
    assert list(findings(ast.parse("class Line(Static):\n    pass"))) == [1]
