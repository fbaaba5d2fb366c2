"""The setting `hand_over`: when a small model that writes hands over to the large one."""

from __future__ import annotations

from math import inf

import pytest

from edgeinfer.errors import BadSetting
from edgeinfer.hand_over import HandOver
from edgeinfer.ipc.records import from_json, to_json
from edgeinfer.load_options import LoadOptions
from edgeinfer.settings import read_value


@pytest.mark.parametrize(
    ("given", "found", "spelled"),
    [
        ("bild", HandOver("bild", 0.6, 3.0), "bild=0.6,3"),
        (" bild = 0.25, inf ", HandOver("bild", 0.25, inf), "bild=0.25,inf"),
        ("bild=1,0", HandOver("bild", 1.0, 0.0), "bild=1,0"),
        ("entropy", HandOver("entropy", 1.5), "entropy=1.5"),
        ("entropy=inf", HandOver("entropy", inf), "entropy=inf"),
        ("steps=9", HandOver("steps", 9.0), "steps=9"),
        (HandOver("steps", 4.5), HandOver("steps", 4.5), "steps=4.5"),
    ],
)
def test_what_is_said_is_read(given: object, found: HandOver, spelled: str) -> None:
    assert read_value("hand_over", given) == spelled
    assert str(found) == spelled
    assert HandOver.parse(spelled) == found
    assert LoadOptions(hand_over=given).handing_over == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    ["", "bil", "bild=", "bild=0.5", "bild=1.1,3", "bild=0.5,-1", "entropy=nan", "steps=10", "steps=1,2", 3, None],
)
def test_what_cannot_be_is_refused_with_what_can(given: object) -> None:
    with pytest.raises(BadSetting, match=r"needs bild, or bild=PROBABILITY,NATS .*steps=7"):
        read_value("hand_over", given)
    with pytest.raises(BadSetting, match=r"hand_over cannot be .*steps=7"):
        LoadOptions(hand_over=given)  # type: ignore[arg-type]


def test_options_pass_between_processes() -> None:
    load = LoadOptions(hand_over="steps", small_model="small.gguf")
    assert load.hand_over == "steps=7"
    assert from_json(LoadOptions, to_json(load)) == load


def test_a_small_model_is_not_that_of_others() -> None:
    load = LoadOptions(small_model="small.gguf", hand_over="entropy=2", threads=2)
    assert load.for_others == LoadOptions(hand_over="entropy=2", threads=2)
    assert LoadOptions(small_model="small.gguf", mmproj="p.gguf").for_others == LoadOptions()
