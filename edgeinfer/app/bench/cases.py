"""The cases of a benchmark, derived from what the user asks for.

In: test names, depths, token counts. Out: `Case`s in the order they are run, and the context they need. Runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.bench.messages import BenchConversation, BenchJob, Turns
from edgeinfer.errors import BadSetting

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
        except (ValueError, KeyError, TypeError):
            raise BadSetting(
                f'{path}, line {number}: wanted {{"category": "…", "turns": ["…"]}} with at least one turn'
            ) from None
    if not questions:
        raise BadSetting(f'{path} has no questions; give lines of {{"category": "…", "turns": ["…"]}}')
    return tuple(questions)
