"""Sizes: one text, parts that add up, and the verdict whether a model fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.app.plans.fit import Fit, memory_line, memory_record, memory_text
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES, MemoryNeed
from edgeinfer.text_values import size_text

NEED = MemoryNeed(4_000_000_000, 100_000, 819_200_000, 30_000_000, 8192)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (33_700, "33.7 kB"),
        (98_362_432, "98.4 MB"),
        (999_949_999, "999.9 MB"),
        (999_950_000, "1.00 GB"),
        (4_683_000_000, "4.68 GB"),
        (9_995_000_000, "10.0 GB"),
        (25_276_063_744, "25.3 GB"),
    ],
)
def test_sizes_are_decimal_and_as_long_as_they_are_useful(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text


def test_memory_is_the_sum_of_its_named_parts() -> None:
    record = memory_record(NEED, 16 * 10**9)
    parts = ("weight_bytes", "kv_bytes", "buffer_bytes", "program_bytes")
    assert sum(int(str(record[part])) for part in parts) == record["total_bytes"] == NEED.total_bytes
    assert record["program_bytes"] == PROGRAM_BYTES
    shown = "5.06 GB of 16.0 GB available: weights 4.00 GB, KV cache 819.2 MB, buffers 30.0 MB, program 210.0 MB"
    assert memory_text(NEED, 16 * 10**9) == shown
    assert memory_line(NEED, 400_000_000).endswith("program 210.0 MB; the process held 400.0 MB at most")


def test_what_drafts_take_is_told_beside_the_buffers() -> None:
    need = replace(NEED, draft_bytes=12_000_000)
    assert "buffers 30.0 MB (drafts 12.0 MB), program" in memory_text(need)
    assert memory_record(need)["draft_bytes"] == 12_000_000
    assert need.total_bytes == NEED.total_bytes  # they are a part of the buffers


def test_what_fits_says_where() -> None:
    assert Fit(NEED, 16 * 10**9).line == "in 16.0 GB of memory"
    shared = Fit(NEED, 16 * 10**9, vram_bytes={"cuda": 8 * 10**9})
    assert shared.line == "in 16.0 GB of memory and 8.00 GB of cuda"
    assert shared.record == {"fits": True, "in_part": False, "missing_bytes": 0, "would_fit": None}


def test_what_does_not_fit_says_by_how_many_bytes_and_what_would() -> None:
    available = 5 * 10**9
    missing = NEED.total_bytes - int(0.95 * available)
    found = Fit(NEED, available, refusal="no room")
    assert found.line.startswith(f"no, {size_text(missing)} ({missing} bytes) too much; a context of ")
    assert found.line.endswith("--ctx 4919)")
    assert (found.record["fits"], found.record["missing_bytes"]) == (False, missing)
    assert "smaller quant" in Fit(NEED, 10**9, refusal="no room").line
    assert Fit(NEED, 16 * 10**9, refusal="the disk is too slow").line == "no: the disk is too slow"


def test_what_fits_in_part_says_what_all_of_it_lacks() -> None:
    held = replace(NEED, weight_bytes=10**9)
    found = Fit(held, 3 * 10**9, whole=NEED)
    missing = found.missing_bytes
    assert missing == pytest.approx(NEED.total_bytes - 0.95 * 3 * 10**9, abs=1)
    assert found.line.startswith("in part: weights without room are read from disk in every pass; all of it is ")
    assert f"({missing} bytes) too much" in found.line
    assert found.record == {"fits": True, "in_part": True, "missing_bytes": missing, "would_fit": found.would_fit}
    assert Fit(held, 16 * 10**9, whole=NEED).line == "in part: weights without room are read from disk in every pass"
