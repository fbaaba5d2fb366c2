"""Records that the loops of speculation read, and numbers that both sides agree on.

Python fills them, compiled code reads and writes them by address. In: nothing. Out: dtypes; what a loop does with its
record stands in the module named below it. Loads no compiler.
"""

from __future__ import annotations

import numpy as np

MOST = 64
"""Most tokens of a tree, its root included."""
SUFFIX = 16
"""Last tokens of a node's path that drafters are given."""
PROPOSED = 16
"""Most tokens that one draft source proposes at a node."""
EACH = 32
"""Most candidates at a node, of all draft sources."""
DRAFT_SOURCES = 12
"""Most draft sources."""
BEST = 8
"""Highest logits that are kept of a token (arXiv 2408.08696)."""
MOST_CHAINED = 16
"""Most tokens that a draft model drafts for a pass."""
TOKEN_BITS = 20
"""Bits of a kept token; above them lies its gap in logits, in sixteenths."""
MOST_GAP = 1023
GAP_EDGES = (6, 14, 28, 50, 80)
GAPS = len(GAP_EDGES) + 1
"""Classes of gaps that buckets tell apart, and where all but the first begin."""
STANDINGS = BEST * GAPS
"""Buckets by rank and gap."""
NO_TOKEN = -1
"""Stands between texts in a log of tokens, and in empty places of tables."""
SILENT, OTHERS, FIRST_BUCKET = range(3)
"""Buckets that every draft source has: it proposed nothing at the node; it proposed others; and its own from here."""
TABLE_STEPS = 4096
"""Entries of the tables of logits (of a probability) and of probabilities (of a logit)."""
LOGIT_RANGE = 8.0
"""The tables hold logits from minus this to this."""
POINTS = 32
"""Steps of the calibration."""


def offset_of(record: np.dtype[np.void], field: str) -> int:
    """Bytes of a record before a field."""
    fields = record.fields
    assert fields is not None
    return int(fields[field][1])


TREE = np.dtype(
    [
        ("log", "i8"),  # int32[n_log]: the tokens so far, texts apart by NO_TOKEN
        ("n_log", "i8"),
        ("n_vocab", "i8"),
        ("most", "i8"),  # tokens of the tree, MOST at most
        ("deepest", "i8"),  # tokens after the root
        ("fixed", "i8"),  # 1: as many tokens as possible, whatever they cost
        ("chain", "i8"),  # 1: no node has more than one child
        ("costs", "i8"),  # float32[MOST + 1]: seconds of a pass over so many tokens
        ("beside", "i8"),  # tokens of other texts in the pass, with `most` MOST at most
        ("beside_expected", "f8"),  # tokens of those texts that it should give
        ("n_nodes", "i8"),
        ("tokens", "i8"),  # int32[MOST]
        ("parents", "i8"),  # int32[MOST]
        ("depths", "i8"),  # int32[MOST]
        ("reaches", "i8"),  # float32[MOST]: probability that the path comes to a node
        ("sources", "i8"),  # int32[MOST]: the draft source that a node owes its place to, -1 for the root
        ("offers", "i8"),  # int32[MOST, 2]: first candidate and number of candidates at a node
        ("suffix", "i8"),  # int32[SUFFIX]: the last tokens up to the node at hand, the node's own first
        ("n_suffix", "i8"),
        ("proposals", "i8"),  # int32[PROPOSED, 2]: token and confidence bucket
        ("n_proposals", "i8"),
        ("spoken", "i8"),  # bits of the draft sources that proposed something at the node at hand
        ("best", "i8"),  # int32[BEST]: the highest logits after the node at hand, packed
        ("rows", "i8"),  # int32[MOST, BEST]: those after every node
        ("likeliest", "i8"),  # int32[MOST]: the token with the highest logit after each node, NO_TOKEN where in doubt
        ("draft_sources", "i8"),  # int64[n, 3]: address of propose, of its tables, first place of its buckets
        ("n_draft_sources", "i8"),
        ("readers", "i8"),  # int64[n_readers, 2]: address of read, of its tables
        ("n_readers", "i8"),
        ("learners", "i8"),  # int64[n_learners, 2]: address of learn, of its tables
        ("n_learners", "i8"),
        ("candidates", "i8"),  # CANDIDATE[MOST * EACH]
        ("n_candidates", "i8"),
        ("heap", "i8"),  # (float32 probability, int32 candidate)[MOST * EACH]
        ("n_heap", "i8"),
        ("acceptance", "i8"),  # ACCEPTANCE
        ("logits", "i8"),  # float32[n_nodes, logits_stride / 4], of the pass
        ("logits_stride", "i8"),
        ("peaks", "i8"),  # float32[n_nodes, peaks_stride / 4], as `base.Peaked` says, or 0
        ("peaks_stride", "i8"),
        ("path", "i8"),  # int32[n_path]: nodes that the pass accepted
        ("chosen", "i8"),  # int32[n_path]: the token chosen after each
        ("n_path", "i8"),
        ("tally", "i8"),  # int64[DRAFT_SOURCES, 2]: nodes that were checked of each source, and accepted
        ("expected", "f8"),  # tokens that the pass should give
    ]
)
"""`loops.growth`, `loops.learning`."""

