"""What a soak calls wrong: resources that remain, memory that grows, first tokens that come later."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.soak_record import POOL, growing, remaining, save, slower

REST = {"files": 8.0, "tasks": 2.0, "threads": 9.0, "active": 0.0, "waiting": 0.0, "busy slots": 0.0}


def test_what_remains_at_rest() -> None:
    assert remaining(REST, {**REST, "threads": 9.0 + POOL}) == []
    assert remaining(REST, {**REST, "files": 9.0, "active": 1.0}) == ["files 9, 8 before", "active 1, 0 before"]
    assert remaining(REST, {**REST, "threads": 10.0 + POOL}) == [f"threads {10 + POOL}, 9 before"]


def test_memory_that_grows() -> None:
    assert growing([100.0, 500.0, 505.0], 7200) == []
    assert growing([100.0, 500.0, 506.0], 7200) == ["memory of 506.0 MB in the last third, 500.0 in the one before"]
    assert growing([100.0, 500.0, 509.0], 180) == []  # caches still fill
    assert growing([100.0], 7200) == []


def test_a_first_token_that_comes_later() -> None:
    assert slower(10.0, 14.0) == []
    assert slower(10.0, 16.0) == ["first token after 16 ms at the end, 10 at the beginning"]


def test_rows_are_appended(tmp_path: Path) -> None:
    for seconds in (1.23456, 2.0):
        save(tmp_path / "rows", {"s": seconds})
    save(None, {"s": 3.0})
    assert [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()] == [{"s": 1.235}, {"s": 2.0}]
