"""Cases from options, questions from files, who is compared, and the messages to children."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.bench import peers
from edgeinfer.app.bench import request as executors
from edgeinfer.app.bench.request import VERIFY_TOKENS, BenchRequest, cases, read_depths, read_questions, read_tests
from edgeinfer.app.bench.subject import (
    BenchConversation,
    BenchJob,
    BenchOpening,
    BenchReply,
    Conditions,
    DraftRun,
    OpTime,
)
from edgeinfer.errors import BadSetting, DeviceUnavailable, UnknownKey
from edgeinfer.ipc.records import from_json, to_json
from edgeinfer.setting_groups import GenerationSettings


def test_every_test_is_run_at_every_depth_and_a_start_warm_and_cold() -> None:
    wanted = BenchRequest(("prefill", "decode", "verify", "start"), 512, 128, (0, 2048), runs=5)
    found = [(case.test, case.n, case.depth, case.cold) for case in cases(wanted)]
    assert found == [
        *(("prefill", 512, 0, False), ("prefill", 512, 2048, False)),
        *(("decode", 128, 0, False), ("decode", 128, 2048, False)),
        *(("verify", max(VERIFY_TOKENS), 0, False), ("verify", max(VERIFY_TOKENS), 2048, False)),
        *(("start", 1, 0, False), ("start", 1, 0, True)),
    ]
    assert wanted.n_context >= 2048 + 512


def test_options_are_read_or_refused_with_what_works() -> None:
    assert read_tests("decode, start,decode") == ("decode", "start")
    assert read_depths("0, 2048") == (0, 2048)
    for read, text in ((read_tests, "decode,speed"), (read_tests, " "), (read_depths, "-1"), (read_depths, "0;4")):
        with pytest.raises(BadSetting, match=r"prefill|0,2048"):
            read(text)


def test_questions_are_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"category": "maths", "turns": ["1+1?", "and 2+2?"]}\n\n{"turns": ["Hi"], "id": 3}\n')
    assert read_questions(path) == (BenchConversation("maths", ("1+1?", "and 2+2?")), BenchConversation("all", ("Hi",)))
    for text, message in (
        ('{"turns": "Hi"}', "line 1"),
        ("{}", "line 1"),
        ("\n", "no questions"),
        ("[1]", "line 1"),
        ("[" * 99_999, "1"),
    ):
        path.write_text(text)
        with pytest.raises(BadSetting, match=message):
            read_questions(path)
    with pytest.raises(BadSetting, match="cannot be read"):
        read_questions(tmp_path / "missing.jsonl")


def test_messages_survive_the_wire() -> None:
    chat = GenerationSettings(0.3, system="Be brief.")
    conditions = Conditions(Path("/m.gguf"), 2, 640, cores=(0, 2), spec=4, verify_cost={4: 1.5}, generation=chat)
    opening = BenchOpening("cpu", conditions, folder=Path("/folder"), purpose="drafting")
    assert from_json(BenchOpening, to_json(opening)) == opening
    job = BenchJob(
        "chat", 64, 0, 3, (1, 2), (BenchConversation("a", ("b", "c")),), ((0, 31, 12), (43, 9, 4)), cold=True
    )
    assert from_json(BenchJob, to_json(job)) == job
    reply = BenchReply(
        {1: 0.5, 8: 0.75},
        1.5,
        ((0, 3, 2),),
        {"maths": 9.0},
        (OpTime("MatMul", "k", 3, 0.1, 0.2, 1 << 40),),
        {"call_s": 1.0},
        "no",
        (
            DraftRun(
                "qa", "cold", 1, 9, 8, 5, 0.5, 6.5, 0.01, {"4": 5}, {"ngram": (7, 3)}, ((4.0, 2.5, 3.0),), same=False
            ),
        ),
        python_s=3e-5,
        clock_hz=3e9,
    )
    assert from_json(BenchReply, to_json(reply)) == reply
    with pytest.raises(ValueError, match="no BenchReply"):
        from_json(BenchReply, "[]")


def test_those_to_compare_with_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.Peer, "installed", True)
    script = tmp_path / "peer.py"
    script.write_text("print(1)")
    found = executors.read_against(f"llama-cpp-python, reference,python:{script},onnxruntime-genai:{tmp_path}", "cpu")
    assert [(one.kind, one.key) for one in found] == [
        ("peer", "llama-cpp-python"),
        ("ours", "reference"),
        ("script", "python"),
        ("peer", "onnxruntime-genai"),
    ]
    assert found[3].path == tmp_path


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("llama", UnknownKey, "choose from llama-cpp-python, onnxruntime-genai, openvino-genai, cpu, .*python:FILE"),
        ("cpu", BadSetting, "that is what is measured"),
        ("python:missing.py", BadSetting, "no file 'missing.py'"),
        ("onnxruntime-genai", BadSetting, "onnxruntime-genai:FOLDER"),
        ("onnxruntime-genai:missing", BadSetting, "no folder 'missing'"),
        ("llama-cpp-python:x", BadSetting, "reads the GGUF file itself"),
    ],
)
def test_others_are_refused_with_what_works(
    text: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.Peer, "installed", True)
    with pytest.raises(error, match=message):
        executors.read_against(text, "cpu")


@pytest.mark.parametrize("key", peers.peer_keys())
def test_a_peer_that_is_not_installed_says_how_to_get_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.Peer, "installed", False)
    with pytest.raises(DeviceUnavailable, match=rf"{key} is not installed: pip install "):
        executors.read_against(key, "cpu")
