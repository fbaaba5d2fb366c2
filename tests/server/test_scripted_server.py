"""`scripts/clients/scripted_server.py`: a server that says what a script tells it to, and what it writes down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.conftest import write_tiny_llama
from tests.waiting import until

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "tests" / "unit" / "models" / "text" / "templates" / "qwen25.jinja"
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
RULES = [
    {"role": "tool", "has": "1[0-9]:00", "say": "It is noon."},
    {"role": "user", "tool": "clock", "say": CALL},
    {"has": "JSON", "as_schema": True, "say": '{"sure": true}'},
    {"say": "Ask me of the time."},
]
PARAMETERS = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": PARAMETERS}}]
SCHEMA = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripted") / "record.jsonl"


@pytest.fixture(scope="module")
def client(record: Path) -> Iterator[openai.OpenAI]:
    """A client of a server that the script's rules answer."""
    model, rules = write_tiny_llama(record.with_name("tiny.gguf"), context=8192), record.with_name("rules.json")
    rules.write_text(json.dumps(RULES))
    script = [sys.executable, str(ROOT / "scripts" / "clients" / "scripted_server.py"), str(model), str(rules)]
    more = [str(record), "--chat-template-file", str(TEMPLATE), "--ctx", "8192", "--port", "0"]
    with subprocess.Popen([*script, *more], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with openai.OpenAI(base_url=f"{url}/v1", api_key="a secret", max_retries=0, timeout=600) as found:
                yield found
        finally:
            process.terminate()


def test_the_first_rule_that_fits_answers(client: openai.OpenAI, record: Path) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "What time is it?"}]
    called = client.chat.completions.create(model="any", messages=messages, tools=TOOLS).choices[0]
    (call,) = called.message.tool_calls
    assert (called.finish_reason, call.function.name) == ("tool_calls", "clock")
    assert json.loads(call.function.arguments) == {"zone": "UTC"}
    messages += [called.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "12:00"}]
    stream = client.chat.completions.create(model="any", messages=messages, tools=TOOLS, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in stream if part.choices) == "It is noon."
    form = {"type": "json_schema", "json_schema": {"name": "sure", "schema": SCHEMA}}
    asked = [{"role": "user", "content": "Say it as JSON."}]
    for more, said in (({"response_format": form}, '{"sure": true}'), ({}, "Ask me of the time.")):
        answer = client.chat.completions.create(model="any", messages=asked, **more)
        assert answer.choices[0].message.content == said

    until(lambda: record.exists() and record.read_text().count("\n") == 4)  # a line is written after its answer
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(line["path"], line["status"]) for line in lines] == [("/v1/chat/completions", 200)] * 4
    assert lines[0]["body"]["messages"] == messages[:1]
    assert "It is noon." in "".join(
        json.loads(event[6:])["choices"][0]["delta"].get("content") or ""
        for event in lines[1]["answer"].split("\n\n")
        if event.startswith("data: {")
    )
    assert "a secret" not in record.read_text()


def test_a_call_that_must_be_made_is_the_models_own(client: openai.OpenAI) -> None:
    asked = [{"role": "user", "content": "Say it as JSON."}]
    answer = client.chat.completions.create(
        model="any", messages=asked, tools=TOOLS, tool_choice="required", max_tokens=300
    )
    for call in answer.choices[0].message.tool_calls or ():
        assert call.function.name == "clock"
    assert answer.choices[0].message.content != "Ask me of the time."
