"""Measures whole models: prefill and decode on the card alone, and shared with the CPU under a memory limit.

In: an open device, a model. Out: rows of tables. The ways of sharing are the planner's schedules; they are planned with
measured rates on a card, and with assumed rates on the simulator.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from edgeinfer.backends.base import Device, DeviceOptions, Lane, Limits, open_device
from edgeinfer.backends.cuda.device import CudaDevice
from edgeinfer.backends.cuda.footprint import footprint
from edgeinfer.backends.cuda.gemm import Gemm, cublas
from edgeinfer.backends.cuda.lane import CudaFragmentLane, CudaLane
from edgeinfer.engine.opening.devices import Together
from edgeinfer.engine.probing.combination import combined_profile
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.shared_lane.lane import SharedLane
from edgeinfer.errors import DoesNotFit, EdgeInferError
from edgeinfer.graph.step import PAGE, Batch, Floats
from edgeinfer.models.load import Model
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.catalogue import machine_profile
from edgeinfer.scheduling.machine.profile import Link, Profile
from edgeinfer.scheduling.machine.topology import available_bytes, read_topology
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.machine_plan import MachinePlan, PlanningTask
from edgeinfer.scheduling.placement.schedules import scheduled
from edgeinfer.steps import no_progress
from gpu.sizes import Size, megabytes

RUN_HEADS = ("how", "prompt tok/s", "decode tok/s", "MB of the card")
SHARED_HEADS = (
    *("how", "weights of the card", "sent", "MB of the card", "MB sent per pass", "prompt tok/s", "decode tok/s"),
    *("predicted", "overlap", "distance", "verdict"),
)
WAYS: Mapping[str, str] = {
    "cpu": "the CPU alone",
    "static": "whole layers on the card as far as they go, the rest on the CPU (llama.cpp's split)",
    "stream": "the card computes all, what it does not hold is sent in every pass",
    "hetegen": "rows of every product on both, balanced, sent where memory is short",
    "rows": "rows of every product on both by their speed, all else on the CPU",
    "auto": "what the planner predicts to be fastest",
}
GEMM_FROM = 64
"""Minimum tokens of a pass for which cuBLAS is tried."""
ASSUMED = "rtx4060-laptop"
"""The machine whose rates are used for the simulator, which has none of its own."""
TOLERANCE = 0.05
"""Relative distance of logits from the CPU's: sums in another order round some activations to another int8."""


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens per second of a prompt and of an answer, and the logits of the prompt's last token."""

    prompt_tok_s: float
    decode_tok_s: float
    logits: Floats


