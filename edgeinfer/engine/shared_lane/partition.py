"""Partitions a placed model into tasks, runs of ops that one device executes without waiting, and orders them.

In: a ModelSpec and a `Placement` of its stages. Out: tasks with their inputs, outputs and dependencies, and the same
sequence of steps for every pass, in which one thread starts other devices early and awaits them late. Every buffer
exists on the host, the device through whose memory all others exchange values. A task elsewhere takes its inputs from
there when it starts and delivers its results there when it ends. A task ends where one of its values is needed
elsewhere, or where it needs one that another device has computed since it started. Knows neither devices nor times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import RopePermutation, Weight
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.scheduling.placement.placement import Placement, RowRange, StagePlacement


@dataclass(frozen=True, slots=True)
class BufferTransfer:
    """A task's buffer `name` is written to the host's `buffer` from column `first` on, or added there."""

    name: str
    buffer: str
    first: int = 0
    adds: bool = False


@dataclass(frozen=True, slots=True)
class LaneTask:
    """Ops that one device runs in one go.

    inputs      buffers copied from the host
    deliveries  buffers copied back; empty for the host, which writes its buffers itself
    exposed     for the host: buffers that others take after it
    after       numbers of the tasks that must end first
    widths      of buffers that are private to the task
    spare       weights in the machine's memory that are sent in every pass, as the placement says
    """

    device: str
    stages: tuple[Stage, ...]
    inputs: tuple[str, ...]
    deliveries: tuple[BufferTransfer, ...]
    exposed: frozenset[str]
    after: frozenset[int]
    widths: tuple[tuple[str, int], ...] = ()
    spare: frozenset[Weight] = frozenset()


def partition(spec: ModelSpec, placement: Placement, host: str) -> tuple[LaneTask, ...]:
    """The tasks of a model, in a valid sequential order. Source: the reads and writes of the ops."""
    drafting = _Drafting(host)
    for stage, placed in zip(spec.stages, placement.stages, strict=True):
        for piece in _pieces(stage, placed, host):
            drafting.add(stage.name, piece)
    return drafting.finished(spec.logits)


@dataclass(frozen=True, slots=True)
class _OpRun:
    """Ops that stay together on a device; `is_spare`: their weights are sent to it in every pass."""

    device: str
    ops: tuple[Op, ...]
    is_spare: bool = False


@dataclass(frozen=True, slots=True)
class _Share:
    """A device's rows of a matmul, from row `first` on; `is_spare`: they are sent to it in every pass."""

    device: str
    op: MatMul
    first: int
    is_spare: bool


def _pieces(stage: Stage, placed: StagePlacement, host: str) -> Iterator[_OpRun | tuple[_Share, ...]]:
    """Units of placement in order: ops of one device, or a matmul split over several."""
    products = iter(placed.products)
    ops = iter(stage.ops)
    for op in ops:
        match op:
            case MatMul():
                shares = _shares(op, next(products), host)
                if len({share.device for share in shares}) > 1:
                    yield shares
                    continue
                spare = sum(share.op.weight.n_rows for share in shares if share.is_spare)
                yield _OpRun(shares[0].device, (op,), spare * 2 > op.weight.n_rows)
            case StoreKV():  # with its attention: they share memory
                together: list[Op] = [op]
                while not isinstance(together[-1], Attention):
                    together.append(next(ops))
                yield _OpRun(placed.attention or placed.home, tuple(together))
            case Attention():
                raise UnsupportedModel(
                    f"{stage.name} attends to keys and values of another layer, so one device runs all"
                )
            case _:
                yield _OpRun(placed.home, (op,))


