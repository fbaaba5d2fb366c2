"""Profiles are kept whole or not at all, and found by the machine they are of."""

from dataclasses import replace
from pathlib import Path

from edgeinfer.engine.measure.profiles import ProfileStore
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, DeviceRates, ProductRates, Profile

CPU = DeviceRates(
    "cpu",
    "cpu",
    16 << 30,
    Curve.level(30e9),
    {"*": ProductRates(0.5625, Curve.level(200e9))},
    (AttentionRates(64, Curve.level(50e9)),),
    Curve.level(2e9),
)
PROFILE = Profile("a machine", (CPU,), fingerprint="0123456789abcdef", measured="2026-11-22 12:00 UTC", idle_share=1.0)


def test_a_profile_that_was_kept_is_found_again(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles")
    assert store.find(PROFILE.fingerprint) is None
    assert store.save(PROFILE) == store.path(PROFILE.fingerprint)
    assert store.find(PROFILE.fingerprint) == PROFILE
    assert store.find("another") is None
    assert [path.name for path in store.folder.iterdir()] == ["0123456789abcdef.toml"]


def test_a_damaged_or_renamed_profile_counts_as_none(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    store.save(PROFILE)
    text = store.path(PROFILE.fingerprint).read_text()
    store.path("other").write_text(text)
    assert store.find("other") is None
    store.path(PROFILE.fingerprint).write_text(text[: len(text) // 2])
    assert store.find(PROFILE.fingerprint) is None
    store.save(replace(PROFILE, name="again"))
    found = store.find(PROFILE.fingerprint)
    assert found is not None
    assert found.name == "again"


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert ProfileStore(blocked / "profiles").save(PROFILE) is None
    assert blocked.read_text() == "in the way"
