"""`edgeinfer serve`: an OpenAI-compatible server on this computer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from edgeinfer.app.command_line.misuse import flag_bytes
from edgeinfer.app.command_line.options import Command, Given, takes_settings
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.app.server.listening import ServerOptions
    from edgeinfer.app.server.running import Sidecar
    from edgeinfer.settings import Settings

Word = TypeVar("Word")
KEY_VARIABLE = "EDGEINFER_API_KEY"
KEY_FILE_CAP = 4096
"""Characters of a key's file that are read."""


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """What the command line says of the server itself: its flags in the order of the help."""

    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Bind address, or several with commas; non-loopback addresses require an API key.",
        ),
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
    tags: Annotated[
        str | None,
        typer.Option("--tags", metavar="WORDS", help="Words that lists of models show with the model, with commas."),
    ] = None
    strict_names: Annotated[
        bool,
        typer.Option(
            "--strict-names",
            help="Refuse requests for unknown models even while only one is loaded, which would answer.",
        ),
    ] = False
    presets: Annotated[
        Path | None,
        typer.Option(
            "--presets",
            metavar="FILE",
            help="TOML file with a table for each model: its name, context, sampling, threads, adapters, ….",
        ),
    ] = None
    most_models: Annotated[
        int,
        typer.Option(
            "--most-models",
            metavar="N",
            help="Maximum number of loaded models; requests for others wait while all are in use.",
            min=1,
        ),
    ] = 2
    models_memory: Annotated[
        str | None,
        typer.Option(
            "--models-memory",
            metavar="SIZE",
            help="Memory for all loaded models, such as 8GB or 60% of available memory; the least recently used is "
            "unloaded for another. Default: what is available.",
        ),
    ] = None
    no_autoload: Annotated[
        bool,
        typer.Option("--no-autoload", help="Load models by POST /models/load only, not for the first request."),
    ] = False
    idle_unload: Annotated[
        float | None,
        typer.Option("--idle-unload", metavar="S", help="Unload a model after S seconds idle.", min=1),
    ] = None
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling",
            metavar="mean|first|last|none",
            help="How embeddings are made of the rows of tokens; none: of each token. Default: as the model says.",
        ),
    ] = None
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            "--mcp",
            metavar="NAME",
            help="MCP server of your configuration file, or all, whose trusted tools clients may call; with a key the "
            "page asks for the others; repeatable.",
        ),
    ] = None
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="page|slots|metrics|pull",
            help="Part of the server to turn off; pull: clients can have no models pulled; repeatable.",
        ),
    ] = None
    show_prompts: Annotated[
        bool, typer.Option("--show-prompts", help="Send the prompts of chats with their answers (__verbose).")
    ] = False
    max_body: Annotated[str, typer.Option("--max-body", metavar="SIZE", help="Maximum size of a request body.")] = (
        "64MB"
    )
    image_urls: Annotated[
        bool,
        typer.Option(
            "--image-urls",
            help="Fetch images that clients name by http(s) URLs, from public servers alone; otherwise nothing is "
            "fetched, and clients send data URLs.",
        ),
    ] = False
    slot_save_path: Annotated[
        Path | None,
        typer.Option("--slot-save-path", metavar="FOLDER", help="Where clients may save the cache (POST /slots/N)."),
    ] = None
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="N|MIN-MAX",
            help="With --ray: copies of the server; more of a range while requests wait. Default: one per computer or "
            "NUMA node, more where a cluster grows.",
        ),
    ] = None
    ready_json: Annotated[
        bool, typer.Option("--ready-json", help="Print a line of JSON to standard output when the server is ready.")
    ] = False
    parent_pid: Annotated[
        int | None, typer.Option("--parent-pid", metavar="N", help="Exit when this process exits.")
    ] = None
    idle_timeout: Annotated[
        float | None, typer.Option("--idle-timeout", metavar="S", help="Exit after S seconds idle.", min=1)
    ] = None


@takes_settings("model", "generation", "load", "cluster", without=("system",))
def serve(given: Given, flags: ServeFlags) -> None:
    """Serve local models with an OpenAI-compatible HTTP API."""
    _require_packages()
    from edgeinfer.settings import load_settings

    settings = load_settings(given)
    if settings.cluster.ray is not None:
        _run_on_ray(settings, flags, settings.cluster.ray)
        return
    if flags.replicas is not None:
        raise BadSetting("--replicas goes with --ray; a server of one process has one")
    server = server_options(flags)
    _run(settings, server, _sidecar(flags), flags.presets)


