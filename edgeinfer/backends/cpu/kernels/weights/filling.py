"""Threads that fill memory slots from a file, and the thread that controls them: loops without an interpreter.

Memory: a FILLING record and what it points to. A slot with an order above 0 is to be read, the lowest first; the thread
that swaps the order for FLYING reads it, writes its tag to `held` and clears the order. Threads sleep in a read of a
pipe. Only one thread calls the other functions; readers never block it except where it waits for them.
"""

from __future__ import annotations

from edgeinfer.backends.cpu.kernels.work_split import fence, ticks
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline
from edgeinfer.offload.slot_records import BROKEN, BUSY_SHIFT, FILLING, FLYING, GUESS, place_of

filling_at = simd.record_at(FILLING)
N_GUESSES, N_ASLEEP, UNDER_WAY, BUSY, IS_WAITING, STOPPING = (
    place_of(name) for name in ("n_guesses", "n_asleep", "under_way", "busy", "is_waiting", "stopping")
)
PAGE = 4096
SINCE = (1 << BUSY_SHIFT) - 1


@inline
def begin_busy(control, at):
    """Count the beginning of a read."""
    while True:
        before = simd.load_acquire(at + UNDER_WAY)
        after = before + (1 << BUSY_SHIFT)
        if before == 0:
            after += ticks() - control.epoch
        if simd.swap_if(at + UNDER_WAY, before, after) == before:
            return


@inline
def end_busy(control, at):
    """Count the end of a read; the last one adds the time since the first began."""
    while True:
        before, now = simd.load_acquire(at + UNDER_WAY), ticks() - control.epoch
        is_last = before >> BUSY_SHIFT == 1
        after = np_int(0) if is_last else before - (1 << BUSY_SHIFT)
        if simd.swap_if(at + UNDER_WAY, before, after) == before:
            if is_last:
                simd.atomic_add(at + BUSY, now - (before & SINCE))
            return


@inline
def np_int(value):
    """An int64 that is not a literal."""
    return value + 0


@inline
def first_in_order(control, limit):
    """The slot with the lowest order below a limit, -1 if there is none."""
    found, lowest = -1, limit
    for slot in range(control.n_slots):
        order = simd.load_acquire(control.orders + 8 * slot)
        if order > 0 and order < lowest:
            found, lowest = slot, order
    return found


@inline
def claim(control, at):
    """Claim the next read and return its slot: -1 if there is none; plus n_slots if it is a guess."""
    while True:
        limit = 4 * GUESS if simd.load_acquire(at + N_GUESSES) < control.most_guesses else GUESS
        slot = first_in_order(control, limit)
        if slot < 0:
            return slot
        order = simd.load_acquire(control.orders + 8 * slot)
        if order <= 0 or simd.swap_if(control.orders + 8 * slot, order, FLYING) != order:
            continue
        if order < GUESS:
            return slot
        simd.atomic_add(at + N_GUESSES, 1)
        return slot + control.n_slots


@inline
def fill(control, slot, tag):
    """Read a number into a slot, with as many calls as that takes; returns whether all bytes came."""
    memory, place = control.memory + slot * control.stride, simd.load_int64(control.places + 8 * tag)
    left = simd.load_int64(control.lengths + 8 * tag)
    while left > 0:
        count = simd.call_system(control.pread, control.descriptor, memory, left, place)
        if count < left:
            count -= count % PAGE  # the next read must begin at a page again
        if count <= 0:
            return False
        memory, place, left = memory + count, place + count, left - count
    return True


@inline
def any_order(control, at):
    """Whether there is something that one more thread may read."""
    limit = 4 * GUESS if simd.load_acquire(at + N_GUESSES) < control.most_guesses else GUESS
    return first_in_order(control, limit) >= 0


