"""The options for loading a model: one record, passed from the command line and `edgeinfer.load` to the device.

In: nothing. Out: `LoadOptions`. A field declared with `option` is also a setting: its flag, environment variable,
configuration key, help and validation all come from that one line. Does not know what any option does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from edgeinfer.adapter_choice import AdapterChoice, adapter_choices
from edgeinfer.approximation import EXACT, Approximation
from edgeinfer.errors import BadSetting
from edgeinfer.hand_over import USUAL_HAND_OVER, HandOver, hand_over_text
from edgeinfer.setting_groups import CTX_CAP, METADATA_KEY, option
from edgeinfer.setting_values import (
    KVKind,
    Mode,
    Race,
    Reuse,
    SelfDraftBudget,
    Spec,
    adapter_list,
    core_list,
    cost_curve,
    device_names,
    disk_space,
    kv_kind,
    memory_budget,
    memory_size,
    one_of,
    path_list,
    path_text,
    self_draft_choice,
    spec_choice,
    switch,
    text,
    unset_or,
    whole,
)
from edgeinfer.steps import Progress, no_progress
from edgeinfer.text_values import size_in_bytes

ALWAYS_READ = ("approx", "self_draft", "kv", "kv_ram", "hand_over")
"""Options whose values are kept as their readers return them."""


def _callable(value: object) -> object:
    """Read a function."""
    if not callable(value):
        raise ValueError("a function of what is done, how much of it, and how much there is")
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class SequenceSharing:
    """Marks that many sequences are evaluated at a time. `vram_bytes`: accelerator memory to use; None: all of it."""

    vram_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a model is loaded. Raises BadSetting for an invalid value.

    Options available only from Python, not as settings:

    n_sessions  number of conversations whose whole context stays in the KV cache at a time; more may be open, and are
                prefilled again when memory is short
    parallel    number of concurrent requests, whose states must fit in memory; further requests wait
    rows        prompts may contain rows of numbers (`PromptRows`) among their tokens; cpu only
    race        when device "auto" is chosen by trying all devices: "first": at the first use of a model; "after": after
                its first answer, for small models; "never": use the device found earlier, or the cpu
    sharing     the model is for batches, whose sequences two devices share
    progress    called with what is being done, how much of it is done and how much there is
    """

    n_context: int | None = option(
        None,
        "Context length in tokens.",
        unset_or(whole(at_least=1)),
        "N",
        f"what the model was trained for, {CTX_CAP} at most",
        name="ctx",
    )
    approx: Approximation | str | float | None = option(
        None,
        "Not exact: a number such as 0.05 skips neurons with smaller activations; kv=1024 makes tokens of answers "
        "attend to about that many of the cached ones, prefill=2048 those of long prompts. With commas.",
        unset_or(Approximation.parse),
        "NUMBER|kv=N|prefill=N",
        "exact",
    )
    lora: Sequence[str | Path] = option(
        (),
        "Add a LoRA adapter (GGUF), at this scale if one is given; repeatable.",
        adapter_list,
        "FILE[:SCALE]",
        several="repeated",
    )
    mmproj: str | Path = option(
        "auto",
        "Projector file (mmproj-….gguf), with which a model reads images: auto (one beside the model), off, or FILE.",
        path_text,
        "auto|off|FILE",
    )
    chat_template: str | None = option(
        None,
        "Built-in chat template in place of the model's own: chatml, llama3, mistral-v3, gemma, ….",
        unset_or(text),
        "NAME",
        "the model's own",
    )
    chat_template_file: str | Path | None = option(
        None,
        "Jinja file with the chat template to use in place of the model's own.",
        unset_or(path_text),
        "FILE",
        "the model's own",
    )
    spec: Spec = option(
        "auto",
        "Speculative decoding: auto (where it changes no token), on, off, or tokens per pass.",
        spec_choice,
        "auto|on|off|N",
    )
    verify_cost: Mapping[int, float] | None = option(
        None,
        "Override the measured cost of passes, as tokens:relative-time: 4:1.05,8:1.15.",
        unset_or(cost_curve),
        "TOKENS:COST,…",
        "measured",
    )
    draft_from: Sequence[str | Path] = option(
        (),
        "Also draft from text files, folders, a smaller model or a trained head; repeatable.",
        path_list,
        "PATH",
        several="repeated",
    )
    small_model: str | Path | None = option(
        None,
        "Not exact: a smaller model with the same vocabulary writes, and the model only where --hand-over says.",
        unset_or(path_text),
        "MODEL",
    )
    hand_over: str = option(
        USUAL_HAND_OVER,
        "When the model writes in place of --small-model: bild=P,NATS (the small one's best guess is below P, or the "
        "model finds its token improbable), entropy=NATS, or steps=0-9 (it rates sentences).",
        hand_over_text,
        "bild|entropy|steps[=N]",
    )
    self_draft: SelfDraftBudget = option(
        "off",
        "Draft for long texts with the model itself, attending to N cached tokens: auto, off, or N; changes no token.",
        self_draft_choice,
        "auto|off|N",
    )
    history: bool = option(
        False,
        "Save what drafting learns from your texts, on this machine, for later runs.",
        switch,
        setting_default=True,
    )
    prefix_cache: bool = option(
        False,
        "Keep on disk what the model has read, so that no later prompt that begins with it is read again.",
        switch,
        setting_default=True,
    )
    prefix_space: str = option(
        "2GB", "Disk space for prefixes of all models; the least recently used go first.", disk_space, "SIZE"
    )
    reuse: Reuse = option(
        "exact",
        "What of earlier texts is not read again: exact (the same beginning), or shifted (not exact: also text of this "
        "process that stands elsewhere now, as after a changed line).",
        one_of(get_args(Reuse)),
    )
    threads: int | None = option(
        None, "Number of worker threads.", unset_or(whole(at_least=1)), "N", "one per usable core"
    )
    cores: Sequence[int] | None = option(
        None, "CPU cores to use, such as 0,2-5.", unset_or(core_list), "LIST", "all usable ones"
    )
    device: str = option(
        "auto", "auto (the fastest), or comma-separated device names.", device_names, "NAMES", several="with commas"
    )
    schedule: str = option(
        "auto",
        "How devices share a model: auto (predicted fastest), static, rows, ….",
        text,
        "NAME",
    )
    kv: KVKind = option(
        "f16",
        "KV cache type: f16; q8, q8q4 (keys of 8 bits, values of 4) or q4, in 1/2, 2/5 or 1/3 of the memory.",
        kv_kind,
    )
    kv_ram: int | str | None = option(
        None,
        "Memory for the KV cache, such as 500MB; the rest is on disk until it is read again. Needs --approx kv=N.",
        unset_or(memory_size),
        "SIZE",
        "all of it",
    )
    mode: Mode = option(
        "balanced",
        "Power mode: max, balanced (less when hot or low on battery), quiet, or battery.",
        one_of(get_args(Mode)),
    )
    ram_bytes: int | str | None = option(
        None,
        "Memory for weights, such as 3GB or 60% of available memory; the rest is streamed from disk.",
        unset_or(memory_budget),
        "SIZE",
        "all that is needed",
        name="ram",
    )
    packs: bool = option(
        True,
        "Write a bundle file (see edgeinfer pack) if a model does not fit in memory.",
        switch,
        name="pack",
    )
    isolate: bool = option(False, "Run the device in a separate process, which is restarted if it crashes.", switch)
    n_sessions: int = 1
    parallel: int | None = None
    rows: bool = False
    race: Race = "never"
    sharing: SequenceSharing | None = None
    progress: Progress = no_progress

    @property
    def handing_over(self) -> HandOver:
        """When the model writes in place of a small one."""
        return HandOver.parse(self.hand_over)

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices named in `device`."""
        return tuple(self.device.split(","))

    @property
    def approximation(self) -> Approximation:
        """What `approx` leaves out."""
        return self.approx if isinstance(self.approx, Approximation) else EXACT

    @property
    def adapters(self) -> tuple[AdapterChoice, ...]:
        """The adapters named in `lora`."""
        return adapter_choices(self.lora)

    def with_adapters(self, files: Sequence[Path]) -> LoadOptions:
        """These options with adapters of the model's own, before those named in `lora`."""
        return dataclasses.replace(self, lora=(*files, *self.lora)) if files else self

    @property
    def for_others(self) -> LoadOptions:
        """These options without a projector file and a small model, which belong to one model."""
        mmproj = self.mmproj if self.mmproj in ("auto", "off") else "auto"
        if (mmproj, None) == (self.mmproj, self.small_model):
            return self
        return dataclasses.replace(self, mmproj=mmproj, small_model=None)

    @property
    def prefix_bytes(self) -> int:
        """Disk space for prefixes; 0: none are kept there."""
        is_kept = self.prefix_cache and self.prefix_space != "0"
        return size_in_bytes(self.prefix_space, 0) if is_kept else 0

    @property
    def kv_ram_bytes(self) -> int | None:
        """Memory for the KV cache; None: all of it is there."""
        return self.kv_ram if self.kv_ram is None else size_in_bytes(str(self.kv_ram), 0)

    @property
    def core_numbers(self) -> tuple[int, ...] | None:
        """The cores to use, if some were chosen."""
        return None if self.cores is None else tuple(self.cores)

    def __post_init__(self) -> None:
        rules = {field.name: field.metadata[METADATA_KEY].read for field in dataclasses.fields(self) if field.metadata}
        rules |= {"n_sessions": whole(at_least=1), "parallel": unset_or(whole(at_least=1)), "progress": _callable}
        for name, read in rules.items():
            value = getattr(self, name)
            try:
                found = read(value)
            except ValueError as reason:
                raise BadSetting(f"{name} cannot be {value!r}: it must be {reason.args[0]}") from None
            if name in ALWAYS_READ or (isinstance(value, str | Path) and not isinstance(found, str)):
                object.__setattr__(self, name, found)  # as "4" threads, one file where several may be, an old spelling
