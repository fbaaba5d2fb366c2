"""What programs can rely on, read from edgeinfer as it is: the interface that docs/PROMISES.md speaks of.

Run: `python -m tests.promises.listing` adds what is new to `promised.json`, as a step of a release; it drops nothing.
In: the package and a tiny model. Out: sorted lists of names by kind, such as `run --temp` or `run: draft`.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from typer.testing import CliRunner

import edgeinfer
from edgeinfer.app.cli import COMMANDS, build_app, built
from edgeinfer.settings import declared_options
from tests.conftest import write_tiny_llama

PACKAGE = Path(edgeinfer.__file__).parent
PROMISED = Path(__file__).with_name("promised.json")
VARIABLE = re.compile(r"\bEDGEINFER_[A-Z_]*[A-Z]\b")
CHANGELOG = PACKAGE.parent / "CHANGELOG.md"
WHEN_RELEASED = pytest.mark.skipif(
    f"## {edgeinfer.__version__} (unreleased)" in CHANGELOG.read_text(encoding="utf-8"),
    reason="what a release promises is complete once it has its date in the change log",
)
INNER_VARIABLES = frozenset({"EDGEINFER_CUDASIM_LANES", "EDGEINFER_CUDA_GEMM", "EDGEINFER_COMPLETE"})
"""Of tests and experiments, and what shells set for completion."""
INNER_MEMBERS = frozenset(
    {
        *("LLM.batcher", "LLM.begin_drafting", "LLM.comparison", "LLM.drafts", "LLM.later_drafts", "LLM.session_with"),
        *("Session.speculator", "TextStream.chunks", "TextStream.end_logprobs", "TextStream.entropies"),
        *("TextStream.prompt", "TextStream.reader"),
    }
)
"""Members for edgeinfer's own app and server."""
INNER_ROUTES = ("/page/", "/cors-proxy", "/api/copy", "/api/create", "/api/push", "/api/blobs/")
"""Routes of the server's own page, and those that answer that they are not there."""
FREE = frozenset({"draft", "machine", "sampling", "tensor_bytes", "verify_cost"})
"""Keys of JSON below which names depend on the machine, the model or the drafters."""
Names = list[str]


def options() -> Names:
    """Commands, and every option by all of its names."""
    found = []
    for key, entry in COMMANDS.entries().items():
        name = key.replace("_", "-")
        command = built(name, entry)
        parts = command.commands.items() if isinstance(command, click.Group) else [("", command)]
        for part, each in parts:
            words = f"{name} {part}".strip()
            found.append(words)
            for parameter in each.params:
                names = [*parameter.opts, *parameter.secondary_opts]
                found += [f"{words} {flag}" for flag in names if flag.startswith("-")]
    return sorted(found)


def settings() -> Names:
    """Names in configuration files; `EDGEINFER_` before one in capitals is a variable of the environment."""
    return sorted(declared_options())


def variables() -> Names:
    """Variables of the environment besides those of settings."""
    named = {name for path in PACKAGE.rglob("*.py") for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    return sorted(named - INNER_VARIABLES - {f"EDGEINFER_{name.upper()}" for name in settings()})


def python_names(model: Path) -> Names:
    """`edgeinfer.__all__`, the parameters of `load`, fields of records, and members of what programs call."""
    found = {f"edgeinfer.{name}" for name in edgeinfer.__all__}
    found |= {f"edgeinfer.load({name}=)" for name in inspect.signature(edgeinfer.load).parameters}
    records = {name: public for name in edgeinfer.__all__ if is_dataclass(public := getattr(edgeinfer, name))}
    found |= {f"{name}.{field.name}" for name, public in records.items() for field in fields(public)}
    with edgeinfer.load(model, device="reference") as llm:
        for called in (llm, llm.session(), llm.complete("the rain", max_tokens=1)):
            found |= {f"{type(called).__name__}.{member}" for member in dir(called)}
    return sorted(name for name in found - INNER_MEMBERS if "._" not in name or name == "edgeinfer.__version__")


def request_options() -> Names:
    """Options of a request in Python, with which `LLM.chat` and its like are called."""
    from edgeinfer.engine.requests.request import Options

    return sorted(Options.__annotations__)


def routes() -> Names:
    """Routes of the server, by method and path."""
    from fastapi.routing import APIRoute

    from edgeinfer.app.server.routes import ROUTES

    found = [route for router in ROUTES.entries().values() for route in router.routes if isinstance(route, APIRoute)]
    kept = [route for route in found if not route.path.startswith(INNER_ROUTES)]
    return sorted(f"{method} {route.path}" for route in kept for method in route.methods)


def calls(model: Path) -> Mapping[str, tuple[str, ...]]:
    """Commands whose JSON is looked at, with what they are given."""
    of_model = ("-m", str(model), "--device", "reference")
    return {
        "run": ("run", *of_model, "the rain", "--max-tokens", "2", "--json"),
        "tokenize": ("tokenize", "-m", str(model), "the rain", "--json"),
        "detokenize": ("detokenize", "-m", str(model), "66 67", "--json"),
        "score": ("score", *of_model, "the rain", " fell", " sang", "--json"),
        "plan": ("plan", "-m", str(model), "--json"),
        "models": ("models", "--json"),
        "ls": ("ls", "--json"),
        "show": ("show", str(model), "--json"),
        "ps": ("ps", "--json"),
        "doctor": ("doctor", "--json"),
        "config path": ("config", "path", "--json"),
        "service status": ("service", "status", "--json"),
    }


def json_keys(model: Path) -> Names:
    """Keys of what commands print with `--json`; `[]` stands for each item of a list.

    A model in the home of edgeinfer is listed by `models` and `ls`.
    """
    found = set[str]()
    for name, words in calls(model).items():
        result = CliRunner().invoke(build_app(), list(words))
        if result.exit_code != 0:
            raise AssertionError(f"{' '.join(words)}: {result.output}")
        found |= {f"{name}: {key}" for key in keys_of(json.loads(result.stdout))}
    return sorted(found)


def keys_of(value: object, above: str = "") -> Iterator[str]:
    """The keys of JSON, those of inner objects after a dot."""
    if isinstance(value, list):
        for item in value:
            yield from keys_of(item, f"{above}[]")
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{above}.{key}" if above else key
            yield path
            if key not in FREE:
                yield from keys_of(inner, path)


def interface(model: Path) -> dict[str, Names]:
    """Everything, by kind."""
    return {
        "commands and options": options(),
        "settings": settings(),
        "environment variables": variables(),
        "JSON": json_keys(model),
        "Python": python_names(model),
        "options of requests in Python": request_options(),
        "HTTP": routes(),
    }


def promised() -> dict[str, Any]:
    """What releases have promised, with the version that promised it last."""
    kept: dict[str, Any] = json.loads(PROMISED.read_text(encoding="utf-8"))
    return kept


def main() -> None:
    """Add what is new to the file."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGEINFER_HOME"] = folder
        models = Path(folder) / "models"
        models.mkdir()
        now = interface(write_tiny_llama(models / "tiny.gguf"))
    kept = promised() if PROMISED.is_file() else {}
    lists = {kind: sorted({*kept.get(kind, ()), *names}) for kind, names in now.items()}
    text = json.dumps({"version": edgeinfer.__version__, **lists}, indent=1, ensure_ascii=False)
    PROMISED.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
