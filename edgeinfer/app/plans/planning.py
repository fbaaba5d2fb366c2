"""Plans a model on this machine or on another one: where it runs, and how fast.

In: a profile, the work of a model, context, sequences, memory, a schedule's name. Out: a `Planned`. Loads no weights
and runs nothing; the same code plans for this machine and for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, get_args

from edgeinfer.engine.measure.profiles import Adjustment
from edgeinfer.engine.opening.plan_choice import N_DECODED, N_PROMPT
from edgeinfer.engine.run.workers import CorePlans, core_plans, worker_pools_of
from edgeinfer.errors import BadSetting, UnknownKey
from edgeinfer.scheduling.batch.costs import BatchCosts, SequenceGroup
from edgeinfer.scheduling.batch.schedules import NAMES as BATCH_NAMES
from edgeinfer.scheduling.batch.schedules import Prediction, choose
from edgeinfer.scheduling.cost.memory import MemoryNeed
from edgeinfer.scheduling.cost.seconds import Pass, chunks
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import CPU, Profile
from edgeinfer.scheduling.machine.topology import CoreKind
from edgeinfer.scheduling.offload.streaming import StreamedModel, beside_reading
from edgeinfer.scheduling.placement.budgets import Budgets, Caching, Usage, budgets_of
from edgeinfer.scheduling.placement.machine_plan import prefill_placement
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.scheduling.placement.planner import MachinePlan, PlanningTask
from edgeinfer.scheduling.placement.schedules import SCHEDULES, scheduled
from edgeinfer.scheduling.placement.step_time import PassTime, step_time
from edgeinfer.scheduling.prediction import MOST_TOKENS, reading_tokens
from edgeinfer.scheduling.workers.core_plan import NodePlan, replica_plan
from edgeinfer.scheduling.workers.governor import Condition, Governor
from edgeinfer.scheduling.workers.shared_rates import with_cores
from edgeinfer.settings import CTX_CAP, KVKind

VERIFIED = 8

Goal = Literal["latency", "throughput", "quiet"]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan for. `ram_bytes`: machine memory for weights; `vram_bytes`: memory of each accelerator; None: all.

    goal         latency: least time for one sequence; throughput: most tokens in total (several nodes may get a replica
                 each); quiet: as many cores and as much of the time as that mode allows
    cores        of the CPU; None for all that help
    most_tokens  of a prompt in one pass
    kv_budget    cached tokens that tokens of answers attend to; 0: all
    """

    n_context: int = CTX_CAP
    kv: KVKind = "f16"
    n_sequences: int = 1
    ram_bytes: int | None = None
    vram_bytes: int | None = None
    schedule: str = "auto"
    goal: Goal = "latency"
    cores: tuple[int, ...] | None = None
    most_tokens: int = MOST_TOKENS
    kv_budget: int = 0


