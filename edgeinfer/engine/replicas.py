"""Replicas of a model, each on its own cores, that share one queue of prompts.

In: a model's name or path, the cores of each replica. Out: open `LLM`s that answer a batch together. On machines with
several NUMA nodes, a replica on each node reads its weights from its own node; `planned_worker_pools` says whether that
pays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Unpack

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.requests.conversation import Messages
from edgeinfer.engine.requests.request import Options
from edgeinfer.engine.run.workers import DEPTH
from edgeinfer.engine.scheduler.batcher import BatchStream, Prompt
from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.workers.core_plan import replica_plan

Cores = tuple[int, ...]


class Replicas:
    """Models that answer one batch together; owns them. Use it with `with`, or call `close()`."""

    def __init__(self, llms: Sequence[LLM]) -> None:
        self.llms = tuple(llms)

    @classmethod
    def open(cls, load: Callable[[Cores | None], LLM], worker_pools: Sequence[Cores]) -> Replicas:
        """Load a model for each worker pool; without worker pools, load a single one that is not bound to cores."""
        llms: list[LLM] = []
        try:
            for cores in worker_pools or (None,):
                llms.append(load(cores))
        except BaseException:
            for llm in llms:
                llm.close()
            raise
        return cls(llms)

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and release all resources."""
        for llm in self.llms:
            llm.close()

    def batch(
        self, prompts: Iterable[str | Messages | Prompt], *, parallel: int, **options: Unpack[Options]
    ) -> BatchStream:
        """As `LLM.batch`, with up to `parallel` requests at a time over all replicas together."""
        each = -(-parallel // len(self.llms))
        return BatchStream([llm.batcher(each) for llm in self.llms], prompts, self.llms[0].prompts, options)


def planned_worker_pools(
    profile: Profile | None, work: ModelWork, parallel: int, n_context: int, kv: str = "f16"
) -> tuple[Cores, ...]:
    """Cores of each replica if one per node is predicted to give more tokens per second; else ()."""
    if profile is None:
        return ()
    step = Pass(1, min(DEPTH, n_context - 1), n_sequences=parallel)
    plan = replica_plan(profile.cpu, work, step, n_context, kv)
    return () if plan is None or plan.n_replicas < 2 else tuple(worker_pool.cores for worker_pool in plan.worker_pools)


def even_worker_pools(cores: Sequence[int], n_replicas: int) -> tuple[Cores, ...]:
    """Split cores into worker pools of neighbouring cores, as evenly as possible.

    Raises BadSetting if there are too few.
    """
    if not 1 <= n_replicas <= len(cores):
        raise BadSetting(f"{n_replicas} replicas need at least as many cores; there are {len(cores)}")
    bounds = [len(cores) * number // n_replicas for number in range(n_replicas + 1)]
    return tuple(tuple(cores[start:stop]) for start, stop in itertools.pairwise(bounds))
