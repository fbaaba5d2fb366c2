"""Records that the loops of speculation read, and constants that Python and the loops share.

Python fills the records; compiled code reads and writes them by address. In: nothing. Out: dtypes. The module named
below each record documents how it is used. Loads no compiler.
"""

from __future__ import annotations

import numpy as np

MOST = 64
"""Most tokens of a tree, including its root."""
SUFFIX = 16
"""Tokens at the end of a node's path that drafters get."""
PROPOSED = 16
"""Most tokens that one draft source proposes at a node."""
EACH = 32
"""Most candidates at a node, over all draft sources."""
DRAFT_SOURCES = 12
"""Most draft sources."""
BEST = 8
"""How many of the highest logits are kept per token (arXiv 2408.08696)."""
MOST_CHAINED = 16
"""Most tokens that a draft model drafts for a pass."""
TOKEN_BITS = 20
"""Bits of the token in a packed logit; the bits above hold its gap in logits, in sixteenths."""
TOKEN_MASK = (1 << TOKEN_BITS) - 1
MOST_GAP = 1023
GAP_EDGES = (6, 14, 28, 50, 80)
GAPS = len(GAP_EDGES) + 1
"""Number of classes of gaps that buckets distinguish; the edges above are where all but the first class begin."""
STANDINGS = BEST * GAPS
"""Buckets by rank and gap."""
NO_TOKEN = -1
"""Separates texts in a log of tokens, and marks empty places of tables."""
SILENT, OTHERS, FIRST_BUCKET = range(3)
"""Buckets of every draft source: it proposed nothing at the node, or only other tokens; its own from here."""
TABLE_STEPS = 4096
"""Steps of the tables of logits (by probability) and of probabilities (by logit)."""
LOGIT_RANGE = 8.0
"""The tables cover logits from -LOGIT_RANGE to LOGIT_RANGE."""
POINTS = 32
"""Steps of the calibration, and of the table of wins by chance."""
NOISES = 32
"""Columns of the table of wins: for Gumbel noise from"""
FIRST_NOISE, NOISE_STEP = -2.0, 0.3
"""FIRST_NOISE on, in steps of NOISE_STEP; of 1,500 numbers two lie outside."""
UNITS, FACTS = 16, 10
"""Units of the network of `loops.ranking`, and facts that it gets beside what draft sources say."""
LEAST_REST = 0.02
"""Least probability of all tokens that nobody proposed, there."""
USUAL_UNIT, MOST_USUAL = 8.0, 0.99
"""What the mean probability of a token is multiplied by for the network, and the most that gives."""
AVERAGED, ROW_BITS = 16, 14
"""Tokens whose means are kept for an earlier token, and bits of that token by which rows are chosen."""
SHARE_BITS = 12
"""Bits of a hash that the table of Gumbel noise is indexed by."""


def offset_of(record: np.dtype[np.void], field: str) -> int:
    """Byte offset of a field in a record."""
    fields = record.fields
    assert fields is not None
    return int(fields[field][1])


PASS = np.dtype(
    [
        ("trees", "i8"),  # int64[n_trees]: addresses of TREE records
        ("n_trees", "i8"),
        ("most", "i8"),  # most tokens of all trees together
        ("most_pages", "i8"),  # most pages of all trees that have more than their root
        ("fixed", "i8"),  # 1: draft as many tokens as possible, whatever they cost
        ("costs", "i8"),  # float32[MOST + 1]: cost of a pass by its number of tokens
        ("beside", "i8"),  # tokens of other texts in the pass
        ("beside_expected", "f8"),  # tokens that the pass should give for those texts
    ]
)
"""Used by `loops.growth`: what the trees of a pass share."""

