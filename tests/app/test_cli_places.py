"""Places with letters outside ASCII, under a locale that knows none, and names that are no UTF-8: no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.jit.library import cache_folder

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"utf-8": "Größe 模".encode(), "latin-1": "Größe".encode("latin-1")}
LOCALES = {"utf-8 mode": {"LC_ALL": "C"}, "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux alone")


class Place:
    """A folder with such a name, with a model in it, and edgeinfer as it runs there."""

    def __init__(self, folder: bytes, environment: dict[str, str], own_home: bool) -> None:
        self.folder = folder
        self.model = os.path.join(folder, b"tiny-" + os.path.basename(folder) + b".gguf")
        home = os.path.join(folder, b"home") if own_home else os.path.join(os.path.dirname(folder), b"home")
        temporary, kernels = (
            os.path.join(folder, b"temporary"),
            os.path.join(folder, b"cache", b"edgeinfer", b"kernels"),
        )
        os.makedirs(temporary)
        os.makedirs(os.path.dirname(kernels))
        os.symlink(cache_folder().parent, kernels)  # under such a name, but not compiled anew for each test
        self._environment = {
            b"PATH": os.fsencode(os.environ["PATH"]),
            b"PYTHONPATH": os.fsencode(ROOT),
            b"HOME": home,
            b"XDG_CACHE_HOME": os.path.join(folder, b"cache"),
            b"TMPDIR": temporary,
            **{name.encode(): value.encode() for name, value in environment.items()},
        }

    def run(self, *arguments: str | bytes, code: int = 0) -> str:
        """A command's outputs; it ends with `code`, and with no traceback."""
        command = [sys.executable, "-m", "edgeinfer", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, input=b"", check=False)
        written = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert "Traceback" not in written, written
        assert done.returncode == code, written
        return written


@pytest.fixture
def place(name: str, locale: str, own_home: bool, tmp_path: Path, tiny_model: Path) -> Place:
    found = Place(os.path.join(os.fsencode(tmp_path), NAMES[name]), LOCALES[locale], own_home)
    with open(found.model, "wb") as file:
        file.write(tiny_model.read_bytes())
    return found


ONE = ("--device", "reference", "--max-tokens", "2", "the rain")


@pytest.mark.parametrize(
    ("name", "locale", "own_home"),  # each pair of them
    [
        ("utf-8", "utf-8 mode", True),
        ("utf-8", "ascii", False),
        ("latin-1", "utf-8 mode", False),
        ("latin-1", "ascii", True),
    ],
)
def test_a_model_is_run_remembered_and_pulled_wherever_it_lies(place: Place) -> None:
    place.run("run", "-m", place.model, *ONE)
    place.run("run", *ONE)  # the one used last
    place.run("pull", place.model)
    assert "tiny-" in place.run("models")
    place.run("models", "--json")
    place.run("run", "--json", *ONE)
    place.run("run", "-m", os.path.join(place.folder, b"missing.gguf"), *ONE, code=1)


@pytest.mark.parametrize("own_home", [True])
@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_holds_what_is_utf_8_and_says_so_of_what_is_not(place: Place, name: str) -> None:
    if name == "utf-8":
        place.run("config", "set", "model", place.model)
        place.run("config", "show")
        place.run("run", *ONE)
    else:
        assert "no UTF-8" in place.run("config", "set", "model", place.model, code=1)
        place.run("config", "show")


@pytest.mark.parametrize(("name", "locale", "own_home"), [("utf-8", "ascii", True), ("latin-1", "ascii", True)])
def test_weights_are_read_from_a_bundle_in_such_a_place(place: Place) -> None:
    place.run(
        "run", "-m", place.model, "--device", "cpu", "--spec", "off", "--ram", "400KB", "--max-tokens", "2", "the"
    )


def test_a_model_of_such_a_name_is_kept_with_chats(tmp_path: Path) -> None:
    with SessionStore(tmp_path / "chats.db") as store:
        session = store.create(None, "gr\udcf6sse")
        store.set_model(session.number, "gr\udcf6sse")
        store.add(session.number, None, "user", "Hi", model="gr\udcf6sse")
        assert store.sessions()[0].model == "gr?sse"
