"""The launcher for llama.cpp's server tests: its flags are ours, or end it; its table counts what pytest reports."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from edgeinfer.app.commands.serve import COMMAND
from edgeinfer.app.mcp.servers import read_servers
from edgeinfer.engine.loading import load
from edgeinfer.models.store import ModelStore
from scripts import llama_server as launcher
from scripts import run_llama_server_tests as runner
from scripts.stand_in_encoders import read_further

ENVIRONMENT = {"STAND_IN_TEXT": "text.gguf", "STAND_IN_EMBEDDING": "bert.gguf"}
TINY = "--hf-repo ggml-org/test-model-stories260K"


def ours(line: str) -> list[str]:
    return launcher.command(line.split(), ENVIRONMENT)[0]


def value(line: list[str], flag: str) -> str:
    return line[line.index(flag) + 1]


def test_contexts_are_shared_out_among_requests() -> None:
    line = ours(f"{TINY} --port 8080 --temp 0.8 --ctx-size 512 --parallel 2 --n-predict 64 --no-slots --no-jinja")
    assert line[0] == "serve"
    told = [value(line, flag) for flag in ("-m", "--ctx", "--parallel", "--contexts", "--max-tokens", "--port")]
    assert told == ["text.gguf", "256", "2", "2", "64", "8080"]
    assert value(ours(f"{TINY} --ctx-size 512 --parallel 2 --kv-unified"), "--ctx") == "512"
    assert "--max-tokens" not in ours(f"{TINY} --n-predict -1")


def test_a_key_is_in_the_environment_alone() -> None:
    line, environment = launcher.command([*TINY.split(), "--api-key", "secret"], ENVIRONMENT)
    assert environment["EDGEINFER_API_KEY"] == "secret"
    assert "secret" not in line


def test_templates_are_named_or_written_down() -> None:
    assert value(ours(f"{TINY} --chat-template llama3"), "--chat-template") == "llama3"
    line, _ = launcher.command([*TINY.split(), "--chat-template", "{{ messages }}"], ENVIRONMENT)
    file = Path(value(line, "--chat-template-file"))
    assert file.read_text() == "{{ messages }}"
    file.unlink()


def test_models_by_name_are_presets() -> None:
    environment = {**ENVIRONMENT, "STAND_IN_INFILL": "infill.gguf"}
    line, _ = launcher.command(["--models-max", "2", "--no-models-autoload"], environment)
    file = Path(value(line, "--presets"))
    tables = tomllib.loads(file.read_text())
    file.unlink()
    assert tables["ggml-org/tinygemma3-GGUF:Q8_0"] == {"model": "text.gguf", "load_on_startup": False}
    assert tables["ggml-org/test-model-stories260K-infill:F32"]["model"] == "infill.gguf"
    assert ("-m" in line, "--no-autoload" in line, value(line, "--most-models")) == (False, True, "2")


def test_beside_a_file_of_presets_stand_ins_are_in_the_store(tmp_path: Path, tiny_model: Path) -> None:
    path = tmp_path / "models.ini"
    path.write_text("[small]\nhf-repo = ggml-org/test-model-stories260K\n")
    environment = {"STAND_IN_TEXT": str(tiny_model), "STAND_IN_INFILL": str(tiny_model)}
    line, environment = launcher.command(["--models-preset", str(path)], environment)
    home = Path(environment["EDGEINFER_HOME"])
    assert (value(line, "--presets"), "-m" in line) == (str(path), False)
    store = ModelStore(home / "models")
    assert {model.name for model in store.models() if not model.is_elsewhere} == launcher.ROUTED.keys()
    assert store.find("hf:ggml-org/test-model-stories260K").name == "ggml-org/test-model-stories260K:F32"
    shutil.rmtree(home)


def test_parts_origins_and_names() -> None:
    line = ours(f"{TINY} --metrics --no-slots --alias b,a --pooling cls --cors-origins localhost")
    assert [line[at + 1] for at, flag in enumerate(line) if flag == "--without"] == ["slots"]
    assert (value(line, "--alias"), value(line, "--pooling")) == ("a,b", "first")
    assert line.count("--allow-origin") == 3
    thoughts = {word: value(ours(f"{TINY} --reasoning {word}"), "--enable-thinking") for word in ("on", "off", "auto")}
    assert thoughts == {"on": "on", "off": "off", "auto": "on"}
    assert value(ours(TINY), "--allow-origin") == "*"
    assert ["--show-prompts" in ours(f"{TINY} {more}") for more in ("--verbose", "--jinja")] == [True, False]


def test_servers_of_tools_are_tables_of_the_configuration(tmp_path: Path) -> None:
    servers = {"mcpServers": {"echo": {"command": "python", "args": ["x.py"], "timeout_ms": 500}}}
    given = launcher.Given.of(["--tools", "all", "--mcp-servers-json", json.dumps(servers)])
    line = launcher.tool_flags(given, tmp_path)
    (server,) = read_servers(tmp_path / "config.toml")
    assert (line, server.name, server.command) == (["--mcp", "all"], "echo", ("python", "x.py"))
    assert (server.trusted, server.call_limit_s) == (None, 0.5)
    assert launcher.tables("not valid json") == "not valid json"


def test_stand_ins_read_longer_texts(tmp_path: Path) -> None:
    path = read_further(runner.GOLDENS / "reranker-f32.gguf", tmp_path / "longer.gguf")
    with load(path, device="cpu", spec="off") as llm:
        assert llm.info.n_context == 1024
        assert len(llm.rerank("what", ["a " * 200, "b"])) == 2


@pytest.mark.parametrize(
    "line", ["--hf-repo nobody/nothing", f"{TINY} --nonsense", f"{TINY}-infill", f"{TINY} -ctk q5_1"]
)
def test_what_we_have_not_ends_it(line: str) -> None:
    with pytest.raises(launcher.Unmet):
        ours(line)


def test_our_flags_are_there() -> None:
    parameters = {name for parameter in _parameters() for name in parameter}
    own = {*launcher.SAME.values(), "--ctx", "--contexts", "--max-tokens", "--kv", "--spec", "--chat-template"}
    own |= {
        "--presets",
        "--no-autoload",
        "--allow-origin",
        "--alias",
        "--pooling",
        "--without",
        "--mcp",
        "-m",
        "--enable-thinking",
    }
    assert own | {"--show-prompts"} <= parameters


def _parameters() -> list[list[str]]:
    import typer

    app = typer.Typer()
    app.command()(COMMAND.run)
    return [parameter.opts for parameter in typer.main.get_command(app).params]


def test_a_table_of_outcomes(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="unit.test_a" name="test_one[x-y]"/>'
        '<testcase classname="unit.test_a" name="test_two[1]"><failure message="no"/></testcase>'
        '<testcase classname="unit.test_a" name="test_three"><error message="died"/></testcase>'
        '<testcase classname="unit.test_b" name="test_four"><skipped message="skipping slow test"/></testcase>'
        "</testsuite></testsuites>"
    )
    outcomes = [runner.explained(each, {"test_a::test_two": "words"}) for each in runner.outcomes_of(report)]
    assert [each.outcome for each in outcomes] == ["passed", "words", "failed", "slow"]
    assert runner.share(outcomes) == "1 of 2 tests that need no downloaded model pass"
    assert runner.table(outcomes).splitlines()[-1].split() == ["all", "1", "1", "1", "0", "0", "1", "0", "4"]
    assert runner.matches("test_a::test_one[x-y]", "test_a::test_one[x*]")
    assert not runner.matches("test_a::test_one[x-y]", "test_a::test_one[y*]")


def test_slow_tests_are_those_that_pytest_lists() -> None:
    listing = "unit/test_a.py::test_big[owner/Model.GGUF-None]\nunit/test_b.py::test_long\n\n2/4 tests collected\n"
    found = [(each.file, each.name, each.outcome) for each in runner.slow_outcomes(listing)]
    assert found == [
        ("test_a", "test_a::test_big[owner/Model.GGUF-None]", "slow"),
        ("test_b", "test_b::test_long", "slow"),
    ]


def test_reasons_have_kinds_and_words() -> None:
    kinds = runner.kinds_of(runner.REASONS)
    assert set(kinds.values()) <= set(runner.COLUMNS)
    assert all("::" in pattern for pattern in kinds)


def test_a_model_that_sees_has_a_stand_in_of_its_own() -> None:
    environment = {**ENVIRONMENT, "STAND_IN_SEEING": "seeing.gguf"}
    line, _ = launcher.command(["--hf-repo", "ggml-org/tinygemma3-GGUF:Q8_0", "--no-mmproj"], environment)
    assert (value(line, "-m"), value(line, "--mmproj")) == ("seeing.gguf", "off")
    assert "--mmproj" not in launcher.command(TINY.split(), environment)[0]
    assert (runner.SEEING.parent / f"mmproj-{runner.SEEING.name}").is_file()
