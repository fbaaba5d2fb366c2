"""Kinds of cores from numbers that grow with their speed."""

import pytest

from edgeinfer.scheduling.machine.topology.machine import kinds_by_capacity, kinds_by_clock, with_islands


def letters(kinds) -> str:
    return "".join(kind[0] for kind in kinds)


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ([1024, 1024, 1024, 1024], "pppp"),
        ([530, 1024], "ep"),  # RK3588: A55, A76
        ([325, 828, 1024], "epp"),  # a little, a middle and a big core of a phone
        ([459, 1024], "ep"),  # M1 under Linux
        ([None, 530, 1024], "pep"),
        ([None, None], "pp"),
        ([], ""),
    ],
)
def test_by_capacity(capacities, expected):
    assert letters(kinds_by_capacity(capacities)) == expected


@pytest.mark.parametrize(
    ("gigahertz", "expected"),
    [
        ([5.157, 3.307], "pe"),  # Zen 5 beside Zen 5c
        ([4.9, 3.5], "pe"),  # Zen 4 beside Zen 4c
        ([4.5, 3.4], "pe"),  # Zen 5 beside Zen 5c in a small laptop
        ([5.881, 5.572], "pp"),  # chiplets of a desktop
        ([5.25, 5.75], "pp"),  # chiplets of which one carries stacked cache
        ([4.7, 4.6, 3.5], "ppe"),  # Intel's favoured, performance and efficiency cores where nothing names them
        ([3.0, 2.4, 1.8], "ppe"),  # big, middle, little
        ([None, 3.0, 1.5], "ppe"),
        ([None, None], "pp"),
        ([241, 236, 226, 216, 206, 196, 186, 176, 166], "ppppppppp"),  # rankings of equal cores
        ([208, 196, 125, 113], "ppee"),  # rankings of two kinds
        ([0, -1], "pp"),
    ],
)
def test_by_clock(gigahertz, expected):
    assert letters(kinds_by_clock(gigahertz)) == expected


@pytest.mark.parametrize(
    ("kinds", "have_l3", "expected"),
    [("peel", [1, 1, 0, 0], "pell"), ("pee", [1, 0, 0], "pee"), ("pee", [0, 0, 0], "pee"), ("ppe", [1, 0, 1], "ppe")],
)
def test_islands(kinds, have_l3, expected):
    names = {"p": "performance", "e": "efficiency", "l": "low-power"}
    assert letters(with_islands([names[kind] for kind in kinds], [bool(l3) for l3 in have_l3])) == expected
