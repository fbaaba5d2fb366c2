"""A home that takes no writing: the app opens all the same, says that nothing is saved and why, and answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.launch import opened
from edgeinfer.app.tui.widgets.chat_bars import UnsavedBanner
from tests.app.tui.flows import branch, quiet, say, wait_until
from tests.app.tui.scripted import Script, ScriptedModel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
SIZES = [(100, 40), (40, 12)]


@contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """A disk of two mebibytes, for as long as the test."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    """Write to a file until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.fixture(params=["full", "full, with kept chats", "read-only"])
def unwritable(
    request: pytest.FixtureRequest, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A home on a disk without room, or one that is mounted read-only; gives the word that says which."""
    with disk(tmp_path / "disk") as folder:
        monkeypatch.setenv("EDGEINFER_HOME", str(folder / "home"))
        (folder / "home").mkdir()
        if "kept" in request.param:
            with opened({}):
                pass
        if "full" in request.param:
            fill(folder / "filling")
            yield "no space left"
        else:
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            yield "Read-only"


@pytest.mark.parametrize("size", SIZES)
async def test_the_chat_opens_unsaved_with_a_banner(unwritable: str, size: tuple[int, int]) -> None:
    script = Script("Hello")
    with opened({}, lambda settings, face: LoadedModel(ScriptedModel(script))) as app:
        async with app.run_test(size=size) as pilot:
            await wait_until(pilot, lambda: app.state.model is not None)
            banner = app.chat_screen.query_one(UnsavedBanner)
            assert "Not saved" in str(banner.render())
            assert unwritable in str(banner.render())
            assert banner.region.height > 0
            await say(pilot, "Hi")
            await quiet(app, pilot)
            assert branch(app) == [("user", "Hi"), ("assistant", "Hello")]
            assert app.state.autosave.failure is None
        script.go()


async def test_where_chats_are_saved_there_is_no_banner(home: Path) -> None:
    with opened({}, lambda settings, face: LoadedModel(ScriptedModel(Script("Hello")))) as app:
        async with app.run_test(size=(100, 40)) as pilot:
            await wait_until(pilot, lambda: app.state.model is not None)
            await pilot.pause()
            assert not app.chat_screen.query(UnsavedBanner)
