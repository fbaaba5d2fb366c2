"""What edgeinfer installs, and under which licences: nothing in `all` that binds who uses it."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from scripts import licences
from scripts.licences import ALL, CORE, LGPL_IN_ALL, ROOT, PackageFacts, facts_of, is_allowed, normal, refused, table

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MIT_CLASSIFIER = "License :: OSI Approved :: MIT License"
PAGE = (ROOT / "docs/LICENCES.md").read_text(encoding="utf-8")


def rows() -> list[tuple[str, str, tuple[str, ...]]]:
    """The rows of the page."""
    cells = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]
    return [(name, licence, tuple(extras.split(", "))) for name, licence, extras in cells]


def required(extra: str) -> set[str]:
    """The names of what an extra requires itself, or the core."""
    found = set[str]()
    for text in PROJECT["dependencies"] if extra == CORE else PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == "edgeinfer":
            found |= set.union(*(required(each) for each in requirement.extras))
        else:
            found.add(normal(requirement.name))
    return found


def installed() -> dict[str, PackageFacts]:
    """What is installed here of all that `all` brings, by the packages' own requirements."""
    found, seen = dict[str, PackageFacts](), set[tuple[str, frozenset[str]]]()
    waiting = [(name, frozenset[str]()) for name in required(CORE) | required(ALL)]
    while waiting:
        name, extras = each = waiting.pop()
        try:
            own = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if each in seen:
            continue
        seen.add(each)
        record: dict[str, Any] = {
            "name": own["Name"],
            "license": own.get("License"),
            "license_expression": own.get("License-Expression"),
            "classifier": own.get_all("Classifier") or (),
        }
        found[normal(name)] = facts_of(record)
        for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return found


def test_the_page_has_what_is_required() -> None:
    names = {name for name, _, _ in rows()}
    assert required(CORE) | required(ALL) <= names
    assert {name for name, _, extras in rows() if {CORE, ALL} & set(extras)} >= required(ALL)


def test_nothing_in_all_binds_who_uses_it() -> None:
    assert refused(rows()) == []
    assert [name for name, licence, extras in rows() if ALL in extras and "GPL" in licence] == list(LGPL_IN_ALL)
    for name, licence in LGPL_IN_ALL.items():
        assert f"{name} ({licence})" in PAGE


def test_what_is_installed_here_says_the_same_of_itself() -> None:
    found = installed()
    assert len(found) > 20
    assert [f"{each.name}: {each.licence}" for each in found.values() if not is_allowed(each.name, each.licence)] == []


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-2.0-only", True),
        ("(MIT OR Apache-2.0) AND BSD-3-Clause", True),
        ("BSD-2-Clause AND Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-or-later", False),
        ("MIT AND GPL-2.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("LGPL-2.1-or-later", False),
        ("AGPL-3.0-only", False),
        ("proprietary", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_licences_that_are_allowed(licence: str, expected: bool) -> None:
    assert is_allowed("other", licence) == expected


@pytest.mark.parametrize(
    ("record", "licence"),
    [
        ({"license_expression": "MIT", "license": "GPL"}, "MIT"),
        ({"license": "BSD-3-Clause"}, "BSD-3-Clause"),
        ({"license": "3-Clause BSD License"}, "BSD-3-Clause"),
        (
            {
                "license": "Copyright (c) 2020 somebody\nall rights",
                "classifier": ["License :: OSI Approved :: MIT License"],
            },
            "MIT",
        ),
        ({"license": "GPL-3.0"}, "GPL-3.0"),
        ({"license": "Free to use"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_what_packages_say_is_read(record: dict[str, Any], licence: str) -> None:
    assert facts_of({"name": "Some_Package.x", **record}).licence == licence


def test_a_page_is_written_from_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def report(name: str, *packages: tuple[str, str]) -> str:
        path = tmp_path / f"{name}.json"
        found = [{"metadata": {"name": each, "license_expression": licence}} for each, licence in packages]
        path.write_text(json.dumps({"install": found}))
        return str(path)

    core = report(CORE, ("edgeinfer", "Apache-2.0"), ("NumPy", "BSD-3-Clause"))
    extra = report("previews", ("numpy", "BSD-3-Clause"), ("textual-image", "LGPL-3.0-or-later"))
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["licences.py", str(page), "--check", core, extra])
    licences.main()
    assert re.findall(r"^\| .*", page.read_text(), re.MULTILINE)[1:] == [
        "| numpy | BSD-3-Clause | edgeinfer |",
        "| textual-image | LGPL-3.0-or-later | previews |",
    ]
    bad = report(ALL, ("bad", "GPL-3.0-only"), ("soxr", "LGPL-2.1-or-later"))
    monkeypatch.setattr(sys, "argv", ["licences.py", str(page), "--check", core, bad])
    with pytest.raises(SystemExit, match=r"`all`: bad: GPL-3\.0-only$"):
        licences.main()
    assert table({ALL: (PackageFacts("bad", "GPL-3.0-only", "", ()),)}) == [("bad", "GPL-3.0-only", (ALL,))]
