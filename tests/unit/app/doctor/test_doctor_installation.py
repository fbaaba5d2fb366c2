"""Kernels, extras, disk, versions, profile and settings, judged from recorded facts."""

from __future__ import annotations

import datetime
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer import __version__
from edgeinfer.app.doctor.checks import disk, extras, kernels, profile, settings, versions
from edgeinfer.app.doctor.checks.disk import ModelDisk
from edgeinfer.app.doctor.checks.extras import AcceleratorNode, Installed
from edgeinfer.app.doctor.checks.kernels import Folder, KernelFolders
from edgeinfer.app.doctor.checks.profile import ProfileState
from edgeinfer.app.doctor.checks.settings import ChosenSettings
from edgeinfer.app.doctor.checks.versions import Versions
from edgeinfer.app.doctor.machine import Mount
from edgeinfer.backends.base import DEVICES
from edgeinfer.engine.speculation.drafts import loops_library
from edgeinfer.jit import library
from edgeinfer.jit.prebuilt import PrebuiltCode, State
from edgeinfer.settings import load_settings
from tests.unit.app.doctor.recorded_machine import NOW, RecordedSystem, by_name, machine_at, profile_of, write

PROFILE = profile_of(alone_gb_s=20, together_gb_s=38, n_cores=4, disk_gb_s=2, measured="2026-11-20 12:00 UTC")
ROOT = Path("/cache/kernels")


def test_compiled_kernels_are_counted(tmp_path: Path) -> None:
    for name, n_bytes in (("aa/one.o", 100), ("aa/two.o", 50), ("aa/x.note", 7), ("bb/grow.o", 30), ("old/z.o", 9000)):
        write(tmp_path, name, "").write_bytes(bytes(n_bytes))
    facts = kernels.read_folders([tmp_path / "aa", tmp_path / "bb"])
    assert facts == KernelFolders(
        tmp_path, True, (Folder("aa", 2, 157), Folder("bb", 1, 30)), (Folder("old", 1, 9000),)
    )
    found = by_name(kernels.judge(facts))
    assert {name: finding.status for name, finding in found.items()} == {"kernels": "ok", "kernels-left": "ok"}
    assert (found["kernels"].value, found["kernels-left"].value) == (3, 0.0)


def test_nothing_compiled_yet(tmp_path: Path) -> None:
    (finding,) = kernels.judge(kernels.read_folders([tmp_path / "not" / "aa", tmp_path / "not" / "bb"]))
    assert (finding.status, finding.value) == ("note", 0)
    assert not (tmp_path / "not").exists()


def test_a_folder_that_cannot_be_written_is_wrong() -> None:
    (finding,) = kernels.judge(KernelFolders(ROOT, False, (Folder("aa"),)))
    assert finding.status == "wrong"
    assert str(ROOT) in finding.message


def test_what_other_versions_left_may_go() -> None:
    others = (Folder("cc", 300, 40_000_000), Folder("dd", 300, 35_000_000))
    found = by_name(kernels.judge(KernelFolders(ROOT, True, (Folder("aa", 1, 1), Folder("bb")), others)))
    left = found["kernels-left"]
    assert (left.status, left.value, left.unit) == ("note", 75.0, "MB")
    assert "75.0 MB of kernels in 2 folders" in left.message
    assert "delete all of /cache/kernels but aa and bb" in (left.fix or "")


def test_the_folders_are_those_that_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(library, "KernelLibrary", lambda folder, _prebuilt: asked.append(folder))
    loops_library()
    facts = kernels.read(machine_at(tmp_path))
    assert facts.current[1].name == asked[0].name != facts.current[0].name


@pytest.mark.parametrize(
    ("prebuilt", "status", "words"),
    [
        (PrebuiltCode("used", "0.1.0", {"avx2": ROOT, "avx": ROOT}), "ok", "compiled kernels for this CPU (avx2)"),
        (PrebuiltCode("damaged"), "wrong", "edgeinfer-kernels is damaged: kernels are compiled instead"),
        (PrebuiltCode("other system", "0.1.0"), "wrong", "for another system"),
        (PrebuiltCode("other sources", "0.0.1"), "note", f"0.0.1 is for another version than edgeinfer {__version__}"),
        (PrebuiltCode("other sources", __version__), "note", "made from other sources"),
        (PrebuiltCode("other cpu", "0.1.0"), "ok", "no kernels for this CPU"),
        (PrebuiltCode("overridden"), "ok", "NUMBA_CPU_FEATURES is set"),
    ],
)  # fmt: skip
def test_where_kernels_come_from(prebuilt: PrebuiltCode, status: str, words: str) -> None:
    found = by_name(kernels.judge(KernelFolders(ROOT, True, (Folder("aa"),), prebuilt=prebuilt)))
    assert found["kernels-package"].status == status
    assert words in found["kernels-package"].message
    assert found["kernels"].status == ("ok" if prebuilt.state == "used" else "note")


