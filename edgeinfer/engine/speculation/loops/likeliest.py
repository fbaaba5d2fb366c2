"""The likeliest tokens after bias and penalties, in the order in which `requests.sampling` would sort them.

Memory: a LIKELIEST record. The n highest peaks, but for those over a token with a bias or a penalty, say where the
likeliest tokens begin, and logits are examined only where a peak is as high. Shifted tokens come last, with their own
values. Equal values are ordered by token.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES
from edgeinfer.engine.speculation.loops.best import LOWEST, are_numbers
from edgeinfer.engine.speculation.records import LIKELIEST
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

likeliest_at = simd.record_at(LIKELIEST)
NOBODY = 1 << 30
"""The token of an empty place: higher than any."""
MARKS = 256
"""Marks of four bytes, by the lower bits of a peak's number: set if the peak may be over a shifted token."""


def likeliest(pointer):
    """Find the `n` likeliest tokens. Returns their number; 0 if a logit is not finite."""
    args, marks = likeliest_at(pointer), simd.stack_space(1024)
    if not are_numbers(args.peaks, args.n_vocab):
        return 0
    for place in range(MARKS):
        simd.store_int32(marks + 4 * place, 0)
    _mark(args.window, args.n_window, marks)
    _mark(args.biased, args.n_biased, marks)
    _scan(args, marks, _edge(args, marks))
    _insert_penalised(args)
    _insert_biased(args)
    found = 0
    while found < args.n and simd.load_int32(args.tokens + 4 * found) != NOBODY:
        found += 1
    return found


@inline
def _clear(args):
    for place in range(args.n):
        simd.store_float(args.values + 4 * place, LOWEST)
        simd.store_int32(args.tokens + 4 * place, NOBODY)


@inline
def _mark(tokens, count, marks):
    """Mark the peaks over tokens."""
    for place in range(count):
        token = simd.load_int32(tokens + 4 * place)
        peak = token // PEAK_BLOCK * PEAK_LANES + token % PEAK_LANES
        simd.store_int32(marks + 4 * (peak & (MARKS - 1)), 1)


@inline
def _edge(args, marks):
    """A value that at least n tokens reach that are not shifted: one under each of the n highest peaks."""
    _clear(args)
    edge = LOWEST
    for block in range((args.n_vocab + PEAK_BLOCK - 1) // PEAK_BLOCK):
        at = args.peaks + 4 * PEAK_LANES * block
        if simd.max_lanes(simd.load(at)) > edge:
            for lane in range(PEAK_LANES):
                peak, value = PEAK_LANES * block + lane, simd.load_float(at + 4 * lane)
                if value > edge and simd.load_int32(marks + 4 * (peak & (MARKS - 1))) == 0:
                    edge = _insert(args, value, peak)
    return edge


@inline
def _scan(args, marks, least):
    """Insert the tokens that are not shifted, from a value of `least` on."""
    _clear(args)
    edge = least
    for block in range((args.n_vocab + PEAK_BLOCK - 1) // PEAK_BLOCK):
        at, start = args.peaks + 4 * PEAK_LANES * block, block * PEAK_BLOCK
        if simd.max_lanes(simd.load(at)) < edge:
            continue
        stop = min(start + PEAK_BLOCK, args.n_vocab)
        for lane in range(PEAK_LANES):
            if simd.load_float(at + 4 * lane) < edge:
                continue
            is_marked = simd.load_int32(marks + 4 * ((PEAK_LANES * block + lane) & (MARKS - 1))) != 0
            for token in range(start + lane, stop, PEAK_LANES):
                value = simd.load_float(args.logits + 4 * token)
                if value >= edge and not (is_marked and _is_shifted(args, token)):
                    edge = max(edge, _insert(args, value, token))


@inline
def _is_shifted(args, token):
    """Whether a token has a bias or a penalty."""
    return _times(args.window, args.n_window, token) + _times(args.biased, args.n_biased, token) > 0


@inline
def _times(tokens, count, token):
    """How often a token is among others."""
    times = 0
    for place in range(count):
        times += simd.load_int32(tokens + 4 * place) == token
    return times


@inline
def _insert_penalised(args):
    """Insert the tokens that penalties apply to, with their bias if they have one."""
    for place in range(args.n_window):
        token = simd.load_int32(args.window + 4 * place)
        if _times(args.window, place, token) > 0:
            continue
        value = simd.load_float(args.logits + 4 * token)
        for biased in range(args.n_biased):
            if simd.load_int32(args.biased + 4 * biased) == token:
                value += simd.load_float(args.biases + 4 * biased)
        factor = np.float32(args.repeat_penalty)
        value = value / factor if value > np.float32(0.0) else value * factor
        times = np.float64(_times(args.window, args.n_window, token))
        value -= np.float32(times * args.frequency_penalty + args.presence_penalty)
        _insert(args, value, token)


@inline
def _insert_biased(args):
    """Insert the other tokens with a bias."""
    for place in range(args.n_biased):
        token = simd.load_int32(args.biased + 4 * place)
        if _times(args.window, args.n_window, token) == 0:
            value = simd.load_float(args.logits + 4 * token) + simd.load_float(args.biases + 4 * place)
            _insert(args, value, token)


@inline
def _insert(args, value, token):
    """Insert a token, if it is one of the likeliest so far. Returns the lowest value that is kept now."""
    place = args.n
    while place > 0 and _comes_before(args, value, token, place - 1):
        if place < args.n:
            simd.store_float(args.values + 4 * place, simd.load_float(args.values + 4 * place - 4))
            simd.store_int32(args.tokens + 4 * place, simd.load_int32(args.tokens + 4 * place - 4))
        place -= 1
    if place < args.n:
        simd.store_float(args.values + 4 * place, value)
        simd.store_int32(args.tokens + 4 * place, token)
    return simd.load_float(args.values + 4 * args.n - 4)


@inline
def _comes_before(args, value, token, place):
    """Whether a token is likelier than the one at a place, or as likely and lower."""
    other = simd.load_float(args.values + 4 * place)
    return value > other or (value == other and token < simd.load_int32(args.tokens + 4 * place))
