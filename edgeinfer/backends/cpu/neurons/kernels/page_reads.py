"""Reads pages of a file and copies records out of them until no reads are left; runs on many threads at a time.

Memory: reads int64[n, 5] as in `neuron_reads.PageReads`, with a column for results; records int64[m, 2]; state
int64[2], shared by all threads: the next read to take, and 1 + the number of a failed one; pages of the calling thread,
with room for the largest read; records are copied to target + slot * record_bytes. The twin is
`neuron_reads.read_each`. Threads sleep in the system's `pread`, whose address is an argument, as is that of the
function that returns the address of the thread's error number.
"""

from __future__ import annotations

import errno

from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline
from edgeinfer.offload.slot_records import READ_COLUMNS

READ_BYTES = 8 * READ_COLUMNS
INTERRUPTED = errno.EINTR
COPIED = 16


@inline
def fill(pread, error_at, descriptor, granule, memory, n_bytes, offset):
    """Fill memory from a place of the file: returns the bytes read, fewer at its end, or minus the error number."""
    done = 0
    while done < n_bytes:
        count = simd.call_pread(pread, descriptor, memory + done, n_bytes - done, offset + done)
        if count < 0:
            error = simd.load_int32(simd.call_for_address(error_at))
            if error == INTERRUPTED:
                continue
            return -error
        if done + count < n_bytes:
            count -= count % granule  # the next read must begin at a page again
        if count == 0:
            break
        done += count
    return done


def read_records(
    pread, error_at, descriptor, base, granule, reads, n_reads, records, record_bytes, target, state, pages
):
    """Do reads until none are left or one fails; returns how many were done."""
    n_done = 0
    while simd.load_acquire(state + 8) == 0:
        number = simd.atomic_add(state, 1)
        if number >= n_reads:
            break
        read = reads + number * READ_BYTES
        n_bytes = simd.load_int64(read + 8)
        count = fill(pread, error_at, descriptor, granule, pages, n_bytes, base + simd.load_int64(read))
        simd.store_int64(read + 32, count)
        if count != n_bytes:
            simd.store_release(state + 8, number + 1)
            break
        for place in range(simd.load_int64(read + 16), simd.load_int64(read + 24)):
            source = pages + simd.load_int64(records + 16 * place)
            to = target + simd.load_int64(records + 16 * place + 8) * record_bytes
            for at in range(0, record_bytes, COPIED):
                simd.copy_16_bytes(to + at, source + at)
        n_done += 1
    return n_done