def test_the_worst_state_of_the_package_counts(tmp_path: Path) -> None:
    damaged = write(tmp_path, "kernels.zip", "no archive")
    states: list[State] = ["used", "other sources", "other cpu"]
    assert kernels.worst([PrebuiltCode(state) for state in states]).state == "other sources"
    assert kernels.worst([PrebuiltCode("used"), PrebuiltCode("used", "1", {"avx2": damaged})]).state == "damaged"


def test_every_extra_is_one_of_the_package_and_names_a_device() -> None:
    table = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())
    declared = table["project"]["optional-dependencies"]
    for name, extra in extras.EXTRAS.items():
        required = {requirement.split(">")[0].split("[")[0] for requirement in declared[name]}
        assert set(extra.packages.values()) <= required
    assert set(extras.EXTRAS) <= set(DEVICES.keys())


def test_extras_by_what_is_installed() -> None:
    (finding,) = extras.judge(Installed({"openvino": "1.2.3"}))
    assert (finding.name, finding.status) == ("extra-openvino", "ok")
    assert finding.message == "installed: openvino 1.2.3"


def test_hardware_without_its_extra_is_a_note() -> None:
    gpu = AcceleratorNode("NVIDIA", "GPU", "/dev/nvidia0")
    (finding,) = extras.judge(Installed({}, (gpu,)))
    assert (finding.name, finding.status, finding.fix) == ("extra-cuda", "note", "pip install 'edgeinfer[cuda]'")
    assert finding.message == "NVIDIA GPU (/dev/nvidia0) could compute too, with numba-cuda, cupy-cuda12x"
    assert extras.judge(Installed({"numba_cuda": "1", "cupy": "2"}, (gpu,)))[0].status == "ok"


def test_accelerators_are_found_by_their_nodes(tmp_path: Path) -> None:
    write(tmp_path, "sys/class/drm/renderD128/device/vendor", "0x8086\n")
    write(tmp_path, "sys/class/drm/renderD129/device/vendor", "0x10de\n")
    write(tmp_path, "sys/class/drm/renderD130/device/vendor", "0x1af4\n")  # a virtual one
    write(tmp_path, "sys/class/drm/card0/device/vendor", "0x8086\n")
    write(tmp_path, "sys/class/accel/accel0/device/vendor", "0x8086\n")
    intel = [
        AcceleratorNode("Intel", "GPU", "/dev/dri/renderD128"),
        AcceleratorNode("Intel", "NPU", "/dev/accel/accel0"),
    ]
    open_driver = AcceleratorNode("NVIDIA", "GPU", "/dev/dri/renderD129")
    assert list(extras.accelerators(tmp_path)) == [intel[0], open_driver, intel[1]]
    write(tmp_path, "dev/nvidia0", "")
    assert list(extras.accelerators(tmp_path)) == [AcceleratorNode("NVIDIA", "GPU", "/dev/nvidia0"), *intel]


@pytest.mark.parametrize(("free", "status"), [(80e9, "ok"), (2e9, "note"), (50e6, "wrong")])
def test_room_on_the_disk(free: float, status: str) -> None:
    (finding,) = disk.judge(ModelDisk(Path("/models"), int(free)))
    assert (finding.name, finding.status, finding.value) == ("disk", status, round(free / 1e9, 2))


