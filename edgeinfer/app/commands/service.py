"""`edgeinfer service`: the server from login on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.misuse import Misuse
from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.plain_text import echo

if TYPE_CHECKING:
    from edgeinfer.app.login_service.definition import ServiceFile, ServiceState
    from edgeinfer.app.login_service.installing import Service

NEVER_PASSED = {
    "token_env": "the key is in a file of its own; set EDGEINFER_API_KEY when you install to choose it",
    "token_file": "the key is in a file of its own; set EDGEINFER_API_KEY when you install to choose it",
    "ready_json": "is for a program that starts the server",
    "parent_pid": "is for a program that starts the server",
}
"""Options of `serve` that a service cannot have, and why."""


def install(
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- OPTIONS]",
            help="Options of edgeinfer serve, such as -- --port 9000 -m qwen3:4b.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files and commands; change nothing.")] = False,
) -> None:
    """Start the server now and at every login.

    It runs in the current folder, with the settings that count here. Clients need the key in the printed file, unless
    --no-key is among the options. Installing again replaces the options and keeps the key.
    """
    import os

    from edgeinfer.app.login_service.installing import this_service

    given = tuple(options or ())
    parsed = _parsed(given)
    _check_model(parsed)
    service = this_service()
    with_key = not parsed["no_key"]
    file = service.file(given, with_key=with_key)
    if dry_run:
        _print_plan(service, file, with_key=with_key)
        return
    key = service.key(os.environ) if with_key else None
    echo(f"{service.system.name} starts `edgeinfer {' '.join(['serve', *given])}` now and at every login:", err=True)
    for line in _places(service, file, with_key=with_key):
        echo(f"  {line}", err=True)
    service.install(file, key)
    state = service.state()
    echo(f"installed: {state.word if state else 'unknown'}; `edgeinfer service status` tells how it is", err=True)
    if (hint := service.system.hint()) is not None:
        echo(f"note: {hint}", err=True)


def uninstall() -> None:
    """End the service, and remove its files and key, and its log if that is a file: the journal keeps what was said."""
    from edgeinfer.app.login_service.installing import this_service

    service = this_service()
    removed = service.uninstall()
    for path in removed:
        echo(f"removed {path}", err=True)
    if not removed:
        echo("no service is installed", err=True)


def status(as_json: Json = False) -> None:
    """Print whether the service is installed and runs, and where its log and key are."""
    from edgeinfer.app.login_service.installing import this_service

    service = this_service()
    state = service.state()
    address = _address(state)
    if as_json:
        echo(json.dumps(_record(service, state, address), ensure_ascii=False))
    elif state is None:
        echo("not installed; `edgeinfer service install` does it")
    else:
        process = f", process {state.pid}" if state.pid is not None else ""
        echo(f"state    {'running' if state.is_running else 'not running'} ({state.word}{process})")
        echo(f"address  {address or 'none yet'}")
        echo(f"log      {service.system.log_words(service.log_path)}")
        echo(f"key      {service.key_path if service.key_path.exists() else 'none'}")
        echo(f"file     {service.system.path()}")


def _record(service: Service, state: ServiceState | None, address: str | None) -> Mapping[str, object]:
    """The state as a JSON object; keys may be added, never renamed."""
    return {
        "installed": state is not None,
        "running": state is not None and state.is_running,
        "state": None if state is None else state.word,
        "pid": None if state is None else state.pid,
        "address": address,
        "log": service.system.log_words(service.log_path),
        "key_file": str(service.key_path) if service.key_path.exists() else None,
        "file": str(service.system.path()),
    }


def _address(state: ServiceState | None) -> str | None:
    """Where the service's process serves, if the system names that process."""
    from edgeinfer.engine.running import running

    if state is None or state.pid is None:
        return None
    return next((each.address for each in running() if each.pid == state.pid), None)


def _parsed(options: Sequence[str]) -> Mapping[str, object]:
    """The options of `serve` by name. Raises Misuse, as `serve` itself would."""
    from edgeinfer.app.cli import built
    from edgeinfer.app.commands.serve import COMMAND as SERVE

    serve = built("serve", SERVE)
    parsed: Mapping[str, object] = serve.make_context("edgeinfer serve", list(options)).params
    for name, reason in NEVER_PASSED.items():
        if parsed[name] not in (None, False):
            raise Misuse(f"a service has no --{name.replace('_', '-')}: {reason}")
    return parsed


def _check_model(parsed: Mapping[str, object]) -> None:
    """Raises ModelNotFound where the service would end at once, again and again, for want of its model."""
    from edgeinfer.app.opening.model_choice import found_or_source
    from edgeinfer.models.store import ModelStore
    from edgeinfer.settings import load_settings

    wanted = load_settings({"model": parsed["model"]}).model.model
    if wanted is not None and parsed["presets"] is None:
        found_or_source(ModelStore(), wanted)


def _places(service: Service, file: ServiceFile, *, with_key: bool) -> Sequence[str]:
    """The files that are written, and the log."""
    key = (
        f"key      {service.key_path} (yours alone)"
        if with_key
        else "key      none: every program of this computer may use it"
    )
    return (f"file     {file.path}", key, f"log      {service.system.log_words(service.log_path)}")


def _print_plan(service: Service, file: ServiceFile, *, with_key: bool) -> None:
    """What installing would write and run, on standard output."""
    echo(f"# {file.path}")
    echo(file.text)
    if with_key:
        key = "the key that is there already" if service.kept_key() else "a new random key"
        echo(f"# {service.key_path} (yours alone)\n{key}\n")
    echo("# commands")
    for step in service.system.starting():
        echo(" ".join(step.command))


COMMAND = Command(
    help="Run the server from login on.",
    subcommands={"install": install, "uninstall": uninstall, "status": status},
)
