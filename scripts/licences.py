"""Lists the licences of what edgeinfer installs, and checks that everything in `all` may be used by everybody.

`python scripts/licences.py docs/LICENCES.md` asks pip what each extra of `pyproject.toml` would install on this system,
downloads their metadata, installs nothing, and writes the table; it exits with 1 if a licence in `all` is not on the
list below. `--check REPORT…` reads reports of pip (`pip install --dry-run --report`) instead of asking for them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ALL, CORE = "all", "edgeinfer"
ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "LLVM-exception", "MIT"),
        *("MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib"),
    }
)
"""Licences that ask for little: to be named, and (MPL-2.0) to publish changes of their own files."""
LGPL_IN_ALL: Mapping[str, str] = {"soxr": "LGPL-2.1-or-later"}
"""What is in `all` under the LGPL: imported as it is, and only for sounds at other rates than 16 kHz."""
CLASSIFIERS: Mapping[str, str] = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Other/Proprietary License": "proprietary",
    "Python Software Foundation License": "PSF-2.0",
}
"""What packages without an SPDX expression call their licence."""
WORDS: Mapping[str, str] = {"3-Clause BSD License": "BSD-3-Clause"}
"""What packages that say it in their own words mean."""
ELSEWHERE: Mapping[str, str] = {
    "kernels": "`edgeinfer-kernels`, object code of this project (Apache-2.0)",
    "llamacpp": "`llama-cpp-python` (MIT), built where it is installed, and its dependencies",
}
"""Extras whose packages pip cannot look up as wheels."""
NOT_FOR_USERS = frozenset({"test"})
EXPRESSION = re.compile(r"[\w.+-]+(?: (?:AND|OR|WITH) [\w.+-]+)*")
HEAD = """# Licences of dependencies

edgeinfer itself is under Apache-2.0. This is what each extra installs besides (on Linux, by pip), made by
`make licences` from what packages say of themselves. Nothing in `all` is under the GPL or an unknown licence; under the
LGPL is {lgpl}, and nothing else. `make sbom` writes the same with versions, as CycloneDX.

| package | licence | extras |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """What a package says of its licence: an SPDX expression, a text, classifiers of the package index."""

    name: str
    expression: str
    text: str
    classifiers: tuple[str, ...]

    @property
    def licence(self) -> str:
        """Its licence by SPDX as far as it says, "unknown" if it does not."""
        text = WORDS.get(self.text, self.text)
        own = [each.split(" :: ")[-1] for each in self.classifiers if each.startswith("License :: ")]
        named = {CLASSIFIERS[each] for each in own if each in CLASSIFIERS}
        if self.expression:
            return self.expression
        if EXPRESSION.fullmatch(text) and set(re.split(r" (?:AND|OR|WITH) ", text)) <= ALLOWED:
            return text
        if named:
            return " AND ".join(sorted(named))
        return text if "GPL" in text and len(text) < 80 else "unknown"


def facts_of(metadata: Mapping[str, Any]) -> PackageFacts:
    """What a record of a report of pip says of a package's licence."""
    first_line = (metadata.get("license") or "").strip().partition("\n")[0]
    return PackageFacts(
        normal(metadata["name"]),
        metadata.get("license_expression") or "",
        first_line,
        tuple(metadata.get("classifier", ())),
    )


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_allowed(name: str, licence: str) -> bool:
    """Whether a package may be in `all`: of each part of its licence one of the alternatives is on the list."""
    if LGPL_IN_ALL.get(name) == licence:
        return True
    parts = licence.replace("(", "").replace(")", "").split(" AND ")
    return all(any(set(each.split(" WITH ")) <= ALLOWED for each in part.split(" OR ")) for part in parts)


def report_of(extra: str) -> Path:
    """A report of pip of what an extra installs; "" for none."""
    path = Path(tempfile.mkdtemp(prefix="edgeinfer-licences")) / f"{extra or CORE}.json"
    what = f"{ROOT}[{extra}]" if extra else str(ROOT)
    options = ["--dry-run", "--quiet", "--ignore-installed", "--only-binary", ":all:", "--report", str(path)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, what], check=True)
    return path


def table(reports: Mapping[str, Sequence[PackageFacts]]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Rows of name, licence and extras; what the core installs is in all extras, and is told once."""
    core = {each.name for each in reports.get("", ())}
    found: dict[str, tuple[str, list[str]]] = {}
    for extra, packages in reports.items():
        for package in packages:
            if package.name == CORE or (extra and package.name in core):
                continue
            found.setdefault(package.name, (package.licence, []))[1].append(extra or CORE)
    return [(name, licence, tuple(sorted(extras))) for name, (licence, extras) in sorted(found.items())]


def refused(rows: Iterable[tuple[str, str, tuple[str, ...]]]) -> list[str]:
    """What is in the core or in `all` and may not be."""
    return [
        f"{name}: {licence}"
        for name, licence, extras in rows
        if {CORE, ALL} & set(extras) and not is_allowed(name, licence)
    ]


def read_report(path: Path) -> tuple[PackageFacts, ...]:
    """The packages in a report of pip."""
    return tuple(facts_of(each["metadata"]) for each in json.loads(path.read_bytes())["install"])


def written(rows: Iterable[tuple[str, str, tuple[str, ...]]]) -> str:
    """The page."""
    lgpl = " and ".join(f"{name} ({licence})" for name, licence in LGPL_IN_ALL.items())
    lines = [f"| {name} | {licence} | {', '.join(extras)} |" for name, licence, extras in rows]
    others = [f"- `{extra}`: {text}" for extra, text in ELSEWHERE.items()]
    return HEAD.format(lgpl=lgpl) + "\n".join(lines) + "\n\nNot in the table:\n\n" + "\n".join(others) + "\n"


def main() -> None:
    """Write the page, or check reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="where the table goes")
    parser.add_argument("--check", type=Path, nargs="+", metavar="REPORT", help="reports of pip, named EXTRA.json")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = sorted(set(project["optional-dependencies"]) - NOT_FOR_USERS - set(ELSEWHERE))
    paths = options.check or [report_of(extra) for extra in ("", *extras)]
    rows = table({"" if path.stem == CORE else path.stem: read_report(path) for path in paths})
    options.page.write_text(written(rows), encoding="utf-8")
    if failures := refused(rows):
        sys.exit("not allowed in `all`: " + "; ".join(failures))


if __name__ == "__main__":
    main()
