"""The options that several commands share, made from the settings' own declarations.

In: nothing. Out: annotated types for the parameters of commands: `temp: Temp = None`. None always means "not given", so
that `load_settings({"temp": temp, ...})` finds the value elsewhere. Does not read any setting.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from edgeinfer.app.checked_values import read_checked
from edgeinfer.app.misuse import flags_read
from edgeinfer.app.shell_words import setting_words
from edgeinfer.settings import Option, find_option, flag_of

REPEATABLE = ("draft_from",)


def setting_option(name: str, *flags: str) -> Any:
    """A `typer.Option` for the setting `name`, with its rule, its help text and its environment variable."""
    option = find_option(name)
    return typer.Option(
        flag_of(name),
        *flags,
        help=help_of(option),
        show_default=False,
        metavar=option.form or None,
        autocompletion=setting_words(name),
        **_rule(name),
    )


def switch_option(name: str) -> Any:
    """The same for a setting that is on or off: --pack and --no-pack."""
    flag = flag_of(name)
    return typer.Option(f"{flag}/--no-{flag.removeprefix('--')}", help=help_of(find_option(name)), show_default=False)


def help_of(option: Option[object]) -> str:
    """What an option does, what counts without it, and the environment variable that sets it."""
    return f"{option.help} Default: {option.default_text}. [{option.environment_name}]"


def _rule(name: str) -> dict[str, Any]:
    """How typer reads the option: as the setting says. What it may be given more than once is read as a whole later."""
    if name in REPEATABLE:
        return {}

    def read(text: str) -> object:
        with flags_read():
            return read_checked(name, text, flag_of(name))

    return {"parser": read}


Model = Annotated[str | None, setting_option("model", "-m")]
Temp = Annotated[float | None, setting_option("temp")]
TopP = Annotated[float | None, setting_option("top_p")]
TopK = Annotated[int | None, setting_option("top_k")]
MinP = Annotated[float | None, setting_option("min_p")]
RepeatPenalty = Annotated[float | None, setting_option("repeat_penalty")]
Seed = Annotated[int | None, setting_option("seed")]
MaxTokens = Annotated[int | None, setting_option("max_tokens")]
System = Annotated[str | None, setting_option("system")]
Ctx = Annotated[int | None, setting_option("ctx")]
SpecOption = Annotated[str | None, setting_option("spec")]
VerifyCost = Annotated[str | None, setting_option("verify_cost")]
DraftFrom = Annotated[list[str] | None, setting_option("draft_from")]
History = Annotated[bool | None, switch_option("history")]
Threads = Annotated[int | None, setting_option("threads")]
Cores = Annotated[str | None, setting_option("cores")]
Device = Annotated[str | None, setting_option("device")]
Schedule = Annotated[str | None, setting_option("schedule")]
KV = Annotated[str | None, setting_option("kv")]
Mode = Annotated[str | None, setting_option("mode")]
Approx = Annotated[float | None, setting_option("approx")]
Ram = Annotated[str | None, setting_option("ram")]
Pack = Annotated[bool | None, switch_option("pack")]
Isolate = Annotated[bool | None, switch_option("isolate")]
Theme = Annotated[str | None, setting_option("theme")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