TREE = np.dtype(
    [
        ("log", "i8"),  # int32[n_log]: the tokens so far; NO_TOKEN separates texts
        ("n_log", "i8"),
        ("n_vocab", "i8"),
        ("most", "i8"),  # most tokens of the tree, at most MOST
        ("deepest", "i8"),  # most tokens after the root
        ("n_pages", "i8"),  # pages that it takes if it has more than its root
        ("chain", "i8"),  # 1: no node has more than one child
        ("n_nodes", "i8"),
        ("n_kept", "i8"),  # nodes of the tree in the best pass so far
        ("tokens", "i8"),  # int32[MOST]
        ("parents", "i8"),  # int32[MOST]
        ("depths", "i8"),  # int32[MOST]
        ("reaches", "i8"),  # float32[MOST]: probability that the accepted path reaches a node
        ("sources", "i8"),  # int32[MOST]: the draft source credited with a node, -1 for the root
        ("offers", "i8"),  # int32[MOST, 2]: first candidate and number of candidates at a node
        ("suffix", "i8"),  # int32[SUFFIX]: the last tokens up to the current node, the node's own first
        ("n_suffix", "i8"),
        ("proposals", "i8"),  # int32[PROPOSED, 2]: token and confidence bucket
        ("n_proposals", "i8"),
        ("foreseen", "i8"),  # int32[BEST]: tokens of the current node whose draw is foreseen, packed, or 0
        ("foreseen_wins", "i8"),  # float32[BEST]: the probability that each of them is drawn
        ("spoken", "i8"),  # bits of the draft sources that proposed something at the current node
        ("best", "i8"),  # int32[BEST]: the highest logits after the current node, packed
        ("rows", "i8"),  # int32[MOST, BEST]: the same for every node
        ("likeliest", "i8"),  # int32[MOST]: the token with the highest logit after each node, NO_TOKEN if uncertain
        ("draft_sources", "i8"),  # int64[n, 3]: address of propose, of its tables, index of its first bucket
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
        ("noise", "u8"),  # the key of the draws' noise, as in `requests.noise`
        ("n_drawn", "i8"),  # number of the draw of the token after the root; -1: tokens are not drawn
        ("n_penalised", "i8"),  # how many of the last tokens penalties look at; 0: there are none
        ("penalty", "f8"),  # how strong they are: 1 for a repeat penalty of 1.1
        ("logits", "i8"),  # float32[n_nodes, logits_stride / 4], logits of the pass
        ("logits_stride", "i8"),
        ("peaks", "i8"),  # float32[n_nodes, peaks_stride / 4], as described in `base.Peaked`, or 0
        ("peaks_stride", "i8"),
        ("path", "i8"),  # int32[n_path]: accepted nodes
        ("chosen", "i8"),  # int32[n_path]: the token chosen after each of them
        ("n_path", "i8"),
        ("draws", "i8"),  # DRAW[n_path]: what they were drawn from
        ("tally", "i8"),  # int64[DRAFT_SOURCES, 2]: verified and accepted nodes of each source
        ("expected", "f8"),  # tokens that the pass should give
    ]
)
"""Used by `loops.growth` and `loops.learning`."""

DRAW = np.dtype([("tokens", "i8"), ("weights", "i8"), ("n", "i8"), ("total", "f8")])
"""Increasing int64[n] tokens, their float64[n] weights, and the sum of these; n is 0 if nothing is known."""

LIKELIEST = np.dtype(
    [
        ("logits", "i8"),  # float32[n_vocab]
        ("peaks", "i8"),  # their peaks, as described in `base.Peaked`
        ("n_vocab", "i8"),
        ("n", "i8"),  # how many tokens to find, from 1 on
        ("n_window", "i8"),
        ("biased", "i8"),  # int32[n_biased]: different tokens
        ("biases", "i8"),  # float32[n_biased]: what is added to their logits
        ("n_biased", "i8"),
        ("repeat_penalty", "f8"),
        ("frequency_penalty", "f8"),
        ("presence_penalty", "f8"),
        ("window", "i8"),  # int32[n_window]: the tokens that penalties apply to, each as often as it came
        ("tokens", "i8"),  # int32[n]: those found, the likeliest first,
        ("values", "i8"),  # float32[n]: and their logits after bias and penalties
    ]
)
"""Used by `loops.likeliest`."""

CANDIDATE = np.dtype(
    [
        ("token", "i4"),
        ("node", "i4"),  # the node that it would follow
        ("chance", "f4"),  # probability that it follows, if the path reaches the node
        ("win", "f4"),  # the same with its noise known, where tokens are drawn:
        ("looked_up", "f4"),  # by the table of wins,
        ("ranked", "f4"),  # or by the network that knows its rivals
        ("source", "i4"),
        ("buckets", "i4", (DRAFT_SOURCES,)),  # for each draft source, index of its bucket in the counts
    ]
)
BUCKETS_OFFSET = 28
"""Byte offset of a candidate's buckets."""

