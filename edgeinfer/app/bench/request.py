"""What the user asks a benchmark to measure: which cases, on which executors.

In: test names, depths, token counts; executors as "cpu", "llama-cpp-python", "onnxruntime-genai:FOLDER", "python:FILE".
Out: `Case`s in the order they are run, the context they need, and `BenchExecutor`s, checked as far as is possible
without loading anything. Runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeinfer.app.bench.peers import PEERS, module_name, peer_keys
from edgeinfer.app.bench.subject import BenchConversation, BenchJob, Turns
from edgeinfer.backends.base import DEVICES
from edgeinfer.errors import BadSetting, DeviceUnavailable, UnknownKey

TESTS = ("prefill", "decode", "verify", "chat", "start")
VERIFY_TOKENS = (1, 2, 3, 4, 6, 8, 16, 32)
WARM_TOKENS = 8
COLD_RUNS = 3
CHAT_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What the user asks for."""

    tests: tuple[str, ...]
    prompt_tokens: int
    gen_tokens: int
    depths: tuple[int, ...]
    runs: int
    questions: tuple[BenchConversation, ...] = ()

    @property
    def n_context(self) -> int:
        """Tokens of context that every case fits in."""
        longest = max(self.prompt_tokens, self.gen_tokens + WARM_TOKENS, max(VERIFY_TOKENS))
        steps = max(self.depths) + longest
        return max(steps, CHAT_CONTEXT) if "chat" in self.tests else steps


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure. `n`: tokens of a run, of the largest verify pass, or at most of an answer."""

    test: str
    n: int
    depth: int
    runs: int
    counts: tuple[int, ...] = ()
    questions: tuple[BenchConversation, ...] = ()
    cold: bool = False

    def job(self, seed: int, turns: Turns = ()) -> BenchJob:
        """The job of one run."""
        return BenchJob(self.test, self.n, self.depth, seed, self.counts, self.questions, turns, self.cold)

    def warm_up(self) -> BenchJob:
        """The shortest job that exercises everything a run does."""
        n = min(self.n, WARM_TOKENS) if self.test == "decode" else self.n
        return BenchJob(self.test, n, self.depth, 0, self.counts, self.questions)

    @property
    def title(self) -> str:
        """A description of the case for people."""
        cold = " (nothing compiled yet)" if self.cold else ""
        return f"{self.test}{cold}, depth {self.depth}" if self.depth else f"{self.test}{cold}"


def cases(wanted: BenchRequest) -> tuple[Case, ...]:
    """Create the cases, test by test and depth by depth."""
    found: list[Case] = []
    for test in wanted.tests:
        if test == "chat":
            found.append(Case(test, wanted.gen_tokens, 0, wanted.runs, questions=wanted.questions))
        elif test == "start":
            found.append(Case(test, 1, 0, wanted.runs))
            found.append(Case(test, 1, 0, min(wanted.runs, COLD_RUNS), cold=True))
        for depth in wanted.depths:
            if test == "prefill":
                found.append(Case(test, wanted.prompt_tokens, depth, wanted.runs))
            elif test == "decode":
                found.append(Case(test, wanted.gen_tokens, depth, wanted.runs))
            elif test == "verify":
                found.append(Case(test, max(VERIFY_TOKENS), depth, wanted.runs, counts=VERIFY_TOKENS))
    return tuple(found)


def read_tests(text: str) -> tuple[str, ...]:
    """Parse comma-separated test names, without duplicates. Raises BadSetting."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in TESTS]
    if unknown or not names:
        shown = repr(unknown[0]) if unknown else "nothing"
        raise BadSetting(f"--tests cannot be {shown}; choose from {', '.join(TESTS)}, with commas between them")
    return names


def read_depths(text: str) -> tuple[int, ...]:
    """Parse comma-separated numbers of cached tokens. Raises BadSetting."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 9 for part in parts):
        raise BadSetting(f"--depth cannot be {text!r}; give numbers of cached tokens such as 0,2048")
    return tuple(dict.fromkeys(int(part) for part in parts))


def read_questions(path: Path) -> tuple[BenchConversation, ...]:
    """Read conversations from lines of {"category", "turns": […]}. Raises BadSetting, naming the line."""
    import json

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as reason:
        raise BadSetting(f"--questions {path} cannot be read: {getattr(reason, 'strerror', None) or reason}") from None
    questions = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            turns = fields["turns"]
            if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
                raise TypeError
            questions.append(BenchConversation(str(fields.get("category", "all")), tuple(turns)))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadSetting(
                f'{path}, line {number}: wanted {{"category": "…", "turns": ["…"]}} with at least one turn'
            ) from None
    if not questions:
        raise BadSetting(f'{path} has no questions; give lines of {{"category": "…", "turns": ["…"]}}')
    return tuple(questions)


SCRIPT = "python"


@dataclass(frozen=True, slots=True)
class BenchExecutor:
    """An executor and its name in tables. `path`: the script, or the folder that a peer reads."""

    name: str
    kind: Literal["ours", "peer", "script"]
    key: str
    path: Path | None = None


def ours(device: str) -> BenchExecutor:
    """Our device to measure, or several separated by commas. Raises UnknownKey."""
    unknown = [name for name in device.split(",") if name.partition(":")[0] not in DEVICES]
    if unknown:
        raise UnknownKey(f"no device is called {unknown[0]!r}; edgeinfer has: {', '.join(DEVICES.keys())}")
    return BenchExecutor(device.replace(",", "+"), "ours", device)


def read_against(text: str, device: str) -> tuple[BenchExecutor, ...]:
    """Parse executors separated by commas; a plus joins devices that share a model.

    Raises UnknownKey, BadSetting, DeviceUnavailable.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if device in names:
        raise BadSetting(f"--against cannot be {device!r}: that is what is measured (choose another with --device)")
    return tuple(_executor(name) for name in names)


def _executor(name: str) -> BenchExecutor:
    key, colon, path = name.partition(":")
    if key == SCRIPT and colon:
        if not Path(path).is_file():
            raise BadSetting(f"--against {name}: there is no file {path!r}")
        return BenchExecutor(name, "script", SCRIPT, Path(path))
    if all(part.partition(":")[0] in DEVICES for part in name.split("+")):
        return ours(name.replace("+", ","))
    if module_name(key) in PEERS:
        return _peer(name, key, Path(path) if path else None)
    known = ", ".join((*peer_keys(), *DEVICES.keys()))
    raise UnknownKey(
        f"--against cannot be {name!r}; choose from {known}, or python:FILE for a script that prints tok/s"
    )


def _peer(name: str, key: str, folder: Path | None) -> BenchExecutor:
    peer = PEERS.get(module_name(key))
    if not peer.installed:
        raise DeviceUnavailable(f"{key} is not installed: {peer.install}")
    if folder is None and not peer.reads_gguf:
        raise BadSetting(f"{key} reads no GGUF file but folders of its own: give one as {key}:FOLDER")
    if folder is not None and (peer.reads_gguf or not folder.is_dir()):
        wrong = "it reads the GGUF file itself" if peer.reads_gguf else f"there is no folder {str(folder)!r}"
        raise BadSetting(f"--against {name}: {wrong}")
    return BenchExecutor(name, "peer", key, folder)