@inline
def sleep(control, at, byte):
    """Sleep until there is something to read; may return early."""
    simd.atomic_add(at + N_ASLEEP, 1)
    fence()  # pairs with the one in `want`: an order is seen here, or the sleeping thread is seen there
    if simd.load_acquire(at + STOPPING) == 0 and not any_order(control, at):
        simd.call_system(control.read, control.work_out, byte, 1, 0)
    simd.atomic_add(at + N_ASLEEP, -1)


def fill_slots(at):
    """Read slots in order until `stopping`."""
    control, byte = filling_at(at), simd.stack_space(64)
    while simd.load_acquire(at + STOPPING) == 0:
        claimed = claim(control, at)
        if claimed < 0:
            sleep(control, at, byte)
            continue
        slot = claimed % control.n_slots
        tag = simd.load_int64(control.tags + 8 * slot)
        begin_busy(control, at)
        is_whole = fill(control, slot, tag)
        end_busy(control, at)
        if is_whole:
            simd.atomic_add(control.counts + 8 * tag, 1)
        simd.store_release(control.held + 8 * slot, tag if is_whole else BROKEN)
        if claimed >= control.n_slots:
            simd.atomic_add(at + N_GUESSES, -1)
        simd.store_release(control.orders + 8 * slot, 0)
        fence()  # pairs with the one in `settle`
        if simd.load_acquire(at + IS_WAITING) != 0:
            simd.call_system(control.write, control.arrived_in, byte, 1, 0)
    return 0


@inline
def order_at(control, number):
    """Address of the order of a slot in the list."""
    return control.orders + 8 * simd.load_int64(control.list + 8 * number)


def want(at, count, order):
    """Order reads of `count` slots of the list, in this order, from `order` on, except those being read already."""
    control, byte = filling_at(at), simd.stack_space(64)
    for number in range(count):
        place = order_at(control, number)
        before = simd.load_acquire(place)
        while before != FLYING:
            found = simd.swap_if(place, before, order + number)
            if found == before:
                break
            before = found
    fence()
    n_asleep = simd.load_acquire(at + N_ASLEEP)
    for _ in range(min(n_asleep, count)):
        simd.call_system(control.write, control.work_in, byte, 1, 0)


def drop(at, count):
    """Cancel the reads of `count` slots of the list, except those that have begun."""
    control = filling_at(at)
    for number in range(count):
        place = order_at(control, number)
        before = simd.load_acquire(place)
        if before > 0:
            simd.swap_if(place, before, 0)


@inline
def settled(control, count):
    """Whether none of these slots has a read pending or under way."""
    n_left = 0
    for number in range(count):
        n_left += simd.load_acquire(order_at(control, number)) != 0
    return n_left == 0


def least(at, most):
    """The idle slot with the lowest rank among those barred by `most` or less; -1 if there is none.

    Slots that were needed most recently are needed again last: a rank drops by `step` per turn until the slot's own.
    """
    control, found, lowest = filling_at(at), -1, 0
    for slot in range(control.n_slots):
        if simd.load_int64(control.barred + 8 * slot) > most:
            continue
        until = simd.load_int64(control.turns + 8 * slot) - control.turn
        if until <= 0:
            until += control.n_turns
        rank = simd.load_int64(control.ranks + 8 * slot) - until * control.step
        if (found < 0 or rank < lowest) and simd.load_acquire(control.orders + 8 * slot) == 0:
            found, lowest = slot, rank
    return found


def settle(at, count):
    """Wait until `count` slots of the list are read; returns 1 if a signal or a stop came before."""
    control, byte = filling_at(at), simd.stack_space(64)
    while not settled(control, count):
        simd.store_release(at + IS_WAITING, 1)
        fence()
        came = np_int(1)
        if simd.load_acquire(at + STOPPING) != 0:
            came = 0
        elif not settled(control, count):
            came = simd.call_system(control.read, control.arrived_out, byte, 64, 0)
        simd.store_release(at + IS_WAITING, 0)
        if came <= 0:
            return 1
    return 0