ACCEPTANCE = np.dtype(
    [
        ("counts", "i8"),  # COUNT[n_buckets]
        ("weights", "i8"),  # float32[DRAFT_SOURCES + 1]: of each draft source, and the constant term
        ("joint", "i8"),  # JOINT[1 << joint_bits]
        ("joint_bits", "i8"),
        ("logit_of", "i8"),  # float32[TABLE_STEPS + 1]
        ("chance_of", "i8"),  # float32[TABLE_STEPS + 1]
        ("calibration", "i8"),  # float32[POINTS + 1]: observed acceptance by estimate
        ("wins", "i8"),  # float32[POINTS + 1, NOISES]: probability that a drawn token is the candidate, by its noise
        ("noises", "i8"),  # float32[NOISES]: the noise of each column
        ("gumbel_of", "i8"),  # float32[1 << SHARE_BITS]: Gumbel noise by the upper bits of its hash
        ("ranking", "i8"),  # RANKING, or 0: candidates of draws are ranked by the table of wins
    ]
)
"""Used by `loops.acceptance`, `loops.wins` and `loops.noise`."""

RANKING = np.dtype(
    [
        ("weights", "i8"),  # float32[FACTS + n_draft_sources + 2, UNITS]
        ("rows", "i8"),  # (int32 token, float32 mean)[1 << ROW_BITS, AVERAGED]
        ("counts", "i8"),  # int32[1 << ROW_BITS]: places that each row has seen
        ("usual", "i8"),  # float32[V]: means of tokens anywhere, times scale
        ("scale", "f8"),
        ("error", "f8"),  # mean squared error of what the network says, lately
        ("table_error", "f8"),  # and of what the table of wins says
    ]
)
"""Used by `loops.ranking` and `loops.averages`."""

COUNT = np.dtype([("seen", "f4"), ("accepted", "f4"), ("logit", "f4"), ("unused", "f4")])
JOINT = np.dtype([("key", "i4"), ("seen", "f4"), ("accepted", "f4"), ("unused", "f4")])

NGRAM = np.dtype(
    [
        ("log", "i8"),
        ("n_read", "i8"),  # tokens of the log that are indexed
        ("heads", "i8"),  # int32[LEVELS, 1 << bits]: the last end of an n-gram with that hash, -1: none
        ("bits", "i8"),
        ("previous", "i8"),  # int32[LEVELS, capacity]: its previous end
        ("capacity", "i8"),
    ]
)
"""Used by `loops.ngram`."""

SUCCESSORS = np.dtype([("rows", "i8"), ("bits", "i8"), ("clock", "i8")])
"""Rows for `loops.recycling`: int32[V, BEST]; for `loops.successors`: int32[1 << bits, WAYS, ROW]."""

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
        ("n_texts", "i8"),  # number of texts begun
    ]
)
"""Used by `loops.automaton`: what all sessions of a model share."""

STATE = np.dtype([("length", "i4"), ("link", "i4"), ("first_edge", "i4"), ("times", "i4"), ("text", "i4")])
"""Length of the longest string of a state; the state of its longest suffix that also occurs elsewhere, -1 for the first
state; its first edge; how often its strings occurred, and in which text last.
"""

EDGE = np.dtype([("source", "i4"), ("token", "i4"), ("target", "i4"), ("next", "i4")])

READER = np.dtype(
    [
        ("automaton", "i8"),
        ("log", "i8"),
        ("n_read", "i8"),  # tokens of the log that are in the automaton
        ("last", "i8"),  # state at the end of the text read last
        ("text", "i8"),  # number of that text; 0: none has begun
        ("first_text", "i8"),  # texts from here on were seen by this program, those before by earlier runs
        ("first_own", "i8"),  # texts before this one are the user's files
        ("at", "i8"),  # state of the node looked up last
        ("matched", "i8"),  # length of the suffix at that node that leads there
        ("node", "i8"),
    ]
)
"""Used by `loops.automaton`: the part of one session."""

CHAIN = np.dtype([("tokens", "i8"), ("rows", "i8"), ("wins", "i8"), ("n_rows", "i8")])
"""Used by `loops.chain`: int32[MOST_CHAINED], int32[MOST_CHAINED, BEST], float32[MOST_CHAINED, BEST]."""

MATRIX = np.dtype([("rows", "i8"), ("bits", "i8"), ("clock", "i8"), ("log", "i8"), ("n_read", "i8")])
"""Used by `loops.matrix`: int32[1 << bits, WAYS, 2 + 2 * BEST]."""
