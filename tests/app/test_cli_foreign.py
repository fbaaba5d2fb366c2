"""Models that edgeinfer has no architecture or tokenizer for: another program opens them, and says so."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.backends.base import DEVICES, DeviceOptions, Limits
from edgeinfer.backends.evaluator import EvaluatorKind
from edgeinfer.engine.loading import load
from edgeinfer.engine.opening.evaluator import open_evaluator
from edgeinfer.engine.requests.texts import ProgramTokenizer
from edgeinfer.engine.run.evaluators import open_subject
from edgeinfer.errors import BadSetting, DeviceFailed, DeviceUnavailable, UnsupportedModel
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.load_options import LoadOptions
from tests.foreign_models import mpt_logits, write_foreign_text, write_mamba, write_mpt
from tests.golden.goldens import DATA, distance
from tests.unit.engine.run.test_executor import chain
from tests.unit.models.test_other_names import rewritten

QUESTION = [{"role": "user", "content": "the cat sat"}]
TEXTS = ("the theatre in an inn", "naïve — 日本 🙂\n\n\tx", "<|im_start|>user", "")


def has_llama() -> bool:
    return importlib.util.find_spec("llama_cpp") is not None


peer = (pytest.mark.peer, pytest.mark.skipif(not has_llama(), reason="llama-cpp-python is not installed"))


def with_peer(test: object) -> object:
    for mark in peer:
        test = mark(test)
    return test


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def command(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(build_app(), list(arguments), input=stdin)


@with_peer
def test_logits_of_an_architecture_that_edgeinfer_lacks(tmp_path: Path) -> None:
    arrays = write_mpt(tmp_path / "mpt.gguf")
    tokens = np.random.default_rng(1).integers(3, 200, 60).astype(np.int32)
    limits = Limits(128, 4, 64, 64)
    subject = open_subject(tmp_path / "mpt.gguf", LoadOptions(device="llamacpp", n_context=128))
    assert subject.spec is None
    with subject.file:
        evaluator = open_evaluator(subject, limits, DeviceOptions(n_workers=1), LoadOptions(device="llamacpp"))
        sequence = evaluator.create()
        batch = chain(sequence, 0, tokens.tolist())
        order = np.arange(60, dtype=np.int32)
        found = evaluator.evaluate(type(batch)(batch.tokens, batch.sequences, batch.positions, batch.parents, order))
        assert distance(found, mpt_logits(arrays, tokens)) < 0.01  # keys and values are float16
        evaluator.close()


def test_a_model_that_writes_no_text_is_not_given_to_another_program(tmp_path: Path) -> None:
    """Its logits would be zeros, and the answer as many times the first token."""
    source = DATA / "converted" / "nomic-bert-bf16.gguf"

    def with_head(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("cls.weight", np.eye(32, dtype=np.float32))

    path = rewritten(source, tmp_path / "kinds.gguf", "nomic-bert", with_head)
    with pytest.raises(UnsupportedModel, match="nomic-bert reads texts as a whole and writes none"):
        open_subject(path, LoadOptions(device="llamacpp", n_context=96))
    result = command("run", "the cat", "-m", str(path), "--max-tokens", "3")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "edgeinfer's nomic-bert does not use" in result.stderr


@with_peer
def test_auto_takes_the_program_that_can_and_says_so(tmp_path: Path) -> None:
    write_mpt(tmp_path / "mpt.gguf")
    result = command("run", "the cat", "-m", "mpt.gguf", "--temp", "0", "--max-tokens", "8", "--json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert (record["devices"], record["n_generated"]) == (["llamacpp"], 8)
    assert record["notices"] == [
        notice for notice in record["notices"] if notice.startswith("llamacpp runs this model, for edgeinfer itself")
    ]
    assert result.stderr.count("note: llamacpp runs this model") == 1
    assert "llama_" not in result.stderr  # its own messages stay out
    refused = command("run", "the cat", "-m", "mpt.gguf", "--device", "cpu", "--max-tokens", "8")
    assert refused.exit_code == 1
    assert "this mpt divides its activations" in refused.stderr


@pytest.mark.parametrize("isolate", [False, True])
@with_peer
def test_a_tokenizer_that_edgeinfer_lacks_is_the_program_s(tmp_path: Path, isolate: bool) -> None:
    with load(write_foreign_text(tmp_path / "text.gguf"), spec="off", isolate=isolate) as llm:
        tokens = llm.tokenize("the cat sat")
        pieces = [llm.detokenize([token]) for token in tokens]
        assert [piece.strip() for piece in pieces] == ["the", "cat", "sat"]
        assert llm.detokenize(tokens) == "the cat sat"
        assert llm.detokenize(llm.tokenize("aé the z")) == "aé the z"
        answer = llm.chat(QUESTION, temperature=0, max_tokens=8)
        assert answer.read()
        assert answer.stats is not None
        assert answer.stats.n_generated == 8
        assert "tokenizer.ggml.model is 'hybriddna'" in llm.info.notices[0]


@with_peer
def test_the_program_s_tokenizer_and_ours_agree(tiny_model: Path) -> None:
    limits = Limits(128, 4)
    subject = open_subject(tiny_model, LoadOptions(device="llamacpp", n_context=128))
    with subject.file:
        evaluator = open_evaluator(subject, limits, DeviceOptions(n_workers=1), LoadOptions(device="llamacpp"))
        program = evaluator.capabilities.program
        assert program is not None
        theirs = program.text.vocabulary()
        tokenizer = ProgramTokenizer(theirs, program.text)
        with load(tiny_model, device="reference", spec="off") as llm:
            ours = llm._tokenizer
            for text in TEXTS:
                assert tokenizer.encode(text) == ours.encode(text)
                assert tokenizer.decode(ours.encode(text)) == text
                assert tokenizer.encode_rendered(text) == ours.encode_rendered(text)
            for name in ("tokens", "bos_id", "eos_id", "add_bos", "add_eos", "end_of_generation", "add_space_prefix"):
                assert getattr(theirs, name) == getattr(ours.vocabulary, name), name
            assert [theirs.is_control(token) for token in range(260)] == [
                ours.vocabulary.is_control(token) for token in range(260)
            ]
        evaluator.close()


@with_peer
def test_a_crash_of_the_program_is_an_error_and_the_next_request_works(tmp_path: Path) -> None:
    """This model has no embeddings of positions from its 512th on: llama.cpp aborts its process over them."""
    write_mpt(tmp_path / "mpt.gguf")
    with load(tmp_path / "mpt.gguf", spec="off", isolate=True, n_context=1024) as llm:
        first = llm.chat(QUESTION, temperature=0, max_tokens=8).read()
        with pytest.raises(DeviceFailed, match=r"crashed .*GGML_ASSERT.* second time in a row"):
            llm.complete("a" * 600, temperature=0, max_tokens=8).read()
        again = llm.chat(QUESTION, temperature=0, max_tokens=8)
        assert again.read() == first
        assert again.stats is not None


@with_peer
def test_a_memory_that_cannot_be_cut_back_is_read_again(tmp_path: Path) -> None:
    path = write_mamba(tmp_path / "mamba.gguf")
    with load(path, device="llamacpp", spec="on") as llm:
        assert any("cannot be cut back" in notice for notice in llm.info.notices)
        first = llm.chat(QUESTION, temperature=0, max_tokens=12).read()
        llm.chat([{"role": "user", "content": "the dog"}], temperature=0, max_tokens=5).read()
        again = llm.chat(QUESTION, temperature=0, max_tokens=12)
        assert again.read() == first
        assert again.stats is not None
        assert again.stats.n_cached > 0  # as far as the two questions are the same
    with load(path, device="llamacpp", spec="off") as plain:
        assert plain.chat(QUESTION, temperature=0, max_tokens=12).read() == first


@with_peer
def test_two_turns_of_a_chat_and_drafting_that_is_labelled(tiny_model: Path) -> None:
    lines = "the rain\nin an inn\n"
    options = ("-m", str(tiny_model), "--device", "llamacpp", "--temp", "0", "--max-tokens", "6")
    plain = command("chat", "--plain", *options, "--spec", "auto", stdin=lines)
    assert plain.exit_code == 0, plain.stderr
    assert "bit-exact" not in plain.stderr
    record = json.loads(command("run", "the rain", *options, "--json").stdout)
    assert record["draft"] == {}
    drafted = command("run", "the rain", *options, "--spec", "on")
    assert drafted.exit_code == 0
    assert drafted.stderr.count("not bit-exact") == 1


@with_peer
def test_a_stop_within_a_pass_keeps_the_text_and_the_session(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(tiny_model, device="llamacpp", spec="off") as llm:
        whole = llm.chat(QUESTION, temperature=0, max_tokens=12).read()
        executor = llm._pool.executor
        stream = llm.chat(QUESTION, temperature=0, max_tokens=12)
        evaluate = executor.evaluate

        def stopped_within(batch: Batch) -> Floats:
            if len(stream.tokens) == 5:
                stream.stop()  # after the generation looked, before llama.cpp does
            return evaluate(batch)

        with monkeypatch.context() as patch:
            patch.setattr(executor, "evaluate", stopped_within)
            assert whole.startswith(stream.read())
        assert stream.stats is not None
        assert (stream.stats.finish_reason, stream.stats.n_generated) == ("cancelled", 5)
        again = llm.chat(QUESTION, temperature=0, max_tokens=12)
        assert again.read() == whole
        assert again.stats is not None
        assert again.stats.n_cached == again.stats.n_prompt - 1


@with_peer
@pytest.mark.parametrize(
    ("device", "error", "words"),
    [("llamacpp:npu", BadSetting, "llamacpp:cpu or llamacpp:gpu"), ("llamacpp:gpu", DeviceUnavailable, "llamacpp")],
)
def test_a_target_that_is_not_there(tiny_model: Path, device: str, error: type[Exception], words: str) -> None:
    import llama_cpp

    if device == "llamacpp:gpu" and llama_cpp.llama_supports_gpu_offload():
        pytest.skip("this build can use a GPU")
    with pytest.raises(error, match=words):
        load(tiny_model, device=device)


@with_peer
def test_what_neither_can_read_is_refused_with_both_reasons(tmp_path: Path) -> None:
    path = tmp_path / "mpt.gguf"
    write_mpt(path, architecture="gpt9")
    with pytest.raises(UnsupportedModel, match=r"architecture is 'gpt9'.*llama\.cpp .* cannot load .*gpt9"):
        load(path)


@with_peer
def test_rounded_keys_of_narrow_heads_are_refused_with_what_works(tiny_model: Path) -> None:
    with pytest.raises(BadSetting, match="--kv f16"):
        load(tiny_model, device="llamacpp", kv="q8")


def test_without_the_package_the_message_says_how_to_get_it(tmp_path: Path) -> None:
    write_mpt(tmp_path / "mpt.gguf")
    code = f"""
import sys
sys.modules["llama_cpp"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "llama_cpp" else find(name, package)
import edgeinfer
for device in ("auto", "llamacpp"):
    try:
        edgeinfer.load({str(tmp_path / "mpt.gguf")!r}, device=device)
    except edgeinfer.EdgeInferError as reason:
        print(type(reason).__name__, reason)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    auto, named = ran.stdout.splitlines()
    assert auto.startswith("UnsupportedModel this mpt divides its activations")
    assert "llamacpp may run it: pip install 'edgeinfer[llamacpp]'" in auto
    assert named == "DeviceUnavailable llama-cpp-python is not installed: pip install 'edgeinfer[llamacpp]'"


def test_a_program_s_entry_is_described_and_imports_nothing() -> None:
    code = (
        "import sys; from edgeinfer.backends.base import DEVICES; DEVICES.entries(); print('llama_cpp' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
    kind = DEVICES.get("llamacpp")
    assert isinstance(kind, EvaluatorKind)
    assert kind.key == "llamacpp"
    assert kind.summary
