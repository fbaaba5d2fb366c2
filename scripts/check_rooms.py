"""Checks that the import contracts do not cover: no import cycles, and unique class names.

Run from the repository root: `python scripts/check_rooms.py`. Neither the modules nor the folders of a package may
import each other in a cycle. Imports within functions count, those only for type checkers do not. Prints one line per
finding; exits 1 if there are any.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

PACKAGE = "edgeinfer"
WITH_FOLDERS = ("app", "backends.cpu", "engine", "models", "scheduling")
"""Packages whose folders and modules are also checked as wholes."""

Imports = Mapping[str, set[str]]


def imports_of(graph: grimp.ImportGraph) -> Imports:
    """The modules that each module imports."""
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def between_folders(imports: Imports, package: str) -> Imports:
    """The imports between the folders and modules directly in a package."""
    depth = package.count(".") + 2
    inside = {module: ".".join(module.split(".")[:depth]) for module in imports if module.startswith(f"{package}.")}
    folders: dict[str, set[str]] = {folder: set() for folder in inside.values()}
    for module, folder in inside.items():
        folders[folder] |= {inside[other] for other in imports[module] if other in inside} - {folder}
    return folders


def circles(imports: Imports) -> Iterator[list[str]]:
    """Groups that import each other, directly or indirectly: Tarjan's strongly connected components."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    for start in sorted(imports):
        work = [(start, iter(sorted(imports[start])))] if start not in index else []
        for module, _ in work:
            index[module] = lowest[module] = len(index)
            stack.append(module)
        while work:
            module, imported = work[-1]
            for other in imported:
                if other not in index:
                    index[other] = lowest[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(sorted(imports[other]))))
                    break
                if other in stack:
                    lowest[module] = min(lowest[module], index[other])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[module])
                if lowest[module] == index[module]:
                    group = stack[stack.index(module) :]
                    del stack[-len(group) :]
                    if len(group) > 1:
                        yield sorted(group)


def homonyms(root: Path) -> dict[str, list[str]]:
    """Class names that several modules define, with places; a nested class counts with the name of its outer class."""
    places = defaultdict(list)
    for path in sorted((root / PACKAGE).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(root).as_posix())
    return {name: found for name, found in places.items() if len(found) > 1}


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    sys.path.insert(0, str(root))
    graph = grimp.build_graph(PACKAGE, cache_dir=None, exclude_type_checking_imports=True)
    imports = imports_of(graph)
    graphs = [imports, *(between_folders(imports, f"{PACKAGE}.{name}") for name in WITH_FOLDERS)]
    findings = [f"a circle of imports: {', '.join(group)}" for each in graphs for group in circles(each)]
    findings += [f"class {name} is defined in {', '.join(found)}" for name, found in homonyms(root).items()]
    print("\n".join(findings) if findings else f"rooms: {len(imports)} modules in order")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