def _shares(op: MatMul, parts: Iterable[RowRange], host: str) -> tuple[_Share, ...]:
    """The rows of each device, the host's first; whole heads where an op permutes the rows within a head.

    On other devices, rows that are held and rows that are sent are two shares.
    """
    n_rows: dict[tuple[str, bool], int] = {(host, False): 0}
    for part in parts:
        key = part.device, part.held == "streamed" and part.device != host
        n_rows[key] = n_rows.get(key, 0) + part.n_rows
    order = op.weight.order
    unit = 1 if order is None else order.head_width if isinstance(order, RopePermutation) else op.weight.n_rows
    found: list[_Share] = []
    first = wanted = 0
    total = op.weight.n_rows
    for (device, is_spare), count in n_rows.items():
        wanted += count
        stop = total if wanted == total else round(wanted / unit) * unit
        if stop > first:
            found.append(_Share(device, rows_of(op, first, stop), first, is_spare))
            first = stop
    return tuple(found)


def rows_of(op: MatMul, first: int, stop: int) -> MatMul:
    """A matmul restricted to some of its rows."""

    def cut(weight: Weight) -> Weight:
        return replace(weight, start=weight.start + first, stop=weight.start + stop)

    return replace(op, weight=cut(op.weight), bias=None if op.bias is None else cut(op.bias))


@dataclass(slots=True)
class _Draft:
    """A task under construction. `before`: tasks that end before it starts. `wanted`: its values that others read."""

    device: str
    after: set[int]
    before: set[int]
    ops: list[tuple[str, Op]] = field(default_factory=list)
    inputs: dict[str, None] = field(default_factory=dict)
    wanted: dict[str, None] = field(default_factory=dict)
    parts: list[BufferTransfer] = field(default_factory=list)
    widths: list[tuple[str, int]] = field(default_factory=list)
    spare: set[Weight] = field(default_factory=set)


