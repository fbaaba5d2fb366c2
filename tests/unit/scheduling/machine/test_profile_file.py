"""Profiles in TOML: read back to the bit, and refused with the file, the key and what would work."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.profile_file import parse_profile, profile_text, read_profile
from tests.unit.scheduling.profiles import PROFILES

SMALL = """
version = 1
name = "box"
[[device]]
name = "cpu"
kind = "two cores"
memory_gb = 8
read_gb_s = [[1, 100], [32, 20.5]]
element_g_s = 2
product."*" = { bytes_per_weight = 0.5625, madd_g_s = [[1, 30], [64, 200]] }
attention = [{ head_width = 64, madd_g_s = 20 }]
[[device]]
name = "gpu"
kind = "small"
memory_gb = 4.000000001
read_gb_s = 100
element_g_s = 50
op_us = 5
product."*" = { bytes_per_weight = 0.5625, madd_g_s = 100 }
attention = [{ head_width = 64, madd_g_s = 20 }]
link = { to_device_gb_s = 12, from_device_gb_s = 11, latency_us = 10 }
[[disk]]
depth = 4
read_gb_s = [[4096, 0.5], [1048576, 3]]
"""


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PROFILES)
def test_what_is_written_is_read_back_to_the_bit(profile: Profile):
    assert parse_profile(profile_text(profile), "here") == profile


def test_units_become_plain_ones(tmp_path):
    path = tmp_path / "box.toml"
    path.write_text(SMALL, encoding="utf-8")
    profile = read_profile(path)
    cpu, gpu = profile.devices
    assert cpu.memory_bytes == 8 * 10**9
    assert cpu.read.at == (1e6, 32e6)
    assert cpu.read.values == (100e9, 20.5e9)
    assert cpu.products["*"].rate(64) == 200e9
    assert gpu.memory_bytes == 4 * 10**9 + 1
    assert gpu.op_s == 5e-6
    assert gpu.link is not None
    assert (gpu.link.from_device_bytes_s, gpu.link.latency_s) == (11e9, 10e-6)
    assert profile.disk is not None
    assert profile.disk.by_depth[4](1 << 20) == 3e9
    assert profile.assumptions == ()


@pytest.mark.parametrize(
    ("old", "new", "key", "remedy"),
    [
        ("memory_gb = 8", "memory_gb = -8", "memory_gb", "GB above 0"),
        ("memory_gb = 8", "memory_gb = nan", "memory_gb", "GB above 0"),
        ("memory_gb = 8", "memory_gb = inf", "memory_gb", "GB above 0"),
        ("memory_gb = 8", "memory_gb = 1e99999999999999999999", "memory_gb", "GB above 0"),
        ("memory_gb = 8", "memory_gb = 1" + "0" * 400, "memory_gb", "GB above 0"),
        ("memory_gb = 8", "memory_gb = 1e-99999999", "memory_gb", "GB above 0"),
        ("memory_gb = 8", "memory_gb = true", "memory_gb", "GB above 0"),
        ("memory_gb = 8", 'memory_gb = "8 GB"', "memory_gb", "GB above 0"),
        ("memory_gb = 8\n", "", "memory_gb is missing", "a number of GB"),
        ("memory_gb = 8", "memory_gb = 8\nmemory_mb = 3", "memory_mb", "did you mean 'memory_gb'?"),
        ("memory_gb = 8", "memory_gb = 8\nzzz = 3", "zzz", "there are: name, kind"),
        ("[[1, 100], [32, 20.5]]", "[[32, 100], [1, 20.5]]", "read_gb_s", "increasing MB"),
        ("[[1, 100], [32, 20.5]]", "[]", "read_gb_s", "pairs"),
        ("[[1, 100], [32, 20.5]]", "[[1, 100], 3]", "read_gb_s", "pairs"),
        ("[[1, 100], [32, 20.5]]", "[[1, 100], [32, 0]]", "read_gb_s", "pairs"),
        ("[[1, 100], [32, 20.5]]", f"[{'[1, 100],' * 5000}]", "read_gb_s", "4096"),
        ("version = 1", "version = 2", "version", "reads version 1"),
        ("version = 1\n", "", "version", "whole number"),
        ('name = "box"', "name = 3", "name", "text"),
        ('name = "cpu"', 'name = "gpu"', "devices are called gpu, gpu", "the first must be 'cpu'"),
        ("depth = 4", "depth = 0", "depth", "from 1"),
        ("depth = 4", "depth = 4.5", "depth", "whole number"),
        ("link =", "node =", "device 2", "node cannot be"),
        (
            "link =",
            "core = [{ number = 0, read_gb_s = 3 }]\nlink =",
            "device 2",
            "'core' cannot belong to the device 'gpu'",
        ),
        ("attention = [{", "attention = [3, {", "attention 1", "a table with head_width"),
        ('product."*" = { bytes_per_weight = 0.5625, madd_g_s = 100 }', "product = 3", "product", "a table for each"),
        ("op_us = 5", "op_us = -1e-9", "op_us", "from 0"),
        (
            "madd_g_s = 100",
            "madd_g_s = 100, columns = 64, wide_madd_g_s = 90",
            "wide_columns",
            "more than columns (64)",
        ),
    ],
)
def test_impossible_values_are_refused_with_what_would_work(old: str, new: str, key: str, remedy: str):
    assert old in SMALL
    with pytest.raises(BadSetting) as refused:
        parse_profile(SMALL.replace(old, new, 1), "box.toml")
    message = str(refused.value)
    assert message.startswith("box.toml")
    assert key in message
    assert remedy in message
    assert len(message) < 1000


@pytest.mark.parametrize("text", ["[", "a = " + "[" * 100_000, "x = 1" + "0" * 10_000, "device = 3", "version = 1", ""])
@pytest.mark.usefixtures("uncollected")
def test_no_text_does_more_than_be_refused(text: str):
    with pytest.raises(BadSetting):
        parse_profile(text, "box.toml")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SMALL.split()), st.text(max_size=8) | st.sampled_from(["-1", "nan", "[]", "{}", "1e400", '""']))
@example("8", "9")
def test_any_word_may_be_replaced(word: str, other: str):
    try:
        found = parse_profile(SMALL.replace(word, other, 1), "box.toml")
    except BadSetting:
        return
    assert parse_profile(profile_text(found), "again") == found


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(BadSetting, match="cannot be read"):
        read_profile(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadSetting, match="not valid TOML"):
        read_profile(tmp_path / "binary.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (5 << 20))
    with pytest.raises(BadSetting, match="larger than 4 MiB"):
        read_profile(tmp_path / "large.toml")
