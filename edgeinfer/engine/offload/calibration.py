"""Finds a better order for the neurons of a model in its bundle file by running a text.

In: an open model, a text. Out: an order of the neurons of each sparse layer. A model that does not fit in memory runs
from a bundle file, which is created first if necessary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.offload.neuron_order import order_of, stretches
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


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Orders, the tokens that they were found from, and the share of neurons that fired for each of them.

    reads, reads_by_number: runs of neighbouring neurons that fired for each held-out token (the last ones of the text),
    with neurons in the new order and by number; a layer whose new order has more runs keeps its order.
    """

    orders: tuple[Int32s, ...]
    n_tokens: int
    firing_share: float
    reads: float
    reads_by_number: float


def firing_limits(n_context: int) -> Limits:
    """Options for a model under observation, except where its weights are."""
    n_context = min(CONTEXT, n_context)
    return Limits(n_context, -(-n_context // PAGE), max_tokens=PASS_TOKENS)


def calibrated(model: Model, name: str, text: str, progress: Progress, ram_bytes: int | None = None) -> Calibrated:
    """Run a model over a text, with `ram_bytes` of memory for weights (None: what is available), and find the orders.

    Raises BadSetting for a text that is too short and for a model that is not read by neurons, and what running raises.
    """
    offload = cpu_offload()
    if not offload.has_neurons(model.spec, model.file.tensors):
        raise BadSetting(
            f"{name} is not read by neurons, whose order could matter: its activations have no exact zeros (--approx "
            "makes some), or its weights are of a format whose neurons cannot be told apart"
        )
    tokens, limits = _tokens(model, text), firing_limits(model.spec.n_context_trained)
    held = place_and_pack(
        model.spec, model.file, name, fingerprint(model.file), limits, WeightBudget(ram_bytes), progress
    )[0]
    fired = offload.watch_firing(model, held, tokens, progress)
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