@dataclass(frozen=True, slots=True)
class DeepPass:
    """A pass of one token after `n_cached` ones: seconds within the budget, and with attention to all of them."""

    n_cached: int
    within_s: float
    whole_s: float


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with its predictions.

    batch        how several sequences share an accelerator, if a batch schedule was requested
    prefill      the passes of a prompt of `n_prompt` tokens, whose rows may be placed differently from those of decode
    verify       a pass over VERIFIED tokens
    adjustment   correction of predicted pass times by answers on this machine
    cores        used in decode and in prefill, if single cores are known
    nodes        whether each NUMA node should have a replica, if throughput was requested
    duty         share of the time that is spent computing
    refused      why the requested devices are not used together: predicted to answer later than this plan; else ""
    kept         which weights stay in memory, if the CPU reads the others in every pass
    deep         decoding at the end of the context, if answers have a budget of attention
    """

    profile: Profile
    decode: MachinePlan
    prefill_placement: Placement
    prefill: tuple[PassTime, ...]
    verify: PassTime
    n_prompt: int
    n_sequences: int
    batch: Prediction | None = None
    adjustment: Adjustment = field(default_factory=Adjustment)
    cores: CorePlans | None = None
    nodes: NodePlan | None = None
    duty: float = 1.0
    refused: str = ""
    kept: StreamedModel | None = None
    deep: DeepPass | None = None

    @property
    def answer_s(self) -> float:
        """Seconds for the prompt and N_DECODED tokens after it, counting passes only."""
        return sum(step.seconds for step in self.prefill) + N_DECODED * self.decode.seconds

    @property
    def prefill_s(self) -> float:
        return self.adjustment.prompt_s(sum(step.seconds for step in self.prefill)) / self.duty

    @property
    def prefill_tok_s(self) -> float:
        return self.n_prompt / self.prefill_s

    @property
    def decode_tok_s(self) -> float:
        """Total of all sequences."""
        if self.batch is not None:
            return self.batch.tok_s
        found = self.n_sequences / self.adjustment.tokens_s(self.decode.seconds, self.n_sequences) * self.duty
        return found if self.nodes is None else max(found, self.nodes.tok_s)

    @property
    def ttft_s(self) -> float:
        """Seconds until the first token of the answer, which is chosen at the end of the last prefill pass."""
        return self.prefill_s

    def need(self, whole: MemoryNeed) -> MemoryNeed:
        """The machine memory that a model takes: its `whole` need minus what accelerators hold."""
        usage = self.decode.usage
        weight_bytes = int(usage.ram_weight_bytes)
        kv_bytes = int(usage.ram_bytes) - weight_bytes
        return replace(whole, weight_bytes=weight_bytes + whole.encoder_bytes, kv_bytes=kv_bytes)

    @property
    def vram_bytes(self) -> int:
        return int(sum(self.decode.usage.vram_bytes.values()))

    @property
    def flash_bytes_per_token(self) -> int:
        return int(self.decode.usage.flash_bytes / self.n_sequences)


def plan_streamed(profile: Profile, work: ModelWork, wanted: PlanRequest, kept: StreamedModel) -> Planned:
    """Plan a model of which the CPU reads a part from disk in every pass. Raises ValueError without a disk."""
    if profile.disk is None:
        raise ValueError("weights are to be read from a disk that nothing is known of")
    disk, alone = profile.disk, replace(profile, devices=(profile.cpu,))
    planned = plan_model(alone, work, replace(wanted, schedule="cpu", ram_bytes=None), fits=True)
    decode, caching = planned.decode, Caching(wanted.n_context, wanted.n_sequences, wanted.kv)
    caches = sum(caching.stage_bytes(stage.shape) for stage in work.stages)
    passes = chunks(planned.n_prompt, wanted.most_tokens)

    def waiting(time: PassTime, n_tokens: int) -> PassTime:
        streamed = kept.streamed
        return beside_reading(time, streamed.ahead_s(disk, n_tokens), streamed.record_reads(n_tokens).seconds)

    usage = Usage(kept.held_bytes + caches, {}, kept.flash_bytes, 0.0, kept.held_bytes)
    return replace(
        planned,
        profile=profile,
        decode=replace(decode, schedule=wanted.schedule, time=waiting(decode.time, wanted.n_sequences), usage=usage),
        prefill=tuple(waiting(time, step.n_tokens) for time, step in zip(planned.prefill, passes, strict=True)),
        verify=waiting(planned.verify, VERIFIED),
        nodes=None,
        kept=kept,
    )


def plan_model(profile: Profile, work: ModelWork, wanted: PlanRequest, *, fits: bool = False) -> Planned:
    """Plan a model. Raises DoesNotFit, saying by how much and what would fit, and UnknownKey for an unknown schedule.

    `fits`: plan as if there were memory for everything.
    """
    check_schedule(wanted.schedule)
    cores, duty = _taking_part(profile, wanted)
    machine = profile if cores is None else with_cores(profile, cores)
    decoding = reading = machine
    if not machine.accelerators or wanted.schedule == "cpu":
        decoding, reading = worker_pools_of(profile, work, wanted.kv, cores)
    n_prompt = max(1, min(N_PROMPT, wanted.n_context - 1))
    caching = Caching(wanted.n_context, wanted.n_sequences, wanted.kv)
    step = Pass(1, n_prompt, 1, wanted.n_sequences, wanted.kv_budget)
    task = PlanningTask(decoding, work, step, caching, Budgets(inf) if fits else _budgets(machine, work, wanted))
    is_batch = wanted.schedule in BATCH_NAMES
    decode = scheduled("auto" if is_batch else wanted.schedule, task)
    passes = chunks(n_prompt, reading_tokens(profile, work, decode.placement, wanted.most_tokens))
    prefill = prefill_placement(task, decode.placement, passes[0]) if wanted.schedule == "auto" else decode.placement
    times = tuple(step_time(reading, work, prefill, each, wanted.kv) for each in passes)
    verified = Pass(VERIFIED, n_prompt, VERIFIED, budget=wanted.kv_budget)
    return Planned(
        profile,
        decode,
        prefill,
        times,
        step_time(decoding, work, decode.placement, verified, wanted.kv),
        n_prompt,
        wanted.n_sequences,
        _batch(machine, work, wanted, n_prompt) if is_batch else None,
        cores=core_plans(profile.cpu, work, wanted.kv, cores),
        nodes=_nodes(machine, work, wanted, step),
        duty=duty,
        deep=_deep(decoding, work, decode.placement, wanted) if wanted.kv_budget else None,
    )


def _deep(profile: Profile, work: ModelWork, placement: Placement, wanted: PlanRequest) -> DeepPass:
    """Decoding at the end of the context."""
    whole = Pass(1, max(1, wanted.n_context - 1))
    within = replace(whole, budget=wanted.kv_budget)
    within_s, whole_s = (step_time(profile, work, placement, step, wanted.kv).seconds for step in (within, whole))
    return DeepPass(whole.n_cached, within_s, whole_s)


def plan_devices(together: Profile, alone: Mapping[str, Profile], work: ModelWork, wanted: PlanRequest) -> Planned:
    """Plan a model for several devices, or for the one of them that alone is predicted to answer sooner, as `run` does.

    `alone`: profiles of the machine with each device working alone. Raises as `plan_model`.
    """
    planned = plan_model(together, work, wanted)
    if wanted.schedule != "auto" or wanted.n_sequences > 1:
        return planned
    best, working = planned, "+".join(rates.name for rates in together.devices)
    for name, profile in alone.items():
        schedule = "cpu" if name == CPU else "accelerator"
        other = plan_model(profile, work, replace(wanted, schedule=schedule))
        if other.answer_s <= best.answer_s:
            said = (
                f"{working} would decode {planned.decode_tok_s:.0f} tok/s after a prompt in {planned.prefill_s:.2f} s"
            )
            best = replace(other, refused=f"{said}; {name} alone answers sooner, --schedule rows uses them together")
    return best


def read_goal(text: str) -> Goal:
    """A goal by its name. Raises BadSetting."""
    goals: tuple[Goal, ...] = get_args(Goal)
    for goal in goals:
        if goal == text:
            return goal
    raise BadSetting(f"--goal cannot be {text!r}; choose from {', '.join(goals)}")


def _taking_part(profile: Profile, wanted: PlanRequest) -> tuple[tuple[int, ...] | None, float]:
    """The cores requested or allowed by the goal (None: all), and the share of the time they compute."""
    cores = profile.cpu.cores
    if wanted.cores is not None or wanted.goal != "quiet" or not cores:
        return wanted.cores, 1.0
    kinds: list[CoreKind] = [kind_of(core.kind) for core in cores]
    policy = Governor("quiet", kinds).policy(Condition())
    ranks = policy.ranks or (0,) * len(cores)
    order = sorted(range(len(cores)), key=lambda place: (ranks[place], -cores[place].speed))
    return tuple(cores[place].number for place in order[: policy.most_workers]), policy.duty


def _nodes(profile: Profile, work: ModelWork, wanted: PlanRequest, step: Pass) -> NodePlan | None:
    """One worker pool or a replica on each node, if throughput is the goal and there is no accelerator."""
    if wanted.goal != "throughput" or profile.accelerators:
        return None
    return replica_plan(profile.cpu, work, step, wanted.n_context, wanted.kv)


def schedule_names() -> tuple[str, ...]:
    """All values of --schedule."""
    return (*SCHEDULES, *BATCH_NAMES)


def check_schedule(name: str) -> None:
    """Raise UnknownKey for an unknown schedule."""
    if name not in schedule_names():
        raise UnknownKey(f"no schedule is called {name!r}; edgeinfer has: {', '.join(schedule_names())}")


def _budgets(profile: Profile, work: ModelWork, wanted: PlanRequest) -> Budgets:
    available = profile.cpu.memory_bytes
    vram = {} if wanted.vram_bytes is None else {rates.name: wanted.vram_bytes for rates in profile.accelerators}
    weights = inf if wanted.ram_bytes is None else wanted.ram_bytes
    return budgets_of(
        profile, work, available, most_rows=MOST_TOKENS, available_vram_bytes=vram, ram_weight_bytes=weights
    )


def kind_of(text: str) -> CoreKind:
    """The kind of core that a profile names; an unknown one counts as a performance core."""
    kinds: tuple[CoreKind, ...] = get_args(CoreKind)
    return next((kind for kind in kinds if kind == text), "performance")


def _batch(profile: Profile, work: ModelWork, wanted: PlanRequest, n_prompt: int) -> Prediction:
    """How several sequences are decoded with one accelerator. Raises BadSetting if there is nothing to share."""
    if wanted.n_sequences < 2 or not profile.accelerators:
        raise BadSetting(
            f"--schedule {wanted.schedule} shares several sequences between a CPU and an accelerator; "
            "give --batch with 2 or more, and a machine that has one (--machine)"
        )
    costs = BatchCosts(_with_memory(profile, wanted.vram_bytes), work, wanted.kv)
    depth = n_prompt + 1
    n_resident = min(wanted.n_sequences, costs.device_tokens // depth)
    n_offloaded = min(wanted.n_sequences - n_resident, costs.host_tokens // depth)
    groups = [SequenceGroup(n, n * depth) for n in (n_resident, n_offloaded)]
    return choose(costs, groups[0], groups[1], BATCH_NAMES[wanted.schedule])


def _with_memory(profile: Profile, vram_bytes: int | None) -> Profile:
    """The machine with each accelerator's memory limited to `vram_bytes`."""
    if vram_bytes is None:
        return profile
    accelerators = (replace(rates, memory_bytes=min(rates.memory_bytes, vram_bytes)) for rates in profile.accelerators)
    return replace(profile, devices=(profile.cpu, *accelerators))
