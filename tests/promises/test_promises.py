"""What releases have promised is still there, and docs/PROMISES.md names the tests that show the rest."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from packaging.version import Version

import edgeinfer
from tests.promises.listing import WHEN_RELEASED, interface, keys_of, promised

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/PROMISES.md").read_text(encoding="utf-8")
NAME = re.compile(r"`((?:unit|app|server|golden|promises)/[\w/]+\.py)`")
ROW = re.compile(
    r"^\| `(?P<former>[\w.]+)` \| `(?P<now>[\w.]+)` \| (?P<since>[\d.]+) \| (?P<until>[\d.]+) \|$", re.MULTILINE
)
FORMER = [match.groups() for match in ROW.finditer(PAGE)]
KINDS = [name for name in promised() if name != "version"]


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The interface of this tree, with a model in the store."""
    from tests.conftest import write_tiny_llama

    home = tmp_path_factory.mktemp("promises")
    (home / "models").mkdir()
    model = write_tiny_llama(home / "models" / "tiny.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEINFER_HOME", str(home))
        patch.chdir(home)
        return interface(model)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_was_promised_is_gone(now: dict[str, list[str]], kind: str) -> None:
    """What goes after its deprecation is taken from promised.json by hand, with a line under Removed."""
    assert len(promised()[kind]) > 3
    assert sorted(set(promised()[kind]) - set(now[kind])) == []


@WHEN_RELEASED
@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_is_new_is_promised(now: dict[str, list[str]], kind: str) -> None:
    """Where it is not, `python -m tests.promises.listing` has to be run again."""
    assert sorted(set(now[kind]) - set(promised()[kind])) == []


def test_every_kind_is_promised(now: dict[str, list[str]]) -> None:
    assert set(now) == set(KINDS)


def test_the_list_is_of_this_version() -> None:
    """`python -m tests.promises.listing` is a step of a release."""
    assert promised()["version"] == edgeinfer.__version__


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, {"a", "b", "b.c"}),
        ({"rows": [{"x": 1}, {"y": {"z": 1}}]}, {"rows", "rows[].x", "rows[].y", "rows[].y.z"}),
        ({"draft": {"ngram": {"accepted": 1}}}, {"draft"}),
        ([{"x": None}], {"[].x"}),
    ],
    ids=["objects", "lists", "free", "list"],
)
def test_keys_of_json(value: object, keys: set[str]) -> None:
    assert set(keys_of(value)) == keys


def test_the_tests_that_the_page_names_are_there() -> None:
    named = NAME.findall(PAGE)
    assert len(named) > 12
    for name in named:
        assert "def test" in (ROOT / "tests" / name).read_text(encoding="utf-8"), name


def test_former_names_have_their_time() -> None:
    """At least the rest of one minor release and all of the next; the test fails once they have to go."""
    assert len(FORMER) >= 4
    for former, _, since, until in FORMER:
        first, last = Version(since), Version(until)
        assert last.minor >= first.minor + 2 or last.major > first.major, former
        assert Version(edgeinfer.__version__) < last, f"{former} was to go in {until}"


@pytest.mark.parametrize(("former", "now_called", "until"), [(row[0], row[1], row[3]) for row in FORMER])
def test_former_names_warn_and_work(tiny_model: Path, former: str, now_called: str, until: str) -> None:
    owner, _, name = former.partition(".")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if owner == "edgeinfer":
            assert getattr(edgeinfer, name) is getattr(edgeinfer, now_called.partition(".")[2])
        else:
            with edgeinfer.load(tiny_model, device="reference") as llm:
                assert getattr({"LLM": llm, "QueueStats": llm.telemetry.queue}[owner], name) is not None
    (warning,) = [each for each in caught if each.category is DeprecationWarning]
    assert f"is called {now_called.removeprefix('edgeinfer.')} now" in str(warning.message)
    assert f"until version {until}" in str(warning.message)
