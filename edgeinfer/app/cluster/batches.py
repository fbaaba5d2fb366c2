"""A batch on a Ray cluster: lines go to the nodes in small blocks, and each answer is written once, by its index.

In: entries without an answer, settings. Out: lines of JSON, as they come. Ray Data keeps an actor per node, which holds
the model; what a node that ends had not answered is given to others, in the same round or in the next one, so no line
is lost, and a line that comes twice is left out. A node that joins gets an actor.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgeinfer.app.batch_files import BatchEntry, digest
from edgeinfer.app.cluster.answering import ENTRY, FAILED, INDEX, LINE, NODE, OTHER, AnsweringNode, NodeOrder
from edgeinfer.app.cluster.nodes import ClusterNode, ComputedModel, nodes_of, on_node, reference_of, survey
from edgeinfer.app.cluster.quiet import quiet_data
from edgeinfer.app.cluster.sendable import first_within, main_form, settings_for_nodes, with_media
from edgeinfer.app.cluster.weights import FileSender, SentModel
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from types import ModuleType

    from edgeinfer.models.store import LocalModel
    from edgeinfer.settings import Settings

MOST_BLOCKS = 20_000
"""Blocks of a round: up to so many lines, each is a block of its own."""
PLACES_BY_LINES, BLOCKS_EACH = 512, 4
"""From so many places on blocks have more lines, as long as each place has some blocks to answer."""
MOST_NODES = 10_000
ROUNDS_WITHOUT_ANSWER = 2
"""So many rounds in a row may give no answer, as when nodes end; then the batch does."""


@dataclass(frozen=True, slots=True)
class ClusterBatch:
    """What a batch is answered with. `parallel`: lines at a time on each node; `lets_in`: nodes with other bits too."""

    settings: Settings
    parallel: int
    n_replicas: int | None = None
    lets_in: bool = False


@dataclass(slots=True)
class ClusterCounts:
    """What a batch did: rounds, lines that came twice, lines by the node that answered, and notes for people."""

    n_rounds: int = 0
    n_doubled: int = 0
    lines_by_node: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


class ClusterAnswers:
    """Iterate over it for the lines of entries, as they come: records as `batch_files.record` makes them."""

    def __init__(self, model: LocalModel, entries: Sequence[BatchEntry], batch: ClusterBatch) -> None:
        """Be connected to Ray. Raises BadSetting for settings that need files or devices of one computer."""
        import ray
        import ray.data

        self.counts = ClusterCounts()
        self._failures: dict[str, str] = {}
        self._ray, self._entries, self._batch = ray, {entry.index: entry for entry in entries}, batch
        self._settings, beside = settings_for_nodes(batch.settings, model, entries)
        self._sent = SentModel.of(model, beside)
        self._compared = ComputedModel(self._settings.load.device, main_form(model.path), self._settings.load.kv)

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        left, n_empty = dict(self._entries), 0
        source = self._source()
        while left and n_empty < ROUNDS_WITHOUT_ANSWER:
            order, fleet = self._order()
            n_before = len(left)
            for index, line in self._round(first_within(left.values()), order, fleet, source):
                entry = left.pop(index, None)
                if entry is None:
                    self.counts.n_doubled += 1
                    continue
                yield {**line, "digest": digest(entry)}  # of the line as it was given, before files were read
            self.counts.n_rounds += 1
            n_empty = n_empty + 1 if len(left) == n_before else 0
            if n_empty and self._failures:
                raise EdgeInferError(next(reversed(self._failures.values())))
        if left:
            raise EdgeInferError(
                f"{len(left)} of {len(self._entries)} prompts have no answer: no node of the cluster answers any more; "
                "run the batch again when one does"
            )

    def _source(self) -> Any:
        """The actor that sends the model's files, on this computer."""
        ray = self._ray
        here = on_node(ray.get_runtime_context().get_node_id())
        return ray.remote(FileSender).options(num_cpus=0, scheduling_strategy=here).remote(self._sent.files)

    def _order(self) -> tuple[NodeOrder, Fleet]:
        """Survey the nodes, and tell which of them answer. Raises EdgeInferError if none can."""
        nodes = [node for node in nodes_of(self._ray) if node.id not in self._failures]
        found = survey(self._ray, nodes, self._compared)
        reference = reference_of(nodes, found)
        able = []
        for node in nodes:
            bits = found[node.id]
            if isinstance(bits, str):
                self._note(f"{node.told} does not answer: {bits}")
            elif bits.decisive == reference.decisive or self._batch.lets_in:
                able.append(node)
            else:
                self._note(
                    f"{node.told} computes other bits, and is left out: {bits.told}, not {reference.told}; "
                    "--other-bits lets it answer"
                )
        batch = self._batch
        order = NodeOrder(
            self._settings, self._sent, batch.parallel, batch.n_replicas, self._compared, reference, batch.lets_in
        )
        others = {node.id for node in nodes} - {node.id for node in able}
        return order, Fleet(self._ray, able, frozenset(others | self._failures.keys()))

    def _note(self, text: str) -> None:
        if text not in self.counts.notes:
            self.counts.notes.append(text)

    def _round(
        self, entries: Sequence[BatchEntry], order: NodeOrder, fleet: Fleet, source: Any
    ) -> Iterator[tuple[int, dict[str, object]]]:
        """Let the nodes answer entries once; what is lost with a node, or handed back by it, does not come."""
        try:
            with quiet_data(), losing_blocks():
                for rows in answered_rows(self._ray, entries, order, fleet, source):
                    columns = (rows[name] for name in (INDEX, LINE, NODE, OTHER, FAILED))
                    for index, line, node, other, failed in zip(*columns, strict=True):
                        if not line:
                            self._handed_back(str(node), str(other), str(failed))
                            continue
                        self.counts.lines_by_node[str(node)] += 1
                        yield int(index), {**json.loads(line), **({"computed_by": str(other)} if other else {})}
        except self._ray.exceptions.RayError as reason:
            said = (str(reason).strip() or type(reason).__name__).splitlines()[-1]
            self._note(f"Ray ended a round of the batch, which goes on with another one: {said}")

    def _handed_back(self, node: str, other: str, failed: str) -> None:
        """A node that joined or failed gave lines back."""
        if failed:
            self._failures[node] = failed
            self._note(f"node {node[:8]} does not answer: {failed}")
        else:
            self._note(f"node {node[:8]} has joined, computes other bits, and is left out: {other}")


