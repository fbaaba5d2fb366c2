"""Sessions over a tiny random model, on the oracle and on the CPU device."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from edgeinfer.engine.kv.saved_state import CHECKSUM_BYTES, LENGTH, seal, unseal
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.run.executor import MAGIC as STATE_MAGIC
from edgeinfer.engine.session import MAGIC, Session
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.errors import (
    BadGGUF,
    BadSetting,
    ContextOverflow,
    DoesNotFit,
    EdgeInferError,
    EngineClosed,
    ModelNotFound,
    UnknownKey,
)
from tests.conftest import write_tiny_llama
from tests.waiting import until

TALK = [
    {"role": "system", "content": "the rain in the tin"},
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "the hen"},
    {"role": "user", "content": "and an inn?"},
]
GREEDY = {"temperature": 0.0, "max_tokens": 16}
SEEDED = {"temperature": 1.0, "seed": 11, "max_tokens": 16}


@pytest.fixture(scope="module", params=["reference", "cpu"])
def llm(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device=request.param, n_sessions=3) as loaded:
        yield loaded


@pytest.fixture
def session(llm: LLM) -> Iterator[Session]:
    with llm.session() as opened:
        yield opened


def fresh(llm: LLM, messages: list[dict[str, str]], **options: object) -> tuple[int, ...]:
    """The tokens of an answer by a session that has read nothing."""
    with llm.session() as session:
        stream = session.chat(messages, **options)
        stream.read()
        assert stream.stats.n_cached == 0
        return stream.tokens


@pytest.mark.parametrize("options", [GREEDY, SEEDED])
def test_a_turn_reads_only_what_is_new_and_answers_as_a_fresh_session(
    llm: LLM, session: Session, options: dict[str, float]
) -> None:
    session.chat(TALK[:2], **options).read()
    stream = session.chat(TALK, **options)
    stream.read()
    assert stream.stats.n_cached >= 30
    assert stream.stats.n_prompt > stream.stats.n_cached
    assert stream.tokens == fresh(llm, TALK, **options)


def test_a_branch_answers_as_its_origin_would(llm: LLM, session: Session) -> None:
    session.chat(TALK[:2], **SEEDED).read()
    other = [*TALK[:3], {"role": "user", "content": "another thing"}]
    with session.branch() as twin:
        assert twin.tokens == session.tokens
        for each, messages in ((twin, other), (session, TALK)):
            stream = each.chat(messages, **SEEDED)
            stream.read()
            assert stream.stats.n_cached >= 30
            assert stream.tokens == fresh(llm, messages, **SEEDED)


def test_a_saved_session_goes_on_in_another_one(llm: LLM, session: Session, tmp_path: Path) -> None:
    session.chat(TALK[:2], **SEEDED).read()
    session.save(tmp_path / "talk.session")
    with llm.session() as second:
        second.restore(tmp_path / "talk.session")
        assert second.tokens == session.tokens
        stream = second.chat(TALK, **SEEDED)
        stream.read()
        assert stream.stats.n_cached >= 30
        assert stream.tokens == fresh(llm, TALK, **SEEDED)
    assert [path.name for path in tmp_path.iterdir()] == ["talk.session"]


def test_damaged_foreign_and_missing_files_are_refused(llm: LLM, session: Session, tmp_path: Path) -> None:
    session.chat(TALK[:2], **SEEDED).read()
    path = tmp_path / "talk.session"
    session.save(path)
    whole, before = path.read_bytes(), session.tokens
    for damaged in (whole[:-1], whole[:40], b"", whole[:60] + bytes([whole[60] ^ 1]) + whole[61:]):
        path.write_bytes(damaged)
        with pytest.raises(EdgeInferError, match="start again from the text"):
            session.restore(path)
    path.write_bytes(whole)
    another = write_tiny_llama(tmp_path / "another.gguf", seed=1)
    foreign = pytest.raises(EdgeInferError, match="belongs to another model, device or kv: its model is")
    with load(another, device="reference") as other, foreign:
        other.session().restore(path)
    with pytest.raises(EdgeInferError, match=r"none\.session cannot be read"):
        session.restore(tmp_path / "none.session")
    with pytest.raises(EdgeInferError, match="cannot be written"):
        session.save(tmp_path / "no" / "folder")
    assert session.tokens == before


@pytest.mark.parametrize(
    ("part", "before", "after"),
    [
        *(("session", '"tokens": [', f'"tokens": [{odd}, ') for odd in ("1", "null", "1.5", '"x"', "[]")),
        *(("session", '"tokens"', odd) for odd in ('"words"', "5")),
        *(("session", '"scales": "[]"', f'"scales": {odd}') for odd in ('"["', '"[null]"', '"{}x"', "5")),
        *(("session", '"n_exact": ', f'"n_exact": {odd}') for odd in ("1.", '"", "": ', 'null, "x": ')),
        ("session", "{", "{" + '"x": ' + "[" * 99_999),
        *(("state", '"n_tokens": ', f'"n_tokens": {odd}') for odd in ("9", "-", "1.", '1e999, "x": ', 'null, "x": ')),
        ("state", '"n_tokens"', '"m_tokens"'),
        ("state", "{", "[{"),
        ("state", "{", "["),
    ],
)
@pytest.mark.usefixtures("uncollected")
def test_files_that_mean_harm_are_refused(
    llm: LLM, session: Session, tmp_path: Path, part: str, before: str, after: str
) -> None:
    """Their checksums are right."""
    session.chat(TALK[:2], **SEEDED).read()
    path = tmp_path / "talk.session"
    session.save(path)
    told, state = unseal(MAGIC, path.read_bytes(), "")
    if part == "session":
        written = json.dumps(told).replace(before, after, 1).encode()
        path.write_bytes(_sealed(MAGIC, written, state))
    else:
        own, body = unseal(STATE_MAGIC, state, "")
        state = _sealed(STATE_MAGIC, json.dumps(own).replace(before, after, 1).encode(), body)
        path.write_bytes(seal(MAGIC, told, state))
    with pytest.raises(EdgeInferError, match=r"start again from the text|does not fit|context"):
        session.restore(path)
    session.chat(TALK, **GREEDY).read()
    assert session.tokens


def test_a_state_of_another_size_is_refused(llm: LLM, session: Session, tmp_path: Path) -> None:
    session.chat(TALK[:2], **SEEDED).read()
    path = tmp_path / "talk.session"
    session.save(path)
    told, state = unseal(MAGIC, path.read_bytes(), "")
    own, body = unseal(STATE_MAGIC, state, "")
    for changed in (body[:-64], body + bytes(64), b""):
        path.write_bytes(seal(MAGIC, told, seal(STATE_MAGIC, own, changed)))
        with pytest.raises(EdgeInferError, match="damaged; start again from the text"):
            session.restore(path)


def _sealed(magic: bytes, header: bytes, body: bytes) -> bytes:
    """As `seal`, with a header that may be no JSON."""
    start = magic + LENGTH.pack(len(header)) + header + body
    return start + blake2b(start, digest_size=CHECKSUM_BYTES).digest()


def test_a_session_whose_memory_was_taken_says_so_instead_of_saving_nothing(
    llm: LLM, session: Session, tmp_path: Path
) -> None:
    session.chat(TALK, **GREEDY).read()
    while session.tokens:
        with llm._pool.lock:
            assert llm._pool.make_room(())  # as answers do that need it
    with session.branch() as twin:
        for each in (session, twin):
            with pytest.raises(EdgeInferError, match="was given up to other answers"):
                each.save(tmp_path / "talk.session")
    assert list(tmp_path.iterdir()) == []
    session.chat(TALK, **GREEDY).read()
    session.save(tmp_path / "talk.session")
    with llm.session() as other:
        other.restore(tmp_path / "talk.session")
        assert other.tokens == session.tokens


def test_a_session_that_closes_leaves_its_texts_where_answers_that_draft_are_not_at_work(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(tiny_model, spec="on") as llm:
        session, held = llm.session(), list[bool]()
        assert session.speculator is not None
        monkeypatch.setattr(session.speculator, "close", lambda: held.append(llm._pool.lock.is_held))
        session.close()
        assert held == [True]


def test_sessions_in_threads_answer_as_alone(llm: LLM) -> None:
    talks = [[{"role": "user", "content": word * 9}] for word in ("the ", "rain ", "inner ")]
    wanted = [fresh(llm, talk, **SEEDED) for talk in talks]
    found: dict[int, tuple[int, ...]] = {}

    def work(index: int) -> None:
        found[index] = fresh(llm, talks[index], **SEEDED)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(3)] == wanted


def test_stop_from_another_thread_keeps_the_partial_text(llm: LLM, session: Session) -> None:
    stream = session.chat(TALK, temperature=1.0, seed=3, logit_bias={0: -100.0, 2: -100.0})
    shown = []
    for piece in stream:
        shown.append(piece)
        if len(shown) == 3:
            stopper = threading.Thread(target=session.stop)
            stopper.start()
            stopper.join()
    assert stream.stats.finish_reason == "cancelled"
    assert stream.text == "".join(shown)
    assert 3 <= len(stream.tokens) < 40
    assert session.chat(TALK, **GREEDY).read() == session.chat(TALK, **GREEDY).read()


def test_the_stream_is_an_asynchronous_iterator_too(llm: LLM, session: Session) -> None:
    async def collect() -> list[str]:
        return [piece async for piece in session.chat(TALK, **SEEDED)]

    assert "".join(asyncio.run(collect())) == session.chat(TALK, **SEEDED).read()


def test_a_cancelled_asynchronous_reader_leaves_the_session_usable(llm: LLM, session: Session) -> None:
    async def read_two() -> None:
        stream = session.chat(TALK, temperature=1.0, seed=3, logit_bias={0: -100.0, 2: -100.0})
        seen = 0

        async def read() -> None:
            nonlocal seen
            async for _ in stream:
                seen += 1

        task = asyncio.create_task(read())
        while seen < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(stream.close)
        assert stream.stats.finish_reason == "cancelled"

    asyncio.run(read_two())
    stream = session.chat(TALK, **SEEDED)
    stream.read()
    assert stream.tokens == fresh(llm, TALK, **SEEDED)


def test_complete_continues_the_text_itself(llm: LLM, session: Session) -> None:
    stream = session.complete("the rain", **GREEDY)
    stream.read()
    assert stream.stats.n_prompt == len(llm.tokenize("the rain", add_special=False))
    assert session.tokens[: stream.stats.n_prompt] == tuple(llm.tokenize("the rain", add_special=False))
    special = session.complete("<|im_end|>", max_tokens=1)
    plain = session.complete("<|im_end|>", parse_special=False, max_tokens=1)
    special.read()
    plain.read()
    assert (special.stats.n_prompt, plain.stats.n_prompt) == (1, 10)


def test_a_conversation_that_outgrows_the_context_says_what_was_left_out(llm: LLM, session: Session) -> None:
    system = {"role": "system", "content": "the system"}
    turns = [[{"role": "user", "content": f"{n} " * 40}, {"role": "assistant", "content": "the"}] for n in range(9)]
    talk = [system, *itertools.chain.from_iterable(turns), {"role": "user", "content": "hello"}]
    stream = session.chat(talk, **GREEDY)
    stream.read()
    assert stream.stats.truncated
    assert stream.stats.notices[0].endswith("oldest messages were left out")
    prompt = llm.detokenize(session.tokens)
    assert prompt.startswith("<|im_start|>system\nthe system<|im_end|>\n<|im_start|>user\n")
    assert "0 0" not in prompt
    assert "8 8" in prompt
    with pytest.raises(ContextOverflow, match="and the context holds 512"):
        session.chat([system, {"role": "user", "content": "x" * 600}])
    with pytest.raises(ContextOverflow, match="the prompt has 600 tokens and the context holds 512"):
        session.complete("x" * 600)


def test_unknown_options_and_impossible_ones_are_refused(llm: LLM, session: Session) -> None:
    with pytest.raises(BadSetting, match=r"'temprature'.*temperature"):
        session.chat(TALK, temprature=1)
    with pytest.raises(BadSetting, match="top_p"):
        session.chat(TALK, top_p=7)
    with pytest.raises(BadSetting, match="stop string cannot be empty"):
        session.complete("x", stop=[""])
    for asked in (session, llm):
        with pytest.raises(BadSetting, match="'urgent': it must be interactive or background"):
            asked.complete("x", priority="urgent")


def test_tokens_and_text_round_trip(llm: LLM) -> None:
    tokens = llm.tokenize("<|im_start|>the hen", add_special=False)
    assert llm.detokenize(tokens) == "<|im_start|>the hen"
    assert llm.detokenize(tokens, skip_special=True) == "the hen"


def test_chunks_of_the_prompt_do_not_change_the_answer(llm: LLM) -> None:
    text = "the rain in the tin " * 20
    with llm.session() as whole, llm.session() as pieces:
        one = whole.complete(text, **SEEDED)
        one.read()
        for end in range(7, len(text), 31):
            pieces.complete(text[:end], max_tokens=1).read()
        other = pieces.complete(text, **SEEDED)
        other.read()
        assert other.stats.n_cached > 100
        assert other.tokens == one.tokens


def test_everything_says_closed_after_close_and_closing_stops_what_runs(tiny_model: Path) -> None:
    llm = load(tiny_model, device="reference")
    session = llm.session()
    stream = llm.chat(TALK, logit_bias={0: -100.0, 2: -100.0})
    next(stream)
    llm.close()
    llm.close()
    assert list(stream) == [] or stream.stats.finish_reason == "cancelled"
    for call in (
        lambda: llm.chat(TALK),
        lambda: llm.complete("x"),
        llm.session,
        session.branch,
        lambda: session.chat(TALK),
    ):
        with pytest.raises(EngineClosed):
            call()
    session.close()


def test_a_default_context_is_the_trained_one_and_more_is_told(tiny_model: Path) -> None:
    with load(tiny_model, device="reference") as llm:
        assert (llm.info.n_context, llm.info.notices) == (512, ())
    with load(tiny_model, device="reference", n_context=600) as llm:
        assert llm.info.notices == ("a context of 600 tokens is more than the 512 this model was trained for",)
        assert llm.info.resident_bytes > 0


def test_what_cannot_be_loaded_is_refused(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound):
        load(tmp_path / "none.gguf")
    with pytest.raises(UnknownKey, match="abacus"):
        load(tiny_model, device="abacus")
    with pytest.raises(BadSetting, match="n_sessions"):
        load(tiny_model, n_sessions=0)
    with pytest.raises(BadGGUF, match=r"tokenizer of 268 tokens and a model of 200"):
        load(write_tiny_llama(tmp_path / "wrong.gguf", n_tokens=200), device="reference")
    monkeypatch.setattr("edgeinfer.engine.loading.memory_for_model", lambda: 1 << 20)
    with pytest.raises(DoesNotFit, match="too much"):
        load(tiny_model, device="reference")


def test_progress_of_loading_is_told(tiny_model: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with load(tiny_model, device="reference", progress=lambda *report: seen.append(report)):
        pass
    assert seen
    assert seen[-1][1] == seen[-1][2]


def test_a_session_that_is_closed_while_its_drafts_open_leaves_none(tiny_model: Path) -> None:
    """Another thread closes it when the first answer has been asked for."""
    closing = list[threading.Thread]()

    def drafts() -> ModelDrafts | None:
        closing.append(threading.Thread(target=session.close))
        closing[0].start()
        until(lambda: session._cached._closed)
        closing[0].join(0.2)  # it may wait for this one
        return llm.drafts

    with load(tiny_model, device="cpu", threads=1) as llm:
        assert llm.drafts is not None
        session = llm.session_with(drafts)
        with pytest.raises(EngineClosed):
            session.chat(TALK[:2], **GREEDY).read()
        closing[0].join()
        assert llm.drafts._sessions == []