@pytest.mark.parametrize(
    ("facts", "name", "status"),
    [
        (ModelDisk(kind="nfs4", device="server:/home"), "disk-kind", "note"),
        (ModelDisk(kind="ext4", device="/dev/sda1", is_rotating=True), "disk-kind", "note"),
        (ModelDisk(read_bytes_s=2.5e9, is_rotating=True), "disk-rate", "ok"),
        (ModelDisk(read_bytes_s=0.1e9), "disk-rate", "note"),
    ],
)
def test_kinds_of_disks(facts: ModelDisk, name: str, status: str) -> None:
    (finding,) = disk.judge(facts)
    assert (finding.name, finding.status) == (name, status)
    if facts.read_bytes_s:
        assert f"{facts.read_bytes_s / 1e9:.2f} GB/s" in finding.message
    assert disk.judge(ModelDisk(kind="ext4", is_rotating=False)) == []


def test_a_folder_is_on_the_innermost_mount() -> None:
    mounts = [
        Mount("/dev/a", Path("/"), "ext4"),
        Mount("/dev/b", Path("/home"), "xfs"),
        Mount("c", Path("/homes"), "9p"),
    ]
    assert disk.mount_of(Path("/home/me/models"), mounts) == mounts[1]
    assert disk.mount_of(Path("/homes2"), mounts) == mounts[0]
    later = Mount("/dev/d", Path("/home"), "btrfs")
    assert disk.mount_of(Path("/home/me"), [*mounts, later]) == later
    assert disk.mount_of(Path("/home/me"), []) is None


def test_disks_are_read(tmp_path: Path) -> None:
    """A partition's folder lies in its disk's, which says what it is made of."""
    write(tmp_path, "sys/devices/ata1/block/sdq/queue/rotational", "1\n")
    write(tmp_path, "sys/devices/ata1/block/sdq/sdq1/partition", "1\n")
    block = tmp_path / "sys/class/block"
    block.mkdir(parents=True)
    (block / "sdq1").symlink_to(tmp_path / "sys/devices/ata1/block/sdq/sdq1")
    (block / "sdq").symlink_to(tmp_path / "sys/devices/ata1/block/sdq")
    assert disk.rotates(tmp_path, "/dev/sdq1") is disk.rotates(tmp_path, "/dev/sdq") is True
    assert disk.rotates(tmp_path, "/dev/sdr1") is disk.rotates(tmp_path, "server:/home") is None
    system = RecordedSystem(mounted=(Mount("/dev/sdq1", Path("/"), "ext4"),), free=10**12)
    facts = disk.read(machine_at(tmp_path, system=system, profile=PROFILE))
    assert facts == ModelDisk(tmp_path / "models", 10**12, "/dev/sdq1", "ext4", True, 2e9)
    write(tmp_path, "proc/cpuinfo", "flags : hypervisor\n")
    assert disk.read(machine_at(tmp_path, system=system)).is_rotating is None


@pytest.mark.parametrize(
    ("version", "clauses", "expected"),
    [
        ("0.50.0", "<0.51,>=0.50.0dev0", True),
        ("0.51.0", "<0.51,>=0.50.0dev0", False),
        ("0.49.1", ">=0.50.0dev0,<0.51", False),
        ("2.4", "<=2.4.0", True),
        ("2.4.1rc1", "<=2.4.0", False),
        ("2.4.6", ">1.22 , <2.5", True),
        ("1.0", "", True),
        ("1.0", "!=1.0", True),  # not a form that is judged
        ("unknown", "<1", True),
    ],
)
def test_limits_of_versions(version: str, clauses: str, expected: bool) -> None:
    assert versions.satisfies(version, clauses) == expected


NUMBA = ("llvmlite<0.51,>=0.50.0dev0", "numpy>=1.22,<2.5", "numpy<2; extra == 'old'")


def test_versions_that_fit() -> None:
    facts = Versions("3.11.7", {"numba": "0.68.1", "llvmlite": "0.50.0", "numpy": "2.4.6"}, {"numba": NUMBA})
    (finding,) = versions.judge(facts)
    assert (finding.status, finding.message) == ("ok", "Python 3.11.7, numba 0.68.1, llvmlite 0.50.0, numpy 2.4.6")


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        ({"numba": "0.68.1", "llvmlite": "0.50.0", "numpy": "2.5.0"}, "numba 0.68.1 needs numpy >=1.22,<2.5, 2.5.0 is"),
        ({"numba": "0.68.1", "llvmlite": None, "numpy": "2.4.0"}, "llvmlite not installed"),
    ],
)
def test_versions_that_do_not(packages: dict[str, str | None], words: str) -> None:
    (finding,) = versions.judge(Versions("3.11.7", packages, {"numba": NUMBA}))
    assert finding.status == "wrong"
    assert words in finding.message


