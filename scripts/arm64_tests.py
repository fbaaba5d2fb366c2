"""Runs core tests and an answer on 64-bit ARM Linux, emulated: a Debian system with aarch64 wheels, under qemu.

Run: `python scripts/arm64_tests.py FOLDER --model FILE.gguf`. FOLDER, outside the repository, keeps what is fetched and
compiled (1 GB) for the next run. Kernels are compiled by the emulated Python for the emulated CPU, of which there may
be several: `--cpu neoverse-n1 cortex-a72 max` (qemu's names; the first has dotprod, the second neither that nor i8mm).
The answer is compared with this machine's. Emulation takes some thirty times as long. `--with FILE.whl` installs
kernels made beforehand (scripts/make_kernel_wheel.py OUT --machine aarch64): nothing is compiled then.

Needs Debian or Ubuntu (apt, dpkg), pip, and Linux 6.7, whose user namespaces have a binfmt_misc of their own: programs
for ARM run in there alone, and nothing of this machine is changed. No root is needed where such namespaces are allowed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE, PYTHON = "trixie", "3.13"
MIRROR, KEYRING = "http://deb.debian.org/debian", "/usr/share/keyrings/debian-archive-keyring.gpg"
PACKAGES = ("python3", "ca-certificates", "coreutils", "dash", "libc-bin", "libstdc++6")
EMULATOR = "usr/bin/qemu-aarch64"
"""Linked statically since Debian 13."""
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
FOR_TESTS = (
    "pytest<9",
    "pytest-asyncio",
    "hypothesis",
    "filelock",
    "gguf",
    "sentencepiece",
    "regex",
    "llguidance",
    "pillow",
)
KERNELS = "tests/unit/backends/cpu/kernels"
TESTS = {
    "machine": ("tests/unit/jit/test_targets.py", "tests/unit/scheduling/machine", "tests/unit/test_temporary.py"),
    "tokenizers": ("tests/golden/test_tokenizer_vectors.py",),
    "rows": (f"{KERNELS}/test_cpu_rows.py", f"{KERNELS}/test_cpu_activations.py", f"{KERNELS}/test_cpu_rotary.py"),
    "products": (f"{KERNELS}/test_cpu_matmul.py", "-k", "i4-32-f16-min or i8-32-f16"),
    "attention": (f"{KERNELS}/test_cpu_attention.py", "-k", "f16"),
    "workers": ("tests/unit/backends/cpu/workers", "-k", "not huge_pages"),  # qemu keeps advice on pages to itself
    "goldens": (
        "tests/golden/test_cpu_parity.py",
        "-k",
        "logits_equal_the_reference and (llama-q4_0 or llama-k or gemma3-q4_0 or qwen3-k or gpt-oss-q4_0 or lfm2-q8_0)",
    ),
    "bits": ("tests/golden/test_cpu_work_splits.py", "tests/golden/test_speculation_bits.py"),
}
"""The core tests, in parts."""
QUESTION, MOST_TOKENS = "What is photosynthesis?", 24
LIMIT_S = 3600.0
CONFIGURATION = """\
Dir::State "{0}"; Dir::State::status "{0}/status"; Dir::State::lists "{0}/lists";
Dir::Cache "{0}"; Dir::Cache::archives "{0}/archives";
Dir::Etc::sourcelist "{0}/sources.list"; Dir::Etc::sourceparts "/dev/null"; Dir::Etc::parts "/dev/null";
APT::Architecture "arm64"; APT::Architectures {{ "arm64"; "{1}"; }}; APT::Sandbox::User "root";
APT::Install-Recommends "false"; Acquire::Languages "none";
"""
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
ENTER = """
set -eu
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf '%s' ':arm64:M::{magic}:{mask}:'{emulator}':F' > /proc/sys/fs/binfmt_misc/register
for name in proc sys dev; do mount --rbind /$name {root}/$name; done
mount --bind {repository} {root}/repository
mount --bind {models} {root}/models
exec env -i PATH=/usr/bin:/bin HOME=/root LANG=C.UTF-8 QEMU_CPU={cpu} PYTHONPATH=/site:/repository \\
  PYTHONDONTWRITEBYTECODE=1 EDGEINFER_OFFLINE=1 "$(command -v chroot)" {root} /bin/sh -c {command}
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line of the table."""

    cpu: str
    part: str
    seconds: float
    said: str
    good: bool


class Failed(Exception):
    """The system cannot be made; the message says why."""


def run(command: Sequence[str], environment: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """The output of a command. Raises Failed."""
    own = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=own, cwd=folder, check=False)
    if done.returncode:
        raise Failed(f"{shlex.join(command)[:200]}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class ArmSystem:
    """A folder with an emulator and the system that runs in it."""

    folder: Path

    @property
    def root(self) -> Path:
        """What the emulated programs see as /."""
        return self.folder / "root"

    @property
    def emulator(self) -> Path:
        """qemu."""
        return self.folder / "emulator" / EMULATOR

    def prepare(self, kernels: Sequence[Path]) -> None:
        """Fetch and unpack what is not there yet. Raises Failed."""
        own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wheels = [*own["dependencies"], *own["optional-dependencies"]["app"], *FOR_TESTS]
        with self._once("packages", PACKAGES) as is_new:
            if is_new:
                self._unpack_packages()
        with self._once("wheels", wheels) as is_new:
            if is_new:
                self._install(["--only-binary=:all:", *wheels])
        if kernels:
            self._install(["--no-deps", *map(str, kernels)])

    def command(self, cpu: str, models: Path, command: str) -> list[str]:
        """The command that runs a shell's command in the system, on that CPU, with the models in /models."""
        values = {"root": self.root, "emulator": self.emulator, "repository": ROOT, "models": models}
        quoted = {name: shlex.quote(str(value)) for name, value in {**values, "cpu": cpu, "command": command}.items()}
        script = ENTER.format(magic=MAGIC, mask=MASK, **quoted)
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]

    def _once(self, name: str, contents: Sequence[str]) -> _Once:
        return _Once(self.folder / f"{name}.ready", hashlib.sha256("\n".join(contents).encode()).hexdigest())

    def _unpack_packages(self) -> None:
        apt, archives = self.folder / "apt", self.folder / "apt" / "archives"
        for folder in (apt / "lists" / "partial", archives / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        native = run(["dpkg", "--print-architecture"]).strip()
        (apt / "status").write_text("")
        (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {MIRROR} {SUITE} main\n")
        (apt / "apt.conf").write_text(CONFIGURATION.format(apt, native))
        environment = {"APT_CONFIG": str(apt / "apt.conf")}
        run(["apt-get", "update", "-qq"], environment)
        run(["apt-get", "install", "-qq", "--download-only", "--yes", *PACKAGES], environment)
        for package in archives.glob("*.deb"):
            run(["dpkg-deb", "--extract", str(package), str(self.root)])
        run(["apt-get", "download", "-qq", f"qemu-user:{native}"], environment, self.folder)
        (qemu,) = self.folder.glob("qemu-user_*.deb")
        run(["dpkg-deb", "--extract", str(qemu), str(self.folder / "emulator")])
        for name in ("bin", "lib", "sbin"):
            if not (self.root / name).is_symlink():
                (self.root / name).symlink_to(f"usr/{name}")
        for name in ("proc", "sys", "dev", "tmp", "root", "run", "repository", "models"):
            (self.root / name).mkdir(exist_ok=True)
        (self.root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (self.root / "etc" / "group").write_text("root:x:0:\n")

    def _install(self, wheels: Sequence[str]) -> None:
        """Install wheels of the other architecture, with this machine's pip."""
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        own = ["--python-version", PYTHON, "--implementation", "cp", "--target", str(self.root / "site"), "--upgrade"]
        run([sys.executable, "-m", "pip", "install", "--quiet", *platforms, *own, *wheels])


@dataclass(frozen=True, slots=True)
class _Once:
    """Something to be made once for these contents: entering says whether now; it counts as made after no error."""

    stamp: Path
    contents: str

    def __enter__(self) -> bool:
        return not (self.stamp.exists() and self.stamp.read_text() == self.contents)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.stamp.write_text(self.contents)


def outcomes(system: ArmSystem, options: argparse.Namespace) -> Iterator[Outcome]:
    """Each part on each CPU."""
    for cpu in options.cpu:
        for part in options.parts:
            if part == "answer":
                yield from answer(system, cpu, options.model)
            else:
                tests = shlex.join(["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS[part]])
                done, seconds = timed(system.command(cpu, options.folder, f"cd /repository && {tests}"))
                last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-300:]]
                if done.returncode:
                    print(done.stdout[-6000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
                yield Outcome(cpu, part, seconds, last[0], done.returncode == 0)


def answer(system: ArmSystem, cpu: str, model: Path | None) -> Iterator[Outcome]:
    """The same question here and there."""
    if model is None:
        return
    words = ["--temp", "0", "--max-tokens", str(MOST_TOKENS), QUESTION]
    here = run([sys.executable, "-m", "edgeinfer", "run", "-m", str(model), *words], {"PYTHONPATH": str(ROOT)})
    there = shlex.join(["python3", "-m", "edgeinfer", "run", "-m", f"/models/{model.name}", *words])
    done, seconds = timed(system.command(cpu, model.parent, there))
    if done.returncode:
        yield Outcome(cpu, "answer", seconds, done.stderr.strip()[-300:], False)
    elif done.stdout == here:
        yield Outcome(cpu, "answer", seconds, f"the same as here: {here.strip()[:60]!r}", True)
    else:
        yield Outcome(cpu, "answer", seconds, f"{done.stdout!r}, and here {here!r}", False)


def timed(command: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command; what it said, and the seconds it took."""
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 124, "", f"not done within {LIMIT_S:.0f} s")
    return done, time.monotonic() - began


def main() -> int:
    """Print a table; 0 if all was well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--cpu", nargs="+", default=["neoverse-n1"], metavar="NAME", help="CPUs of qemu")
    parser.add_argument("--parts", nargs="+", default=[*TESTS, "answer"], choices=[*TESTS, "answer"])
    parser.add_argument("--model", type=Path, metavar="FILE", help="a GGUF file, for the answer")
    parser.add_argument("--with", nargs="+", default=(), dest="kernels", type=Path, metavar="WHEEL")
    options = parser.parse_args()
    if missing := [name for name in ("apt-get", "dpkg-deb", "unshare", "chroot") if shutil.which(name) is None]:
        print(f"error: needs {', '.join(missing)}, as Debian and Ubuntu have them", file=sys.stderr)
        return 1
    options.folder = options.folder.resolve()
    system = ArmSystem(options.folder)
    options.model = options.model and options.model.resolve()
    try:
        system.root.mkdir(parents=True, exist_ok=True)
        system.prepare(options.kernels)
        run(system.command(options.cpu[0], options.folder, "python3 -V"))
        print("| CPU | part | s | outcome |\n|---|---|---|---|", flush=True)
        good = True
        for each in outcomes(system, options):
            print(f"| {each.cpu} | {each.part} | {each.seconds:.0f} | {each.said} |", flush=True)
            good = good and each.good
    except (Failed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
