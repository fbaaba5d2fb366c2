"""Checks house style that linters do not: lengths, module docstrings, folder and test names, unfinished marks.

Run from the repository root: `python scripts/check_style.py`. Prints one line per finding; exits 1 if there are any.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

FILE_CAP = 400
FUNCTION_CAP = 60
KERNEL_CAP = 80
FRONT_DOOR_CAP = 250
KERNEL_ROOMS = {"kernels", "simd", "loops"}
FRONT_DOORS = {
    "app/cli.py",
    "app/tui/app.py",
    "app/server/app.py",
    "engine/scheduler/step_driver.py",
    "engine/run/executor.py",
}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
PHRASES = ("in the making", "Somebody", "whoever is there")
"""Phrases for which the glossary has other words."""
MARKS = ("TODO", "FIXME", "XXX", "NotImplementedError")


def function_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring and decorators."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def check_file(path: Path, package: Path) -> list[str]:
    """Findings of one file, as printable lines."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    tree = ast.parse(text)
    inside = path.is_relative_to(package)
    relative = path.relative_to(package).as_posix() if inside else path.as_posix()
    findings = []
    cap = FRONT_DOOR_CAP if relative in FRONT_DOORS else FILE_CAP
    if lines > cap:
        findings.append(f"{path}: {lines} lines, cap {cap}")
    if path.stem in BANNED_NAMES:
        findings.append(f"{path}: a module is named for what it is, not {path.stem!r}")
    if inside and text.strip() and ast.get_docstring(tree) is None:
        findings.append(f"{path}: no module docstring")
    if inside:
        findings += [f"{path}: contains {mark}" for mark in (*MARKS, *PHRASES) if mark in text]
    function_cap = KERNEL_CAP if KERNEL_ROOMS.intersection(path.parts) else FUNCTION_CAP
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and function_length(node) > function_cap:
            length = function_length(node)
            findings.append(f"{path}:{node.lineno}: {node.name} has {length} lines, cap {function_cap}")
    return findings


def tests_of_one_name(files: list[Path]) -> list[str]:
    """Pairs of test files with the same name, of which pytest collects only one."""
    places: dict[str, Path] = {}
    tests = [path for path in files if path.name.startswith("test_")]
    return [f"{path}: named like {first}" for path in tests if (first := places.setdefault(path.name, path)) != path]


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    package = root / "edgeinfer"
    files = [path for room in ("edgeinfer", "tests", "scripts") for path in sorted((root / room).rglob("*.py"))]
    findings = [finding for path in files for finding in check_file(path, package)]
    findings += tests_of_one_name(files)
    print("\n".join(findings) if findings else f"style: {len(files)} files in order")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
