"""Moving slots of KV pages to other positions, of every kind of pages, against the meaning of turning in NumPy."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends import meanings
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.attention_records import COPY_SLOTS, TURNED_LAYER
from edgeinfer.backends.cpu.layout.pages import KVPool, slot_copying
from edgeinfer.backends.meanings import FORMS
from edgeinfer.graph.key_turns import KeyTurn, turned_keys
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.graph.step import PAGE
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address
from edgeinfer.models import rope
from edgeinfer.settings import KVKind
from tests.unit.backends.cpu.kernel_calls import call, same_bits
from tests.unit.backends.cpu.kernels import test_cpu_store as storing

Floats = NDArray[np.float32]
Int32s = NDArray[np.int32]
SLOTS = np.concatenate([np.arange(60, 150), np.arange(700, 717), [1000], np.arange(300, 364)]).astype(np.int32)
"""Runs of positions within pages and over their ends, and one alone."""
TARGETS = np.concatenate([np.arange(420, 510), np.arange(831, 848), [1100], np.arange(960, 1024)]).astype(np.int32)


@pytest.fixture(params=get_args(KVKind))
def kind(request: pytest.FixtureRequest) -> KVKind:
    found: KVKind = request.param
    return found


def stored(
    library: KernelLibrary, kind: KVKind, widths: tuple[int, int], kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> KVPool:
    """A pool with random keys and values in SLOTS."""
    random = np.random.default_rng(widths)
    keys, values = (random.standard_normal((len(SLOTS), kv_heads, width)).astype(np.float32) for width in widths)
    monkeypatch.setattr(storing, "SLOTS", SLOTS)
    return storing.stored(library, kind, keys, values)


def turn(
    library: KernelLibrary,
    kind: KVKind,
    layers: list[tuple[KVPool, KeyTurn, int]],
    slots: tuple[Int32s, Int32s],
    distance: int,
    workers: int = 1,
) -> None:
    """Run the kernel on layers, each with how it turns and its first pair."""
    pools = [pool for pool, _, _ in layers]
    records, copied, alive = np.zeros(len(layers), TURNED_LAYER), slot_copying(pools), []
    for name in COPY_SLOTS.names or ():
        records[name] = copied[name]
    for record, (_, how, start) in zip(records, layers, strict=True):
        record["first"], record["start"] = how.first, start
        if how.table is not None:
            alive.append(rope.turns(how.table, distance))
            record["half"] = how.table.rotary_width // 2
            record["cosines"], record["sines"] = map(address, alive[-1])
    call(
        library,
        catalogue.turn_keys(kind),
        workers,
        layers=records,
        n_layers=len(layers),
        n_heads=sum(pool.keys.shape[1] for pool in pools),
        sources=slots[0],
        targets=slots[1],
        count=len(slots[0]),
    )


def expected(pool: KVPool, how: KeyTurn, slots: Int32s, distance: int) -> list[Floats]:
    """What `storing.held` should find where these slots have been moved to."""
    keys, values = storing.held(pool, slots)
    forms, width = FORMS[pool.layout.kind], pool.layout.key_width
    if how.table is None:
        return [keys, values]
    keys = keys[..., :width]
    plain = keys if forms is None else meanings.rotated(keys)
    moved = turned_keys(plain, how, *rope.turns(how.table, distance))
    return [storing.rounded(moved, None if forms is None else forms[0]), values]


TABLE = RopeTable(500.0, 16)
WIDTHS = (
    (16, 16, KeyTurn(TABLE)),
    (24, 24, KeyTurn(TABLE, 4)),
    (80, 80, KeyTurn(RopeTable(10000.0, 80))),
    (96, 64, KeyTurn(RopeTable(10000.0, 64), 32)),
    (128, 128, KeyTurn(RopeTable(10000.0, 128, "linear", 4.0))),
    (576, 512, KeyTurn(RopeTable(10000.0, 64), 512)),
    (96, 96, KeyTurn()),
)
"""Widths of keys and values, and which columns turn."""


@pytest.mark.parametrize(("key_width", "value_width", "how"), WIDTHS)
@pytest.mark.parametrize("distance", [-57, 1, 4000])
def test_keys_turn_and_values_stay(
    library: KernelLibrary,
    kind: KVKind,
    key_width: int,
    value_width: int,
    how: KeyTurn,
    distance: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = [stored(library, kind, (key_width, value_width), heads, monkeypatch) for heads in (1, 3)]
    for workers, pool in zip((1, 3), pools, strict=True):
        wanted = expected(pool, how, SLOTS, distance)
        others = np.setdiff1d(np.arange(storing.N_PAGES * PAGE), TARGETS).astype(np.int32)
        before = [part[pool.place(others)].copy() for part in pool.parts()]
        turn(library, kind, [(pool, how, 0)], (SLOTS, TARGETS), distance, workers)
        for found, each in zip(storing.held(pool, TARGETS), wanted, strict=True):
            assert same_bits(np.ascontiguousarray(found[..., : each.shape[-1]]) + 0, each + 0)  # + 0: -0 is 0
        for part, kept in zip(pool.parts(), before, strict=True):
            assert np.array_equal(np.ascontiguousarray(part[pool.place(others)]), kept)


def test_each_layer_turns_in_its_own_way_and_from_its_own_pair_on(
    library: KernelLibrary, kind: KVKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    hows = (KeyTurn(TABLE), KeyTurn(), KeyTurn(RopeTable(10.0, 8), 8))
    layers = [(stored(library, kind, (16, 24), 2, monkeypatch), how, 0) for how in hows]
    layers.append((stored(library, kind, (16, 24), 2, monkeypatch), KeyTurn(TABLE), 41))
    wanted = [expected(pool, how, SLOTS, 9) for pool, how, _ in layers]
    untouched = storing.held(layers[-1][0], TARGETS[:41])
    turn(library, kind, layers, (SLOTS, TARGETS), 9, 3)
    for (pool, _, start), parts in zip(layers, wanted, strict=True):
        for found, each in zip(storing.held(pool, TARGETS[start:]), parts, strict=True):
            assert same_bits(np.ascontiguousarray(found[..., : each.shape[-1]]) + 0, each[start:] + 0)
    for found, each in zip(storing.held(layers[-1][0], TARGETS[:41]), untouched, strict=True):
        assert same_bits(found, each)


def test_a_page_may_be_filled_that_has_been_read(
    library: KernelLibrary, kind: KVKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets that were the sources of earlier pairs: a text moves along its own pages."""
    pool, how = stored(library, kind, (16, 16), 2, monkeypatch), KeyTurn(TABLE)
    sources = np.concatenate([np.arange(700, 717), np.arange(300, 364)]).astype(np.int32)
    targets = np.concatenate(
        [
            np.arange(1, 18),
            np.arange(640, 704),
        ]
    ).astype(np.int32)
    wanted = expected(pool, how, sources, -3)
    turn(library, kind, [(pool, how, 0)], (sources, targets), -3)
    for found, each in zip(storing.held(pool, targets), wanted, strict=True):
        assert same_bits(np.ascontiguousarray(found[..., : each.shape[-1]]) + 0, each + 0)
