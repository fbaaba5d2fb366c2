"""Threads that fill slots of memory from a file, and the one thread that says which: loops without an interpreter.

Memory: a FILLING record and what it points to. A slot with an order above 0 is to be read, the lowest first; whoever
swaps the order for FLYING reads it, writes its tag to `held` and clears the order. Threads sleep in a read of a pipe.
Only one thread calls the others; it is never held up by readers but where it waits for them.
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
    """One more read is under way."""
    while True:
        before = simd.load_acquire(at + UNDER_WAY)
        after = before + (1 << BUSY_SHIFT)
        if before == 0:
            after += ticks() - control.epoch
        if simd.swap_if(at + UNDER_WAY, before, after) == before:
            return


@inline
def end_busy(control, at):
    """One is done: the last one counts the time since the first began."""
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
    """An int64 that is no literal."""
    return value + 0


@inline
def first_in_order(control, limit):
    """The slot with the lowest order below a limit, -1 where there is none."""
    found, lowest = -1, limit
    for slot in range(control.n_slots):
        order = simd.load_acquire(control.orders + 8 * slot)
        if order > 0 and order < lowest:
            found, lowest = slot, order
    return found


@inline
def claim(control, at):
    """Take what is to be read next: the slot, -1 where there is nothing; that of a guess plus n_slots."""
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
    """Read a number into a slot, however few bytes come at a time; whether all came."""
    memory, place = control.memory + slot * control.stride, simd.load_int64(control.places + 8 * tag)
    left = simd.load_int64(control.lengths + 8 * tag)
    while left > 0:
        count = simd.call_system(control.pread, control.descriptor, memory, left, place)
        if count < left:
            count -= count % PAGE  # what follows must begin at a page again
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
    """Until there is something to read, or for no reason."""
    simd.atomic_add(at + N_ASLEEP, 1)
    fence()  # against the one in `want`: an order is seen here, or who sleeps is seen there
    if simd.load_acquire(at + STOPPING) == 0 and not any_order(control, at):
        simd.call_system(control.read, control.work_out, byte, 1, 0)
    simd.atomic_add(at + N_ASLEEP, -1)


def fill_slots(at):
    """Read what there is to read until `stopping`."""
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
        fence()  # against the one in `settle`
        if simd.load_acquire(at + IS_WAITING) != 0:
            simd.call_system(control.write, control.arrived_in, byte, 1, 0)
    return 0


@inline
def order_at(control, number):
    """Where the order of a slot of the list is."""
    return control.orders + 8 * simd.load_int64(control.list + 8 * number)


def want(at, count, order):
    """Have `count` slots of the list read in this order, from `order` on, unless they are being read already."""
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
    """No longer read `count` slots of the list, but for those that are being read."""
    control = filling_at(at)
    for number in range(count):
        place = order_at(control, number)
        before = simd.load_acquire(place)
        if before > 0:
            simd.swap_if(place, before, 0)


@inline
def settled(control, count):
    """Whether nothing is to be read, or being read, into any of the slots."""
    n_left = 0
    for number in range(count):
        n_left += simd.load_acquire(order_at(control, number)) != 0
    return n_left == 0


def least(at, most):
    """The idle slot with the lowest rank of those barred by `most` or less; -1 where there is none.

    What was needed just now comes last again: its rank is the lower by `step` for each turn until then.
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
    """Wait until `count` slots of the list are read; returns 1 where a signal came before, or a stop."""
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
