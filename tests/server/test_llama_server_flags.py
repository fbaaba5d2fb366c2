"""The launcher for llama.cpp's server tests: its flags are ours, or end it; its table counts what pytest reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.commands.serve import COMMAND
from scripts import llama_server as launcher
from scripts import run_llama_server_tests as runner

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


@pytest.mark.parametrize(
    "line", ["--hf-repo nobody/nothing", f"{TINY} --nonsense", f"{TINY}-infill", f"{TINY} -ctk q5_1"]
)
def test_what_we_have_not_ends_it(line: str) -> None:
    with pytest.raises(launcher.Unmet):
        ours(line)


def test_our_flags_are_there() -> None:
    parameters = {name for parameter in _parameters() for name in parameter}
    own = {*launcher.SAME.values(), "--ctx", "--contexts", "--max-tokens", "--kv", "--spec", "--chat-template"}
    assert own <= parameters


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


def test_reasons_have_kinds_and_words() -> None:
    kinds = runner.kinds_of(runner.REASONS)
    assert set(kinds.values()) <= set(runner.COLUMNS)
    assert all("::" in pattern for pattern in kinds)
