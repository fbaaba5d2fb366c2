"""The check of a release: this tree's versions agree, and archives, versions and wheels that are wrong are told."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import edgeinfer
from scripts.check_release import (
    ROOT,
    SDIST_ROOT_FILES,
    Place,
    bare,
    different_files,
    project_of,
    run,
    sdist_findings,
    tracked_files,
    upload_findings,
    use,
    version_findings,
    wheel_findings,
)

TRACKED = ["edgeinfer/__init__.py", "edgeinfer/page.html"]


def tree(
    folder: Path, version: str = "1.2.0", kernels: str = "1.2.0", package: str = "1.2.0", log: str = "1.2.0"
) -> Path:
    """The files in which a version stands, in a folder."""
    (folder / "edgeinfer").mkdir()
    (folder / "edgeinfer/__init__.py").write_text(f'__version__ = "{package}"\n')
    (folder / "pyproject.toml").write_text(
        '[project]\nversion = "1.2.0"\n[project.urls]\nSource = "https://edgeinfer.example/source"\n'
        f"[project.optional-dependencies]\nkernels = [\"edgeinfer-kernels=={kernels}; sys_platform == 'linux'\"]\n"
    )
    (folder / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## {log} (unreleased)\n\n### Added\n\n## 1.1.0 (2020-01-01)\n"
    )
    return folder


def wheel(path: Path, *names: str, content: str = "x") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*names, "edgeinfer-1.2.0.dist-info/METADATA"):
            archive.writestr(name, content)
    return path


def sdist(path: Path, *names: str, links: tuple[str, ...] = ()) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"edgeinfer-1.2.0/{name}")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
        for name in links:
            member = tarfile.TarInfo(f"edgeinfer-1.2.0/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    return path


def test_the_versions_of_this_tree_agree() -> None:
    assert version_findings(ROOT) == []
    assert project_of(ROOT)["version"] == edgeinfer.__version__


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"kernels": "1.1.0"}, "the extra kernels in pyproject.toml 1.1.0"),
        ({"package": "1.2.1"}, "edgeinfer/__init__.py 1.2.1"),
        ({"log": "1.3.0"}, "the first heading of CHANGELOG.md 1.3.0"),
    ],
    ids=["kernels", "package", "change log"],
)
def test_another_version_somewhere_is_told(tmp_path: Path, wrong: dict[str, str], told: str) -> None:
    assert version_findings(tree(tmp_path, **wrong)) == [f"pyproject.toml says 1.2.0, {told}"]


def test_what_an_upload_needs(tmp_path: Path) -> None:
    folder = tree(tmp_path)
    placeholder, undated = upload_findings(folder)
    assert "Source is still a placeholder" in placeholder
    assert undated == "CHANGELOG.md: 1.2.0 has no date, but unreleased"
    assert upload_findings(folder, "v1.2.1")[-1] == "the tag v1.2.1 is not v1.2.0"
    for path, old, new in [
        (folder / "pyproject.toml", "edgeinfer.example", "example.org"),
        (folder / "CHANGELOG.md", "unreleased", "2020-02-03"),
    ]:
        path.write_text(path.read_text().replace(old, new))
    assert upload_findings(folder, "v1.2.0") == []


def test_a_wheel_holds_what_git_tracks(tmp_path: Path) -> None:
    assert wheel_findings(wheel(tmp_path / "a.whl", *TRACKED), TRACKED) == []
    assert wheel_findings(wheel(tmp_path / "b.whl", TRACKED[0], "edgeinfer/key.txt", "tests/x.py"), TRACKED) == [
        "the wheel lacks edgeinfer/page.html",
        "the wheel holds edgeinfer/key.txt, which git does not track",
        "the wheel holds tests/x.py, which git does not track",
    ]


def test_an_sdist_holds_the_package_and_few_files_beside_it(tmp_path: Path) -> None:
    whole = sdist(tmp_path / "a.tar.gz", *TRACKED, *SDIST_ROOT_FILES)
    assert sdist_findings(whole, TRACKED) == []
    beside = sorted(SDIST_ROOT_FILES - {"LICENSE"})
    assert sdist_findings(sdist(tmp_path / "b.tar.gz", *TRACKED, *beside, "tests/big.gguf", links=("x",)), TRACKED) == [
        "the sdist holds edgeinfer-1.2.0/x, which is no file",
        "the sdist holds tests/big.gguf",
        "the sdist lacks LICENSE",
    ]


def test_archives_that_are_too_large_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.check_release.MOST_BYTES", {"wheel": 10, "sdist": 10})
    (told,) = wheel_findings(wheel(tmp_path / "a.whl", *TRACKED), TRACKED)
    assert told.startswith("the wheel has 0.0 MB, more than 0")


def test_wheels_are_compared_by_their_bytes(tmp_path: Path) -> None:
    one = wheel(tmp_path / "one.whl", *TRACKED)
    assert different_files(one, wheel(tmp_path / "two.whl", *TRACKED)) == []
    other = wheel(tmp_path / "three.whl", TRACKED[0], content="y")
    assert different_files(one, other) == ["edgeinfer-1.2.0.dist-info/METADATA", *TRACKED]


def test_the_package_is_tracked() -> None:
    assert {"edgeinfer/__init__.py", "edgeinfer/py.typed"} <= set(tracked_files(ROOT))


def test_a_program_that_fails_is_told_with_its_last_words() -> None:
    assert run(sys.executable, "-c", "print(3)") == "3\n"
    with pytest.raises(RuntimeError, match=r"(?s)ended with 7:.*no disk"):
        run(sys.executable, "-c", "import sys; print('no disk'); sys.exit(7)")


def test_a_bare_environment_has_nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("EDGEINFER_MODEL", "other")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example")
    env = bare(tmp_path / "bin", tmp_path)
    assert (env["PATH"], env["HOME"]) == (str(tmp_path / "bin"), str(tmp_path))
    assert "PYTHONPATH" not in env
    assert "EDGEINFER_MODEL" not in env
    assert env["PIP_INDEX_URL"] == "https://index.example"


@pytest.mark.skipif(sys.platform == "win32", reason="scripts with a first line are programs elsewhere")
@pytest.mark.parametrize(
    ("version", "answer", "told"),
    [
        ("1.2.0", "It feeds plants.", None),
        ("1.1.0", "It feeds plants.", "says 'edgeinfer 1.1.0'"),
        ("1.2.0", "Photo photo photo", "it says 'Photo photo photo'"),
    ],
    ids=["right", "other version", "nonsense"],
)
def test_what_was_installed_is_asked(tmp_path: Path, version: str, answer: str, told: str | None) -> None:
    program, place = tmp_path / "edgeinfer", Place("pip", tmp_path, tmp_path)
    lines = [f"#!{sys.executable}", "import sys"]
    said = json.dumps({"text": answer})
    program.write_text("\n".join([*lines, f"print('edgeinfer {version}' if '--version' in sys.argv else {said!r})"]))
    program.chmod(0o755)
    if told is None:
        assert use(place, "1.2.0", None) == answer
    else:
        with pytest.raises(RuntimeError, match=told):
            use(place, "1.2.0", None)


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="pipx installed no command edgeinfer"):
        use(Place("pipx", tmp_path, tmp_path), "1.2.0", None)
