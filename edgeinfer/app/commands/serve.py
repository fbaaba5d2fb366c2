"""`edgeinfer serve`: an OpenAI-compatible server on this computer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.misuse import flag_bytes
from edgeinfer.app.command_line.options import Command, Given, takes_settings
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.app.mcp.servers import ToolServer
    from edgeinfer.app.server.listening import ServerOptions
    from edgeinfer.app.server.running import Sidecar
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.settings import Settings

KEY_VARIABLE = "EDGEINFER_API_KEY"
KEY_FILE_CAP = 4096
"""Characters of a key's file that are read."""


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """What the command line says of the server itself: its flags in the order of the help."""

    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Bind address; non-loopback addresses require an API key."),
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port; 0 picks a free one.", min=0, max=65535)] = 8080
    token_env: Annotated[
        str | None,
        typer.Option(
            "--token-env",
            metavar="NAME",
            help=f"Environment variable that holds the API key. Default: {KEY_VARIABLE}, if set.",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="File that holds the API key, readable by you alone."),
    ] = None
    no_key: Annotated[
        bool,
        typer.Option("--no-key", help="Require no API key with --ready-json and --parent-pid; loopback only."),
    ] = False
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="Additional allowed Host header, such as *.example.org; repeatable."
        ),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="URL",
            help="Additional allowed Origin (CORS), such as https://example.org, http://localhost:* or *; repeatable.",
        ),
    ] = None
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", help="Maximum number of concurrent requests.", min=1, max=64)
    ] = 8
    queue: Annotated[
        int, typer.Option("--queue", metavar="N", help="Maximum number of queued requests; more are refused.", min=0)
    ] = 64
    contexts: Annotated[
        int,
        typer.Option("--contexts", metavar="N", help="Size of the KV cache in conversations of full length.", min=1),
    ] = 2
    alias: Annotated[
        str | None,
        typer.Option(
            "--alias", metavar="NAMES", help="Names of the model in the API, with commas. Default: its own name."
        ),
    ] = None
    strict_names: Annotated[
        bool,
        typer.Option(
            "--strict-names",
            help="Refuse requests for unknown models even while only one is loaded, which would answer.",
        ),
    ] = False
    most_models: Annotated[
        int,
        typer.Option(
            "--most-models",
            metavar="N",
            help="Maximum number of loaded models; requests for others are refused while all are in use.",
            min=1,
        ),
    ] = 2
    idle_unload: Annotated[
        float | None,
        typer.Option("--idle-unload", metavar="S", help="Unload a model after S seconds idle.", min=1),
    ] = None
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            "--mcp",
            metavar="NAME",
            help="Let the page at / use the tools of this MCP server, or of all; repeatable. Requires an API key.",
        ),
    ] = None
    max_body: Annotated[str, typer.Option("--max-body", metavar="SIZE", help="Maximum size of a request body.")] = (
        "16MB"
    )
    ready_json: Annotated[
        bool, typer.Option("--ready-json", help="Print a line of JSON to standard output when the server is ready.")
    ] = False
    parent_pid: Annotated[
        int | None, typer.Option("--parent-pid", metavar="N", help="Exit when this process exits.")
    ] = None
    idle_timeout: Annotated[
        float | None, typer.Option("--idle-timeout", metavar="S", help="Exit after S seconds idle.", min=1)
    ] = None


@takes_settings("model", "generation", "load", without=("system",))
def serve(given: Given, flags: ServeFlags) -> None:
    """Serve local models with an OpenAI-compatible HTTP API."""
    _require_packages()
    from edgeinfer.settings import load_settings

    server = _server_options(flags)
    _run(load_settings(given), server, _sidecar(flags))


def _server_options(flags: ServeFlags) -> ServerOptions:
    """Where the server listens and who may use it. Raises BadSetting."""
    from edgeinfer.app.server.listening import ServerOptions

    needs_key = flags.ready_json or flags.parent_pid is not None
    return ServerOptions(
        host=flags.host,
        port=flags.port,
        key=_key(flags, needed=needs_key),
        hosts=tuple(flags.allow_host or ()),
        origins=tuple(origin.rstrip("/") for origin in flags.allow_origin or ()),
        parallel=flags.parallel,
        queue=flags.queue,
        contexts=flags.contexts,
        idle_unload_s=flags.idle_unload,
        most_models=flags.most_models,
        most_body_bytes=flag_bytes(flags.max_body),
        aliases=_names(flags.alias),
        strict_names=flags.strict_names,
        tool_servers=_tool_servers(flags.mcp or ()),
    )


