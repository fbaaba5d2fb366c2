"""Summaries of new pages, made by the worker pool before a step that may choose among them.

In: the pages of a step. Out: summaries beside the KV pools. Which pages are due is the engine's business.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.base import Limits, WorkSplit
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.attention_records import SUMMARISE
from edgeinfer.backends.cpu.layout.summaries import summarised_layers
from edgeinfer.backends.cpu.memory.sequences import CpuKV
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call, Tape
from edgeinfer.backends.cpu.workers.worker_pool import WorkerPool
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address


class PageSummarising:
    """Summarises pages of all layers that keep everything."""

    def __init__(self, kv: CpuKV, limits: Limits, library: KernelLibrary) -> None:
        self._layers = summarised_layers(kv.pools, kv.summaries)
        self._pages: Int32s = np.zeros(1, np.int32)
        self._args = np.zeros(1, SUMMARISE)
        self._args["layers"], self._args["n_layers"] = self._layers.ctypes.data, len(self._layers)
        call = Call(catalogue.summarise_pages(limits.kv), self._args, NOTHING, NOTHING, "by layers and pages")
        self._tape = Tape([call], library)

    def run(self, pages: Int32s, worker_pool: WorkerPool, work_split: WorkSplit) -> None:
        """Summarise these pages."""
        if len(pages) and len(self._layers):
            self._pages = np.ascontiguousarray(pages, np.int32)
            self._args["pages"], self._args["n_pages"] = address(self._pages), len(pages)
            worker_pool.run(self._tape, work_split)
