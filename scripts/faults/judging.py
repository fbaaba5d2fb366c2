"""How commands on disks that fail or fill up are judged: a clear word, nothing half-written used, nothing old lost.

In: a target, how it ended, what it makes on a disk that is well. Out: how that is told in a table, and what is wrong.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable

from commands import Ended, Home, Target


def judged(target: Target, home: Home, ended: Ended, expected: object, words: re.Pattern[str]) -> tuple[str, list[str]]:
    """How a disturbed command ended, and what is wrong with that. `words`: one is said where something is missing."""
    try:
        result = target.result(home, ended)
    except (ValueError, sqlite3.DatabaseError) as reason:
        return "damaged", [f"ended with {ended.code} and left {reason}"]
    is_whole = ended.code == 0 and result == expected
    line = ended.output.strip().rpartition("\n")[2].replace(str(home.folder), "~")
    told = "whole" if is_whole else "goes on" if ended.code == 0 else re.sub(r"\d[\d.]*", "N", line)[:200]
    problems = list[str]()
    if "Traceback" in ended.output or ended.code < 0:
        problems.append(f"ended with {ended.code}: {ended.output[-600:]}")
    elif result is not None and result != expected:
        problems.append(f"left {str(result)[:200]} in place of {str(expected)[:200]}")
    elif not is_whole and not (target.is_quiet and ended.code == 0) and not words.search(ended.output):
        problems.append(f"ended with {ended.code} and no word of the disk: {ended.output[-300:]!r}")
    return told, problems


def judged_after(target: Target, home: Home, before: object, expected: object) -> list[str]:
    """What is wrong with the same command once the disk is well again, and with what lay there before."""
    problems, again = list[str](), target.run(home)
    try:
        result = target.result(home, again)
    except (ValueError, sqlite3.DatabaseError) as reason:
        result = f"damage: {reason}"
    if again.code or result != expected:
        problems.append(f"well again: {again.code} {again.output[-300:]!r} {result!r:.200}")
    if before is not None and target.before(home) != before:
        problems.append(f"what was there before is not any more: {before!r:.200}")
    return problems + [f"left behind: {name}" for name in home.left_behind()]


def tallied(target: Target, runs: Iterable[tuple[str, str, list[str]]]) -> tuple[str, int]:
    """How often runs ended how, and how many had findings, which are printed.

    `runs`: what was disturbed, how it ended, what is wrong with that.
    """
    ends, n_bad = Counter[str](), 0
    for which, told, problems in runs:
        ends[told] += 1
        n_bad += bool(problems)
        for problem in problems:
            print(f"{target.name}, {which}: {problem}", flush=True)
    return "; ".join(f"{count} × {told}" for told, count in ends.items()), n_bad
