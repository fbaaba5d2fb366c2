"""All settings, in groups: each option is declared once, with its default, help text and validation.

In: nothing. Out: a frozen dataclass for each group, whose fields are the options. Does not know what any option does,
and reads no values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from edgeinfer.setting_values import (
    THEMES,
    Thinking,
    cluster_address,
    disk_space,
    key_list,
    nearest_of,
    number,
    one_of,
    switch,
    text,
    thinking_choice,
    unset_or,
    whole,
)

T = TypeVar("T")

ENVIRONMENT_PREFIX = "EDGEINFER_"
CTX_CAP = 8192  # context length in tokens when `ctx` is unset and the model was trained for more
METADATA_KEY = "option"
SWITCH_WORDS = ("true", "false")
Several = Literal["never", "repeated", "with commas"]
"""How an option takes several values: given again, or as one text."""


@dataclasses.dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One setting: how it is parsed, which values are valid and how it is explained.

    `read` converts text, a TOML value or an already typed value to T. It raises ValueError, saying what is needed.
    """

    default: T
    help: str
    read: Callable[[object], T]
    form: str  # placeholder for the value in usage lines: "NUMBER"
    unset: str  # what happens if there is no value: "all there is"
    name: str  # name of the setting, from which its flag and configuration key are made
    group: str = ""  # the group's record that holds it
    field: str = ""  # its field there
    words: tuple[str, ...] = ()  # the allowed words, if it is one of a few; a switch has "true" and "false"
    several: Several = "never"
    bare: str = ""  # the value of its flag where none follows; "": one must

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be given several times on the command line."""
        return self.several == "repeated"

    @property
    def is_list(self) -> bool:
        """Whether it is comma-separated text, stored as a list in files."""
        return self.several == "with commas"

    @property
    def is_switch(self) -> bool:
        """Whether it is a boolean."""
        return self.words == SWITCH_WORDS

    @property
    def default_text(self) -> str:
        """The default in words."""
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


def option(
    default: T,
    help_text: str,
    read: Callable[[object], T],
    form: str = "",
    unset: str = "none",
    *,
    name: str = "",
    setting_default: T | None = None,
    several: Several = "never",
    bare: str = "",
) -> T:
    """A dataclass field that declares an option (typed as its value, as dataclass fields are).

    `name`: name of the setting, if it differs from the field's. `setting_default`: default of the setting, if it
    differs from the field's. `bare`: value of the flag where the next word cannot be one.
    """
    shown = default if setting_default is None else setting_default
    declared = Option(shown, help_text, read, form, unset, name, several=several, bare=bare)
    return dataclasses.field(default=default, metadata={METADATA_KEY: declared})


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model to use."""

    model: str | None = option(
        None,
        "Model name, path or source.",
        unset_or(text),
        "MODEL",
        "the last used, else the starter",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How text is generated."""

    temp: float | None = option(
        None,
        "Sampling temperature, 0 to 2; 0 is greedy.",
        unset_or(number(at_least=0, at_most=2)),
        "NUMBER",
        "model's, else 0.7",
    )
    top_p: float | None = option(
        None,
        "Nucleus sampling: keep the most likely tokens up to this total probability.",
        unset_or(number(above=0, at_most=1)),
        "NUMBER",
        "model's, else 0.95",
    )
    top_k: int | None = option(
        None,
        "Keep the N most likely tokens; 0 keeps all.",
        unset_or(whole(at_least=0)),
        "N",
        "model's, else 40",
    )
    min_p: float | None = option(
        None,
        "Drop tokens less likely than this fraction of the most likely one.",
        unset_or(number(at_least=0, at_most=1)),
        "NUMBER",
        "model's, else 0.05",
    )
    repeat_penalty: float | None = option(
        None,
        "Penalty for repeated tokens; 1 disables it.",
        unset_or(number(above=0, at_most=10)),
        "NUMBER",
        "model's, else 1",
    )
    seed: int | None = option(None, "RNG seed.", unset_or(whole(at_least=0)), "N", "random")
    max_tokens: int | None = option(
        None, "Maximum number of tokens to generate.", unset_or(whole(at_least=1)), "N", "when the answer ends"
    )
    enable_thinking: Thinking = option(
        "auto",
        "Whether the model thinks before it answers, if its chat template has a choice: auto (as it does by itself), "
        "on or off.",
        thinking_choice,
    )
    reasoning_effort: str | None = option(
        None,
        "How much the model thinks, in a word that its chat template knows: mostly low, medium or high.",
        unset_or(text),
        "WORD",
        "the template's",
    )
    max_thought_tokens: int | None = option(
        None,
        "Maximum number of tokens of thoughts, after which the model is made to answer.",
        unset_or(whole(at_least=0)),
        "N",
        "no limit",
    )
    parse_special: bool = option(
        False,
        "Whether special tokens spelled in messages, such as <|im_end|>, are read as such instead of as text.",
        switch,
    )
    system: str | None = option(None, "System prompt.", lambda value: None if value is None else text(value), "TEXT")


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where work beyond one process runs."""

    ray: str | None = option(
        None,
        "Run on Ray: a cluster's address, auto (what runs on this computer, else a new one) or local (a new one).",
        cluster_address,
        "[ADDRESS]",
        "without Ray",
        bare="auto",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FaceSettings:
    """How the terminal app looks and behaves."""

    theme: str = option(
        "textual-dark",
        "Theme of the terminal app, such as textual-light or ansi-dark.",
        nearest_of("a theme", THEMES),
        "NAME",
    )
    keys: tuple[str, ...] = option(
        (), "Key bindings of the terminal app, such as copy=ctrl+k; repeatable.", key_list, "COMMAND=KEY"
    )
    thinking: Literal["fold", "show", "hide"] = option(
        "fold", "Display of reasoning before an answer: fold, show or hide.", one_of(("fold", "show", "hide"))
    )
    previews: Literal["auto", "blocks", "off"] = option(
        "auto",
        "Previews of images: auto (pixels where the terminal can, else half blocks), blocks or off.",
        one_of(("auto", "blocks", "off")),
    )
    snapshots: str = option(
        "1GB",
        "Disk space for KV caches of chats, with models that keep no prefixes; 0: chats leave no prefixes either.",
        disk_space,
        "SIZE",
    )
