"""What a program asked of the system: addresses, names and files, read from a trace of its system calls by strace.

In: a command; afterwards the trace, and the folders that are the program's own. Out: a line for each connection, name
look-up and file outside of them. Native code and children are seen too, attempts that failed as well.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

FILE_CALLS = ("openat", "open", "creat", "mkdir", "mkdirat", "mknod", "mknodat")
MOVE_CALLS = ("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat")
NETWORK_CALLS = ("connect", "sendto", "sendmsg", "sendmmsg")
CALL = re.compile(r"^\d+ +(\w+)\((.*)$")
PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
ADDRESS = re.compile(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"')
PORT = re.compile(r"sin6?_port=htons\((\d+)\)")
SOCKET_FILE = re.compile(r'sun_path=(@?)"([^"]*)"')
RESOLVER_FILES = ("/etc/resolv.conf", "/run/systemd/resolve/")
NAME_SERVICE = 53
NAME_CACHE = "/var/run/nscd/socket"
"""Asked for names of users too, before /etc/passwd is read."""


@cache
def missing_reason() -> str | None:
    """Why nothing can be traced here; None where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"strace cannot trace here: {tried.stderr.decode(errors='replace')}"


def traced(command: Sequence[str], trace: Path) -> list[str]:
    """`command` under strace, which writes what it and its children ask for to `trace`."""
    calls = ",".join(f"?{name}" for name in (*FILE_CALLS, *MOVE_CALLS, *NETWORK_CALLS))
    options = ["-f", "--seccomp-bpf", "-qq", "-y", "-s", "200", "-e", f"trace={calls}", "-e", "signal=none"]
    return ["strace", *options, "-o", str(trace), *command]


def findings(trace: Path, own: Sequence[Path], folder: Path) -> list[str]:
    """Connections beyond this computer, look-ups of names, and files written outside the folders `own`, each once.

    `folder`: where the program was started, which some calls do not say.
    """
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    assert len(lines) > 20, f"nothing was traced: {lines}"
    found = []
    for line in lines:
        match = CALL.match(line)
        if match is not None:
            found += _judged(match[1], match[2], own, folder)
    return list(dict.fromkeys(found))


def _judged(call: str, arguments: str, own: Sequence[Path], started_in: Path) -> list[str]:
    if call in NETWORK_CALLS:
        return _contacts(arguments, own)
    paths = [started_in / folder / name for folder, name in PATH.findall(arguments)]
    if call in MOVE_CALLS:
        paths = paths[1:]  # the first is where something was
    elif call in ("openat", "open") and not re.search(r"O_CREAT|O_WRONLY|O_RDWR", arguments):
        return [f"name look-up: reads {path}" for path in paths if str(path).startswith(RESOLVER_FILES)]
    return [f"{call}: {path}" for path in paths if not _is_own(path, own)]


def _contacts(arguments: str, own: Sequence[Path]) -> list[str]:
    port = PORT.search(arguments)
    if port is not None and int(port[1]) == NAME_SERVICE:
        return [f"name look-up: {arguments}"]
    for address in ADDRESS.findall(arguments):
        if not ipaddress.ip_address(address[0] or address[1]).is_loopback:
            return [f"connection: {arguments}"]
    named = SOCKET_FILE.search(arguments)
    if named is None or named[1] or named[2] == NAME_CACHE or _is_own(Path(named[2]), own):
        return []  # no address, or one that only processes of this computer have
    return [f"connection: {arguments}"]


def _is_own(path: Path, own: Sequence[Path]) -> bool:
    """Whether a program may write there: in its folders, what leads to them, bytecode, and devices of the system."""
    if any(path.is_relative_to(folder) or folder.is_relative_to(path) for folder in own):
        return True
    if "__pycache__" in path.parts or path.is_relative_to("/proc"):
        return True
    return path.is_relative_to("/dev") and (not path.exists() or not stat.S_ISREG(path.stat().st_mode))
