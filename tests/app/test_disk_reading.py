"""What an answer read, in a line and as a record: differences of counts, nothing where nothing was read."""

from __future__ import annotations

import pytest

from edgeinfer.app.disk_reading import read_since, reading_lines, reading_record
from edgeinfer.offload.weights import WeightReads

MIB = 1 << 20
BEFORE = WeightReads(4 * MIB, 0.5, 2, {MIB: 4}, 10, 5, 4, 3, read_s=1.0)
NOW = WeightReads(10 * MIB, 1.5, 4, {MIB: 8, MIB // 2: 3, MIB // 4: 2}, 50, 35, 14, 9, read_s=3.0)


def test_only_what_came_since_is_told() -> None:
    read = read_since(BEFORE, NOW)
    assert read == WeightReads(6 * MIB, 1.0, 2, {MIB: 4, MIB // 2: 3, MIB // 4: 2}, 40, 30, 10, 6, read_s=2.0)
    record = reading_record(read, 4.0)
    assert record is not None
    assert record["bytes_per_pass"] == 3 * MIB
    assert record["gb_s"] == pytest.approx(3 * MIB / 1e9)
    assert record["waiting_share"] == 0.25
    assert [record[name] for name in ("wanted", "found", "guessed", "proved")] == [40, 30, 10, 6]
    assert record["reads_by_size"] == {str(MIB // 4): 2, str(MIB // 2): 3, str(MIB): 4}


def test_people_see_reads_of_about_a_size_together() -> None:
    now = WeightReads(12 * MIB, 0.5, 4, {MIB: 8, MIB - 4096: 4}, 20, 12, 6, 4, read_s=1.5)
    first, second, third = reading_lines(read_since(BEFORE, now), 2.0)
    assert first == "disk: 4.2 MB a pass in 2 passes, 0.02 GB/s while reading, 0 % of the time waiting for it"
    assert second == "reads: 8 of 1.00 MiB"
    assert third == "in memory: 70 % of 10 wanted pieces; 1 of 2 guesses were right"


def test_one_pass_is_not_passes() -> None:
    read = WeightReads(MIB, 0.1, 1, {MIB: 1}, 1, 1)
    assert "a pass in 1 pass," in reading_lines(read, 2.0)[0]
    assert "100 % of 1 wanted piece;" in reading_lines(read, 2.0)[2]


def test_what_each_technique_saved_of_neurons_is_told() -> None:
    before = WeightReads(MIB, 0.1, 1, {4096: 256}, 100, 90, 0, 0, 0.1, 10, 10**6, 10**5, 10**5, 10**5)
    now = WeightReads(9 * MIB, 0.4, 3, {4096: 2304}, 500, 390, 0, 0, 0.4, 110, 9 * 10**6, 10**6, 5 * 10**5, 3 * 10**5)
    read = read_since(before, now)
    record = reading_record(read, 1.0)
    assert record is not None
    assert record["neurons"] == {
        "dense_bytes": 8 * 10**6,
        "firing_bytes": 9 * 10**5,
        "union_bytes": 4 * 10**5,
        "missing_bytes": 10**5,  # 100 of 400
        "read_bytes": 2 * 10**5,
        "neurons_read": 100,
    }
    line = "neurons a pass: 4.0 MB of all, 0.5 MB fire, token by token, 0.2 MB without those that fire for several, "
    assert reading_lines(read, 1.0)[2] == line + "0.1 MB without those in memory, 0.1 MB read with what lies between"
    plain = reading_record(read_since(BEFORE, NOW), 1.0)
    assert plain is not None
    assert plain["neurons"] is None


def test_nothing_is_said_where_nothing_was_read() -> None:
    assert reading_record(WeightReads(), 1.0) is None
    assert reading_lines(WeightReads(), 1.0) == []
    assert read_since(NOW, NOW).sizes == {}
