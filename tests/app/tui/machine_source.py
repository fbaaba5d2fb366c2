"""A machine that is only told of: readings as records, for tests of what is drawn from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from edgeinfer.app.readings.records import (
    CoreReading,
    Cores,
    DraftCount,
    DraftingReading,
    Energy,
    MemoryReading,
    PlanStrip,
    Reached,
    Roofline,
    StoredReading,
    Stretch,
)

STORED = StoredReading(1_200_000_000, 2_300_000_000, 0, 80_000_000, 12, 31, 2.3e9, 2.1e9, 0.83)
LAYERS = 30


def one_device(n_read: int = 0) -> PlanStrip:
    """Thirty layers and a head on the cpu; the last `n_read` layers come from disk."""
    layers = [Stretch("cpu", f"blk.{n}", n * 1e-4, (n + 1) * 1e-4, float(n >= LAYERS - n_read)) for n in range(LAYERS)]
    head = Stretch("cpu", "head", 3e-3, 4e-3)
    kinds = (("products", 3.5e-3), ("attention", 4e-4), ("others", 1e-4))
    return PlanStrip("SmolLM2-135M", "cpu", (*layers, head), 4e-3, "measured", kinds, stored=STORED if n_read else None)


TWO_DEVICES = PlanStrip(
    "Qwen3-8B",
    "cpu+cuda",
    (
        Stretch("cpu", "embed", 0.0, 1e-3),
        Stretch("cuda", "blk.0 to blk.20", 1e-3, 6e-3),
        Stretch("cpu", "blk.21 to head", 5e-3, 10e-3),
    ),
    10e-3,
    "measured",
    overlap=0.2,
)
ROOFLINE = Roofline((Reached("prefill", 2e11, 2e9), Reached("decode", 3e10, 30e9)), 2.8e11, 40e9)
CORES = Cores(
    (
        CoreReading(0, "performance", False, 0.4, 1.0, 0.97, 4.8e9),
        CoreReading(1, "performance", False, 0.4, 0.98, 0.95, 4.8e9),
        CoreReading(2, "efficiency", False, 0.2, 0.51, 0.9, 3.2e9),
        CoreReading(3, "low-power", False, None, None, 0.02, 0.8e9),
    ),
    3,
    4,
    2.7e-3,
)
MEMORY = MemoryReading(1_500_000_000, 6 * 10**9, 16 * 10**9, 1_100_000_000, 30_000_000, 200_000_000, 1280, 8448)
DRAFTING = DraftingReading(
    True,
    (("recycling", DraftCount(45, 9)), ("ngram", DraftCount(20, 12))),
    (("ngram", DraftCount(200, 120)), ("recycling", DraftCount(450, 90))),
    1.45,
    2.6e-3,
    ((1, 1.0), (2, 1.12), (4, 1.35), (8, 2.31), (16, 5.2), (32, 10.8), (64, 38.6)),
)
ENERGY = Energy(0.12, 14.2, "balanced", "balanced: all cores", True, 80.0, 71.0, 95.0)


@dataclass(slots=True)
class Told:
    """A `screens.machine.Source` of fixed records, which counts how often it was asked for each."""

    plans: PlanStrip = field(default_factory=one_device)
    rooflines: Roofline = ROOFLINE
    all_cores: Cores = CORES
    memories: MemoryReading = MEMORY
    drafted: DraftingReading = DRAFTING
    energies: Energy = ENERGY
    can_time_stages: bool = True
    is_free: bool = True
    asked: Counter[str] = field(default_factory=Counter)

    def plan(self) -> PlanStrip:
        self.asked["plan"] += 1
        return self.plans

    def roofline(self) -> Roofline:
        self.asked["roofline"] += 1
        return self.rooflines

    def cores(self) -> Cores:
        self.asked["cores"] += 1
        return self.all_cores

    def memory(self) -> MemoryReading:
        self.asked["memory"] += 1
        return self.memories

    def drafting(self) -> DraftingReading:
        self.asked["drafting"] += 1
        return self.drafted

    def energy(self) -> Energy:
        self.asked["energy"] += 1
        return self.energies

    def time_stages(self) -> bool:
        self.asked["time_stages"] += 1
        return self.is_free
