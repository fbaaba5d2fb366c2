"""Places with letters outside ASCII, under a locale that knows none, and names that are no UTF-8: no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.app.sessions.store import SessionStore

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
        temporary = os.path.join(folder, b"temporary")
        os.makedirs(temporary)
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


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(name: str, locale: str, own_home: bool, tmp_path: Path, tiny_model: Path) -> Place:
    found = Place(os.path.join(os.fsencode(tmp_path), NAMES[name]), LOCALES[locale], own_home)
    with open(found.model, "wb") as file:
        file.write(tiny_model.read_bytes())
    return found


ONE = ("--device", "reference", "--max-tokens", "2", "the rain")


@pytest.mark.parametrize("own_home", [True, False], ids=["home there", "home elsewhere"])
@pytest.mark.parametrize("locale", LOCALES)
def test_a_model_is_run_remembered_and_pulled_wherever_it_lies(place: Place, own_home: bool) -> None:
    place.run("run", "-m", place.model, *ONE)
    place.run("run", *ONE)  # the one used last
    place.run("pull", place.model)
    assert "tiny-" in place.run("models")
    place.run("models", "--json")
    place.run("run", "--json", *ONE)
    place.run("run", "-m", os.path.join(place.folder, b"missing.gguf"), *ONE, code=1)


@pytest.mark.parametrize("own_home", [True])
@pytest.mark.parametrize("locale", LOCALES)
def test_the_configuration_holds_what_is_utf_8_and_says_so_of_what_is_not(
    place: Place, name: str, own_home: bool
) -> None:
    if name == "utf-8":
        place.run("config", "set", "model", place.model)
        place.run("config", "show")
        place.run("run", *ONE)
    else:
        assert "no UTF-8" in place.run("config", "set", "model", place.model, code=1)
        place.run("config", "show")


@pytest.mark.parametrize("own_home", [True])
@pytest.mark.parametrize("locale", LOCALES)
def test_weights_are_read_from_a_bundle_in_such_a_place(place: Place, own_home: bool) -> None:
    place.run(
        "run", "-m", place.model, "--device", "cpu", "--spec", "off", "--ram", "400KB", "--max-tokens", "2", "the"
    )


def test_a_model_of_such_a_name_is_kept_with_chats(tmp_path: Path) -> None:
    with SessionStore(tmp_path / "chats.db") as store:
        session = store.create(None, "gr\udcf6sse")
        store.set_model(session.number, "gr\udcf6sse")
        store.add(session.number, None, "user", "Hi", model="gr\udcf6sse")
        assert store.sessions()[0].model == "gr?sse"
