"""The options that several commands share, made from the settings' own declarations.

In: nothing. Out: annotated types for the parameters of commands: `temp: Temp = None`. None always means "not given", so
that `load_settings({"temp": temp, ...})` finds the value elsewhere. Does not read any setting.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from edgeinfer.settings import find_option


def setting_option(name: str, *flags: str) -> Any:
    """A `typer.Option` for the setting `name`, with its help text and the name of its environment variable."""
    found = find_option(name)
    default = "" if found.default in (None, (), ("auto",)) else f" Default: {found.default}."
    return typer.Option(
        f"--{name.replace('_', '-')}",
        *flags,
        help=f"{found.help}{default} [{found.environment_name}]",
        show_default=False,
    )


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
History = Annotated[
    bool | None,
    typer.Option(
        "--history/--no-history",
        help=f"{find_option('history').help} Default: yes. [{find_option('history').environment_name}]",
        show_default=False,
    ),
]
Threads = Annotated[int | None, setting_option("threads")]
Cores = Annotated[str | None, setting_option("cores")]
Device = Annotated[str | None, setting_option("device")]
Schedule = Annotated[str | None, setting_option("schedule")]
KV = Annotated[str | None, setting_option("kv")]
Mode = Annotated[str | None, setting_option("mode")]
Approx = Annotated[float | None, setting_option("approx")]
Ram = Annotated[str | None, setting_option("ram")]
Pack = Annotated[
    bool | None,
    typer.Option(
        "--pack/--no-pack",
        help=f"{find_option('pack').help} Default: yes. [{find_option('pack').environment_name}]",
        show_default=False,
    ),
]
Isolate = Annotated[
    bool | None,
    typer.Option(
        "--isolate/--no-isolate",
        help=f"{find_option('isolate').help} Default: no. [{find_option('isolate').environment_name}]",
        show_default=False,
    ),
]
Theme = Annotated[str | None, setting_option("theme")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
