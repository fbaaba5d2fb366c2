"""States and memory: checkpoints go first, then a refusal says how many sequences' states would fit, and they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.plans.fit import plan_for
from edgeinfer.backends.base import Limits
from edgeinfer.engine import loading
from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.loading import load
from edgeinfer.engine.offload import weight_placement
from edgeinfer.engine.offload.weight_placement import WeightBudget, fit_weights, planned_weights
from edgeinfer.errors import DoesNotFit
from edgeinfer.models.load import Model, open_model
from edgeinfer.scheduling.cost.memory import RESERVE_SHARE, MemoryNeed, missing_bytes
from edgeinfer.scheduling.machine.profile import Curve, Disk
from tests.golden.goldens import DATA
from tests.wide_states import write_wide_states

GOLDEN = DATA / "qwen35-q8_0.gguf"
MB = 10**6
PROMPTS = ("hello world, hello", "one two three", "abc abc abc", "hello again")
AT_LEAST = r"the state of a single sequence takes 20\d\.\d MB, and a pass needs room for 2; a smaller model"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 152 MB with states of 204 MB."""
    return write_wide_states(tmp_path_factory.mktemp("wide") / "wide.gguf", heads=256, width=256)


@pytest.fixture(autouse=True)
def _passes_of_one_size(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller passes would give states some of the room of buffers."""
    monkeypatch.setattr(weight_placement, "SMALLER_PASSES", ())


def memory_of(need: MemoryNeed, n_states: int) -> int:
    """Memory in which a model fits with so many states, and not with one more."""
    available = int(need.with_states(n_states).total_bytes / (1 - RESERVE_SHARE)) + 2
    assert not missing_bytes(need.with_states(n_states), available)
    assert missing_bytes(need.with_states(n_states + 1), available)
    return available


def have(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    """Let the machine have so much memory."""
    for module in (loading, weight_placement):
        monkeypatch.setattr(module, "memory_for_model", lambda: n_bytes)


def opened_never(*_: object) -> None:
    raise AssertionError("a device was opened for what does not fit")


def counted(device: str, model: Model) -> tuple[Limits, MemoryNeed]:
    limits = limits_for(256, spec=model.spec)
    need = memory_need(device, model.spec, model.file.tensors, limits)
    assert need.n_states == 8
    return limits, need


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_refusal_says_how_many_sequences_would_fit(device: str, wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "open_evaluator", opened_never)
    with open_model(wide, 256) as model:
        need = counted(device, model)[1]
    have(monkeypatch, memory_of(need, 5))
    for sizes in ({"parallel": 4}, {"parallel": 64}, {"n_sessions": 4}):
        with pytest.raises(DoesNotFit, match=r"states of 2 sequences would .*\(--parallel 2\)$"):
            load(wide, device=device, n_context=256, **sizes)
    have(monkeypatch, memory_of(need, 1))
    for parallel in (8, None):
        with pytest.raises(DoesNotFit, match=AT_LEAST):
            load(wide, device=device, n_context=256, parallel=parallel)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_what_would_fit_opens_and_answers_as_ever(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.graph.operands.MOST_STATE_BYTES", 0)
    with open_model(GOLDEN, 256) as model:
        need = counted(device, model)[1]
    with load(GOLDEN, device=device, n_context=256, spec="off") as llm:
        assert not any("states" in notice for notice in llm.info.notices)
        expected = [llm.complete(prompt, max_tokens=8, temperature=0).read() for prompt in PROMPTS]
    for n_states, parallel in ((5, 2), (2, None)):
        have(monkeypatch, memory_of(need, n_states))
        with load(GOLDEN, device=device, n_context=256, spec="off", parallel=parallel) as llm:
            assert (llm.telemetry.limits.n_states, llm.telemetry.limits.n_sequences) == (n_states, n_states // 2)
            assert llm.telemetry.limits.stored is None
            assert any(f"room for {n_states} of the 8 states" in notice for notice in llm.info.notices)
            again = [llm.complete(prompt, max_tokens=8, temperature=0).read() for prompt in (*PROMPTS, *PROMPTS)]
            answers = {each.number: each.text for each in llm.batch(PROMPTS, max_tokens=8, temperature=0.0)}
        assert again == expected * 2
        assert [answers[index] for index in range(len(PROMPTS))] == expected


def test_weights_go_only_where_checkpoints_do_not_suffice(wide: Path) -> None:
    with open_model(wide, 256) as model:
        limits, need = counted("cpu", model)
        given = model.spec, model.file, limits
        for n_states in (7, 3, 2):
            room = fit_weights(*given, WeightBudget(), memory_of(need, n_states))
            assert (room.budget_bytes, room.limits.n_states) == (None, n_states)
        assert fit_weights(*given, WeightBudget(), memory_of(need, 8)).limits.n_states == 0
        streams = fit_weights(*given, WeightBudget(n_sequences=4), memory_of(need, 8) - 20 * MB)
        assert streams.limits.n_states == 0
        assert streams.budget_bytes is not None
        limited = fit_weights(*given, WeightBudget(ram_bytes=100 * MB), memory_of(need, 8))
        assert (limited.budget_bytes, limited.limits.n_states) == (100 * MB, 0)


def test_a_hopeless_disk_names_the_sequences_that_leave_room_for_all_weights(wide: Path) -> None:
    slow = Disk({1: Curve.level(1e6)})
    with open_model(wide, 256) as model:
        limits, need = counted("cpu", model)
        available = memory_of(need, 8) - 130 * MB
        given = model.spec, model.file, "wide", limits
        with pytest.raises(DoesNotFit, match=r"GB/s.*; states of 3 sequences would leave room .* \(--parallel 3\)$"):
            planned_weights(*given, WeightBudget(n_sequences=4), slow, available)
        kept, found = planned_weights(*given, WeightBudget(n_sequences=3), slow, available)
    assert (kept, found.n_states) == (None, 7)


def test_a_model_read_from_disk_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.graph.operands.MOST_STATE_BYTES", 0)
    with open_model(GOLDEN, 256) as model:
        need = counted("cpu", model)[1]
    have(monkeypatch, memory_of(need, 5))
    for parallel, reads in ((4, True), (2, False)):
        with load(GOLDEN, device="cpu", n_context=256, spec="off", parallel=parallel) as llm:
            assert (llm.telemetry.limits.stored is not None) == reads
            hint = "; states of 2 sequences would leave room for all weights (--parallel 2)"
            assert any(notice.endswith(hint) for notice in llm.info.notices) == reads


def test_a_plan_counts_the_states_that_will_be_kept(wide: Path) -> None:
    with open_model(wide, 256) as model:
        need = counted("cpu", model)[1]
        for n_states in (8, 4, 2):
            available = memory_of(need, n_states)
            plan = plan_for(model.file, device="cpu", n_context=256, ram_bytes=available)[1]
            assert plan.need == need.with_states(n_states)


def test_absurd_states_are_refused_before_anything_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty gigabytes for each sequence, from a header alone."""
    monkeypatch.setattr(loading, "open_evaluator", opened_never)
    path = write_wide_states(tmp_path / "absurd.gguf", heads=256, width=4096)
    have(monkeypatch, 16 * 10**9)
    with pytest.raises(DoesNotFit, match=r"a single sequence takes 51\.\d GB, and a pass needs room for 2"):
        load(path, device="cpu", n_context=256)
