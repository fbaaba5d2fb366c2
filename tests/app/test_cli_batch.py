"""`edgeinfer batch`: many prompts in, a JSON object a line out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.app.opening.batch_loading import beside_all_weights
from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load, load_with
from edgeinfer.engine.offload import weight_placement
from edgeinfer.engine.offload.weight_placement import SMALLER_PASSES, smaller_passes
from edgeinfer.errors import DoesNotFit
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.cost.memory import RESERVE_SHARE
from edgeinfer.scheduling.machine.catalogue import machine_profile
from edgeinfer.scheduling.machine.topology import usable_cores
from edgeinfer.settings import load_settings
from tests.adapter_files import write_adapter
from tests.unit.scheduling.profiles import GB
from tests.unit.scheduling.workers.test_core_plan import alike, two_nodes
from tests.waiting import until

KEYS = {
    *("index", "id", "digest", "text", "tokens", "n_prompt", "n_generated", "finish_reason", "truncated", "notices"),
    *("ttft_s", "seed"),
}
LINES = [
    "the rain",
    "",
    '{"id": "b", "prompt": "in the heat", "max_tokens": 3}',
    '{"text": "then", "temp": 0.5, "seed": 7, "stop": ["zzz"]}',
    '{"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}',
]


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def batch(model: Path, *arguments: str, lines: list[str] | None = None, device: str = "reference") -> Result:
    options = ["batch", "-", "-m", str(model), "--device", device, "--ctx", "128", "--temp", "0", *arguments]
    return CliRunner().invoke(build_app(), options, input="\n".join(LINES if lines is None else lines))


def records(result: Result) -> dict[int, dict[str, object]]:
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return {int(each["index"]): each for each in found}


def test_every_line_is_answered_with_its_own_options(tiny_model: Path) -> None:
    result = batch(tiny_model, "--max-tokens", "8")
    found = records(result)
    assert (result.exit_code, sorted(found)) == (0, [0, 1, 2, 3])
    assert result.stderr.startswith("note: reference rounds otherwise when several answers share a pass")
    assert all(set(each) == KEYS for each in found.values())
    with load(tiny_model, device="reference", n_context=128) as llm:
        streams = [
            llm.chat([{"role": "user", "content": "the rain"}], temperature=0, max_tokens=8),
            llm.chat([{"role": "user", "content": "in the heat"}], temperature=0, max_tokens=3),
            llm.complete("then", temperature=0.5, seed=7, max_tokens=8),
            llm.chat([{"role": "user", "content": "a"}], temperature=0, max_tokens=5),
        ]
        for index, stream in enumerate(streams):
            assert found[index]["text"] == stream.read()
            assert found[index]["tokens"] == list(stream.tokens)
    assert [found[index]["id"] for index in range(4)] == [0, "b", 2, 3]


def test_lines_say_whether_to_think(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{{ messages[0].content }} {{ enable_thinking }} {{ thinking }}")
    lines = ['{"prompt": "a", "enable_thinking": true, "max_thought_tokens": 3}', "a", '{"text": "a off off"}']
    more = ("--max-tokens", "4", "--chat-template-file", str(path), "--enable-thinking", "off")
    found = records(batch(tiny_model, *more, lines=lines))
    with load(tiny_model, device="reference", n_context=128, chat_template_file=path) as llm:
        assert llm.prompts.template.origin == str(path)
        assert any(f"chat template {path}, not" in notice for notice in llm.info.notices)
        for index, word in enumerate(("True", "False")):
            wanted = llm.complete(f"a {word} {word}", temperature=0, max_tokens=4)
            wanted.read()
            assert found[index]["tokens"] == list(wanted.tokens)
    wrong = batch(tiny_model, lines=['{"prompt": "a", "enable_thinking": "no"}'])
    assert "enable_thinking must be true or false" in str(wrong.exception) + wrong.stderr


def test_lines_say_how_much_to_think(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{{ messages[0].content }} {{ reasoning_effort }} {{ enable_thinking }}")
    lines = ['{"prompt": "a", "reasoning_effort": "low"}', "a", '{"prompt": "a", "reasoning_effort": "none"}']
    more = ("--max-tokens", "4", "--chat-template-file", str(path), "--reasoning-effort", "high")
    found = records(batch(tiny_model, *more, lines=lines))
    with load(tiny_model, device="reference", n_context=128) as llm:
        for index, words in enumerate(("low ", "high ", " False")):
            wanted = llm.complete(f"a {words}", temperature=0, max_tokens=4)
            wanted.read()
            assert found[index]["tokens"] == list(wanted.tokens)
    wrong = batch(tiny_model, lines=['{"prompt": "a", "reasoning_effort": 3}'])
    assert "reasoning_effort must be a text" in str(wrong.exception) + wrong.stderr


def test_lines_choose_scales_of_adapters(tiny_model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tiny_model, tmp_path / "poet.gguf")
    asked: dict[str, dict[str, object]] = {
        "as loaded": {},
        "none": {"lora": {}},
        "by name": {"lora": {"poet": 1}},
        "by number": {"lora": {"0": -2.5}},
        "unknown": {"lora": {"bard": 1}},
    }
    lines = [json.dumps({"text": "the hen", "id": name, "max_tokens": 8, **more}) for name, more in asked.items()]
    found = records(batch(tiny_model, "--lora", f"{adapter}:0", lines=lines, device="cpu"))
    texts = {each["id"]: each.get("text") for each in found.values()}
    with load(tiny_model, device="cpu", lora=[str(adapter)], spec="off") as llm:
        scales: dict[str, float] = {"as loaded": 0, "none": 0, "by name": 1, "by number": -2.5}
        for name, scale in scales.items():
            asked_alone = llm.complete("the hen", lora={0: scale}, max_tokens=8, temperature=0)
            assert texts[name] == asked_alone.read()
    assert len({texts[name] for name in scales}) == 3
    assert "there is no LoRA adapter 'bard'; there are: 0 (poet)" in str(found[4]["error"])


def test_system_instructions_and_stats(tiny_model: Path) -> None:
    result = batch(tiny_model, "--max-tokens", "4", "--system", "in the", "--stats", lines=["the rain"])
    with load(tiny_model, device="reference", n_context=128) as llm:
        messages = [{"role": "system", "content": "in the"}, {"role": "user", "content": "the rain"}]
        assert records(result)[0]["text"] == llm.chat(messages, temperature=0, max_tokens=4).read()
    assert "4 tokens in" in result.stderr
    assert "1 replica on reference" in result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"promt": "x"}', "line 2: there is no key 'promt'; did you mean 'prompt'?"),
        ("{x", "line 2: it begins like a JSON object and is none"),
        ('{"id": 1}', "give one of prompt, messages, text, not none of them"),
        ('{"prompt": "a", "text": "b"}', "not prompt and text"),
        ('{"prompt": 3}', "prompt must be a text"),
        ('{"messages": "a"}', "messages must be a list"),
        ('{"prompt": "a", "max_tokens": 1.5}', "max_tokens must be a whole number"),
        ('{"prompt": "a", "temp": true}', "temp must be a number"),
        ('{"prompt": "a", "temp": 1' + "0" * 400 + "}", "temp is too large"),
        ('{"prompt": "a", "seed": ' + "9" * 5000 + "}", "it begins like a JSON object and is none"),
        ('{"prompt": "a", "stop": [1]}', "stop must be a text or a list of texts"),
        ('{"prompt": "a", "id": null}', "id must be a text or a whole number"),
        ('{"prompt": "a", "system": 1}', "system must be a text"),
        ('{"prompt": "a", "lora": [1]}', "lora must be scales by an adapter's name or number"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_before_anything_runs(tiny_model: Path, line: str, said: str) -> None:
    result = batch(tiny_model, lines=["the rain", line])
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


def test_a_batch_without_prompts_and_a_file_that_is_not_there(tiny_model: Path, tmp_path: Path) -> None:
    assert "has no prompts" in batch(tiny_model, lines=["", " "]).stderr
    result = CliRunner().invoke(build_app(), ["batch", str(tmp_path / "none"), "-m", str(tiny_model)])
    assert result.exit_code == 1
    assert "cannot be read" in result.stderr
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    result = CliRunner().invoke(build_app(), ["batch", str(tmp_path / "latin"), "-m", str(tiny_model)])
    assert result.exit_code == 1
    assert "not UTF-8 at byte 3" in result.stderr


def test_a_prompt_that_does_not_fit_is_a_line_of_its_own(tiny_model: Path) -> None:
    result = batch(tiny_model, "--max-tokens", "2", lines=["the", '{"text": "' + "xyz " * 200 + '"}', "a"])
    found = records(result)
    assert result.exit_code == 1
    assert "1 of 3 prompts could not be answered" in result.stderr
    assert set(found[1]) == {"index", "id", "digest", "error"}
    assert "context" in str(found[1]["error"])
    assert len(found[0]["tokens"]) == len(found[2]["tokens"]) == 2  # type: ignore[arg-type]


def test_a_batch_goes_on_with_its_file(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    whole = records(batch(tiny_model, "--max-tokens", "4"))
    kept = [json.dumps(whole[0]), json.dumps({**whole[1], "finish_reason": None, "error": "no"})]
    kept.append(json.dumps({**whole[2], "finish_reason": "cancelled", "text": ""}))
    out.write_text("\n".join([*kept, '{"index": 3, "id": 3, "te']), encoding="utf-8")
    result = batch(tiny_model, "--max-tokens", "4", "--out", str(out))
    assert (result.exit_code, result.stdout) == (0, "")
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["index"] for line in lines[:3]] == [0, 1, 2]
    assert {line["index"] for line in lines[3:]} == {1, 2, 3}
    assert all(line["text"] == whole[line["index"]]["text"] for line in lines[3:])
    again = batch(tiny_model, "--max-tokens", "4", "--out", str(out))
    assert (again.exit_code, again.stdout) == (0, "")
    assert "has all 4 answers" in again.stderr


@pytest.mark.parametrize(
    "text",
    [
        "not json\n",
        "no line of ours",
        "a note\nof two lines",
        '{"index": 9, "id": 9}\n',
        '{"index": 0, "id": 0}\n',
        '{"index": 0, "id": "other", "digest": ""}\n',
        "[]\n",
        "GGUF\x03\x00",
    ],
)
def test_a_file_of_something_else_is_left_alone(tiny_model: Path, tmp_path: Path, text: str) -> None:
    out = tmp_path / "other.jsonl"
    out.write_text(text, encoding="utf-8")
    result = batch(tiny_model, "--out", str(out))
    assert result.exit_code == 1
    assert "does not have answers of this batch" in result.stderr
    assert out.read_text(encoding="utf-8") == text


def test_a_file_of_other_prompts_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    assert batch(tiny_model, "--max-tokens", "2", "--out", str(out), lines=["the", "rain"]).exit_code == 0
    before = out.read_bytes()
    result = batch(tiny_model, "--max-tokens", "2", "--out", str(out), lines=["another", "the", "rain"])
    assert result.exit_code == 1
    assert "does not have answers of this batch" in result.stderr
    assert out.read_bytes() == before


def test_answers_and_names_of_any_characters_can_be_gone_on_with(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "answers.jsonl"
    lines = ['{"prompt": "a\u2028b", "id": "\\ud83d"}', '{"prompt": "the", "id": "\u0085"}']
    text = "one\u2028two\u0085\ud83d\U0001f600"
    monkeypatch.setattr("edgeinfer.engine.scheduler.output.Output.text", lambda *_: text)
    assert batch(tiny_model, "--max-tokens", "2", "--out", str(out), lines=lines).exit_code == 0
    assert out.read_bytes().isascii()
    again = batch(tiny_model, "--max-tokens", "2", "--out", str(out), lines=lines)
    assert "has all 2 answers" in again.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_told_in_a_line(tiny_model: Path) -> None:
    result = batch(tiny_model, "--max-tokens", "2", "--out", "/dev/full")
    assert result.exit_code == 1
    assert "/dev/full cannot be written: No space left on device" in result.stderr


def test_options_that_mean_nothing_here_are_refused(tiny_model: Path) -> None:
    assert "--device cpu,NAME" in batch(tiny_model, "--vram", "1GB").stderr
    assert "--threads allows 1" in batch(tiny_model, "--replicas", "2", "--threads", "1", device="cpu").stderr
    isolated = ["batch", "-", "-m", str(tiny_model), "--device", "cpu,reference"]
    result = CliRunner(env={"EDGEINFER_ISOLATE": "1"}).invoke(build_app(), isolated, input="the")
    assert "cannot be isolated" in result.stderr


def test_contexts_that_do_not_all_fit_share_memory(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def short(model: Path, options: LoadOptions) -> LLM:
        tried.append(options.n_sessions)
        if tried[-1] > 1:
            raise DoesNotFit("memory is short")
        return load_with(model, options)

    monkeypatch.setattr("edgeinfer.engine.loading.load_with", short)
    result = batch(tiny_model, "--max-tokens", "4")
    assert (result.exit_code, tried, sorted(records(result))) == (0, [4, 2, 1], [0, 1, 2, 3])


def test_fewer_answers_at_a_time_rather_than_weights_from_disk(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(tiny_model, 128) as model:
        limits = smaller_passes(limits_for(128, 2), min(SMALLER_PASSES), 2)
        two = memory_need("cpu", model.spec, model.file.tensors, limits).total_bytes
    settings = load_settings({"device": "cpu", "ctx": 128})
    assert beside_all_weights(settings, tiny_model, 8) == 8
    monkeypatch.setattr(weight_placement, "memory_for_model", lambda: int((two + 4096) / (1 - RESERVE_SHARE)))
    assert beside_all_weights(settings, tiny_model, 8) == 2
    streamed = load_settings({"device": "cpu", "ctx": 128, "ram": "300kB"})
    assert beside_all_weights(streamed, tiny_model, 8) == 8  # weights are read anyway, once for all of them


def test_a_batch_whose_weights_come_from_disk_is_the_same(tiny_model: Path) -> None:
    plain, streamed = (batch(tiny_model, "--max-tokens", "6", *ram, device="cpu") for ram in ((), ("--ram", "300000")))
    assert streamed.exit_code == 0, streamed.stderr
    assert "are read from disk for every token" in streamed.stderr
    found = records(streamed)
    assert {n: each["tokens"] for n, each in records(plain).items()} == {n: e["tokens"] for n, e in found.items()}


@pytest.mark.parametrize("ram", [(), ("--ram", "300000")])
def test_a_batch_is_drafted_unless_that_is_switched_off(tiny_model: Path, ram: tuple[str, ...]) -> None:
    lines = ["the rain in the inn", "the rain in the inn", "a"]
    drafted, plain = (
        batch(tiny_model, "--max-tokens", "40", "--stats", *ram, *spec, lines=lines, device="cpu")
        for spec in (("--verify-cost", "2:1.0,64:1.0"), ("--spec", "off"))
    )
    assert {n: each["tokens"] for n, each in records(drafted).items()} == {
        n: each["tokens"] for n, each in records(plain).items()
    }
    assert "drafted were right" in drafted.stderr
    assert "drafted" not in plain.stderr


@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core has no room for two replicas")
def test_replicas_have_cores_of_their_own(tiny_model: Path) -> None:
    plain = records(batch(tiny_model, "--max-tokens", "6", device="cpu"))
    result = batch(tiny_model, "--max-tokens", "6", "--replicas", "2", "--stats", device="cpu")
    assert result.exit_code == 0
    assert "2 replicas on cpu" in result.stderr
    assert {n: each["tokens"] for n, each in records(result).items()} == {n: e["tokens"] for n, e in plain.items()}
    refused = batch(tiny_model, "--replicas", "2")
    assert refused.exit_code == 1
    assert "replicas are for the cpu, not for reference" in refused.stderr
    refused = batch(tiny_model, "--replicas", "1000", device="cpu")
    assert refused.exit_code == 1
    assert "1000 replicas need at least as many cores" in refused.stderr


@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core cannot stand for two nodes")
def test_a_machine_of_two_nodes_gets_a_replica_on_each(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = usable_cores()[:2]
    cpu = two_nodes(0.01 * GB)
    cpu = replace(cpu, cores=(*alike(1, 0, first), *alike(1, 1, second)), op_s=1e-3)
    profile = replace(machine_profile("xeon-2node"), devices=(cpu,))
    monkeypatch.setattr("edgeinfer.app.plans.measured.kept_profile", lambda: profile)
    result = batch(tiny_model, "--max-tokens", "6", "--stats", "--parallel", "4", device="cpu")
    assert result.exit_code == 0
    assert "2 replicas on cpu" in result.stderr
    assert (
        "1 replica on cpu" in batch(tiny_model, "--stats", "--max-tokens", "2", "--threads", "2", device="cpu").stderr
    )


def test_an_unknown_schedule_is_refused(tiny_model: Path) -> None:
    result = batch(tiny_model, "--schedule", "none")
    assert result.exit_code == 2
    assert "--schedule needs a schedule, not 'none'" in result.stderr
    assert "overlap" in result.stderr


def test_ctrl_c_keeps_what_there_is(tiny_model: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    prompts.write_text("\n".join(["the rain"] * 500), encoding="utf-8")
    arguments = [
        "batch",
        str(prompts),
        "-m",
        str(tiny_model),
        "--device",
        "reference",
        "--out",
        str(out),
        "--ctx",
        "256",
    ]
    child = subprocess.Popen([sys.executable, "-m", "edgeinfer", *arguments], stderr=subprocess.PIPE)
    until(lambda: child.poll() is not None or (out.exists() and out.read_bytes().count(b"\n") >= 2))
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 130
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert 2 <= len(lines) < 500
    assert all(line["finish_reason"] != "cancelled" for line in lines)