CANDIDATE = np.dtype(
    [
        ("token", "i4"),
        ("node", "i4"),  # it would follow
        ("chance", "f4"),  # that it follows, if the path comes to the node
        ("source", "i4"),
        ("buckets", "i4", (DRAFT_SOURCES,)),  # place in the counts of the bucket of each draft source
    ]
)
BUCKETS_OFFSET = 16
"""Bytes of a candidate before its buckets."""

ACCEPTANCE = np.dtype(
    [
        ("counts", "i8"),  # COUNT[n_claims]
        ("weights", "i8"),  # float32[DRAFT_SOURCES + 1]: of each draft source, and of nothing
        ("joint", "i8"),  # JOINT[1 << joint_bits]
        ("joint_bits", "i8"),
        ("logit_of", "i8"),  # float32[TABLE_STEPS + 1]
        ("chance_of", "i8"),  # float32[TABLE_STEPS + 1]
        ("calibration", "i8"),  # float32[POINTS + 1]: what came of estimates
    ]
)
"""`loops.acceptance`."""

COUNT = np.dtype([("seen", "f4"), ("accepted", "f4"), ("logit", "f4"), ("unused", "f4")])
JOINT = np.dtype([("key", "i4"), ("seen", "f4"), ("accepted", "f4"), ("unused", "f4")])

NGRAM = np.dtype(
    [
        ("log", "i8"),
        ("n_read", "i8"),  # tokens of the log that are indexed
        ("heads", "i8"),  # int32[LEVELS, 1 << bits]: where an n-gram of that hash ended last, -1: nowhere
        ("bits", "i8"),
        ("previous", "i8"),  # int32[LEVELS, capacity]: where it ended before
        ("capacity", "i8"),
    ]
)
"""`loops.ngram`."""

SUCCESSORS = np.dtype([("rows", "i8"), ("bits", "i8"), ("clock", "i8")])
"""`loops.recycling`: int32[V, BEST]; `loops.stochastic`: int32[1 << bits, WAYS, ROW]."""

AUTOMATON = np.dtype(
    [
        ("states", "i8"),  # STATE[most_states]
        ("n_states", "i8"),
        ("most_states", "i8"),
        ("edges", "i8"),  # EDGE[most_edges]
        ("n_edges", "i8"),
        ("most_edges", "i8"),
        ("places", "i8"),  # int32[1 << bits]: edges by hash of source and token, -1: none
        ("bits", "i8"),
        ("n_texts", "i8"),  # texts begun
    ]
)
"""`loops.automaton`: what all sessions of a model share."""

STATE = np.dtype([("length", "i4"), ("link", "i4"), ("first_edge", "i4"), ("times", "i4"), ("text", "i4")])
"""Longest string of a state; the state of its longest suffix elsewhere, -1 of the first; its edges; how often it
occurred, and in which text last."""

EDGE = np.dtype([("source", "i4"), ("token", "i4"), ("target", "i4"), ("next", "i4")])

READER = np.dtype(
    [
        ("automaton", "i8"),
        ("log", "i8"),
        ("n_read", "i8"),  # tokens of the log that the automaton has
        ("last", "i8"),  # state of the text read last
        ("text", "i8"),  # its number; 0: none has begun
        ("first_text", "i8"),  # texts from here on were seen by this program, those before by earlier ones
        ("first_own", "i8"),  # texts before this one are the user's files
        ("at", "i8"),  # state of the node looked at last
        ("matched", "i8"),  # tokens up to that node that lead there
        ("node", "i8"),
    ]
)
"""`loops.automaton`: one session's."""

CHAIN = np.dtype([("tokens", "i8"), ("rows", "i8"), ("n_rows", "i8")])
"""`loops.chain`: int32[MOST_CHAINED], int32[MOST_CHAINED, BEST]."""

MATRIX = np.dtype([("rows", "i8"), ("bits", "i8"), ("clock", "i8"), ("log", "i8"), ("n_read", "i8")])
"""`loops.matrix`: int32[1 << bits, WAYS, 2 + 2 * BEST]."""
