"""The settings that there are, in groups: each option declared once, with its default, help text and rules.

In: nothing. Out: a frozen dataclass for each group, whose fields are the options. Does not know what any option does,
and reads none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Generic, Literal, TypeVar, get_args

from edgeinfer.setting_values import (
    THEMES,
    KVKind,
    Mode,
    core_list,
    cost_curve,
    device_list,
    disk_space,
    key_list,
    memory_budget,
    nearest_of,
    number,
    one_of,
    path_list,
    spec_choice,
    switch,
    text,
    unset_or,
    whole,
)

T = TypeVar("T")

ENVIRONMENT_PREFIX = "EDGEINFER_"
CTX_CAP = 8192  # tokens of context when `ctx` is unset and the model was trained for more
SAMPLED_REPEAT_PENALTY = 1.1  # small models fall into loops without it; greedy answers stay the plain argmax
METADATA_KEY = "option"


@dataclasses.dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One setting: how it is read, what it may be and how it is explained.

    `read` turns text, a TOML value or an already typed value into T and raises ValueError with what it needs.
    """

    name: str
    group: str
    default: T
    help: str
    read: Callable[[object], T]
    form: str  # how a value is written, in usage lines: "NUMBER"
    unset: str  # what happens where it has no value: "all there is"
    words: tuple[str, ...] = ()  # the words there are, where it is one of a few; a switch has "true" and "false"

    @property
    def default_text(self) -> str:
        """What counts where the option is not set, in words."""
        default: object = self.default
        if default is None or default == ():
            return self.unset
        if isinstance(default, bool):
            return "yes" if default else "no"
        return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)

    @property
    def environment_name(self) -> str:
        """The environment variable that sets this option."""
        return ENVIRONMENT_PREFIX + self.name.upper()


def option(default: T, help_text: str, read: Callable[[object], T], form: str = "", unset: str = "none") -> T:
    """A dataclass field that declares an option (typed as its value, as dataclass fields are)."""
    return dataclasses.field(default=default, metadata={METADATA_KEY: (help_text, read, form, unset)})


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model."""

    model: str | None = option(
        None,
        "Model: a name, a path or a source.",
        unset_or(text),
        "MODEL",
        "the last used, else the starter",
    )
    approx: float | None = option(
        None,
        "Approximate: count activations of a magnitude below this as zero, and leave their neurons out, as 0.05; "
        "answers differ from the model's own.",
        unset_or(number(at_least=1e-30)),
        "NUMBER",
        "exact",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How text is generated."""

    temp: float = option(
        0.7,
        "Temperature, 0 to 2; 0 takes the most likely token.",
        number(at_least=0, at_most=2),
        "NUMBER",
    )
    top_p: float = option(
        0.95,
        "Keep the most likely tokens up to this total probability.",
        number(above=0, at_most=1),
        "NUMBER",
    )
    top_k: int = option(40, "Keep this many of the most likely tokens; 0 keeps all.", whole(at_least=0), "N")
    min_p: float = option(
        0.05,
        "Drop tokens less likely than this share of the most likely one's probability.",
        number(at_least=0, at_most=1),
        "NUMBER",
    )
    repeat_penalty: float | None = option(
        None,
        "Divide the scores of repeated tokens by this; 1 is off.",
        unset_or(number(above=0, at_most=10)),
        "NUMBER",
        f"{SAMPLED_REPEAT_PENALTY}, off at temperature 0",
    )
    seed: int | None = option(
        None, "Seed of the random choices.", unset_or(whole(at_least=0)), "N", "a new one for each answer"
    )
    max_tokens: int | None = option(
        None, "Stop after this many tokens.", unset_or(whole(at_least=1)), "N", "when the answer ends"
    )
    system: str | None = option(None, "System prompt.", lambda value: None if value is None else text(value), "TEXT")
    ctx: int | None = option(
        None,
        "Context in tokens.",
        unset_or(whole(at_least=1)),
        "N",
        f"what the model was trained for, {CTX_CAP} at most",
    )


def repeat_penalty_of(generation: GenerationSettings) -> float:
    """The repeat penalty to use: the one set, else a mild one where tokens are sampled and none where they are not."""
    if generation.repeat_penalty is not None:
        return generation.repeat_penalty
    return SAMPLED_REPEAT_PENALTY if generation.temp > 0 else 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """How tokens are drafted."""

    spec: Literal["auto", "on", "off"] | int = option(
        "auto",
        "Draft tokens and check several in a pass: auto (wherever no token changes), on, off, or tokens per pass.",
        spec_choice,
        "auto|on|off|N",
    )
    verify_cost: Mapping[int, float] | None = option(
        None,
        "Assume how long a pass over several tokens takes, as a multiple of a pass over one: 4:1.05,8:1.15.",
        unset_or(cost_curve),
        "TOKENS:COST,…",
        "measured",
    )
    draft_from: tuple[str, ...] = option(
        (), "Draft from these text files and folders too, or from a smaller model; repeatable.", path_list, "PATH"
    )
    history: bool = option(
        True, "Keep what drafting learns from your texts, on this machine, and draft from it the next time.", switch
    )


@dataclasses.dataclass(frozen=True, slots=True)
class MachineSettings:
    """What it runs on."""

    threads: int | None = option(None, "Worker threads.", unset_or(whole(at_least=1)), "N", "one per usable core")
    cores: tuple[int, ...] | None = option(
        None, "Cores to use, such as 0,2-5.", unset_or(core_list), "LIST", "all usable ones"
    )
    device: tuple[str, ...] = option(
        ("auto",), "auto (the fastest one), or device names with commas between them.", device_list, "NAMES"
    )
    schedule: str = option(
        "auto",
        "How several devices share a model: auto (predicted fastest, perhaps one alone), static, rows, ….",
        text,
        "NAME",
    )
    kv: Literal["f16", "int8"] = option(
        "f16",
        "How cached keys and values are kept: f16, or int8 in about half the memory.",
        one_of(get_args(KVKind)),
    )
    mode: Literal["max", "balanced", "quiet", "battery"] = option(
        "balanced",
        "How hard the machine may work: max (everything), balanced (less while the processor is hot or the battery "
        "low), quiet (little noise), battery (little energy).",
        one_of(get_args(Mode)),
    )
    ram: str | None = option(
        None,
        "Memory for weights: a size such as 3GB, or a share of the available memory such as 60%; the rest is read "
        "from disk in every pass.",
        unset_or(memory_budget),
        "SIZE",
        "all that is needed",
    )
    pack: bool = option(
        True, "Write a bundle file (`edgeinfer pack`) when a model needs one because it does not fit in memory.", switch
    )
    isolate: bool = option(
        False, "Run the device in a process of its own: if it crashes, another one goes on with the text.", switch
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FaceSettings:
    """How the terminal app looks and behaves."""

    theme: str = option(
        "textual-dark",
        "Colours of the terminal app, such as textual-light or ansi-dark.",
        nearest_of("a theme", THEMES),
        "NAME",
    )
    keys: tuple[str, ...] = option(
        (), "Other keys for commands of the terminal app, such as copy=ctrl+k; repeatable.", key_list, "COMMAND=KEY"
    )
    thinking: Literal["fold", "show", "hide"] = option(
        "fold", "What models think before they answer: fold it, show it or hide it.", one_of(("fold", "show", "hide"))
    )
    snapshots: str = option(
        "1GB",
        "Room on disk for what was read of chats, so that they open at once; 0 keeps nothing.",
        disk_space,
        "SIZE",
    )
