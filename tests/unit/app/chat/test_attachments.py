"""Attaching: what is read, what is refused, what a folder leaves out, and which words of a text are mentions."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgeinfer.app.chat import attachments
from edgeinfer.app.chat.attachments import attach, mentions, shown_name
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.errors import BadImage, EdgeInferError
from tests.pictures import picture


def test_a_file_is_read_under_its_relative_name(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("print('ü')\r\n", encoding="utf-8", newline="")
    assert attach(Path("src/a.py"), tmp_path).attachments == (Attachment("src/a.py", "print('ü')\r\n"),)
    assert attach(tmp_path / "src" / ".." / "src" / "a.py", tmp_path).attachments[0].name == "src/a.py"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_are_not_part_of_the_text(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_text("grüße", encoding=encoding)
    attached = attach(tmp_path / "a.txt", tmp_path)
    assert attached.attachments[0].text == "grüße"
    assert attached.notices == ()


def test_latin_1_is_read_with_a_notice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("grüße".encode("latin-1"))
    attached = attach(tmp_path / "a.txt", tmp_path)
    assert attached.attachments[0].text == "grüße"
    assert attached.notices == ("a.txt is not UTF-8; it was read as Latin-1",)


@pytest.mark.parametrize("data", [b"\x7fELF\0\0\0", bytes(range(1, 32)) * 30])
def test_binary_files_are_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(EdgeInferError, match=r"a\.png is not text; only text files, images and sounds can be attached"):
        attach(tmp_path / "a.png", tmp_path)


def test_images_are_read_whatever_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(picture(form="JPEG"))
    (attachment,) = attach(Path("a.txt"), tmp_path).attachments
    assert (attachment.name, attachment.text, attachment.n_bytes) == ("a.txt", "", len(picture(form="JPEG")))
    assert attachment.image is not None
    assert attachment.image.size == (64, 48)


def test_damaged_images_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture()[:60])
    with pytest.raises(BadImage, match=r"a\.png cannot be decoded"):
        attach(Path("a.png"), tmp_path)


def test_of_folders_only_texts_are_read(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.png").write_bytes(picture())
    (tmp_path / "b" / "a.txt").write_text("words")
    attached = attach(Path("b"), tmp_path)
    assert [one.name for one in attached.attachments] == ["b/a.txt"]
    assert attached.notices == ("1 file left out (not text, too large or not readable): b/a.png",)


def test_what_cannot_be_read_says_what_would_work(tmp_path: Path) -> None:
    with pytest.raises(EdgeInferError, match=r"gone\.txt cannot be attached: it does not exist; check the path"):
        attach(Path("gone.txt"), tmp_path)
    with pytest.raises(EdgeInferError, match="impossible"):
        attach(Path("a\0b"), tmp_path)
    (tmp_path / "large.txt").write_bytes(b"x" * (attachments.FILE_CAP_BYTES + 1))
    with pytest.raises(EdgeInferError, match="larger than 1 MB; attach a part"):
        attach(Path("large.txt"), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EdgeInferError, match="empty holds no text files"):
        attach(Path("empty"), tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EdgeInferError, match="neither a file nor a folder"):
        attach(Path("pipe"), tmp_path)


def _project(root: Path) -> Path:
    for name in ("b.py", "a.md", "deep/c.txt", ".env", ".git2/x", "__pycache__/m.txt", "build/out.txt", "pic.bin"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\0\1" if name.endswith(".bin") else b"text")
    (root / ".gitignore").write_text("build/\n")
    return root


def test_a_folder_gives_its_text_files_without_hidden_and_generated_ones(tmp_path: Path) -> None:
    project = _project(tmp_path / "project")
    (project / "link").symlink_to("/")
    attached = attach(project, tmp_path)
    names = [attachment.name for attachment in attached.attachments]
    assert names == ["project/a.md", "project/b.py", "project/build/out.txt", "project/deep/c.txt"]
    assert attached.notices == ("1 file left out (not text, too large or not readable): project/pic.bin",)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_in_a_repository_what_it_ignores_is_left_out(tmp_path: Path) -> None:
    project = _project(tmp_path / "project")
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / "link").symlink_to(project / "a.md")
    names = {attachment.name for attachment in attach(project, tmp_path).attachments}
    assert names == {"project/a.md", "project/b.py", "project/deep/c.txt", "project/__pycache__/m.txt"}
    ignored = attach(project / "build", tmp_path)  # it was asked for by name
    assert [attachment.name for attachment in ignored.attachments] == ["project/build/out.txt"]


@pytest.mark.skipif(shutil.which("git") is None or os.name == "nt", reason="git and a shell are needed")
def test_a_repository_starts_no_program(tmp_path: Path) -> None:
    project, mark = _project(tmp_path / "project"), tmp_path / "mark"
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    program = project / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    configured = ["git", "-C", str(project), "config"]
    subprocess.run([*configured, "core.fsmonitor", str(program)], check=True)
    for name in ("core.pager", "core.editor", "core.sshCommand", "diff.external", "filter.x.clean", "filter.x.process"):
        subprocess.run([*configured, name, str(program)], check=True)
    subprocess.run([*configured, "core.hooksPath", str(project)], check=True)
    (project / ".gitattributes").write_text("* filter=x\n")
    attach(project, tmp_path)
    assert not mark.exists()
    subprocess.run(["git", "-C", str(project), "status"], check=False, capture_output=True)
    assert mark.exists()  # what git alone would have done


def test_the_caps_of_a_folder_are_told(tmp_path: Path) -> None:
    for number in range(attachments.FOLDER_CAP_FILES + 5):
        (tmp_path / f"{number:03}.txt").write_text("x")
    attached = attach(tmp_path, tmp_path.parent)
    assert len(attached.attachments) == attachments.FOLDER_CAP_FILES
    assert attached.notices == (f"{tmp_path.name}: 5 files left out; attach a smaller folder",)


def test_mentions_are_files_that_are_there(tmp_path: Path) -> None:
    for name in ("a.txt", "with space.md", "b.py"):
        (tmp_path / name).write_text("x")
    (tmp_path / "src").mkdir()
    text = 'see @a.txt, (@b.py) and @"with space.md"! also @src/ and not me@a.txt, @nobody or @a.txt again'
    found = mentions(text, tmp_path)
    assert found == [tmp_path / "a.txt", tmp_path / "b.py", tmp_path / "with space.md", tmp_path / "src"]


@pytest.mark.parametrize("text", ["what is in @src", "@src, please", "(@src)", "@./src", "@src/", '@"src"'])
def test_a_folder_is_mentioned_with_or_without_a_slash(tmp_path: Path, text: str) -> None:
    (tmp_path / "src").mkdir()
    assert mentions(text, tmp_path) == [tmp_path / "src"]


@pytest.mark.parametrize("name", ["gone.txt", "src/gone", "~/gone-for-good", "~nobody-here/a", "./gone", "a.b.tar.gz"])
def test_names_that_can_only_be_paths_are_mentions_when_they_are_missing(tmp_path: Path, name: str) -> None:
    (path,) = mentions(f"see @{name}, please", tmp_path, missing=True)
    assert mentions(f"see @{name}, please", tmp_path) == []
    with pytest.raises(EdgeInferError, match="cannot be attached: it does not exist; check the path"):
        attach(path, tmp_path)
    with pytest.raises(EdgeInferError, match="cannot be attached: it does not exist; check the path"):
        attach(Path(name), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "@someone, what now?",
        "write to ada@b.org or @ada@social.example",
        "meet me @...",
        "a star * @ 3.50",
        "@media and @3.5 and @property",
        "in code: `@app/core` and `see @gone.txt`",
        "```\nfrom @app/core\n@gone.txt\n``` explain",
    ],
)
def test_words_with_an_at_sign_that_are_no_paths_stay_text(tmp_path: Path, text: str) -> None:
    assert mentions(text, tmp_path, missing=True) == []


def test_what_cannot_be_attached_is_a_mention_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "pic").write_bytes(b"\0")
    assert mentions("@pic", tmp_path) == [tmp_path / "pic"]


@given(text=st.text(alphabet=st.sampled_from('@"~/.a \n\0é'), max_size=40))
@example(text="@~a\0.a")
@example(text="@~nobody-of-that-name/a.a")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_no_text_breaks_the_search_for_mentions(text: str, tmp_path: Path) -> None:
    assert all(path.exists() for path in mentions(text, tmp_path))
    assert set(mentions(text, tmp_path)) <= set(mentions(text, tmp_path, missing=True))


def test_names_outside_the_folder_begin_at_home_or_in_full(tmp_path: Path) -> None:
    assert shown_name(Path.home() / "notes" / "a.txt", tmp_path) == "~/notes/a.txt"
    assert shown_name(Path("/etc/hosts"), tmp_path) == "/etc/hosts"
    assert shown_name(Path(os.fsdecode(bytes(tmp_path) + b"/\xff.txt")), tmp_path) == "\ufffd.txt"