class _Drafting:
    """Adds ops to the open task of their device, or closes it and opens another."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._drafts: list[_Draft] = []
        self._open: dict[str, int] = {}
        self._previous: dict[str, int] = {}
        self._makers: dict[str, set[int]] = {}  # tasks that made what a buffer holds
        self._readers: dict[str, set[int]] = {}  # tasks that read it

    def add(self, stage: str, piece: _OpRun | tuple[_Share, ...]) -> None:
        """Add ops of one device, or the rows of a matmul split over several."""
        if isinstance(piece, _OpRun):
            self._add_run(stage, piece)
        else:
            self._add_shares(stage, piece)

    def _add_run(self, stage: str, run: _OpRun) -> None:
        needed: dict[str, None] = {}
        made: dict[str, None] = {}
        for op in run.ops:
            needed.update(dict.fromkeys(name for name in sorted(op.reads) if name not in made))
            made.update(dict.fromkeys(sorted(op.writes)))
        number = self._task(run.device, needed, made)
        self._drafts[number].ops += [(stage, op) for op in run.ops]
        if run.is_spare:
            self._drafts[number].spare |= {op.weight for op in run.ops if isinstance(op, MatMul)}
        for name in made:
            self._makers[name], self._readers[name] = {number}, set()

    def _add_shares(self, stage: str, shares: tuple[_Share, ...]) -> None:
        source, out, adds = shares[0].op.source, shares[0].op.out, shares[0].op.accumulate
        if adds:
            self._bring_home(out)
        numbers = set()
        makers = self._made_by(source)
        for share in sorted(shares, key=lambda share: self._open.get(share.device, -1) in makers):
            # the input's maker goes last: its task ends where others take the input; its rows start another
            op, at_home = share.op, share.device == self._host
            name = f"{out} from {share.first} to {share.first + op.weight.n_rows}"
            own = op if at_home else replace(op, out=name, accumulate=False)
            number = self._task(share.device, dict.fromkeys(sorted(own.reads)), {out: None})
            draft = self._drafts[number]
            draft.ops.append((stage, own))
            if share.is_spare:
                draft.spare.add(op.weight)
            if not at_home:
                draft.parts.append(BufferTransfer(own.out, out, share.first, adds))
                draft.widths.append((own.out, op.weight.n_rows))
            numbers.add(number)
        self._makers[out], self._readers[out] = numbers, set()

    def _bring_home(self, name: str) -> None:
        """The contents of a buffer must be on the host when rows are added to it."""
        for maker in self._made_by(name):
            if self._drafts[maker].device != self._host:
                self._want(maker, name)
                self._close(maker)

    def _task(self, device: str, needed: dict[str, None], made: dict[str, None]) -> int:
        """The task of a device that may read and write these buffers: the open one, or a new one."""
        own = self._open.get(device)
        foreign = {maker for name in (*needed, *made) for maker in self._made_by(name)}
        foreign |= {reader for name in made for reader in self._readers.get(name, ())}
        foreign.discard(-1 if own is None else own)
        for other in foreign:
            self._close(other)
        if own is not None and any(own in made_by and made_by != {own} for made_by in map(self._made_by, needed)):
            foreign.add(own)  # it has some of the rows; the others arrive on the host
        if own is None or not foreign <= self._drafts[own].before:
            own = self._opened(device, foreign)
        draft = self._drafts[own]
        for name in needed:
            makers = self._made_by(name)
            if makers != {own}:
                draft.inputs[name] = None
                for maker in makers - {own}:
                    self._want(maker, name)
            self._readers.setdefault(name, set()).add(own)
        return own

    def _made_by(self, name: str) -> set[int]:
        return self._makers.get(name, set())

    def _opened(self, device: str, foreign: set[int]) -> int:
        after = foreign | ({self._previous[device]} if device in self._previous else set())
        before = after.union(*(self._drafts[number].before for number in after))
        number = len(self._drafts)
        self._drafts.append(_Draft(device, after, before))
        self._open[device] = self._previous[device] = number
        return number

    def _close(self, number: int) -> None:
        device = self._drafts[number].device
        if self._open.get(device) == number:
            del self._open[device]

    def _want(self, maker: int, name: str) -> None:
        """Mark what a task leaves in a buffer as read elsewhere; rows of a split matmul are delivered anyway."""
        draft = self._drafts[maker]
        if all(part.buffer != name for part in draft.parts):
            draft.wanted[name] = None

    def finished(self, logits: str) -> tuple[LaneTask, ...]:
        """All tasks; the logits are delivered to the host."""
        for maker in self._makers[logits]:
            self._want(maker, logits)
        return tuple(self._task_of(draft) for draft in self._drafts)

    def _task_of(self, draft: _Draft) -> LaneTask:
        at_home = draft.device == self._host
        stages: list[Stage] = []
        for name, op in draft.ops:
            if stages and stages[-1].name == name:
                stages[-1] = Stage(name, (*stages[-1].ops, op))
            else:
                stages.append(Stage(name, (op,)))
        return LaneTask(
            draft.device,
            tuple(stages),
            () if at_home else tuple(draft.inputs),
            () if at_home else (*(BufferTransfer(name, name) for name in draft.wanted), *draft.parts),
            frozenset(draft.wanted) if at_home else frozenset(),
            frozenset(draft.after),
            tuple(draft.widths),
            frozenset(draft.spare),
        )


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """Start a task on another device, run one on the host, or await one that was started."""

    act: Literal["submit", "run", "wait"]
    task: int


def turns_of(tasks: Sequence[LaneTask], host: str) -> tuple[TaskTurn, ...]:
    """Run each host task once; start and await each other task once. Raises ValueError for cyclic dependencies."""
    pending = list(range(len(tasks)))
    running: list[int] = []
    done: set[int] = set()
    turns: list[TaskTurn] = []
    while pending or running:
        ready = [number for number in pending if tasks[number].after <= done]
        away = [number for number in ready if tasks[number].device != host]
        if away:
            turns += [TaskTurn("submit", number) for number in away]
            running += away
            pending = [number for number in pending if number not in away]
        elif ready:
            turns.append(TaskTurn("run", ready[0]))
            pending.remove(ready[0])
            done.add(ready[0])
        elif running:
            turns.append(TaskTurn("wait", running[0]))
            done.add(running.pop(0))
        else:
            raise ValueError(f"tasks {pending} wait for each other")
    return tuple(turns)
