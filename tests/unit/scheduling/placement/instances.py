"""Small random machines and models for tests of the planner, drawn by hypothesis or from a seed."""

from __future__ import annotations

import random
from itertools import pairwise

from edgeinfer.graph.op import AttentionHeads
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape
from edgeinfer.scheduling.machine.profile import (
    CPU,
    AttentionRates,
    Curve,
    DeviceRates,
    Disk,
    Link,
    ProductRates,
    Profile,
)
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.machine_plan import PlanningTask
from edgeinfer.scheduling.placement.placement import Held, Placement, RowRange, StagePlacement
from tests.unit.scheduling.placement.models import decoder


def log(source: random.Random, low: float, high: float) -> float:
    """A number between, as often small as large."""
    return float(low * (high / low) ** source.random())


def small_task(seed: int, n_devices: int | None = None) -> PlanningTask:
    """One to three layers on a CPU and one or two accelerators, with budgets that mostly bind."""
    source = random.Random(seed)
    profile = small_machine(source, n_devices or source.choice((2, 2, 3)))
    width = source.choice((512, 1024, 2048))
    ram = source.choice((0.4, 0.8, 2.0, 2.0))
    n_layers = source.randint(1, 3 if ram > 1 and len(profile.devices) == 2 else 2)
    shapes = [small_layer(source, width) for _ in range(source.randint(1, 2))]
    work = decoder([source.choice(shapes) for _ in range(n_layers)], width, source.choice((0, 8192)))
    caching = Caching(source.choice((64, 1024, 16384)), source.choice((1, 1, 8)))
    step = Pass(1, caching.n_context // 2, 1, caching.n_sequences)
    return PlanningTask(profile, work, step, caching, small_budgets(source, profile, work, caching, ram))


def small_layer(source: random.Random, width: int) -> StageShape:
    """A layer of three products, two of which may read the same value."""
    heads = width // 64
    kv_heads = source.choice((heads, heads // 4))
    form = source.choice((("Q4_K", 0.5625), ("F16", 2.0)))
    ffn = width * source.choice((1, 3))
    kinds = [("attn_q", width, width), ("attn_v", 128 * kv_heads, width), ("ffn_up", ffn, width)]
    if source.random() < 0.5:
        kinds = [("attn_qkv", width + 128 * kv_heads, width), ("ffn_up", ffn, width), ("ffn_down", width, ffn)]
    products = tuple(MatMulWork(kind, *form, n_rows, columns) for kind, n_rows, columns in kinds)
    return StageShape(products, AttentionHeads(heads, kv_heads, 64, 64), 4 * width, len(kinds) + 5)


def small_machine(source: random.Random, n_devices: int) -> Profile:
    """Rates of any ratio; a disk half of the time."""
    names = [CPU, *(f"accelerator{number}" for number in range(1, n_devices))]
    disk = Disk({1: Curve.level(log(source, 0.3e9, 10e9))}) if source.random() < 0.5 else None
    return Profile("random", tuple(_device(source, name) for name in names), disk)


def _device(source: random.Random, name: str) -> DeviceRates:
    read = log(source, 5e9, 100e9) if name == CPU else log(source, 20e9, 1000e9)
    rate = read * log(source, 1, 30)
    speed = log(source, 1e-7, 3e-5)
    link = None if name == CPU else Link(log(source, 1e9, 60e9), log(source, 1e9, 60e9), log(source, 1e-7, 5e-5))
    return DeviceRates(
        name=name,
        kind="random",
        memory_bytes=1 << 40,
        read=Curve.level(read),
        products={"*": ProductRates(1.0, Curve((1, 8), (rate, 4 * rate)))},
        attention=(AttentionRates(64, Curve.level(rate), speed),),
        element_rate=Curve.level(rate),
        op_s=speed,
        pass_s=log(source, 1e-7, 1e-5),
        link=link,
    )


def small_budgets(source: random.Random, profile: Profile, work: ModelWork, caching: Caching, ram: float) -> Budgets:
    """Memories from much too small to ample; `ram`: how often the model and its caches fit into RAM."""
    total = work.weight_bytes + sum(caching.stage_bytes(stage.shape) for stage in work.stages)
    vram = {rates.name: total * log(source, 0.1, 1.5) for rates in profile.accelerators}
    return Budgets(total * ram, vram)


def random_placement(seed: int, task: PlanningTask) -> Placement:
    """Any placement: homes, attention and parts by chance, whether they fit or not."""
    source = random.Random(seed)
    names = [rates.name for rates in task.profile.devices]
    stages = []
    for stage in task.work.stages:
        products = tuple(_random_parts(source, product.n_rows, task) for product in stage.shape.products)
        attention = source.choice(names) if stage.shape.attention is not None else None
        stages.append(StagePlacement(source.choice(names), products, attention))
    return Placement(tuple(stages))


def _random_parts(source: random.Random, n_rows: int, task: PlanningTask) -> tuple[RowRange, ...]:
    cuts = sorted({0, n_rows, *(source.randint(0, n_rows) for _ in range(source.randint(0, 3)))})
    parts = []
    for start, stop in pairwise(cuts):
        device = source.choice(task.profile.devices).name
        held: list[Held] = ["own"] if device == CPU else ["own", "streamed"]
        held += ["flash"] if task.profile.disk is not None else []
        parts.append(RowRange(device, start, stop, source.choice(held)))
    return tuple(parts)