class Fleet:
    """Which node the next actor is for. Called by Ray Data for each actor that it makes."""

    def __init__(self, ray: ModuleType, able: Sequence[ClusterNode], excluded: frozenset[str]) -> None:
        self._ray, self._excluded = ray, excluded
        self.nodes, self._given = list(able), set[str]()

    @property
    def least_cpus(self) -> int:
        """CPUs of the smallest node."""
        return min(node.n_cpus for node in self.nodes)

    def __call__(self) -> dict[str, Any]:
        """Ray's options for the next actor: a node of its own with all of its CPUs."""
        if all(node.id in self._given for node in self.nodes):
            known = {node.id for node in self.nodes} | self._excluded
            self.nodes += [node for node in nodes_of(self._ray) if node.id not in known]
        node = next((node for node in self.nodes if node.id not in self._given), self.nodes[-1])
        self._given.add(node.id)
        return {"num_cpus": node.n_cpus, "scheduling_strategy": on_node(node.id)}


def lines_per_block(n_lines: int, n_places: int) -> int:
    """Lines that a node gets at a time, on a cluster that answers `n_places` at a time.

    One, as long as the driver keeps up, which takes some milliseconds for a block.
    """
    for_places = min(n_places // PLACES_BY_LINES, n_lines // (BLOCKS_EACH * n_places))
    return max(1, -(-n_lines // MOST_BLOCKS), for_places)


def answered_rows(
    ray: ModuleType, entries: Sequence[BatchEntry], order: NodeOrder, fleet: Fleet, source: Any
) -> Iterator[Mapping[str, Any]]:
    """Columns of answers from Ray Data, block by block."""
    from ray.data import ActorPoolStrategy

    rows = [{INDEX: entry.index, ENTRY: pickle.dumps(with_media(entry))} for entry in entries]
    most = lines_per_block(len(rows), len(fleet.nodes) * order.parallel)
    n_blocks = -(-len(rows) // most)
    at_once = -(-order.parallel // most) + (most > 1)
    dataset = ray.data.from_items(rows, override_num_blocks=n_blocks).map_batches(
        AnsweringNode,
        fn_constructor_args=(order, source),
        compute=ActorPoolStrategy(
            min_size=min(len(fleet.nodes), n_blocks), max_size=MOST_NODES, max_tasks_in_flight_per_actor=2 * at_once
        ),
        batch_size=None,
        num_cpus=fleet.least_cpus,
        max_concurrency=at_once,
        ray_remote_args_fn=fleet,
    )
    yield from dataset.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy")


@contextmanager
def losing_blocks() -> Iterator[None]:
    """In this context Ray Data goes on if a block is lost with its node, or an actor before it has started."""
    from ray.data import DataContext

    context = DataContext.get_current()
    names = [name for name in ("max_errored_blocks", "max_consecutive_actor_init_deaths") if hasattr(context, name)]
    before = {name: getattr(context, name) for name in names}
    for name in names:  # the second one is newer
        setattr(context, name, -1)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
