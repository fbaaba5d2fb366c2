"""Records what real clients send in agents' loops: makes tests/server/histories/CLIENT.json.

Run from the repository root: `python scripts/record_client_histories.py FOLDER [CLIENT …]`. FOLDER, outside the
repository, gets an environment for each client (venv and pip; npm for AI SDK), and keeps them for the next time. The
clients talk to a server on loopback that plays scripted answers (`clients/scripted_answers.py`).

With `--at URL` they talk to a server that is there, and what they saw is printed; nothing is recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from clients.compact_histories import history_file, recorded_requests
from clients.environments import SILENT, interpreter, version
from clients.recording_server import Recordings, serve

SCRIPTS = Path(__file__).resolve().parent / "clients"
HISTORIES = Path(__file__).resolve().parent.parent / "tests" / "server" / "histories"
PACKAGES = {
    "litellm": ["litellm"],
    "langchain": ["langchain", "langchain-openai"],
    "pydantic_ai": ["pydantic-ai-slim[openai]"],
    "openai_agents": ["openai-agents"],
    "ai_sdk": ["ai", "@ai-sdk/openai-compatible"],
}
"""What a client's environment has; the last one is what the version is told of."""


def environment(client: str, folder: Path) -> list[str]:
    """The beginning of a command line that runs a client's script; makes its environment if it is not there."""
    place = folder / client
    if client == "ai_sdk":
        if not (place / "node_modules").exists():
            place.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "install", "--silent", "--no-audit", *PACKAGES[client]], cwd=place, check=True)
        shutil.copy(SCRIPTS / "with_ai_sdk.mjs", place)  # modules are looked for beside the script
        return ["node", str(place / "with_ai_sdk.mjs")]
    return [str(interpreter(place, PACKAGES[client])), str(SCRIPTS / f"with_{client}.py")]


def name_and_version(client: str, folder: Path) -> str:
    """The name and version of a client."""
    name = PACKAGES[client][-1].partition("[")[0]
    if client == "ai_sdk":
        text = (folder / client / "node_modules" / name / "package.json").read_text(encoding="utf-8")
        return f"{name} {json.loads(text)['version']}"
    return f"{name} {version(folder / client / 'bin' / 'python', name)}"


def run(client: str, folder: Path, address: str, scenes: list[str]) -> list[str]:
    """Run a client's scenes and print what it saw. Returns what failed."""
    command = [*environment(client, folder), address, *scenes]
    variables = {**os.environ, **SILENT}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    failures = []
    for line in done.stdout.splitlines():
        print(f"{client}: {line}")
        if line.startswith("{") and "failed" in json.loads(line):
            failures.append(f"{client}: {line}")
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"some of {', '.join(PACKAGES)}; default: all")
    parser.add_argument("--at", metavar="URL", help="run against this server, as http://127.0.0.1:8080/v1")
    parser.add_argument("--scene", action="append", default=[], help="only this scene, of --at; may be repeated")
    options = parser.parse_args()
    failures: list[str] = []
    recordings = Recordings()
    server = serve(recordings)
    for client in options.clients or PACKAGES:
        address = options.at or f"http://127.0.0.1:{server.server_port}/{client}/{{scene}}/{{mode}}/v1"
        failures += run(client, options.folder, address, options.scene)
        if not options.at:
            runs = {place[1:]: sent for place, sent in recordings.requests.items() if place[0] == client}
            HISTORIES.mkdir(exist_ok=True)
            text = history_file(name_and_version(client, options.folder), runs)
            again = [
                {"path": each.path, "headers": each.headers, "body": each.body} for each in recorded_requests(text)
            ]
            assert again == [each for sent in runs.values() for each in sent]
            (HISTORIES / f"{client}.json").write_text(text, encoding="utf-8")
    server.shutdown()
    if failures := failures + recordings.failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
