"""The setting `approx`: a threshold of activations, a budget of attention, or both."""

from __future__ import annotations

import pytest

from edgeinfer.approximation import EXACT, Approximation
from edgeinfer.errors import BadSetting
from edgeinfer.ipc.records import from_json, to_json
from edgeinfer.load_options import LoadOptions
from edgeinfer.settings import read_value


@pytest.mark.parametrize(
    ("given", "threshold", "kv", "spelled"),
    [
        (0.05, 0.05, None, "0.05"),
        ("0.1", 0.1, None, "0.1"),
        (1, 1.0, None, "1"),
        ("kv=1024", None, 1024, "kv=1024"),
        (" kv=192 , 0.05", 0.05, 192, "0.05,kv=192"),
        (Approximation(kv=256), None, 256, "kv=256"),
    ],
)
def test_what_is_said_is_read(given: object, threshold: float | None, kv: int | None, spelled: str) -> None:
    found = read_value("approx", given)
    assert found == Approximation(threshold, kv)
    assert str(found) == spelled
    assert Approximation.parse(spelled) == found
    assert LoadOptions(approx=given).approximation == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        "kv=191",
        "kv=-5",
        "kv=1e3",
        "kv",
        "kv=",
        "0",
        "-1",
        "nan",
        "inf",
        "1e-31",
        "0.1,0.2",
        "kv=256,kv=512",
        "x=3",
        True,
    ],
)
def test_what_cannot_be_read_is_told(given: object) -> None:
    with pytest.raises(BadSetting, match=r"approx needs a threshold .* such as 0\.05, a budget .* such as kv=1024"):
        read_value("approx", given)
    with pytest.raises(BadSetting, match="approx cannot be"):
        LoadOptions(approx=given)  # type: ignore[arg-type]


def test_nothing_is_exact() -> None:
    for given in (None, "", "none"):
        assert LoadOptions(approx=given).approximation is EXACT
    assert EXACT.is_exact
    assert not Approximation(kv=256).is_exact


def test_options_are_sent_with_it() -> None:
    sent = LoadOptions(approx="0.05,kv=256")
    assert from_json(LoadOptions, to_json(sent)) == sent
