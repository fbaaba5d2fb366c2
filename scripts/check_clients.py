"""Checks Python clients against a server that is there, and prints a table of what they saw.

Run from the repository root, beside a server with a small model that calls tools when it is shown how:

    edgeinfer serve -m SmolLM2-135M-Instruct --strict-names --temp 0 --seed 1 \\
        --chat-template-file scripts/client_checks/calls.jinja
    python scripts/check_clients.py FOLDER [CLIENT …]

FOLDER, outside the repository, gets an environment for each client, and keeps them for the next time. Each client's
checks are in `client_checks/with_CLIENT.py`. Exits 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from clients.environments import SILENT, interpreter, version

SCRIPTS = Path(__file__).resolve().parent / "client_checks"
PACKAGES = {
    "openai": ["openai", "pydantic"],
    "anthropic": ["anthropic"],
    "ollama": ["ollama"],
    "litellm": ["litellm"],
    "langchain": ["langchain", "langchain-openai", "langchain-ollama", "langchain-anthropic"],
    "llama_index": ["llama-index-llms-openai-like", "llama-index-embeddings-openai-like", "llama-index-llms-ollama"],
    "pydantic_ai": ["pydantic-ai-slim[openai,anthropic]"],
    "instructor": ["instructor"],
    "openai_agents": ["openai-agents"],
    "dspy": ["dspy[numpy]"],
    "llm": ["llm", "llm-ollama"],
    "aider": ["aider-chat"],
    "oterm": ["oterm"],
    "lm_eval": ["lm-eval[api]"],
    "open_webui": ["open-webui"],
}
"""What a client's environment has; the first one is what the version is told of."""
LARGE = frozenset({"open_webui"})
"""Clients of several GB, which are checked only if they are named."""


def checked(client: str, python: Path, address: str, model: str, checks: Sequence[str]) -> Iterator[dict[str, str]]:
    """What a client's script printed, a check at a time."""
    command = [str(python), str(SCRIPTS / f"with_{client}.py"), address, model, *checks]
    variables = {**os.environ, **SILENT}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith('{"check"'):
                yield json.loads(line)
    if process.returncode:
        yield {"check": "all", "failed": f"the script ended with {process.returncode}"}


def first_model(address: str) -> str:
    """The name of a model that the server has."""
    with urllib.request.urlopen(f"{address}/v1/models") as answer:
        name: str = json.load(answer)["data"][0]["id"]
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "clients", nargs="*", metavar="CLIENT", help=f"some of {', '.join(PACKAGES)}; default: all but open_webui"
    )
    parser.add_argument("--at", metavar="URL", default="http://127.0.0.1:8080", help="the server")
    parser.add_argument("--check", action="append", default=[], help="only this check; may be repeated")
    options = parser.parse_args()
    model, n_failed = first_model(options.at), 0
    print("| client | check | seen |\n|---|---|---|")
    for client in options.clients or (client for client in PACKAGES if client not in LARGE):
        python = interpreter(options.folder / client, PACKAGES[client])
        name = f"{PACKAGES[client][0].partition('[')[0]} {version(python, PACKAGES[client][0])}"
        for told in checked(client, python, options.at, model, options.check):
            n_failed += "failed" in told
            seen = told.get("seen") or f"**failed** {told['failed']}"
            print(f"| {name} | {told['check']} | {seen.replace('|', '/')} |", flush=True)
    sys.exit(1 if n_failed else 0)


if __name__ == "__main__":
    main()
