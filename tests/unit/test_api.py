"""The public names: what they are, and that importing them costs nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer import errors

HEAVY = ("numpy", "PIL", "miniaudio", "soxr", "numba", "textual", "tokenizers", "jinja2", "typer", "asyncio")


def test_the_public_names_are_these_and_all_resolve() -> None:
    own = ["LLM", "Message", "ModelInfo", "SamplingSettings", "Session", "Stats", "TextStream", "__version__", "load"]
    own += [
        "BatchAnswer",
        "BatchStream",
        "DraftSpan",
        "Image",
        "Module",
        "Prompt",
        "QueueStats",
        "RequestProgress",
        "PromptRows",
        "Score",
        "Sound",
        "TokenLogprobs",
        "ToolCall",
    ]
    tree = [name for name, found in vars(errors).items() if inspect.isclass(found)]
    assert sorted(edgeinfer.__all__) == sorted(own + tree)
    for name in edgeinfer.__all__:
        assert getattr(edgeinfer, name) is not None
    assert set(edgeinfer.__all__) <= set(dir(edgeinfer))


@pytest.mark.parametrize(
    ("former", "name"),
    [("Facts", "ModelInfo"), ("Live", "RequestProgress"), ("Load", "QueueStats"), ("Mark", "DraftSpan")],
)
def test_former_names_work_with_a_warning(former: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"edgeinfer.{former} is called {name} now"):
        assert getattr(edgeinfer, former) is getattr(edgeinfer, name)


def test_former_attributes_of_a_model_work_with_a_warning(tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="reference") as llm:
        with pytest.warns(DeprecationWarning, match=r"LLM\.facts is called LLM\.info now"):
            assert llm.facts is llm.info
        with pytest.warns(DeprecationWarning, match=r"LLM\.load is called LLM\.telemetry\.queue now"):
            assert llm.load == llm.telemetry.queue
        with pytest.warns(DeprecationWarning, match=r"QueueStats\.n_parked is called QueueStats\.n_preempted now"):
            assert llm.telemetry.queue.n_parked == 0
        with pytest.warns(DeprecationWarning, match=r"LLM\.time_stages is called LLM\.telemetry\.time_stages now"):
            assert llm.time_stages() == ()
        with pytest.raises(AttributeError, match="'LLM' object has no attribute 'lode'"):
            _ = llm.lode


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="lode"):
        _ = edgeinfer.lode


def test_errors_are_one_tree() -> None:
    for name, found in vars(errors).items():
        if inspect.isclass(found):
            assert issubclass(getattr(edgeinfer, name), edgeinfer.EdgeInferError)


def test_importing_edgeinfer_loads_nothing_heavy() -> None:
    code = f"import sys, edgeinfer; print([name for name in {HEAVY!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_loading_and_answering_installs_no_signal_handler_and_loads_no_face(tiny_model: Path) -> None:
    code = f"""
import signal, sys
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
import edgeinfer
with edgeinfer.load({str(tiny_model)!r}, device="reference") as llm:
    for piece in llm.chat([{{"role": "user", "content": "Hi"}}], max_tokens=4):
        pass
assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
print([name for name in ("textual", "typer", "numba", "edgeinfer.app") if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "[]", "")


@pytest.mark.model
def test_the_starter_model_answers(starter_model: Path) -> None:
    with edgeinfer.load(starter_model) as llm:
        stream = llm.chat([{"role": "user", "content": "What is the capital of France?"}], temperature=0, max_tokens=60)
        assert stream.read()
        assert stream.stats.n_generated > 0
        again = llm.chat([{"role": "user", "content": "What is the capital of France?"}], temperature=0, max_tokens=60)
        assert again.read() == stream.text
        assert again.stats.n_cached == again.stats.n_prompt - 1