def test_a_translated_python_is_slow() -> None:
    found = by_name(versions.judge(Versions("3.11", {"numpy": "2"}, {}, "Rosetta translates it")))
    assert (found["versions"].status, found["translation"].status) == ("ok", "slow")


def test_versions_here_fit_each_other(tmp_path: Path) -> None:
    facts = versions.read(machine_at(tmp_path))
    assert set(facts.packages) == {"numba", "llvmlite", "numpy"}
    assert facts.wanted["numba"]
    assert versions.judge(facts)[0].status == "ok"


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (ProfileState(replace(PROFILE, idle_share=0.99), True, 2.0), "ok", "99 % idle"),
        (ProfileState(), "note", "was not measured"),
        (ProfileState(None, True), "note", "cannot be read"),
        (ProfileState(replace(PROFILE, idle_share=0.62), True, 2.0), "note", "62 % idle then: rates may be too low"),
        (ProfileState(replace(PROFILE, short=True), True, 2.0), "note", "the quick part alone"),
        (ProfileState(PROFILE, True, 800.0), "note", "may have changed"),
    ],
)
def test_profiles(facts: ProfileState, status: str, words: str) -> None:
    (finding,) = profile.judge(facts)
    assert finding.status == status
    assert words in finding.message
    assert finding.value == facts.age_days
    assert status == "ok" or "edgeinfer probe" in (finding.fix or "")


def test_the_age_of_a_profile(tmp_path: Path) -> None:
    path = write(tmp_path, "kept.toml", "")
    machine = machine_at(tmp_path, profile=PROFILE, profile_path=path)
    assert profile.read(machine) == ProfileState(PROFILE, True, 2.0)
    by_hand = replace(PROFILE, measured="last week")
    assert profile.read(replace(machine, profile=by_hand)).age_days is None
    assert profile.read(replace(machine, now=NOW + datetime.timedelta(days=1))).age_days == 3.0


def test_a_probe_writes_its_time_as_it_is_read() -> None:
    from edgeinfer.engine.probing import probe

    assert profile.MEASURED in Path(probe.__file__).read_text()


def chosen(n_workers: int = 4, **values: object) -> ChosenSettings:
    return ChosenSettings(load_settings(values, environ={"EDGEINFER_HOME": "/nowhere"}), "", tuple(range(n_workers)))


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        ({}, "ok", "none of them costs speed"),
        ({"threads": 4}, "ok", "none of them costs speed"),
        ({"threads": 2}, "slow", "threads lets 2 of 4 cores compute"),
        ({"threads": 8}, "slow", "threads asks for 8 workers, 4 cores"),
        ({"cores": "0,2"}, "slow", "cores lets 2 of 4"),
        ({"spec": "off"}, "slow", "drafting is off"),
        ({"device": "reference"}, "slow", "reference"),
        ({"mode": "quiet"}, "note", "mode is quiet"),
        ({"history": False}, "note", "draft history is off"),
    ],
)
def test_settings_that_cost_speed(facts: dict[str, object], status: str, words: str, home: Path) -> None:
    (finding,) = settings.judge(chosen(**facts))
    assert finding.status == status
    assert words in finding.message


def test_settings_name_where_they_come_from(tmp_path: Path, home: Path) -> None:
    write(tmp_path, "edgeinfer.toml", "threads = 1\n")
    machine = machine_at(tmp_path, environ={"EDGEINFER_HOME": str(home), "EDGEINFER_SPEC": "off"})
    topology = replace(machine.topology, cores=machine.topology.cores * 2)
    first, second = settings.judge(settings.read(replace(machine, topology=topology)))
    assert (first.value, first.fix) == (1, f"take threads out of {tmp_path / 'edgeinfer.toml'}")
    assert second.fix == "unset EDGEINFER_SPEC"


def test_settings_that_cannot_be_read_are_wrong(tmp_path: Path, home: Path) -> None:
    machine = machine_at(tmp_path, environ={"EDGEINFER_HOME": str(home), "EDGEINFER_THREADS": "many"})
    (finding,) = settings.judge(settings.read(machine))
    assert finding.status == "wrong"
    assert "EDGEINFER_THREADS" in finding.message
