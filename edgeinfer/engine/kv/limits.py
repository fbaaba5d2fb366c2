"""How large a lane must be: the context a model runs with, its KV pages, and the rows of one pass.

In: trained and requested context, number of sessions. Out: `Limits`, and the memory a device then needs. The planner
and the loader both use this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import psutil

from edgeinfer.backends.base import Limits, kind_of, require_kv
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.errors import BadGGUF, BadSetting
from edgeinfer.graph.budget import most_together
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import SLOTS_IN_PASS, Windows
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import Metadata, TensorInfo
from edgeinfer.models.projector_file import ProjectorFacts
from edgeinfer.models.variants import block_budget_of
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES, MemoryNeed, fitting_states
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES
from edgeinfer.scheduling.machine.topology import available_bytes, machine_memory
from edgeinfer.settings import CTX_CAP, KVKind
from edgeinfer.text_values import size_in_bytes

SPARE_PAGES = 4
"""KV pages beyond whole contexts: for branches that diverge, and for siblings in a draft tree."""
LEAST_BEHIND = 512
"""Least number of positions behind the window that sliding-window layers keep, so that a text can be resumed there;"""
BEHIND_SHARE = 0.125
"""and the same as a share of the context."""


ROWS_AT_ONCE = 256
"""Most rows of an image that are projected in one pass."""


def context_of(n_context_usual: int, n_context: int | None) -> int:
    """The context in tokens: the requested one, else the usual one of the model, CTX_CAP at most.

    The usual one is what the model was trained for, or less if longer texts need other rotary factors (LongRoPE).
    """
    return n_context or min(n_context_usual, CTX_CAP)


def limits_for(n_context: int, n_sessions: int = 1, kv: KVKind = "f16", spec: ModelSpec | None = None) -> Limits:
    """Limits with room for the whole context of `n_sessions` sessions; with `spec`, its windows may keep less.

    Rows of an image that see each other have room in one pass, beside a token of each answer.
    """
    limits = Limits(n_context, n_sessions * pages_for(n_context) + SPARE_PAGES, kv=kv)
    if spec is None:
        return limits
    if spec.most_whole:
        most = min(spec.most_whole + limits.max_outputs, n_context)
        limits = replace(limits, max_tokens=max(limits.max_tokens, most))
    return replace(limits, windows=_windows(spec, limits, n_sessions))


def with_budget(limits: Limits, spec: ModelSpec | None, kv_budget: int | None) -> Limits:
    """Limits for answers whose tokens have a budget of attention, if any, and for prompts whose blocks have one.

    Raises BadSetting for a model in which nothing would be left out.
    """
    limits = replace(limits, whole_blocks=spec is not None and block_budget_of(spec) is not None)
    if kv_budget is None:
        return limits
    ops = () if spec is None else tuple(op for op in spec.ops() if isinstance(op, Attention))
    if spec is None or not spec.is_causal or all(op.window is not None for op in ops):
        what = "reads texts as a whole" if ops and spec is not None and not spec.is_causal else "keeps a window of it"
        name = "this model" if spec is None else spec.architecture
        raise BadSetting(
            f"approx kv={kv_budget} has nothing to leave out of what is cached: {name} {what}; leave it out"
        )
    if any(op.spans and op.window is None for op in ops):
        raise BadSetting(
            f"approx kv={kv_budget} is not for {spec.architecture} with images, whose rows see each other in layers "
            "without a window; leave it out, or load the model for texts alone"
        )
    return replace(limits, budgets=True, kv_budget=kv_budget)


def with_kv_ram(limits: Limits, kv_ram: int | None) -> Limits:
    """Limits with so many bytes of keys and values in memory and the rest on disk; None: all in memory."""
    return replace(limits, kv_ram=kv_ram or 0)


def _windows(spec: ModelSpec, limits: Limits, n_sessions: int) -> Windows | None:
    """What sliding-window layers keep: the window, room for a pass, and positions to go back to."""
    reaches = [layer.window for layer in spec.kv if layer.window is not None and layer.window < limits.n_context]
    if not reaches or not spec.is_causal or spec.states:
        return None
    tokens, n_spare = max(reaches), SPARE_PAGES + 2 * pages_for(limits.max_tokens)
    each = 1 + pages_for(tokens + limits.max_tokens + positions_behind(limits.n_context))
    n_pages = n_sessions * each + n_spare
    return Windows(tokens, n_pages, n_spare) if n_pages < limits.n_pages else None


def positions_behind(n_context: int) -> int:
    """Positions behind the window that sliding-window layers keep."""
    return max(LEAST_BEHIND, int(BEHIND_SHARE * n_context))


def limits_on(device: str, spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Limits:
    """Limits of a model on a device; drops `windows` if the device keeps whole contexts anyway. Raises UnknownKey."""
    keeps_less = limits.windows is not None and memory_need(device, spec, tensors, limits).window_bytes > 0
    return limits if keeps_less else replace(limits, windows=None)


def limits_with_states(
    device: str,
    spec: ModelSpec,
    tensors: Mapping[str, TensorInfo],
    limits: Limits,
    available: int,
    n_sequences: int = 1,
    held_bytes: int | None = None,
) -> Limits:
    """Limits with fewer slots for states if memory is short, but enough for a pass of `n_sequences`.

    The slots dropped are those of checkpoints, so going back in a text reads more of it again. `held_bytes`: the most
    that weights take. Raises UnknownKey.
    """
    need = memory_need(device, spec, tensors, limits)
    if held_bytes is not None:
        need = replace(need, weight_bytes=min(need.weight_bytes, held_bytes))
    n_states = max(fitting_states(need, available), min(need.n_states, SLOTS_IN_PASS * n_sequences))
    return limits if n_states == need.n_states else replace(limits, n_states=n_states)


def pass_limits(spec: ModelSpec, limits: Limits) -> tuple[Limits, tuple[str, ...]]:
    """Limits with the most sequences per pass that the slots allow, two states each (current and written); notices."""
    if not spec.states:
        return limits, ()
    n_slots, n_useful = limits.state_slots(spec.states), replace(limits, n_states=0).state_slots(spec.states)
    found = replace(limits, n_sequences=max(1, n_slots // SLOTS_IN_PASS))
    if n_slots == n_useful:
        return found, ()
    of_states = f"memory has room for {n_slots} of the {n_useful} states that are of use"
    return found, (f"{of_states}: going back in a text may mean reading all of it again",)


def memory_for_model() -> int:
    """Bytes that a model and the program that runs it may take: available memory plus what the program has already.

    At most all memory: of a container the program may have pages that do not count there, as others read them too.
    """
    memory, rss_bytes = machine_memory(), int(psutil.Process().memory_info().rss)
    found = memory.available_bytes + min(rss_bytes, PROGRAM_BYTES)
    return min(found, memory.total_bytes) if memory.total_bytes else found


def weights_bytes(memory: str | int) -> int:
    """The weight budget in bytes, from a size such as "3GB" or a share of available memory. Raises BadSetting."""
    return memory if isinstance(memory, int) else size_in_bytes(memory, available_bytes())


def memory_need(device: str, spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> MemoryNeed:
    """The memory a device needs for a model under these limits, from the header alone; of several devices, the largest.

    Raises UnknownKey, and BadSetting for a KV cache that a device cannot have.
    """
    require_kv(device, limits.kv)
    names = device.split(",")
    if len(names) > 1:
        limits = replace(limits, windows=None)  # what several devices share is kept whole
    needs = [kind_of(name).footprint(spec, tensors, limits) for name in names]
    taken = max(needs, key=lambda need: need.weight_bytes + need.kv_bytes + need.buffer_bytes + need.state_bytes)
    weight_bytes = taken.weight_bytes if limits.stored is None else limits.stored.held_bytes
    return MemoryNeed(
        weight_bytes,
        taken.kv_bytes_per_token,
        taken.kv_bytes + taken.state_bytes,
        taken.buffer_bytes,
        limits.n_context,
        taken.state_bytes,
        taken.window_bytes,
        taken.bytes_per_state,
        limits.state_slots(spec.states) if taken.bytes_per_state else 0,
        min(taken.buffer_bytes, _draft_bytes(spec, limits)),
        kv_file_bytes=taken.kv_file_bytes,
    )


def encoder_limits(spec: ModelSpec) -> Limits:
    """Limits for one of the graphs of an encoder: a pass has a tile, or some of its rows without attention."""
    n_most = spec.n_context_trained
    if not spec.kv:
        n_most = min(n_most, ROWS_AT_ONCE)
    return Limits(n_most, pages_for(n_most), max_tokens=n_most, max_outputs=n_most)


def with_encoder(need: MemoryNeed, device: str, projector: ProjectorFacts) -> MemoryNeed:
    """The need of a model with that of its encoders. Raises as `memory_need`."""
    specs = projector.encoders.graphs
    return need.with_encoder(*(memory_need(device, spec, projector.tensors, encoder_limits(spec)) for spec in specs))


def encoder_bytes(device: str, projector: ProjectorFacts | None) -> int:
    """Bytes that encoders take beside their model; 0 for None. Raises as `memory_need`."""
    none = MemoryNeed(0, 0, 0, 0, 0)
    return 0 if projector is None else with_encoder(none, device, projector).beside_bytes


def _draft_bytes(spec: ModelSpec, limits: Limits) -> int:
    """Bytes of rows of logits beyond one: float32[max_outputs - 1, V]; 0 for a model without logits."""
    return 4 * spec.output_width * (limits.max_outputs - 1) if spec.is_causal else 0


def unknown_need(metadata: Metadata, tensors: Mapping[str, TensorInfo], limits: Limits) -> MemoryNeed:
    """The memory need of a model of which only the header is understood: its tensors, and a typical KV cache.

    Keys that the header lacks, or has per layer, count as 0: an estimate that is too low is better than refusing a
    model for no reason.
    """
    kind = metadata.text("general.architecture")

    def count(key: str, default: int = 0) -> int:
        try:
            return metadata.integer(f"{kind}.{key}", default)
        except BadGGUF:
            return 0

    heads = count("attention.head_count")
    head_width = count("attention.key_length", count("embedding_length") // heads if heads else 0)
    both_widths = head_width + count("attention.value_length", head_width)
    numbers = count("block_count") * count("attention.head_count_kv", heads) * both_widths
    per_token = int(numbers * KV_ELEMENT_BYTES[limits.kv])
    weight_bytes = sum(info.nbytes for info in tensors.values())
    return MemoryNeed(weight_bytes, per_token, per_token * PAGE * limits.n_pages, 0, limits.n_context)


def n_together(limits: Limits, n_cached: int, n_tokens: int, n_missing: int, n_prompt: int) -> int:
    """How many of `n_tokens` a pass should read, of `n_missing`, for its bits not to depend on what it reads.

    Up to the end of a block, if blocks matter. Tokens after the prompt, if they have a budget: only as many as see no
    more of each other than alone.
    """
    n_more = (n_cached + n_tokens) % PAGE
    if limits.whole_blocks and n_more < n_tokens < n_missing:
        n_tokens -= n_more
    if limits.kv_budget and n_cached + n_tokens > n_prompt:
        n_most = n_prompt - n_cached if n_cached < n_prompt else most_together(n_cached, limits.kv_budget)
        n_tokens = min(n_tokens, n_most)
    return n_tokens
