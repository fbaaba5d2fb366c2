"""The frame of the command line: exit codes, errors, interrupts, pipes, start-up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer

import edgeinfer
from edgeinfer.app.cli import COMMANDS, build_app, built, guarded, main
from edgeinfer.errors import EdgeInferError
from tests.file_server import Served, serving
from tests.tiny_models import write_model

ROOT = Path(__file__).resolve().parents[2]
EDGEINFER = [sys.executable, "-m", "edgeinfer"]


def environment(home: Path) -> dict[str, str]:
    """The environment of a process that runs the command line."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "EDGEINFER_HOME": str(home)}


def test_the_version(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"edgeinfer {edgeinfer.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Usage: edgeinfer"),
        (["modls"], "error: edgeinfer modls: no such command; did you mean models?\n"),
        (["rnu"], "error: edgeinfer rnu: no such command; did you mean run?\n"),
        (["help"], "did you mean --help?"),
        (["list"], "did you mean ls?"),
        (["xyzzyx"], "edgeinfer --help lists them"),
        (["why is the sky blue"], "edgeinfer run asks a question"),
        (["config", "shwo"], "error: edgeinfer config shwo: no such command; did you mean show?\n"),
        (["config", "--sohw"], "no option --sohw"),
        (["run", "--tmep", "0", "Hi"], "error: edgeinfer run: no option --tmep; did you mean --temp?"),
        (["run", "what", "does", "-x", "mean"], "Words of a question that begin with - stand after --"),
        (["serve", "--port", "http"], "error: --port needs a whole number from 0 to 65535, not 'http'\n"),
        (["serve", "--port", "70000"], "error: --port needs a whole number from 0 to 65535, not '70000'\n"),
        (["bench", "--runs", "0"], "error: --runs needs a whole number from 1 up, not '0'\n"),
        (["bench", "--temp", "hot"], "error: --temp needs a number from 0 to 2, not 'hot'\n"),
        (["batch", "x", "--vram", "lots"], "'lots' is not a size"),
        (["chat", "--web"], "error: --web: run `edgeinfer serve` and open the address that it prints"),
        (["chat", "--web", "--mcp", "good", "--port", "0"], "error: --web: run `edgeinfer serve`"),
        (["chat", "--host", "localhost"], "error: --web: run `edgeinfer serve`"),
        (["pull"], "Missing argument"),
        (["models", "--jsn"], "error: edgeinfer models: no option --jsn; did you mean --json?\n"),
        (["config"], "Usage: edgeinfer config"),
    ],
)
def test_usage_errors_exit_2(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    shown = capsys.readouterr()
    assert message in shown.err + shown.out


@pytest.mark.parametrize("arguments", [["-h"], ["run", "-h"], ["config", "-h"], ["config", "show", "-h"]])
def test_the_short_form_of_help_is_everywhere(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(" ".join(["Usage: edgeinfer", *arguments[:-1]]))


def test_our_errors_exit_1_in_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["pull", "no-such-thing"])
    assert left.value.code == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: Don't know where to find 'no-such-thing'. Try hf:USER/REPO")
    assert shown.err.count("\n") == 1


def test_an_error_outside_a_command_is_one_line_too(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise EdgeInferError("the registry is broken")

    monkeypatch.setattr("edgeinfer.app.cli.build_app", broken)
    with pytest.raises(SystemExit) as left:
        main(["models"])
    assert left.value.code == 1
    assert capsys.readouterr().err == "error: the registry is broken\n"


def test_every_command_is_registered_and_explained(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    keys = COMMANDS.keys()
    for key in keys:
        assert f"\n  {key.replace('_', '-')} " in shown
    assert {"config", "pull", "models", "tokenize", "detokenize"} <= set(keys)
    for key in keys:
        with pytest.raises(SystemExit) as left:
            main([key.replace("_", "-"), "--help"])
        assert left.value.code == 0


def command_lines() -> list[list[str]]:
    """All commands and subcommands, and the command line itself."""
    found: list[list[str]] = [[]]
    for key in sorted(COMMANDS.keys()):
        name, parts = key.replace("_", "-"), COMMANDS.get(key).subcommands
        found += [[name], *([name, part] for part in parts)]
    return found


@pytest.mark.parametrize("command", command_lines(), ids=lambda command: " ".join(command) or "edgeinfer")
def test_the_help_of_every_command_is_one_screen(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert 3 < len(lines) <= 40
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", ["run", "serve", "plan"])
def test_every_option_is_named_in_short_and_explained_in_full(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as left:
            main([name, flag])
        assert left.value.code == 0
        shown[flag] = capsys.readouterr().out
    command = built(name, COMMANDS.get(name))
    flags = [option for param in command.params for option in param.opts if option.startswith("--")]
    assert len(flags) > 15
    for flag in flags:
        assert flag in shown["--help"]
        assert f"{flag} " in shown["--help-all"] or f"{flag}\n" in shown["--help-all"]
    assert "--help-all" in shown["--help"]
    assert len(shown["--help-all"].splitlines()) > 40
    assert "[EDGEINFER_" in shown["--help-all"]


@pytest.mark.parametrize("name", sorted(COMMANDS.keys()))
def test_help_leaves_no_option_unexplained(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hidden options, which are there to say what works instead, are not in it."""
    with pytest.raises(SystemExit):
        main([name, "--help"])
    rows = re.findall(r"^  ((?:-\w, )?--[^ \n].*)$", capsys.readouterr().out, re.MULTILINE)
    assert rows
    assert [row for row in rows if not re.search(r"\S  +\S", row)] == []


def test_help_in_full_is_a_word_behind_two_dashes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tokenize", "--no-such", "--", "--help-all"])
    assert "no option --no-such" in capsys.readouterr().err


def test_a_guarded_command_keeps_its_options() -> None:
    command = COMMANDS.get("pull").run
    assert command is not None
    assert guarded(command).__name__ == "pull"
    assert typer.main.get_command(build_app()).list_commands(None) == sorted(COMMANDS.keys())


def test_help_loads_nothing_heavy(home: Path) -> None:
    code = (
        "import sys\nfrom edgeinfer.app.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('numpy', 'numba', 'textual', 'rich', 'tokenizers', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment(home)
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_is_parsed_without_pydantic(home: Path) -> None:
    given = ["tokenize", "-m", "unknown", "the rain"]
    code = (
        "import sys\nfrom edgeinfer.app.cli import main\n"
        f"try: main({given})\nexcept SystemExit: print('pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment(home)
    )
    assert "no model is called 'unknown'" in done.stderr
    assert done.stdout.splitlines()[-1] == "False"


ENDLESS = ("--device", "reference", "--temp", "0", "--ctx", "60000")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "-h"], ["config", "show"], ["models", "--json"], ["run", *ENDLESS, "the rain"], ["batch"]],
    ids=" ".join,
)
def test_a_reader_that_leaves_ends_a_command_quietly(
    home: Path, tiny_model: Path, tmp_path: Path, arguments: list[str]
) -> None:
    if arguments == ["batch"]:
        (tmp_path / "questions.txt").write_text("the rain\n" * 500)
        arguments = ["batch", str(tmp_path / "questions.txt"), "--device", "reference", "--max-tokens", "200"]
    if arguments[0] in ("run", "batch") and "-h" not in arguments:
        arguments = [*arguments, "-m", str(tiny_model)]
    with subprocess.Popen(
        [*EDGEINFER, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
        bufsize=0,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if "run" in arguments:
            assert process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read().decode()
        assert process.wait(60) == 0  # an answer that went on would take hours
    assert "Traceback" not in errors
    assert "error" not in errors


def test_another_pipe_that_breaks_is_no_reader_that_left() -> None:
    def broken() -> None:
        raise BrokenPipeError("of a child")

    with pytest.raises(BrokenPipeError):
        guarded(broken)()


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_an_interrupted_pull_exits_130_and_goes_on_later(home: Path, tmp_path: Path) -> None:
    data = write_model(tmp_path / "source.gguf")
    go_on = threading.Event()
    with serving() as server:
        server.files["/tiny.gguf"] = Served(data, stall=go_on)
        command = [*EDGEINFER, "pull", server.url("/tiny.gguf"), "--force"]
        with subprocess.Popen(command, env=environment(home), stderr=subprocess.PIPE, text=True) as process:
            part = home / "models"
            while not any(found.stat().st_size >= len(data) // 4 for found in part.glob("*.part")):
                assert process.poll() is None
                threading.Event().wait(0.02)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "the same command resumes there" in errors
        assert "Traceback" not in errors
        go_on.set()
        done = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (home / "models" / "tiny.gguf").read_bytes() == data
