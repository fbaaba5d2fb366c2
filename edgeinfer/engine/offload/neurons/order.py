"""A better order for the neurons of a model in its bundle file: those that fire together become neighbours.

In: an open model, a text to run. Out: a permutation of the neurons of each sparse layer, so that one disk read gets
several that are needed. A model that does not fit in memory runs from a bundle file, which is created first if
necessary. Pairs are linked to paths, most similar first, as in RIPPLE ("Accelerating smartphone LLM inference with
correlation-aware neuron management", arXiv 2410.19274). The similarity of two neurons is the share of tokens for which
both fire among those for which at least one does (Jaccard). Plain counts of tokens would link everything to the neurons
that nearly always fire, which is what "LLM in a flash" (arXiv 2312.11514, section 3.2) found for bundles of closest
friends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.engine.offload.record_plans import Calibrated
from edgeinfer.engine.offload.weight_placement import WeightBudget, cpu_offload, place_and_pack
from edgeinfer.engine.requests.texts import check_vocabulary, own_texts
from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import PAGE, Int32s
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model
from edgeinfer.models.text import vocabulary_of
from edgeinfer.steps import Progress

FEWEST_TOKENS = 64
"""Fewest tokens that are enough to learn from."""
CONTEXT = 256
"""Tokens of the text that are read together; the next ones start from an empty cache, as another text would."""
PASS_TOKENS = 64
MOST_TOKENS = 1024
"""More tokens of a text hardly change the order and take long."""

UNSEEN = 8
"""One in this many tokens is held out for evaluation."""
FRIENDS = 48
"""Most similar neurons that a neuron may be linked to."""
AT_A_TIME = 512
"""Neurons whose similarity to all others is in memory at once."""


def firing_limits(n_context: int) -> Limits:
    """Options for a model under observation, except where its weights are."""
    n_context = min(CONTEXT, n_context)
    return Limits(n_context, -(-n_context // PAGE), max_tokens=PASS_TOKENS)


def calibrated(model: Model, name: str, text: str, progress: Progress, ram_bytes: int | None = None) -> Calibrated:
    """Run a model over a text, with `ram_bytes` of memory for weights (None: what is available), and find the orders.

    Raises BadSetting for a text that is too short and for a model that is not read by neurons, and what running raises.
    """
    records = cpu_offload().records
    if records is None or not records.has(model.spec, model.file.tensors):
        raise BadSetting(
            f"{name} is not read by neurons, whose order could matter: its activations have no exact zeros (--approx "
            "makes some), or its weights are of a format whose neurons cannot be told apart"
        )
    tokens, limits = _tokens(model, text), firing_limits(model.spec.n_context_trained)
    held = place_and_pack(
        model.spec, model.file, name, fingerprint(model.file), limits, WeightBudget(ram_bytes), progress
    )[0]
    fired = records.watch(model, held, tokens, progress)
    orders, reads, n_learnt = [], np.zeros(2), len(tokens) - len(tokens) // UNSEEN
    for done, table in enumerate(fired, 1):
        order, unseen = order_of(table[:n_learnt]), table[n_learnt:]
        if stretches(unseen[:, order]) >= stretches(unseen):  # what was learnt does not carry over to other tokens
            order = np.arange(table.shape[1], dtype=np.int32)
        orders.append(order)
        reads += stretches(unseen[:, order]), stretches(unseen)
        progress("ordering neurons", done, len(fired))
    share = float(np.mean([table.mean() for table in fired]))
    return Calibrated(tuple(orders), len(tokens), share, *map(float, reads))


def _tokens(model: Model, text: str) -> Int32s:
    """The first tokens of a text."""
    vocabulary = vocabulary_of(model.file.metadata)
    check_vocabulary(model.file.path, vocabulary.n_tokens, model.spec.n_vocab)
    tokenizer = own_texts(model.file.metadata, vocabulary)[0]
    found = np.array(tokenizer.encode(text, add_special=True, parse_special=False)[:MOST_TOKENS], np.int32)
    if len(found) < FEWEST_TOKENS:
        raise BadSetting(
            f"the text to calibrate with has {len(found)} tokens, and {FEWEST_TOKENS} at least are wanted; some pages "
            "of what the model is used for would work"
        )
    return found


def order_of(fired: NDArray[np.bool_]) -> Int32s:
    """The neuron at each position, int32[n], from bool[T, n]; neurons that never fired come last, by number.

    Takes about n^2 T multiplications, and memory for T + 1000 numbers per neuron.
    """
    often = np.flatnonzero(fired.any(axis=0))
    paths = _paths(_friends(np.ascontiguousarray(fired[:, often])), len(often))
    counts = fired[:, often].sum(axis=0)
    paths.sort(key=lambda path: -float(counts[path].mean()))  # those that nearly always fire at one end
    places = [often[path] for path in paths]
    never = np.flatnonzero(~fired.any(axis=0))
    return np.concatenate([*places, never]).astype(np.int32)


def stretches(fired: NDArray[np.bool_]) -> float:
    """Mean number of runs of neighbouring neurons that fired per token, bool[T, n] in storage order."""
    begins = fired & ~np.pad(fired, ((0, 0), (1, 0)))[:, :-1]
    return float(begins.sum() / max(1, len(fired)))


def _friends(fired: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Pairs of similar neurons, int64[pairs, 2], most similar first."""
    n_neurons, numbers = fired.shape[1], fired.astype(np.float32)
    counts, kept = numbers.sum(axis=0), min(FRIENDS, max(0, fired.shape[1] - 1))
    alike, pairs = [np.zeros(0, np.float32)], [np.zeros((0, 2), np.int64)]
    for first in range(0, n_neurons if kept else 0, AT_A_TIME):
        both = numbers[:, first : first + AT_A_TIME].T @ numbers
        likeness = both / (counts[first : first + AT_A_TIME, None] + counts - both)
        own = np.arange(len(likeness))
        likeness[own, first + own] = -1.0
        best = np.argpartition(-likeness, kept - 1, axis=1)[:, :kept]
        alike.append(np.take_along_axis(likeness, best, axis=1).reshape(-1))
        pairs.append(np.stack([np.repeat(first + own, kept), best.reshape(-1)], axis=1))
    weights, ends = np.concatenate(alike), np.concatenate(pairs)
    one_way = (weights > 0) & (ends[:, 0] < ends[:, 1])
    other_way = (weights > 0) & (ends[:, 0] > ends[:, 1])
    weights = np.concatenate([weights[one_way], weights[other_way]])
    ends = np.concatenate([ends[one_way], ends[other_way][:, ::-1]])
    return ends[np.lexsort((ends[:, 1], ends[:, 0], -weights))]


def _paths(pairs: Iterable[NDArray[np.int64]], n_neurons: int) -> list[list[int]]:
    """All neurons in paths: each pair in turn becomes a link if both neurons are ends of two different paths."""
    other_end, links = list(range(n_neurons)), [list[int]() for _ in range(n_neurons)]
    for one, two in (pair.tolist() for pair in pairs):
        if len(links[one]) < 2 and len(links[two]) < 2 and other_end[one] != two:
            ends = other_end[one], other_end[two]
            other_end[ends[0]], other_end[ends[1]] = ends[1], ends[0]
            links[one].append(two)
            links[two].append(one)
    seen, found = [False] * n_neurons, []
    for start in range(n_neurons):
        if not seen[start] and len(links[start]) < 2:
            path = list(_walk(start, links))
            for neuron in path:
                seen[neuron] = True
            found.append(path)
    return found


def _walk(start: int, links: list[list[int]]) -> Iterator[int]:
    """Follow a path from one of its ends."""
    before, here = -1, start
    while True:
        yield here
        after = [neuron for neuron in links[here] if neuron != before]
        if not after:
            return
        before, here = here, after[0]
