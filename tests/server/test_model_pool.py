"""Several models: opened when they are asked for, closed when nobody uses them, opened anew when their file changes."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from pathlib import Path

import pytest

from edgeinfer.app.server import model_pool
from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.app.server.pooled_model import PoolLimits
from edgeinfer.errors import DoesNotFit, EngineClosed
from edgeinfer.models.store import LocalModel, path_model
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served
from tests.waiting import PATIENCE_S, until

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [write_tiny_llama(tmp_path / f"{name}.gguf", seed=seed) for seed, name in enumerate(("one", "two", "three"))]


def ask(running: Running, model: str, **options: object) -> str:
    found = running.client().chat.completions.create(
        model=model, messages=MESSAGES, temperature=0, max_tokens=12, **options
    )
    assert found.model == model
    return found.choices[0].message.content


def pool_of(open_model: object, models: list[LocalModel], **limits: object) -> ModelPool:
    """A pool of models, the first of which is the default one."""
    return ModelPool(open_model, ModelList(lambda: models, models[0]), PoolLimits(**limits))  # type: ignore[arg-type]


def names(running: Running) -> list[str]:
    return [each.name for each in running.pool.open]


def test_models_are_opened_when_they_are_asked_for(models: list[Path]) -> None:
    others = [path_model(path) for path in models]
    with served(models[0], others=others, most_models=2) as running:
        assert [model.id for model in running.client().models.list()] == ["one", "two", "three"]
        texts = {name: ask(running, name) for name in ("one", "two")}
        assert texts["one"] != texts["two"]
        assert names(running) == ["one", "two"]
        ask(running, "one")
        ask(running, "three")  # there is room for two: the one that was used longest ago is closed
        assert names(running) == ["one", "three"]
        with pytest.raises(EngineClosed):
            running.opened[1].chat(MESSAGES)
        assert ask(running, "two") == texts["two"]
        assert ask(running, "one") == texts["one"]


def test_what_is_no_model_closes_none(models: list[Path], tmp_path: Path) -> None:
    (bad := tmp_path / "bad.gguf").write_bytes(b"no model")
    with served(models[0], others=[path_model(bad)], most_models=1) as running:
        ask(running, "one")
        refused = running.http().post("/models/load", json={"model": "bad"})
        assert refused.status_code >= 400
        assert names(running) == ["one"]


def test_loading_and_unloading_by_request(models: list[Path], long_model: Path) -> None:
    others = [path_model(models[1]), path_model(long_model)]
    with served(models[0], others=others, most_models=3) as running:
        http = running.http()
        assert http.post("/models/load", json={"model": "two"}).json()["success"]
        assert names(running) == ["one", "two"]
        assert http.post("/models/unload", json={"model": "two"}).json() == {"success": True}
        assert http.post("/models/unload", json={"model": "two"}).json() == {"success": False}
        stream = running.client().chat.completions.create(
            model="endless", messages=MESSAGES, temperature=0, stream=True
        )
        next(iter(stream))
        refused = http.post("/models/unload", json={"model": "endless"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model_in_use")
        stream.close()


def test_what_closed_models_leave_is_freed(models: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    freed = list[str]()
    monkeypatch.setattr(model_pool, "free_closed_models_soon", lambda: freed.append("soon"))
    with served(models[0], others=[path_model(path) for path in models], most_models=1) as running:
        ask(running, "one")
        assert not freed
        ask(running, "two")  # closes the first one
        assert len(freed) == 1
        running.http().post("/models/unload", json={"model": "two"}).raise_for_status()
        until(lambda: len(freed) == 2)


def test_models_that_nobody_uses_are_closed(models: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with served(models[0], idle_s=0.05) as running:
        text, awake = ask(running, "one"), running.http().get("/props").json()
        until(lambda: not names(running), lambda: running.call(running.pool.close_idle()))
        assert running.http().get("/props").json() == {**awake, "is_sleeping": True}
        assert running.http().get("/health").status_code == 200  # it is opened again when it is asked for
        assert ask(running, "one") == text
        assert len(running.opened) == 2


def test_a_file_that_was_replaced_is_opened_anew(models: list[Path], tmp_path: Path) -> None:
    with served(models[0]) as running:
        before = ask(running, "one")
        replaced = write_tiny_llama(tmp_path / "new.gguf", seed=77)
        os.replace(replaced, models[0])
        after = ask(running, "one")
        assert after != before
        with served(models[0]) as fresh:
            assert ask(fresh, "one") == after
        with pytest.raises(EngineClosed):
            running.opened[0].chat(MESSAGES)
        models[0].unlink()
        refused = running.http().post("/v1/chat/completions", json={"messages": MESSAGES})
        assert refused.status_code == 503
        assert "cannot be read" in refused.json()["error"]["message"]


def test_an_answer_ends_with_the_model_it_began_with(long_model: Path, tmp_path: Path) -> None:
    place = tmp_path / "endless.gguf"
    place.write_bytes(long_model.read_bytes())
    with served(place) as running:
        stream = running.client().chat.completions.create(
            model="endless", messages=MESSAGES, temperature=0, max_tokens=3000, stream=True
        )
        parts = iter(stream)
        next(parts)
        os.replace(write_tiny_llama(tmp_path / "new.gguf", seed=5), place)
        ask(running, "endless")
        assert len(running.opened) == 2
        assert sum(len(part.choices[0].delta.content or "") for part in parts) > 500
        until(lambda: running.pool._replaced == [])


def test_where_memory_is_short_models_that_nobody_uses_make_room(models: list[Path]) -> None:
    async def scenario() -> None:
        n_open, most = [0], 1

        class Small:
            class info:  # noqa: N801
                notices = ()

            def __init__(self) -> None:
                n_open[0] += 1

            def close(self) -> None:
                n_open[0] -= 1

            def stop(self) -> None:
                pass

        def open_model(*_: object) -> Small:
            if n_open[0] >= most:
                raise DoesNotFit("it takes 5 GB, and 1 GB is free")
            return Small()

        others = [path_model(path) for path in models]
        pool = pool_of(open_model, others, most_models=3)
        async with pool.use("one"):
            pass
        async with pool.use("two") as two:
            assert (two.name, n_open[0]) == ("two", 1)
            with pytest.raises(DoesNotFit):
                async with pool.use("three"):
                    pass
        async with pool.use("three"):
            pass
        await pool.close()
        assert n_open == [0]

    asyncio.run(scenario())


def test_one_model_is_opened_once_however_many_ask(models: list[Path]) -> None:
    with served(models[0], others=[path_model(models[1])]) as running:
        threads = [threading.Thread(target=ask, args=(running, "two")) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(running.opened) == 2


def test_metrics_and_slots_tell_what_was_made(models: list[Path]) -> None:
    with served(models[0], ServerOptions(port=0, parallel=3)) as running:
        ask(running, "one")
        text = running.http().get("/metrics").text
        assert 'edgeinfer_generated_tokens_total{model="one"} 12.0' in text
        assert 'edgeinfer_answers_active{model="one"} 0.0' in text
        theirs = [line.split() for line in text.splitlines() if line.startswith("llamacpp:")]
        assert ["llamacpp:tokens_predicted_total", "12"] in theirs
        assert {name for name, _ in theirs} == set(re.findall("# HELP (llamacpp:[a-z_]+) ", text))
        slots = running.http().get("/slots").json()
        assert [(slot["is_processing"], slot["n_ctx"]) for slot in slots] == [(False, 512)] * 3
        props = running.http().get("/props").json()
        assert props["total_slots"] == 3
        assert props["default_generation_settings"]["n_ctx"] == 512
        assert str(models[0].parent) not in running.http().get("/props").text


def test_texts_and_tokens(models: list[Path]) -> None:
    with served(models[0]) as running:
        http = running.http()
        tokens = http.post("/tokenize", json={"content": "the hen"}).json()["tokens"]
        assert tokens == running.llm.tokenize("the hen", add_special=False)
        pieces = http.post("/tokenize", json={"content": "the hen", "with_pieces": True}).json()["tokens"]
        assert "".join(each["piece"] for each in pieces) == "the hen"
        assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == "the hen"
        assert http.post("/detokenize", json={"tokens": [10**8]}).status_code == 400
        prompt = http.post("/apply-template", json={"messages": MESSAGES}).json()["prompt"]
        whole = {"messages": MESSAGES, "add_generation_prompt": False}
        assert f"{http.post('/apply-template', json=whole).json()['prompt']}<|im_start|>assistant\n" == prompt
        assert prompt == running.llm.prompts.render(MESSAGES)


def test_a_model_that_cannot_be_opened_is_said(models: list[Path]) -> None:
    async def scenario() -> None:
        def open_model(*_: object) -> object:
            raise DoesNotFit("it takes 5 GB, and 1 GB is free")

        pool = pool_of(open_model, [path_model(models[0])])
        with pytest.raises(DoesNotFit):
            async with pool.use(None):
                pass
        assert not pool.is_ready
        assert "5 GB" in str(pool.failure)
        with pytest.raises(APIError):
            pool.find("other")

    asyncio.run(scenario())


def test_who_goes_while_a_model_is_opened_or_closed_leaves_none_open(models: list[Path]) -> None:
    async def scenario() -> None:
        n_open, n_closed = [0], [0]
        gate = threading.Event()

        class Small:
            class info:  # noqa: N801
                notices = ()

            def close(self) -> None:
                gate.wait(10)
                n_closed[0] += 1

            def stop(self) -> None:
                pass

        def open_model(*_: object) -> Small:
            gate.wait(10)
            n_open[0] += 1
            return Small()

        async def ask(name: str) -> None:
            async with pool.use(name):
                pass

        others = [path_model(path) for path in models]
        pool = pool_of(open_model, others, most_models=1)
        for name in ("one", "two"):  # the second one closes the first
            gate.clear()
            asked = asyncio.create_task(ask(name))
            await asyncio.sleep(0.05)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            gate.set()
            await ask(name)
            assert ([each.name for each in pool.open], pool.n_users) == ([name], 0)
        assert (n_open, n_closed) == ([2], [1])
        gate.clear()
        os.replace(write_tiny_llama(models[1].with_name("new.gguf"), seed=9), models[1])
        asked = asyncio.create_task(ask("two"))  # closes the one that was replaced, and opens another one
        await asyncio.sleep(0.05)
        asked.cancel()
        threading.Timer(0.05, gate.set).start()
        await pool.close()
        assert n_open == n_closed

    asyncio.run(scenario())


class Gated:
    """Models that are opened and closed when a gate opens."""

    class info:  # noqa: N801
        notices = ()

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.n_open = 0

    def open(self, *_: object) -> Gated:
        self.gate.wait(10)
        self.n_open += 1
        return self

    def close(self) -> None:
        self.gate.wait(10)
        self.n_open -= 1

    def stop(self) -> None:
        pass


def test_no_more_models_are_open_than_may_be(models: list[Path]) -> None:
    async def scenario() -> None:
        made, others = Gated(), [path_model(path) for path in models]
        pool = pool_of(made.open, others, most_models=1, wait_s=0.05)
        async with pool.use("one"):
            with pytest.raises(APIError, match="one: in use") as refused:
                async with pool.use("two"):
                    pass
            assert (refused.value.status, refused.value.code, made.n_open) == (503, "models_in_use", 1)
        async with pool.use("two") as two:
            assert (two.name, made.n_open) == ("two", 1)
        await pool.close()

    asyncio.run(scenario())


def test_who_asks_for_an_open_model_does_not_wait_for_another_one(models: list[Path]) -> None:
    async def scenario() -> None:
        made, others = Gated(), [path_model(path) for path in models]
        pool = pool_of(made.open, others, most_models=2)

        async def ask(name: str | None) -> None:
            async with pool.use(name):
                pass

        await ask(None)
        made.gate.clear()
        opening = asyncio.create_task(ask("two"))
        while not pool.is_busy:
            await asyncio.sleep(0)
        for name in (None, "default", "one"):
            await asyncio.wait_for(ask(name), PATIENCE_S)
        assert not opening.done()
        made.gate.set()
        await opening
        await pool.close()

    asyncio.run(scenario())


def test_several_models_that_were_replaced_are_each_closed_once(models: list[Path]) -> None:
    async def scenario() -> None:
        made = Gated()
        pool = pool_of(made.open, [path_model(models[0])])
        uses = [pool.use(None) for _ in range(3)]
        for number, use in enumerate(uses):
            write_tiny_llama(models[0], seed=10 + number)
            await use.__aenter__()
        assert made.n_open == 3
        made.gate.clear()
        first, second = (asyncio.create_task(use.__aexit__(None, None, None)) for use in uses[:2])
        while pool._replaced:
            await asyncio.sleep(0)
        made.gate.set()
        await asyncio.gather(first, second)
        assert made.n_open == 1
        await uses[2].__aexit__(None, None, None)
        await pool.close()
        assert made.n_open == 0

    asyncio.run(scenario())
