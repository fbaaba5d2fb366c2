"""A suffix automaton over texts, built token by token: where a suffix of a text occurred before, and what followed.

Memory: an AUTOMATON of the model and a READER of each session. Edges are found by a hash of state and token, and listed
by state. A state records how often its strings occurred and in which text last, so the continuations of the longest
suffix can be ranked by count and separated by origin: this program's sessions, earlier ones, the user's files. Sources:
SuffixDecoding (arXiv 2411.04975); automata of several texts: Mohri, Moreno and Weinstein (2009); databases by temporal
locality: Hierarchy Drafting (arXiv 2502.05609).
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.paths import mix, propose, suffix_token, tree_at
from edgeinfer.engine.speculation.records import AUTOMATON, EDGE, FIRST_BUCKET, READER, STATE, SUFFIX
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

automaton_at, reader_at = simd.record_at(AUTOMATON), simd.record_at(READER)
state_record, edge_record = simd.record_at(STATE), simd.record_at(EDGE)
STATE_BYTES, EDGE_BYTES = STATE.itemsize, EDGE.itemsize
MOST_HOPS = 48
"""Most suffixes, longest first, whose counts are updated for a token; the shortest ones may be left out."""
LOOKED_AT = 24
"""Most edges of a state that are examined, newest first."""
SHORTEST = 2
"""Fewest tokens that must match."""
RANKS, LENGTHS, SHARES = 3, 6, 3
SPOKEN = 6
"""Most tokens that a draft source proposes at a node."""


@inline
def state_of(automaton, state):
    """The record of a state."""
    return state_record(automaton.states + state * STATE_BYTES)


@inline
def edge_of(automaton, edge):
    """The record of an edge."""
    return edge_record(automaton.edges + edge * EDGE_BYTES)


@inline
def _place(automaton, state, token):
    """The place of the edge from a state by a token in the hash table, or the empty place where it would go."""
    mask = (1 << automaton.bits) - 1
    place = mix(mix(np.int64(0), state), token) & mask
    while True:
        edge = simd.load_int32(automaton.places + 4 * place)
        if edge < 0:
            return place
        found = edge_of(automaton, edge)
        if found.source == state and found.token == token:
            return place
        place = (place + 1) & mask


@inline
def step_from(automaton, state, token):
    """The state after one more token, -1 if there is none."""
    edge = simd.load_int32(automaton.places + 4 * _place(automaton, state, token))
    return edge_of(automaton, edge).target if edge >= 0 else -1


@inline
def _connect(automaton, state, token, target):
    """Add an edge."""
    number = automaton.n_edges
    automaton.n_edges = number + 1
    edge, source = edge_of(automaton, number), state_of(automaton, state)
    edge.source, edge.token, edge.target = state, token, target
    edge.next = source.first_edge
    source.first_edge = number
    simd.store_int32(automaton.places + 4 * _place(automaton, state, token), number)


@inline
def _new_state(automaton, length):
    number = automaton.n_states
    automaton.n_states = number + 1
    state = state_of(automaton, number)
    state.length, state.link, state.first_edge, state.times, state.text = length, 0, -1, 0, 0
    return number


@inline
def _split(automaton, before, token, state):
    """Split off the strings of `state` no longer than those of `before` plus the token.

    Returns the new state's number.
    """
    number = _new_state(automaton, state_of(automaton, before).length + 1)
    copy, whole = state_of(automaton, number), state_of(automaton, state)
    copy.link, copy.times, copy.text = whole.link, whole.times, whole.text
    edge = whole.first_edge
    while edge >= 0:
        found = edge_of(automaton, edge)
        _connect(automaton, number, found.token, found.target)
        edge = edge_of(automaton, edge).next
    whole.link = number
    while before >= 0:
        place = simd.load_int32(automaton.places + 4 * _place(automaton, before, token))
        if place < 0 or edge_of(automaton, place).target != state:
            break
        edge_of(automaton, place).target = number
        before = state_of(automaton, before).link
    return number


@inline
def _suffix_state(automaton, before, token):
    """The state of a suffix plus a token that follows it; splits the state if it has longer strings."""
    target = step_from(automaton, before, token)
    if state_of(automaton, target).length == state_of(automaton, before).length + 1:
        return target
    return _split(automaton, before, token, target)


@inline
def _extend(automaton, last, token):
    """The state of a text with one more token."""
    if step_from(automaton, last, token) >= 0:
        return _suffix_state(automaton, last, token)
    number, before = _new_state(automaton, state_of(automaton, last).length + 1), last
    while before >= 0 and step_from(automaton, before, token) < 0:
        _connect(automaton, before, token, number)
        before = state_of(automaton, before).link
    if before >= 0:
        state_of(automaton, number).link = _suffix_state(automaton, before, token)
    return number


@inline
def _has_room(automaton):
    """Whether one more token fits: it needs at most two states, and the edges of a copied one."""
    return automaton.n_states + 2 < automaton.most_states and 2 * automaton.n_edges < automaton.most_edges


def read(state, until, unused):
    """Read the log up to `until` tokens, as far as there is room."""
    reader = reader_at(state)
    automaton = automaton_at(reader.automaton)
    position = reader.n_read
    while position < until and _has_room(automaton):
        token = simd.load_int32(reader.log + 4 * position)
        position += 1
        if token < 0:
            reader.text = 0
            continue
        if reader.text == 0:
            automaton.n_texts += 1
            reader.text, reader.last = automaton.n_texts, 0
        reader.last = _extend(automaton, reader.last, token)
        at, hops = reader.last, 0
        while at > 0 and hops < MOST_HOPS:
            found = state_of(automaton, at)
            found.times += 1
            found.text = reader.text
            at = found.link
            hops += 1
    reader.n_read = position


def rehash(pointer):
    """Insert all edges into an empty hash table. Returns their number."""
    automaton = automaton_at(pointer)
    for edge in range(automaton.n_edges):
        found = edge_of(automaton, edge)
        simd.store_int32(automaton.places + 4 * _place(automaton, found.source, found.token), edge)
    return automaton.n_edges


@inline
def _follow(automaton, reader, tree, node):
    """Find the longest suffix of the node's path that occurred elsewhere; sets the reader's `at` and `matched`."""
    last = state_of(automaton, reader.last)
    at = max(last.link, 0)
    matched = state_of(automaton, at).length
    depth = simd.load_int32(tree.depths + 4 * node)
    if reader.text == 0 or depth > SUFFIX:
        at, matched, depth = 0, 0, 0
    while depth > 0:
        depth -= 1
        token = suffix_token(tree, depth)
        target = step_from(automaton, at, token)
        while target < 0 and at > 0:
            at = state_of(automaton, at).link
            matched = state_of(automaton, at).length
            target = step_from(automaton, at, token)
        if target >= 0:
            at, matched = target, matched + 1
    reader.at, reader.matched, reader.node = at, matched, node


@inline
def _class_of(reader, text):
    """Which database a text belongs to: 0 this program's sessions, 1 earlier ones, 2 the user's files."""
    return 0 if text >= reader.first_text else 1 if text >= reader.first_own else 2


@inline
def _speak(state, pointer, node, database):
    """Propose what followed the longest suffixes in one database, most frequent first."""
    reader, tree = reader_at(state), tree_at(pointer)
    automaton = automaton_at(reader.automaton)
    if automaton.n_texts == 0:
        return
    if database == 0 or reader.node != node:
        _follow(automaton, reader, tree, node)
    at, length, said = reader.at, reader.matched, np.int64(0)
    while at > 0 and length >= SHORTEST and said < SPOKEN:
        said = _speak_state(automaton, reader, tree, at, length, said, database)
        at = state_of(automaton, at).link
        length = state_of(automaton, at).length


@inline
def _speak_state(automaton, reader, tree, at, length, said, database):
    """Propose the continuations of one state. Returns how many tokens were proposed so far."""
    ceiling, rank, total = 1 << 30, 0, max(state_of(automaton, at).times, 1)
    while said < SPOKEN and rank < RANKS + 1:
        best, most, edge, looked = -1, 0, state_of(automaton, at).first_edge, 0
        while edge >= 0 and looked < LOOKED_AT:
            found = edge_of(automaton, edge)
            target = state_of(automaton, found.target)
            key = target.times * LOOKED_AT + (LOOKED_AT - 1 - looked)
            if most < key < ceiling and _class_of(reader, target.text) == database:
                best, most = edge, key
            edge = found.next
            looked += 1
        if best < 0:
            break
        ceiling = most
        found = edge_of(automaton, best)
        share = 4 * state_of(automaton, found.target).times // total
        bucket = (_length_class(length) * RANKS + min(rank, RANKS - 1)) * SHARES + (share >= 1) + (share >= 3)
        propose(tree, found.token, FIRST_BUCKET + bucket)
        rank += 1
        said += 1
    return said


@inline
def _length_class(length):
    """The class of a length: 0 .. LENGTHS - 1."""
    return (length >= 3) + (length >= 4) + (length >= 6) + (length >= 9) + (length >= 14)


def speak_session(state, pointer, node):
    """Propose from texts of this program's sessions."""
    _speak(state, pointer, node, np.int64(0))


def speak_history(state, pointer, node):
    """Propose from texts of earlier programs."""
    _speak(state, pointer, node, np.int64(1))


def speak_files(state, pointer, node):
    """Propose from the user's files."""
    _speak(state, pointer, node, np.int64(2))
