"""A few of the agents' loops that `scripts/run_agent_loops.py` runs: each of its wires once, over three templates.

The script itself too, with a template that tells the model all, and with one that does not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.app.server.listening import ServerOptions
from scripts.agent_loops.dressed import dress, marks_of, tags_of
from scripts.agent_loops.functions import REPORT, SCHEMAS, fault_of_call, fault_of_json
from scripts.agent_loops.loop import N_STEPS, WIRES, Loop, WatchedPrompts, faults_of, kinds_of
from scripts.agent_loops.wires import Answer, Ask, Call
from tests.conftest import write_tiny_llama
from tests.server.conftest import served

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "tests" / "unit" / "models" / "text" / "templates"
CLOCK = Call("a", "clock", "{}")


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("qwen25", ["responses, by id", "ollama"]),
        ("llama3", ["chat, streamed", "anthropic"]),
        ("mistral", ["chat", "responses"]),
    ],
)
def test_no_loop_breaks(tmp_path: Path, name: str, kinds: list[str]) -> None:
    plain = write_tiny_llama(tmp_path / "plain.gguf", context=16384, n_spare=24)
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    path = dress(plain, template, tmp_path / f"{name}.gguf")
    with served(path, ServerOptions(port=0), defaults={"temperature": 0.8, "max_thought_tokens": 24}) as running:
        for number, kind in enumerate(kinds, 500):
            seen = Loop(number, kind, running.url, WatchedPrompts(running.llm)).run()
            assert seen.faults == []
            assert (seen.counts["steps"], seen.counts["whole loops"]) == (N_STEPS, 1)


def script(model: Path, template: Path) -> tuple[int, str]:
    """The exit code of the script over one loop, and what it printed."""
    command = [sys.executable, str(ROOT / "scripts" / "run_agent_loops.py"), str(template), "--model", str(model)]
    ended = subprocess.run([*command, "--loops", "1", "--together", "1"], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_the_script_tells_of_loops_that_hold_and_of_those_that_break(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "plain.gguf", context=16384, n_spare=24)
    code, told = script(model, TEMPLATES / "qwen25.jinja")
    heading, *rows = told.splitlines()
    assert code == 0, told
    assert heading.split()[:4] == ["template,", "wire", "loops", "whole"]
    assert rows[-1].startswith("all, ")
    assert rows[-1].split()[3:6] == ["1", "1", str(N_STEPS)]
    assert rows[-1].split()[-1] == "0"
    (tmp_path / "deaf.jinja").write_text(
        "{% for m in messages %}{% if loop.index < 3 or loop.last %}{{ m.content }}\n{% endif %}{% endfor %}"
    )
    code, told = script(model, tmp_path / "deaf.jinja")
    assert code == 1, told
    assert "the model was not told" in told


def ask(choice: str, *, is_parallel: bool = True, schema: dict[str, object] | None = None) -> Ask:
    return Ask(["clock", "weather"], choice, is_parallel, schema, 10, 0)


@pytest.mark.parametrize(
    ("asked", "answer", "fault"),
    [
        (ask("none"), Answer("", [CLOCK], "tool_calls", False), "1 calls"),
        (ask("clock"), Answer("", [CLOCK, CLOCK], "tool_calls", False), "calls of"),
        (ask("weather"), Answer("", [CLOCK], "tool_calls", False), "calls of"),
        (ask("required"), Answer("no", [], "stop", False), "no call"),
        (ask("auto", is_parallel=False), Answer("", [CLOCK, CLOCK], "tool_calls", False), "at a time"),
        (ask("auto", schema=REPORT), Answer("no", [], "stop", False), "no JSON"),
        (ask("auto", schema=REPORT), Answer("<tool_call>clock", [], "stop", False), "no JSON"),
        (ask("auto", schema=REPORT), Answer("<|tool_call>anything", [], "length", True), "no JSON"),
        (ask("auto"), Answer("", [CLOCK], "stop", False), "beside calls"),
        (ask("auto"), Answer("", [Call("", "other", "{}")], "tool_calls", False), "not among"),
        (ask("auto"), Answer("", [Call("", "clock", '{"at": 1}')], "tool_calls", False), "Additional properties"),
    ],
)
def test_faults_are_seen(asked: Ask, answer: Answer, fault: str) -> None:
    (found,) = faults_of(asked, answer, is_choosable=True)
    assert fault in found


def test_what_is_right_is_no_fault() -> None:
    right = '{"city": "Rome", "days": 2, "ticket": 12345}'
    assert fault_of_call("weather", right, ["weather"], SCHEMAS) is None
    assert "minimum" in str(fault_of_call("weather", right.replace("12345", "1"), ["weather"], SCHEMAS))
    for text in ('{"price": 1e999}', '{"price": NaN}'):
        assert "no JSON" in str(fault_of_json(text, {}))
    assert faults_of(ask("clock"), Answer("", [CLOCK], "tool_calls", False), is_choosable=True) == []
    for text in ("<tool_call>clock<arg_key>", "<|tool_call>call:clock{", "<tool_call>\n<function=clock>\n"):
        begun = Answer(text, [], "length", True)
        assert faults_of(ask("auto", schema=REPORT), begun, is_choosable=True) == []
    for choice in ("clock", "required"):
        assert faults_of(ask(choice), Answer("<tool_call>", [], "length", True), is_choosable=True) == []


def test_every_wire_and_mark_is_there() -> None:
    assert set(kinds_of(20)) == set(WIRES)
    assert marks_of("<|im_start|>[TOOL_CALLS]<tool_call></think>[/INST]", 9) == [
        "<|im_start|>",
        "[TOOL_CALLS]",
        "</think>",
        "[/INST]",
    ]
    assert marks_of('<|"|><tool_call|>', 9) == ['<|"|>', "<tool_call|>"]
    assert tags_of("<tools><tool_call></tool_call><|tool_call>", 9) == ["<tool_call>", "</tool_call>"]
