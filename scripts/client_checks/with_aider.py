"""aider (the command), once for each check, in a Git repository of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check_parts import NO_MODEL, QUESTION, TOO_LONG, run_checks

EDIT = "Change the greeting to be more casual."
GRAMMAR = r'''root ::= "show_greeting.py\n```\nprint(\"" [a-zA-Z ]{3,20} "\")\n```\n"'''
"""The form of aider's edits, to which a small model is held with llama.cpp's field `grammar`."""
FILE = "show_greeting.py"
TEXT = """import sys

def greeting(name):
    print(f"Hello {name}")

if __name__ == '__main__':
    greeting(sys.argv[1])
"""
SILENT = (
    "--no-check-update",
    "--analytics-disable",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--no-gitignore",
    "--no-pretty",
    "--yes-always",
)


def run(address: str, model: str, *words: str, context: int = 8192) -> tuple[str, str]:
    """What aider printed, and the newest commit with its file. context: of the model, as aider is told."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, FILE).write_text(TEXT, encoding="utf-8")
        git = ["git", "-C", folder]
        identity = ["config", "user.name", "a"], ["config", "user.email", "a@example.org"]
        for command in (["init", "-q"], *identity, ["add", "."], ["commit", "-qm", "first"]):
            subprocess.run([*git, *command], check=True)
        known = {"max_input_tokens": context, "max_output_tokens": 2048, "litellm_provider": "openai", "mode": "chat"}
        known |= {"input_cost_per_token": 0, "output_cost_per_token": 0}
        metadata = Path(folder, ".aider.model.metadata.json")
        metadata.write_text(json.dumps({model: known}), encoding="utf-8")
        extra = {"max_tokens": 300, **({"extra_body": {"grammar": GRAMMAR}} if EDIT in words else {})}
        settings = Path(folder, ".aider.model.settings.yml")
        settings.write_text(json.dumps([{"name": model, "extra_params": extra}]), encoding="utf-8")  # YAML too
        variables = {**os.environ, "OPENAI_API_BASE": f"{address}/v1", "OPENAI_API_KEY": "none", "HOME": folder}
        variables |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "AIDER_ANALYTICS": "false", "OLLAMA_API_BASE": address}
        program = str(Path(sys.executable).with_name("aider"))
        command = [program, *SILENT, "--model", model, "--model-settings-file", str(settings)]
        command += ["--model-metadata-file", str(metadata), "--map-tokens", "0", *words]
        done = subprocess.run(
            command,
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        log = subprocess.run([*git, "log", "-1", "-p", "-U0", "--format=%s"], capture_output=True, text=True)
        return done.stdout, log.stdout


def said(printed: str) -> str:
    """The answer and what follows it."""
    return printed.partition("Repo-map: disabled")[2] or printed


def plain(address: str, model: str) -> object:
    return said(run(address, f"openai/{model}", "--no-stream", "--chat-mode", "ask", "--message", QUESTION)[0])


def streamed(address: str, model: str) -> object:
    return said(run(address, f"openai/{model}", "--chat-mode", "ask", "--message", QUESTION)[0])


def streamed_ollama(address: str, model: str) -> object:
    return said(run(address, f"ollama_chat/{model}", "--chat-mode", "ask", "--message", QUESTION)[0])


def edit(address: str, model: str) -> object:
    words = ("--edit-format", "whole", "--no-auto-lint", "--message", EDIT, FILE)
    printed, committed = run(address, f"openai/{model}", *words)
    assert "+print(" in committed, printed
    return committed


def unknown_model(address: str, model: str) -> object:
    return said(run(address, f"openai/{NO_MODEL}", "--chat-mode", "ask", "--message", QUESTION)[0])


def asked_too_long(address: str, model: str, context: int) -> str:
    """What aider says about a question that is too long."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(TOO_LONG)
        file.flush()
        words = ("--chat-mode", "ask", "--message-file", file.name)
        return said(run(address, model, *words, context=context)[0])


def too_long(address: str, model: str) -> object:
    printed = asked_too_long(address, f"openai/{model}", 8192)
    assert "exceeds the 8,192 token limit" in printed, printed
    return printed


def too_long_refused(address: str, model: str) -> object:
    """What aider makes of the server's refusal, where it believes that the context is longer."""
    printed = asked_too_long(address, f"openai/{model}", 1_000_000)
    assert "has hit a token limit!" in printed, printed
    return printed[printed.index("Model ") :]


if __name__ == "__main__":
    run_checks(
        plain=plain,
        streamed=streamed,
        streamed_ollama=streamed_ollama,
        edit=edit,
        unknown_model=unknown_model,
        too_long=too_long,
        too_long_refused=too_long_refused,
    )
