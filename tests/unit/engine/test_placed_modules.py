"""Modules: texts that are read once, alone, and stand in prompts by name."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.engine.kv.shifted import ShiftedTokens
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.prefixes.folders import n_bytes_kept
from edgeinfer.engine.requests.module_prompts import Module
from edgeinfer.engine.scheduler.batcher import Prompt
from edgeinfer.errors import BadSetting, ContextOverflow, DoesNotFit, UnknownKey, UnsupportedModel
from edgeinfer.steps import no_progress
from tests.adapter_files import write_adapter
from tests.golden.goldens import DATA
from tests.unit.engine.prefixes.test_prefix_store import Usage

LLAMA = DATA / "llama-q8_0.gguf"
MANUAL = "one two three four five six seven eight nine ten, and then eleven of them. " * 3
RULES = "the rain in the tin, the hen in the inn, and a moth in the broth over there. " * 2
QUESTION = "\nWho is in the inn, and what is in the tin?"
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "logprobs": 3}
Bits = tuple[tuple[int, ...], tuple[object, ...]]


@pytest.fixture(autouse=True)
def _own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's prefixes, nor how full the disk is."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**11, 9 * 10**11))


@pytest.fixture
def llm() -> Iterator[LLM]:
    with load(LLAMA, device="cpu", n_context=1024, n_sessions=3, prefix_cache=False) as opened:
        yield opened


def bits(llm: LLM, prompt: str | Sequence[Any], **options: Any) -> Bits:
    """Tokens of an answer and the log probabilities of each and of likely others: equal only if all bits are."""
    stream = llm.complete(prompt, **{**GREEDY, **options})
    stream.read()
    return stream.tokens, stream.logprobs


def both(llm: LLM, temperature: float = 1.0) -> tuple[Module, Module, list[int]]:
    manual = llm.modules.add("manual", MANUAL, temperature=temperature)
    rules = llm.modules.add("rules", RULES, temperature=temperature)
    return manual, rules, llm.tokenize(QUESTION, add_special=False)


def n_evaluated(llm: LLM) -> int:
    return llm.telemetry.queue.n_evaluated


@pytest.mark.parametrize(
    ("name", "kv"),
    [("llama-q8_0", "f16"), ("llama-q8_0", "q8"), ("llama-q8_0", "q4"), ("qwen3-k", "f16"), ("gemma3-q8_0", "f16")],
)
def test_after_its_own_prefix_a_module_has_the_bits_of_reading(name: str, kv: str) -> None:
    with load(DATA / f"{name}.gguf", device="cpu", n_context=1024, prefix_cache=False, kv=kv) as llm:
        module, question = llm.modules.add("manual", MANUAL), llm.tokenize(QUESTION, add_special=False)
        assert module.prefix
        assert len(module.source) > 200
        placed = bits(llm, [*module.prefix, module, *question])
    with load(DATA / f"{name}.gguf", device="cpu", n_context=1024, prefix_cache=False, kv=kv) as llm:
        assert bits(llm, [*module.source, *question]) == placed


def test_a_placed_module_is_not_read(llm: LLM) -> None:
    manual, rules, question = both(llm)
    n_before = n_evaluated(llm)
    stream = llm.complete([*manual.prefix, rules, manual, *question], **GREEDY)
    stream.read()
    assert stream.stats is not None
    n_read = len(manual.prefix) + len(question)
    assert n_evaluated(llm) - n_before <= n_read + 64  # and the answer, with its drafts
    assert stream.stats.n_prompt == n_read + len(manual.tokens) + len(rules.tokens)
    assert stream.stats.n_from_modules == len(manual.tokens) + len(rules.tokens)
    assert stream.stats.n_cached >= stream.stats.n_from_modules
    assert any("approximate" in notice and "rules, manual" in notice for notice in stream.stats.notices)


def test_order_is_free_and_each_order_gives_the_same_bits_twice(llm: LLM) -> None:
    manual, rules, question = both(llm)
    orders = [(manual, rules), (rules, manual), (rules,), (manual, rules, manual)]
    found = [bits(llm, [*manual.prefix, *order, *question]) for order in orders]
    assert len(set(found)) == len(orders)
    assert [bits(llm, [*manual.prefix, *order, *question]) for order in orders] == found
    for order, each in zip(orders, found, strict=True):
        with load(LLAMA, device="cpu", n_context=1024, prefix_cache=False, spec="off") as other:
            again = [other.modules.add(module.name, text) for module, text in ((manual, MANUAL), (rules, RULES))]
            placed = [again[0] if module == manual else again[1] for module in order]
            assert bits(other, [*manual.prefix, *placed, *question]) == each


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_the_cpu_places_as_the_reference_does(temperature: float) -> None:
    found = []
    for device in ("cpu", "reference"):
        with load(LLAMA, device=device, n_context=1024, prefix_cache=False, spec="off") as llm:
            manual, rules, question = both(llm, temperature)
            options = {**GREEDY, "max_tokens": 1, "logprobs": 20}
            stream = llm.complete([*manual.prefix, rules, *question, manual, *question], **options)
            stream.read()
            found.append(dict(stream.logprobs[0].top))
    shared = found[0].keys() & found[1].keys()
    assert len(shared) > 15
    assert max(abs(found[0][token] - found[1][token]) for token in shared) < 0.1


def test_a_temperature_changes_what_follows(llm: LLM) -> None:
    manual, _, question = both(llm)
    sharp = llm.modules.add("sharp", MANUAL, temperature=0.5)
    assert sharp.tokens == manual.tokens
    plain = bits(llm, [*manual.prefix, manual, *question])
    assert bits(llm, [*manual.prefix, sharp, *question]) != plain
    assert bits(llm, [*manual.prefix, manual, *question]) == plain


def test_exact_prompts_share_nothing_with_modules(llm: LLM) -> None:
    manual, rules, question = both(llm)
    text = [*manual.prefix, *rules.tokens, *manual.tokens, *question]
    with load(LLAMA, device="cpu", n_context=1024, prefix_cache=False) as other:
        expected = bits(other, text)
    placed = bits(llm, [*manual.prefix, rules, manual, *question])
    assert placed != expected
    assert bits(llm, text) == expected
    assert bits(llm, [*manual.prefix, rules, manual, *question]) == placed
    stream = llm.complete([*manual.prefix, rules, manual, *question, 5], **GREEDY)
    stream.read()
    assert stream.stats is not None
    assert stream.stats.n_cached >= stream.stats.n_prompt - 2  # what has the same modules is shared


def test_only_what_was_read_goes_to_disk(tmp_path: Path) -> None:
    """A later load finds modules there, and no prompt that has some."""
    with load(LLAMA, device="cpu", n_context=2048, prefix_cache=True) as llm:
        manual = llm.modules.add("manual", MANUAL * 2)
    assert n_bytes_kept()
    n_kept = n_bytes_kept()
    question = list(range(10, 18)) * 40
    with load(LLAMA, device="cpu", n_context=2048, prefix_cache=True) as llm:
        again = llm.modules.add("manual", MANUAL * 2)
        assert again == manual
        assert n_evaluated(llm) <= 64
        first = bits(llm, [*manual.prefix, again, *question])
    assert n_bytes_kept() == n_kept
    with load(LLAMA, device="cpu", n_context=2048, prefix_cache=True) as llm:
        again = llm.modules.add("manual", MANUAL * 2)
        stream = llm.complete([*manual.prefix, again, *question], **GREEDY)
        stream.read()
        assert stream.stats is not None
        assert stream.stats.n_from_disk == 0
        assert (stream.tokens, stream.logprobs) == first


def test_a_conversation_has_modules_before_its_first_question_or_where_a_part_says(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu", prefix_cache=False) as llm:
        module = llm.modules.add("rules", RULES)
        assert llm.prompts.tokenizer.decode(module.prefix) == "<|im_start|>user\n"
        messages = [{"role": "user", "content": QUESTION}]
        first = llm.chat(messages, modules=["rules"], **GREEDY)
        parts = [{"type": "module", "name": "rules"}, {"type": "text", "text": f"\n\n{QUESTION}"}]
        second = llm.chat([{"role": "user", "content": parts}], **GREEDY)
        told = llm.prompts.tokenizer.decode(first.prompt_ids)
        assert told == f"<|im_start|>user\n{RULES}\n\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
        assert first.prompt == second.prompt
        assert first.read() == second.read()
        assert list(first.prompt).count(module.first_name) == 1
        assert llm.prompts.render([{"role": "user", "content": parts}]) == told
        assert llm.prompts.n_tokens(messages, {"modules": ["rules"]}) == len(first.prompt)
        plain = llm.chat([{"role": "user", "content": f"{RULES}\n\n{QUESTION}"}], **GREEDY)
        plain.read()
        assert min(plain.prompt) >= 0


def test_modules_stay_when_the_oldest_turns_are_left_out(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu", prefix_cache=False, n_context=512) as llm:
        module = llm.modules.add("rules", RULES)
        turns: list[dict[str, str]] = []
        for number in range(12):
            turns += [{"role": "user", "content": f"{number} " * 12}, {"role": "assistant", "content": "so it is " * 4}]
        stream = llm.chat([*turns, {"role": "user", "content": QUESTION}], modules=["rules"], **GREEDY)
        stream.read()
        assert stream.stats is not None
        assert stream.stats.truncated
        assert list(stream.prompt).count(module.first_name) == 1


def test_a_session_keeps_modules_from_turn_to_turn(tiny_model: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    with load(tiny_model, device="cpu", prefix_cache=False) as llm, llm.session() as session:
        llm.modules.add("rules", RULES)
        first = session.chat(messages, modules=["rules"], **GREEDY)
        messages += [{"role": "assistant", "content": first.read()}, {"role": "user", "content": "and then?"}]
        session.save(tmp_path / "session")
        second = session.chat(messages, modules=["rules"], **GREEDY)
        second.read()
        assert second.stats is not None
        assert second.stats.n_cached >= len(first.prompt)
    with load(tiny_model, device="cpu", prefix_cache=False) as llm, llm.session() as session:
        llm.modules.add("rules", RULES)
        session.restore(tmp_path / "session")
        again = session.chat(messages, modules=["rules"], **GREEDY)
        assert (again.read(), again.logprobs) == (second.text, second.logprobs)


def test_what_was_taken_is_read_again(llm: LLM) -> None:
    manual, _, question = both(llm)
    expected = bits(llm, [*manual.prefix, manual, *question])
    with llm._pool.lock:
        while llm._driver.scheduler.admission.give_up():
            pass
        assert not any(member.tokens for member in llm._pool.members)
    assert bits(llm, [*manual.prefix, manual, *question]) == expected


def test_answers_side_by_side_are_those_of_each_alone() -> None:
    with load(LLAMA, device="cpu", n_context=512, prefix_cache=False, n_sessions=2) as llm:
        manual, rules, question = both(llm)
        prompts = [[*manual.prefix, *placed, *question] for placed in ((rules,), (manual,), (rules, manual), ())]
        alone = [bits(llm, prompt) for prompt in prompts]
        llm.modules.remove("manual")
        llm.modules.remove("rules")
        llm._driver.scheduler.admission.prefixes.close()
        found: dict[int, Bits] = {}

        def answer(number: int) -> None:
            found[number] = bits(llm, prompts[number])

        threads = [threading.Thread(target=answer, args=(number,)) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[number] for number in range(len(prompts))] == alone


def test_a_batch_has_modules(llm: LLM) -> None:
    both(llm)
    options: Any = {"temperature": 0.0, "max_tokens": 6}
    prompts = [Prompt(QUESTION, {"modules": ["manual", "rules"]}), Prompt(QUESTION, {"modules": ["nothing"]})]
    answers = {answer.number: answer for answer in llm.batch(prompts, **options)}
    assert answers[0].text == llm.complete(QUESTION, modules=["manual", "rules"], **options).read()
    assert isinstance(answers[1].error, UnknownKey)


def test_an_adapter_reads_its_own_modules(tmp_path: Path) -> None:
    adapter = write_adapter(LLAMA, tmp_path / "a.gguf", rank=4, seed=3)
    with load(LLAMA, device="cpu", n_context=1024, prefix_cache=False, lora=[adapter]) as llm:
        manual, _, question = both(llm)
        prompt = [*manual.prefix, manual, *question]
        with_it, without = (bits(llm, prompt, lora={0: scale}) for scale in (1.0, 0.0))
        assert with_it != without
    with load(LLAMA, device="cpu", n_context=1024, prefix_cache=False) as plain:
        again = plain.modules.add("manual", MANUAL)
        assert bits(plain, [*manual.prefix, again, *question]) == without


def test_names_and_texts_are_checked(llm: LLM) -> None:
    with pytest.raises(UnknownKey, match="there is no module 'a'; there are: none"):
        llm.modules["a"]
    llm.modules.add("manual", MANUAL)
    with pytest.raises(UnknownKey, match="there are: manual"):
        llm.complete(QUESTION, modules=["rules"])
    for name in ("", "a b", "a/b", "x" * 101, 5):
        with pytest.raises(BadSetting, match="the name of a module cannot be"):
            llm.modules.add(name, MANUAL)  # type: ignore[arg-type]
    for temperature in (0, -1, 20, "warm"):
        with pytest.raises(BadSetting, match="temperature of a module"):
            llm.modules.add("a", MANUAL, temperature=temperature)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="is empty"):
        llm.modules.add("a", "")
    for given in ({"text": b"text"}, {"text": MANUAL, "prefix": 5}):
        with pytest.raises(BadSetting, match="must be a text"):
            llm.modules.add("a", **given)  # type: ignore[arg-type]
    with pytest.raises(ContextOverflow, match="the context holds 1024"):
        llm.modules.add("long", MANUAL * 20)
    with pytest.raises(BadSetting, match="list of names"):
        llm.complete(QUESTION, modules="manual")  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="ends with the module 'manual'"):
        llm.complete([1, llm.modules["manual"]])
    with pytest.raises(BadSetting, match="scored_from"):
        llm.complete(QUESTION, modules=["manual"], scored_from=1)
    with pytest.raises(ContextOverflow):
        llm.complete(QUESTION, modules=["manual"] * 9)
    assert [module.name for module in llm.modules] == ["manual"]


def test_modules_are_replaced_and_removed(llm: LLM) -> None:
    first = llm.modules.add("text", MANUAL)
    second = llm.modules.add("text", RULES)
    assert (first.key != second.key, len(llm.modules), "text" in llm.modules) == (True, 1, True)
    assert llm.modules["text"] == second
    llm.modules.remove("text")
    assert "text" not in llm.modules
    with pytest.raises(UnknownKey):
        llm.modules.remove("text")
    question = llm.tokenize(QUESTION, add_special=False)
    assert bits(llm, [*second.prefix, second, *question])  # whoever has it can place it


@pytest.mark.parametrize(
    ("name", "reason"), [("lfm2-q8_0", "states"), ("opt-q8_0", "position_embed"), ("qwen35-q8_0", "states")]
)
def test_models_that_cannot_are_refused_with_the_reason(name: str, reason: str) -> None:
    opened = load(DATA / f"{name}.gguf", device="cpu", n_context=96, prefix_cache=False)
    with opened as llm, pytest.raises(UnsupportedModel, match=reason):
        llm.modules.add("manual", "one two three")


def test_a_temperature_needs_whole_rotations() -> None:
    with load(DATA / "llama4-q8_0.gguf", device="cpu", n_context=512, prefix_cache=False) as llm:
        llm.modules.add("manual", RULES)
        with pytest.raises(UnsupportedModel, match="have no temperature"):
            llm.modules.add("sharp", RULES, temperature=0.9)


def test_a_module_of_its_own_prefix(llm: LLM) -> None:
    module = llm.modules.add("manual", MANUAL, prefix="Read this first:\n")
    assert llm.prompts.tokenizer.decode(module.prefix, skip_special=True) == "Read this first:\n"
    other = llm.modules.add("same", MANUAL)
    assert other.tokens == module.tokens
    assert other.key != module.key


def test_names_of_tokens_tell_how_they_were_read() -> None:
    tokens = tuple(np.arange(5).tolist())
    modules = [Module("a", tokens), Module("b", tokens, (1,)), Module("c", tokens, (), 0.5), Module("d", tokens[:4])]
    assert len({module.first_name for module in modules}) == len(modules)
    assert Module("e", tokens).first_name == modules[0].first_name
    assert all(name < -1 for module in modules for name in module.names)
    assert list(modules[0].names) == [modules[0].first_name - number for number in range(5)]


@pytest.mark.parametrize("asked", [False, True])
def test_what_reads_a_module_for_an_answer_that_is_given_up_ends_with_it(llm: LLM, asked: bool) -> None:
    """Unless somebody asked for it to be read in any case."""
    module = llm.modules.add("manual", MANUAL * 3, reads=False)
    scheduler, places = llm._driver.scheduler, llm._module_places
    stream = llm.complete([*module.prefix, module, *llm.tokenize(QUESTION, add_special=False)], **GREEDY)
    scheduler.enter(stream._sequence)
    for _ in range(2):
        scheduler.step()
    reading = places._found(module, ()).reading
    assert reading is not None
    assert 0 < reading.cached.n_cached < len(module.source)
    if asked:
        with llm._pool.lock:
            assert places.reading(module, (), no_progress) is reading
    stream.close()
    assert scheduler.admission.sequences == ((reading,) if asked else ())
    assert reading.is_over is not asked
    prompt = [*module.prefix, module, *llm.tokenize(QUESTION, add_special=False)]
    found = bits(llm, prompt)
    with load(LLAMA, device="cpu", n_context=1024, prefix_cache=False) as other:
        again = other.modules.add("manual", MANUAL * 3)
        assert bits(other, [*again.prefix, again, *other.tokenize(QUESTION, add_special=False)]) == found


def test_a_module_of_which_layers_with_a_window_lost_a_part_is_read_again(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    manual, _, question = both(llm)
    prompt = [*manual.prefix, manual, *question]
    with monkeypatch.context() as patched:
        patched.setattr(ShiftedTokens, "append", lambda *_, **__: False)
        with pytest.raises(DoesNotFit, match="have lost what the module 'manual' needs; ask again"):
            bits(llm, prompt)
    n_before = n_evaluated(llm)
    bits(llm, prompt)
    assert n_evaluated(llm) - n_before > len(manual.tokens)