def limits_for(size: Size) -> Limits:
    """Limits with room for the prompt and the answer."""
    pages = -(-(size.n_prompt + size.n_decoded + 1) // PAGE)
    return Limits(pages * PAGE, pages, min(256, size.n_prompt), 4)


def run(executor: Executor, n_vocab: int, size: Size) -> Run:
    """Run a sequence of arbitrary tokens twice and return the second run: the first one compiles and records graphs."""
    found: list[Run] = []
    for _ in range(2):
        sequence = executor.create()
        began = time.perf_counter()
        for first in range(0, size.n_prompt, executor.limits.max_tokens):
            last = _feed(executor, sequence, first, min(executor.limits.max_tokens, size.n_prompt - first), n_vocab)
        logits = last.copy()
        prompted = time.perf_counter()
        for place in range(size.n_decoded):
            _feed(executor, sequence, size.n_prompt + place, 1, n_vocab)
        ended = time.perf_counter()
        executor.free(sequence)
        found.append(Run(size.n_prompt / (prompted - began), size.n_decoded / (ended - prompted), logits))
    return found[-1]


def _feed(executor: Executor, sequence: int, first: int, count: int, n_vocab: int) -> Floats:
    positions = np.arange(first, first + count, dtype=np.int32)
    tokens = (positions * 7919 % n_vocab).astype(np.int32)
    parents = np.arange(-1, count - 1, dtype=np.int32)
    rows = np.full(count, sequence, np.int32)
    logits = executor.evaluate(Batch(tokens, rows, positions, parents, np.array([count - 1], np.int32)))
    executor.commit(sequence, np.arange(count, dtype=np.int32))
    return logits


def run_rows(device: CudaDevice, model: Model, size: Size) -> list[tuple[object, ...]]:
    """A model on the card alone: all weights on the card, a part of them streamed, prompts by cuBLAS."""
    limits = limits_for(size)
    whole = footprint(model.spec, model.file.tensors, limits)
    half = whole.kv_bytes + whole.buffer_bytes + whole.weight_bytes // 2
    devices = {"all weights on the card": device, "room for half the weights": CudaDevice(device.driver, half)}
    if importlib.util.find_spec("cupy") is not None:
        devices[f"cuBLAS from {GEMM_FROM} tokens"] = CudaDevice(device.driver, None, Gemm(GEMM_FROM, cublas()))
    rows: list[tuple[object, ...]] = []
    for name, each in devices.items():
        try:
            lane = each.compile(model.spec, model.file, limits)
        except DoesNotFit as reason:
            rows.append((name, "-", str(reason), "-"))
            continue
        with Executor(each, lane, limits, "gpu_check", is_guest=True) as executor:
            held, done = executor.resident_bytes, run(executor, model.spec.n_vocab, size)
            rows.append((name, f"{done.prompt_tok_s:.1f}", f"{done.decode_tok_s:.1f}", megabytes(held)))
    return rows


def profile_for(device: CudaDevice, model: Model) -> Profile:
    """Rates of the CPU and the card together: measured, or assumed for the simulator."""
    if device.driver.simulated:  # models on the simulator are so small that only launches would count
        found = machine_profile(ASSUMED)
        link = replace(found.accelerators[0].link or Link(1e9, 1e9, 0.0), latency_s=0.0)
        card = replace(found.accelerators[0], op_s=0.0, pass_s=0.0, link=link)
        cpu = replace(found.cpu, op_s=0.0, pass_s=0.0, read=card.read, products=card.products)
        return replace(found, devices=(cpu, card))
    topology, formats = read_topology(), work_of(model.spec, model.file.tensors).formats[:2]
    return combined_profile(("cpu", "cuda"), topology, topology.workers(), formats, no_progress)


def shared_rows(device: CudaDevice, model: Model, size: Size) -> tuple[list[tuple[object, ...]], int]:
    """A model shared in every way, with room on the card for half of its weights; also returns that limit in bytes.

    Logits are compared with those of the CPU alone.
    """
    limits, work = limits_for(size), work_of(model.spec, model.file.tensors)
    whole = footprint(model.spec, model.file.tensors, limits)
    largest = max(stage.shape.weight_bytes for stage in work.stages if stage.shape.attention is not None)
    room = whole.kv_bytes + whole.weight_bytes // 2
    limit = round(room + largest + 2 * whole.buffer_bytes)
    budgets = Budgets(float(available_bytes()), {"cuda": float(room)})
    depth = size.n_prompt + size.n_decoded // 2
    task = PlanningTask(
        profile_for(device, model), work, Pass(1, depth), Caching(limits.n_context, 1, limits.kv), budgets
    )
    rows: list[tuple[object, ...]] = []
    expected: Floats | None = None
    for name, way in WAYS.items():
        label = f"{name}: {way}"
        try:
            row, logits = _shared(CudaDevice(device.driver, limit), model, scheduled(name, task), limits, size)
        except EdgeInferError as reason:
            rows.append((label, *[""] * 8, str(reason), "does not fit" if isinstance(reason, DoesNotFit) else "WRONG"))
            continue
        expected = logits if expected is None else expected
        error = float(np.linalg.norm(logits - expected) / max(float(np.linalg.norm(expected)), 1e-9))
        rows.append((label, *row, f"{error:.1e}", "right" if error < TOLERANCE else "WRONG"))
    return rows, limit


def _shared(
    cuda: CudaDevice, model: Model, plan: MachinePlan, limits: Limits, size: Size
) -> tuple[tuple[str, ...], Floats]:
    """Run one way; returns all columns except name and verdict, and the logits."""
    work = work_of(model.spec, model.file.tensors)
    kept = sum(
        part.n_rows * product.columns * product.bytes_per_weight
        for stage, placed in zip(work.stages, plan.placement.stages, strict=True)
        for product, parts in zip(stage.shape.products, placed.products, strict=True)
        for part in parts
        if part.device == "cuda" and part.held == "own"
    )
    with ExitStack() as open_:
        cpu: Device = open_device("cpu", DeviceOptions(cores=read_topology().workers()))
        open_.callback(cpu.close)
        names = plan.placement.devices
        device: Device = Together(model.spec, cpu, {"cuda": cuda}, plan.placement)
        device = device if len(names) > 1 else cuda if names == ("cuda",) else cpu
        lane = device.compile(model.spec, model.file, limits)
        with Executor(device, lane, limits, "gpu_check", is_guest=True) as executor:
            parts = _cuda_parts(lane)
            held, sent = sum(part.resident_bytes for part in parts), parts[0].streamed_bytes if parts else 0
            done = run(executor, model.spec.n_vocab, size)
            overlap = "" if executor.shared is None else f"{100 * executor.shared.timeline.overlap:.0f} %"
    planned = (100 * n_bytes / work.weight_bytes for n_bytes in (kept, plan.usage.streamed_bytes))
    columns = *(f"{share:.0f} %" for share in planned), megabytes(held), megabytes(sent)
    speeds = f"{done.prompt_tok_s:.1f}", f"{done.decode_tok_s:.1f}", f"{1 / plan.seconds:.1f}"
    return (*columns, *speeds, overlap), done.logits


def _cuda_parts(lane: Lane) -> list[CudaFragmentLane]:
    """The parts of a lane that are on the card."""
    if isinstance(lane, CudaLane):
        return [lane.part]
    return [each for each in lane.parts if isinstance(each, CudaFragmentLane)] if isinstance(lane, SharedLane) else []