def _tool_servers(names: Sequence[str]) -> tuple[ToolServer, ...]:
    """The MCP servers of these names. Raises BadSetting."""
    if not names:
        return ()
    from edgeinfer.app.mcp.servers import chosen, read_servers

    return chosen(read_servers(), names)


def _names(aliases: str | None) -> tuple[str, ...]:
    """Names separated by commas. Raises BadSetting for an empty one."""
    if aliases is None:
        return ()
    names = tuple(name.strip() for name in aliases.split(","))
    if not all(names):
        raise BadSetting(f"--alias {aliases!r}: a name is empty")
    return names


def _require_packages() -> None:
    """Raises BadSetting where what serving needs is not installed."""
    try:
        import edgeinfer.app.server.running  # noqa: F401
    except ImportError as reason:
        raise BadSetting(f"serving needs {reason.name}: pip install 'edgeinfer[server]'") from None


def _sidecar(flags: ServeFlags) -> Sidecar:
    """How the server behaves beside another program, which is watched from now on. Raises BadSetting."""
    from edgeinfer.app.server.running import Parent, Sidecar

    parent = None if flags.parent_pid is None else Parent(flags.parent_pid)
    return Sidecar(flags.ready_json, parent, flags.idle_timeout)


def _run(settings: Settings, server: ServerOptions, sidecar: Sidecar) -> None:
    """Serve until told to end. Raises BadSetting, ModelNotFound and what pulling raises."""
    from edgeinfer.app.opening.loading import check_template
    from edgeinfer.app.opening.model_choice import choose_model
    from edgeinfer.app.removal import remove_all_leftovers
    from edgeinfer.app.server.running import run_server
    from edgeinfer.interrupts import interrupt_plainly
    from edgeinfer.models.store import ModelStore

    server.check()
    check_template(settings.load)
    interrupt_plainly()
    remove_all_leftovers()
    default = choose_model(settings)
    if server.aliases:
        default = replace(default, name=server.aliases[0])

    def opening(path: Path) -> LLM:
        return _open(path, settings, server)

    if code := run_server(server, sidecar, default, opening, ModelStore().models, _defaults(settings)):
        raise typer.Exit(code)


def _key(flags: ServeFlags, *, needed: bool) -> str | None:
    """The key that clients must present, from the environment or a file: others can read a command line.

    `needed`: another program starts the server; nobody else is to use it. Raises BadSetting.
    """
    sources = (("--token-env", flags.token_env), ("--token-file", flags.token_file), ("--no-key", flags.no_key or None))
    given = [flag for flag, value in sources if value is not None]
    if len(given) > 1:
        raise BadSetting(f"{given[0]} and {given[1]} say different things of the key; leave one of them out")
    if flags.no_key:
        return None
    if flags.token_file is not None:
        return _key_in(flags.token_file)
    name = flags.token_env or KEY_VARIABLE
    found = os.environ.get(name)
    if found is None and flags.token_env is not None:
        raise BadSetting(f"--token-env {flags.token_env}: there is no such environment variable")
    if found is None and needed:
        raise BadSetting(
            "a server beside a program needs a key, or all programs of this computer could use it: put a long random "
            f"text into {KEY_VARIABLE}, or name another variable (--token-env NAME); --no-key does without"
        )
    return found


def _key_in(path: Path) -> str:
    """The key that a file holds. Raises BadSetting if it cannot be read, or if other users can read it."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(KEY_FILE_CAP).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadSetting(f"--token-file {path} is not text") from None
    except OSError as reason:
        raise BadSetting(f"--token-file {path} cannot be read: {reason.strerror or reason}") from None
    if os.name == "posix" and mode & 0o077:  # elsewhere the access list of the folder says who may read
        raise BadSetting(f"--token-file {path} can be used by others; chmod 600 makes it yours alone")
    return key


def _open(path: Path, settings: Settings, server: ServerOptions) -> LLM:
    """Open a model as the settings say."""
    from edgeinfer.app.opening.loading import load_model
    from edgeinfer.app.opening.terminal_face import TerminalFace

    return load_model(path, settings, TerminalFace(), n_sessions=server.contexts, parallel=server.parallel)


def _defaults(settings: Settings) -> Options:
    """How answers are made where a request does not say."""
    from edgeinfer.app.opening.loading import answer_options

    return {name: value for name, value in answer_options(settings).items() if value is not None}  # type: ignore[return-value]


COMMAND = Command(serve)
