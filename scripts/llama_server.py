"""Takes llama-server's flags and runs `edgeinfer serve` with ours in their place.

llama.cpp's server tests start a program by `LLAMA_SERVER_BIN_PATH` with flags such as `--ctx-size 512 --parallel 2`;
`scripts/run_llama_server_tests.py` gives them this one. In: llama-server's command line. Out: our command line, run in
place of this program. Flags that only tune llama.cpp are left out; those that we cannot meet end the program.

The models that the tests name are downloads, so others stand in for them, named by the environment: STAND_IN_TEXT,
STAND_IN_SEEING (which reads images), STAND_IN_EMBEDDING, STAND_IN_RERANKER and STAND_IN_INFILL. A repository that has
no stand-in ends the program. Beside a file of presets they are in the store of models under the names of those
downloads, as if they had been pulled.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from edgeinfer.app.server.llama_presets import KV_KINDS
from edgeinfer.models.store_files import Manifest, ModelFile, manifest_file_name

STAND_INS = {
    "ggml-org/test-model-stories260K": "TEXT",
    "ggml-org/test-model-stories260K-infill": "INFILL",
    "ggml-org/stories15M_MOE": "TEXT",
    "ggml-org/tinygemma3-GGUF:Q8_0": "SEEING",
    "ggml-org/models:bert-bge-small/ggml-model-f16.gguf": "EMBEDDING",
    "ggml-org/models:jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "RERANKER",
}
"""What stands in for a repository, or for a file of one that holds several models."""
ROUTED = {
    "ggml-org/tinygemma3-GGUF:Q8_0": "TEXT",
    "ggml-org/test-model-stories260K:F32": "TEXT",
    "ggml-org/test-model-stories260K-infill:F32": "INFILL",
}
"""What stands in for the downloaded models that llama-server opens by name where it is started without a model."""
SAME = {
    "--port": "--port",
    "--host": "--host",
    "--temp": "--temp",
    "--seed": "--seed",
    "--threads": "--threads",
    "--parallel": "--parallel",
    "--lora": "--lora",
    "--tags": "--tags",
    "--chat-template-file": "--chat-template-file",
    "--sleep-idle-seconds": "--idle-unload",
    "--models-max": "--most-models",
    "--slot-save-path": "--slot-save-path",
}
"""Flags whose values ours take as they are."""
OWN = {
    "--model": "",
    "--hf-repo": "",
    "--hf-file": "",
    "--ctx-size": "",
    "--n-predict": "",
    "--api-key": "",
    "--chat-template": "",
    "--spec-type": "",
    "--alias": "",
    "--reasoning": "",
    "--cors-origins": "",
    "--pooling": "",
    "--mcp-servers-json": "",
    "--mcp-servers-config": "",
    "--tools": "",
    "--models-preset": "",
    "-ctk": "",
    "-ctv": "",
}
"""Flags with a value that are looked at below."""
HOMES = "--mcp-servers-json", "--mcp-servers-config", "--models-preset"
"""Flags for which the server gets a folder of its own for configuration and models."""
LEFT_OUT = {
    *("--batch-size", "--ubatch-size", "--n-gpu-layers", "-fa", "--cache-ram", "--reasoning-format"),
    *("--grp-attn-n", "--grp-attn-w", "--media-path"),
    *("--spec-draft-n-max", "--spec-draft-n-min"),
}
"""Flags with a value that change no answer, or that we have no word for."""
SWITCHES = {
    *("--offline", "--cont-batching", "--embedding", "--reranking", "--metrics", "--kv-unified", "--swa-full"),
    *("--slots", "--no-slots", "--verbose", "--no-ui", "--jinja", "--no-jinja", "--no-mmproj"),
    *("--no-cache-idle-slots", "--no-models-autoload", "--backend_sampling"),
}
"""Flags without a value."""
POOLING = {"none": "none", "mean": "mean", "cls": "first", "last": "last"}
ORIGINS = {"localhost": ("http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"), "*": ("*",)}


class Unmet(Exception):
    """A flag or a model that we do not have; the program ends."""


@dataclass
class Given:
    """A command line of llama-server: values by flag, switches, and ours so far."""

    values: dict[str, str] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)
    ours: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Given:
        """Sort the flags. Raises Unmet for one that is not known."""
        given, rest = cls(), list(arguments)
        while rest:
            flag = rest.pop(0)
            if flag in SWITCHES:
                given.switches.add(flag)
            elif flag not in SAME and flag not in OWN and flag not in LEFT_OUT:
                raise Unmet(f"{flag} has no equal")
            elif flag in SAME:
                given.ours += [SAME[flag], rest.pop(0)]
            else:
                given.values[flag] = rest.pop(0)
        return given

    def number(self, flag: str, default: int) -> int:
        """The value of a flag."""
        return int(self.values.get(flag, default))

    def our_number(self, flag: str, default: int) -> int:
        """The value of a flag that ours take as it is."""
        return int(self.ours[self.ours.index(flag) + 1]) if flag in self.ours else default


def model_of(given: Given, environment: Mapping[str, str]) -> str:
    """The path of the model, or of the one that stands in for it. Raises Unmet."""
    path, repository, file = (given.values.get(flag) for flag in ("--model", "--hf-repo", "--hf-file"))
    if path is not None:
        return path
    kind = STAND_INS.get(f"{repository}:{file}", STAND_INS.get(repository or ""))
    if kind is None:
        raise Unmet(f"nothing stands in for {repository} {file or ''}")
    return stand_in(kind, environment)


def stand_in(kind: str, environment: Mapping[str, str]) -> str:
    """The path of a model that stands in for others. Raises Unmet."""
    found = environment.get(f"STAND_IN_{kind}")
    if not found:
        raise Unmet(f"STAND_IN_{kind} names no model")
    return found


def model_flags(given: Given, environment: Mapping[str, str]) -> list[str]:
    """The flag for the model, or for a file of presets that names all of them. Raises Unmet."""
    if "--model" in given.values or "--hf-repo" in given.values:
        return ["-m", model_of(given, environment)]
    if "--models-preset" in given.values:
        return ["--presets", given.values["--models-preset"]]
    tables = [
        f"[{json.dumps(name)}]\nmodel = {json.dumps(stand_in(kind, environment))}\nload_on_startup = false\n"
        for name, kind in ROUTED.items()
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
        file.write("\n".join(tables))
    return ["--presets", file.name]


def put_in_store(home: Path, environment: Mapping[str, str]) -> None:
    """Let the store of models in `home` know what stands in for the downloaded models, each as a file of its own."""
    models = home / "models"
    models.mkdir(parents=True)
    for number, (name, kind) in enumerate(ROUTED.items()):
        found = Path(stand_in(kind, environment)).absolute()
        link = models / f".stand-in-{number}.gguf"
        link.symlink_to(found)
        source, asked = f"hf:{name}", f"hf:{name.partition(':')[0]}"
        file = ModelFile(link, found.stat().st_size, None)
        Manifest(name, source, source.lower(), asked, (file,)).write(models / manifest_file_name(name))


def template_flags(template: str | None) -> list[str]:
    """The flags for a template, which llama-server takes by name or as text."""
    if template is None:
        return []
    if re.fullmatch(r"[\w.-]+", template):
        return ["--chat-template", template]
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False) as file:
        file.write(template)
    return ["--chat-template-file", file.name]


def server_flags(given: Given) -> list[str]:
    """The flags of what llama-server has on or off, or says in other words."""
    ours = []
    if "--alias" in given.values:  # llama-server's names are a sorted set, of which the first is the model's
        ours += ["--alias", ",".join(sorted(given.values["--alias"].split(",")))]
    usual = "localhost" if "--tools" in given.values else "*"
    for origin in ORIGINS.get(asked := given.values.get("--cors-origins", usual), asked.split(",")):
        ours += ["--allow-origin", origin]
    if "--reasoning" in given.values:  # llama-server's auto thinks wherever the template can, ours as the template says
        ours += ["--enable-thinking", "off" if given.values["--reasoning"] == "off" else "on"]
    if "--verbose" in given.switches:
        ours.append("--show-prompts")
    if "--pooling" in given.values:
        ours += ["--pooling", POOLING[given.values["--pooling"]]]
    off = {"slots": "--no-slots" in given.switches, "page": "--no-ui" in given.switches}
    for part, is_off in {**off, "metrics": "--metrics" not in given.switches}.items():
        ours += ["--without", part] if is_off else []
    ours += ["--mmproj", "off"] if "--no-mmproj" in given.switches else []
    return [*ours, "--no-autoload"] if "--no-models-autoload" in given.switches else ours


def tool_flags(given: Given, home: Path) -> list[str]:
    """The flag for MCP servers, whose tables are written to the configuration in `home`; all tools are trusted.

    What is no JSON is written down as it is, for the server to refuse.
    """
    path, text = given.values.get("--mcp-servers-config"), given.values.get("--mcp-servers-json")
    if path is None and text is None:
        return []
    if text is None and path is not None and Path(path).is_file():
        text = Path(path).read_text()
    if text is not None:
        (home / "config.toml").write_text(tables(text))
    return ["--mcp", "all"]


def tables(text: str) -> str:
    """The TOML of a JSON file of MCP servers."""
    try:
        servers = json.loads(text)["mcpServers"]
    except ValueError:
        return text
    lines = []
    for name, server in servers.items():
        lines += [f"[mcp.servers.{name}]", "trusted = true", f"command = {json.dumps(server['command'])}"]
        lines += [f"args = {json.dumps(server.get('args', []))}"]
        if "timeout_ms" in server:
            lines += [f"timeout = {server['timeout_ms'] / 1e3}"]
    return "\n".join(lines)


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Our command line and environment. Raises Unmet."""
    given = Given.of(arguments)
    ours = [*model_flags(given, environment), *given.ours]
    parallel = given.our_number("--parallel", 1)
    context = given.number("--ctx-size", 0)  # of all slots together; llama-server cuts it to what a model knows
    if context > 0 and given.switches.isdisjoint(("--embedding", "--reranking")):
        ours += ["--ctx", str(context if "--kv-unified" in given.switches else context // parallel)]
    ours += ["--contexts", str(parallel)]
    if "--parallel" not in given.ours:
        ours += ["--parallel", "1"]
    if (most := given.number("--n-predict", -1)) > 0:
        ours += ["--max-tokens", str(most)]
    kinds = given.values.get("-ctk", "f16"), given.values.get("-ctv", "f16")
    if kinds != ("f16", "f16"):
        if kinds not in KV_KINDS:
            raise Unmet(f"a KV cache of {kinds} is not among ours")
        ours += ["--kv", KV_KINDS[kinds]]
    ours += ["--spec", "on" if "--spec-type" in given.values else "off", "--no-history"]
    ours += template_flags(given.values.get("--chat-template"))
    ours += server_flags(given)
    own = dict[str, str]()
    if not given.values.keys().isdisjoint(HOMES):
        home = Path(tempfile.mkdtemp())
        own["EDGEINFER_HOME"] = str(home)
        ours += tool_flags(given, home)
        if "--models-preset" in given.values:
            put_in_store(home, environment)
    if "--api-key" in given.values:
        own["EDGEINFER_API_KEY"] = given.values["--api-key"]
    return ["serve", *ours], {**environment, **own}


def main() -> None:
    """Run our server in place of this program."""
    try:
        ours, environment = command(sys.argv[1:], os.environ)
    except Unmet as reason:
        sys.exit(f"llama_server.py: {reason}")
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    os.execve(sys.executable, [sys.executable, "-m", "edgeinfer", *ours], environment)


if __name__ == "__main__":
    main()
