"""One node that answers lines of a batch: an actor of Ray Data's, which holds the model for as long as the batch lasts.

In: what to load, entries of the batch. Out: a line of JSON for each, as on one computer; or "", where this node may not
answer. Several blocks of lines are answered at a time, in the same passes. Knows neither files nor the other nodes.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.app.batch_files import record
from edgeinfer.app.cluster.claimed_cores import ClaimedCores, share_of
from edgeinfer.app.cluster.nodes import ComputedModel, NodeBits, bits_here
from edgeinfer.app.cluster.weights import SentModel, bring, pieces_of
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.app.batch_files import BatchEntry
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.replicas import Replicas
    from edgeinfer.load_options import LoadOptions
    from edgeinfer.settings import Settings

HANDED_BACK_S = 2.0
"""How long a node that may not answer keeps a block, so that others get most of them."""
RETRY_S = 0.02
ENTRY, INDEX, LINE, NODE = "entry", "index", "line", "node"
"""Columns: a pickled entry; its index, its line of JSON, and the id of the node."""
OTHER, FAILED = "other", "failed"
"""Columns: what the node computes with, if that is not the reference; why it cannot answer."""


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """What a node is to do. `reference`: what it must compute; `lets_in`: answer even where it computes otherwise."""

    settings: Settings
    sent: SentModel
    parallel: int
    n_replicas: int | None
    compared: ComputedModel
    reference: NodeBits
    lets_in: bool = False


class AnsweringNode:
    """Loads the model, then answers. Made and called by Ray Data, which may call it several times at once."""

    def __init__(self, order: NodeOrder, source: Any) -> None:
        import ray

        self._order, self._lock, self._node_id = order, threading.Lock(), ray.get_runtime_context().get_node_id()
        self._busy: dict[int, int] = {}
        self._models: Replicas | None = None
        self._failed = ""
        self._threads = ThreadPoolExecutor(order.parallel + 1, thread_name_prefix="edgeinfer block")
        try:
            self._bits = bits_here(order.compared)
            if order.lets_in or self._bits.decisive == order.reference.decisive:
                self._models = open_on_node(order, source)
        except (EdgeInferError, OSError) as reason:
            self._failed = str(reason)

    async def __call__(self, batch: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """The lines of a block. All of it runs in a thread of its own."""
        entries: list[BatchEntry] = [pickle.loads(each) for each in batch[ENTRY]]
        lines, n = [""] * len(entries), len(entries)
        if self._models is not None and not self._failed:
            try:
                lines = await asyncio.get_running_loop().run_in_executor(self._threads, self._lines, entries)
            except Exception as reason:
                self._failed = (
                    str(reason) if isinstance(reason, EdgeInferError) else f"{type(reason).__name__}: {reason}"
                )
        if not all(lines):
            await asyncio.sleep(HANDED_BACK_S)
        other = "" if self._failed or self._bits.decisive == self._order.reference.decisive else self._bits.told
        yield {
            INDEX: [entry.index for entry in entries],
            LINE: lines,
            NODE: [self._node_id] * n,
            OTHER: [other] * n,
            FAILED: [self._failed] * n,
        }

    def _lines(self, entries: Sequence[BatchEntry]) -> list[str]:
        assert self._models is not None
        with self._lock:  # the replica with the fewest lines
            busy = [self._busy.get(number, 0) for number in range(len(self._models.llms))]
            number = busy.index(min(busy))
            self._busy[number] = busy[number] + len(entries)
        try:
            return answered_lines(self._models.llms[number], entries, self._order)
        finally:
            with self._lock:
                self._busy[number] -= len(entries)


def answered_lines(llm: LLM, entries: Sequence[BatchEntry], order: NodeOrder) -> list[str]:
    """The lines of entries, in their order."""
    from edgeinfer.app.opening.loading import answer_options

    options, approx = answer_options(order.settings), order.settings.load.approximation
    found: dict[int, str] = {}
    while left := [number for number in range(len(entries)) if number not in found]:
        prompts = [entries[number].prompt for number in left]
        for answer in llm.batch(prompts, parallel=order.parallel, **options):
            number = left[answer.number]
            found[number] = json.dumps(record(entries[number], answer, approx))
        if len(found) < len(entries):  # other blocks take all the memory
            time.sleep(RETRY_S)
    return [found[number] for number in range(len(entries))]


def open_on_node(order: NodeOrder, source: Any) -> Replicas:
    """The model on this node, with its own cores of the computer. Raises EdgeInferError."""
    import ray

    from edgeinfer.app.opening.batch_loading import BatchSettings, open_found
    from edgeinfer.models.store import path_model
    from edgeinfer.scheduling.machine.topology import read_topology

    paths = bring(order.sent, pieces_of(source))
    model = replace(path_model(paths[0]), name=order.sent.name, source=order.sent.source)
    load = local_paths(order, paths)
    if load.cores is None and load.device == "cpu":
        topology = read_topology()
        share = share_of(topology, ray.get_runtime_context().get_assigned_resources().get("CPU", 1.0))
        if share is not None:  # held until this process ends
            load = replace(load, cores=ClaimedCores(topology, share).cores or None)
    settings = replace(order.settings, load=load)
    return open_found(settings, model, BatchSettings(order.parallel, order.n_replicas))


def local_paths(order: NodeOrder, paths: Sequence[Path]) -> LoadOptions:
    """The load options, with files beside the model at their paths on this node."""
    load = order.settings.load
    places = {file.path: str(path) for file, path in zip(order.sent.files, paths, strict=True)}

    def here(path: str) -> str | None:
        return places.get(path)

    lora = tuple(f"{here(choice.path) or choice.path}:{choice.scale!r}" for choice in load.adapters)
    template = here(str(load.chat_template_file)) or load.chat_template_file
    return replace(load, lora=lora, mmproj=here(str(load.mmproj)) or load.mmproj, chat_template_file=template)
