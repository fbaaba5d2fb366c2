"""Scales of LoRA adapters as requests state them: by number or name, checked, the model's where nothing is stated."""

from __future__ import annotations

import re
from typing import Any

import pytest

from edgeinfer.engine.requests.adapters import LoadedAdapters
from edgeinfer.errors import BadSetting

PATHS = ("models/poet.gguf", "models/lawyer.gguf", "other/poet.gguf")


@pytest.fixture
def adapters() -> LoadedAdapters:
    return LoadedAdapters(PATHS, (1.0, 0.5, 0.0))


def test_adapters_are_listed_with_the_scales_of_requests_that_state_none(adapters: LoadedAdapters) -> None:
    assert [(each.id, each.name, each.path, each.scale) for each in adapters] == [
        (0, "poet", PATHS[0], 1.0),
        (1, "lawyer", PATHS[1], 0.5),
        (2, "poet", PATHS[2], 0.0),
    ]
    assert adapters.scales_of(None) == (1.0, 0.5, 0.0)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, (0.0, 0.0, 0.0)),
        ({1: 2}, (0.0, 2.0, 0.0)),
        ({"lawyer": -1.5, 2: 0.25}, (0.0, -1.5, 0.25)),
        ({PATHS[2]: 3.0}, (0.0, 0.0, 3.0)),
    ],
)
def test_adapters_that_a_request_does_not_name_are_not_added(
    adapters: LoadedAdapters, stated: Any, expected: tuple[float, ...]
) -> None:
    assert adapters.scales_of(stated) == expected
    adapters.set_scales(stated)
    assert adapters.scales_of(None) == adapters.scales == expected


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({3: 1.0}, "there is no LoRA adapter 3; there are: 0 (poet), 1 (lawyer), 2 (poet)"),
        ({-1: 1.0}, "there is no LoRA adapter -1"),
        ({"judge": 1.0}, "there is no LoRA adapter 'judge'"),
        ({"poet": 1.0}, "there are 2 LoRA adapters of the name 'poet'; state their numbers"),
        ({0: float("nan")}, "the scale of LoRA adapter 0 cannot be nan"),
        ({0: 1e9}, "it must be a number up to 1e+06"),
        ({0: 10**400}, "the scale of LoRA adapter 0 cannot be 1000"),
        ({0: "much"}, "the scale of LoRA adapter 0 cannot be 'much'"),
        ([0.5], "lora cannot be [0.5]: it must be scales by number or name"),
    ],
)
def test_what_is_refused(adapters: LoadedAdapters, stated: Any, message: str) -> None:
    for ask in (adapters.scales_of, adapters.set_scales):
        with pytest.raises(BadSetting, match=re.escape(message)):
            ask(stated)
    assert adapters.scales == (1.0, 0.5, 0.0)


def test_a_device_with_scales_of_its_own_takes_no_others() -> None:
    adapters = LoadedAdapters(PATHS[:2], (1.0, 0.5), takes_scales=False)
    assert adapters.scales_of(None) == adapters.scales_of({0: 1, 1: 0.5}) == ()
    with pytest.raises(BadSetting, match="load the model with --device cpu"):
        adapters.set_scales({0: 1})
    assert [each.scale for each in adapters] == [1.0, 0.5]


def test_without_adapters_there_is_nothing_to_name() -> None:
    assert LoadedAdapters().scales_of(None) == LoadedAdapters().scales_of({}) == ()
    with pytest.raises(BadSetting, match="none: load some with --lora"):
        LoadedAdapters().scales_of({0: 1.0})