def parsed_options(options: Mapping[str, object]) -> tuple[Settings, ServerOptions, ServeFlags]:
    """What options of this command by name say: {"model": "qwen3-8b", "strict_names": True}. Raises BadSetting."""
    from edgeinfer.app.cli import built
    from edgeinfer.settings import declared_options, flag_of, load_settings

    words: list[str] = []
    for name, value in options.items():
        for each in value if isinstance(value, list | tuple) else (value,):
            words += [flag_of(name)] if each is True else [] if each in (False, None) else [f"{flag_of(name)}={each}"]
    try:
        parsed: Mapping[str, Any] = built("serve", COMMAND).make_context("edgeinfer serve", words).params
    except typer.BadParameter as reason:
        raise BadSetting(reason.format_message()) from None
    flags = ServeFlags(**{field.name: parsed[field.name] for field in fields(ServeFlags)})
    given = {name: value for name, value in parsed.items() if name in declared_options() and value not in (None, ())}
    return load_settings(given), server_options(flags), flags


def server_options(flags: ServeFlags) -> ServerOptions:
    """Where the server listens and who may use it. Raises BadSetting."""
    from edgeinfer.app.mcp.servers import chosen, read_servers
    from edgeinfer.app.server.listening import Part, Pooling, ServerOptions

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
        models_bytes=_models_bytes(flags.models_memory),
        loads_on_demand=not flags.no_autoload,
        most_body_bytes=flag_bytes(flags.max_body),
        aliases=_names(flags.alias, "--alias"),
        strict_names=flags.strict_names or flags.presets is not None,
        tools=chosen(read_servers(), flags.mcp) if flags.mcp else (),
        shows_prompts=flags.show_prompts,
        tags=_names(flags.tags, "--tags"),
        without=frozenset(_checked("--without", each, get_args(Part)) for each in flags.without or ()),
        pooling=None if flags.pooling is None else _checked("--pooling", flags.pooling, get_args(Pooling)),
        slot_folder=flags.slot_save_path,
        fetches_images=flags.image_urls,
    )


def _models_bytes(size: str | None) -> int | None:
    """The memory for all models in bytes. Raises BadSetting."""
    if size is None:
        return None
    from edgeinfer.engine.kv.limits import weights_bytes

    try:
        return weights_bytes(size)
    except BadSetting as reason:
        raise BadSetting(f"--models-memory: {reason}") from None


def _names(given: str | None, flag: str) -> tuple[str, ...]:
    """Names separated by commas. Raises BadSetting for an empty one."""
    if given is None:
        return ()
    names = tuple(name.strip() for name in given.split(","))
    if not all(names):
        raise BadSetting(f"{flag} {given!r}: a name is empty")
    return names


def _checked(flag: str, word: str, words: tuple[Word, ...]) -> Word:
    """A word, if it is one of those that a flag takes. Raises BadSetting."""
    from edgeinfer.setting_values import one_of

    try:
        return one_of(words)(word)
    except ValueError as reason:
        raise BadSetting(f"{flag} {reason}") from None


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


def _run(settings: Settings, server: ServerOptions, sidecar: Sidecar, presets_path: Path | None) -> None:
    """Serve until told to end. Raises BadSetting, ModelNotFound and what pulling raises."""
    from edgeinfer.app.opening.loading import check_template
    from edgeinfer.app.removal import remove_all_leftovers
    from edgeinfer.app.server.running import run_server
    from edgeinfer.app.server.served_models import served_models
    from edgeinfer.interrupts import interrupt_plainly

    server.check()
    check_template(settings.load)
    interrupt_plainly()
    remove_all_leftovers()
    names, opening = served_models(settings, server, presets_path)
    if code := run_server(server, sidecar, names, opening, settings):
        raise typer.Exit(code)


def _run_on_ray(settings: Settings, flags: ServeFlags, address: str) -> None:
    """Serve by replicas on Ray until told to end. Raises BadSetting, and as `_run`."""
    from edgeinfer.app.cluster.ray_session import require_ray
    from edgeinfer.app.opening.loading import check_template
    from edgeinfer.interrupts import interrupt_plainly

    require_ray()
    from edgeinfer.app.cluster.serving import ClusterOptions, run_cluster

    check_template(settings.load)
    server, sidecar = server_options(flags), _sidecar(flags)
    interrupt_plainly()
    if code := run_cluster(server, sidecar, ClusterOptions(address, flags.replicas, flags.presets), settings):
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
            key = file.read(KEY_FILE_CAP + 1).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadSetting(f"--token-file {path} is not text") from None
    except OSError as reason:
        raise BadSetting(f"--token-file {path} cannot be read: {reason.strerror or reason}") from None
    if os.name == "posix" and mode & 0o077:  # elsewhere the access list of the folder says who may read
        raise BadSetting(f"--token-file {path} can be used by others; chmod 600 makes it yours alone")
    if len(key) > KEY_FILE_CAP:
        raise BadSetting(f"--token-file {path} holds more than the {KEY_FILE_CAP} characters that a key may have")
    return key


COMMAND = Command(serve)
