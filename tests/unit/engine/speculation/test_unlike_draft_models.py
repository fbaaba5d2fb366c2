"""Draft models that are unlike their model: other vocabularies, a shorter context, no text; none changes an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.speculation.draft_model import MOST_SPARE
from edgeinfer.errors import BadSetting
from tests.conftest import SPECIAL, WORDS, byte_characters, write_tiny_llama
from tests.golden.goldens import DATA
from tests.unit.engine.speculation.test_draft_model import MESSAGES, OPTIONS, stats_of
from tests.unit.engine.watching import watched


def test_another_vocabulary_is_refused(tiny_model: Path, tmp_path: Path, home: Path) -> None:
    import gguf

    def vocabulary(name: str, tokens: list[str]) -> Path:
        path = write_tiny_llama(tmp_path / name, n_tokens=len(tokens))
        reader = gguf.GGUFReader(path)
        writer = gguf.GGUFWriter(tmp_path / f"new-{name}", "llama")
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                value, kind = field.contents(), field.types[0]
                if field.name == "tokenizer.ggml.tokens":
                    value = tokens
                if field.name == "tokenizer.ggml.token_type":
                    value = [1] * len(tokens)
                writer.add_key_value(field.name, value, kind, field.types[-1] if len(field.types) > 1 else None)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / f"new-{name}"

    tokens = [*SPECIAL, *byte_characters(), *WORDS]
    swapped = [*tokens[:10], tokens[11], tokens[10], *tokens[12:]]
    with pytest.raises(BadSetting, match="token 10 is"):
        load(tiny_model, threads=1, draft_from=[vocabulary("swapped.gguf", swapped)])
    longer = [*tokens, *(f"<pad{n}>" for n in range(MOST_SPARE + 1))]
    with pytest.raises(BadSetting, match="vocabulary is another one"):
        load(tiny_model, threads=1, draft_from=[vocabulary("longer.gguf", longer)])
    with load(tiny_model, threads=1, draft_from=[vocabulary("padded.gguf", longer[:-1])], spec=4) as llm:
        padded = llm.chat(MESSAGES, max_tokens=30, temperature=0).read()
    with load(tiny_model, threads=1, spec="off") as llm:
        assert llm.chat(MESSAGES, max_tokens=30, temperature=0).read() == padded


def test_a_model_that_writes_no_text_is_refused(tiny_model: Path, home: Path) -> None:
    reader = DATA / "converted" / "gemma-embedding-bf16.gguf"
    with pytest.raises(BadSetting, match="cannot draft: it reads whole texts for embeddings and writes none"):
        load(tiny_model, threads=1, draft_from=[reader])


@pytest.mark.parametrize("options", [*OPTIONS, {"temperature": 0.9, "seed": 5, "logit_bias": {269: 6.0, 270: 6.0}}])
def test_tokens_that_a_draft_model_lacks_are_read_over(
    tmp_path: Path, home: Path, options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks that were added to a vocabulary later: in prompts, in answers and among what other drafters expect."""
    model, second = write_tiny_llama(tmp_path / "m.gguf", n_spare=3), write_tiny_llama(tmp_path / "second.gguf")
    n_known = len([*SPECIAL, *byte_characters(), *WORDS])
    with load(model, threads=1, spec="off") as llm:
        text = llm.tokenize("the rain in the inn")
        prompt = [*text, n_known, *text[2:], n_known + 1, n_known + 2] * 3
        (plain := llm.complete(prompt, max_tokens=60, **options)).read()  # type: ignore[arg-type]
    with load(model, threads=1, spec=6, draft_from=[second]) as llm:
        assert llm.drafts is not None
        assert llm.drafts.draft_model is not None
        asked = watched(llm.drafts.draft_model._pool, monkeypatch)
        stats = stats_of(stream := llm.complete(prompt, max_tokens=60, **options))  # type: ignore[arg-type]
    assert stream.tokens == plain.tokens
    assert "logit_bias" not in options or max(plain.tokens) >= n_known
    assert stats.draft.sources["draft_model"].proposed > 20
    assert max(int(batch.tokens.max()) for batch in asked) < n_known


def test_a_draft_model_without_room_for_all_texts_drafts_for_some(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own context is shorter, and so is its cache; none is read again and again."""
    model, second = (write_tiny_llama(tmp_path / f"{length}.gguf", context=length) for length in (1024, 200))
    texts = [f"{number} the rain in the inn and another heat then" for number in range(8)]
    with load(model, threads=1, spec="off") as llm:
        plain = [llm.complete(text, max_tokens=60, temperature=0) for text in texts]
        for stream in plain:
            stream.read()
    with load(model, threads=1, spec=4, draft_from=[second]) as llm:
        assert llm.drafts is not None
        assert llm.drafts.draft_model is not None
        pool = llm.drafts.draft_model._pool
        assert pool.executor.limits.n_pages < 2 * len(texts) < llm.telemetry.limits.n_pages
        asked = watched(pool, monkeypatch)
        found = {each.number: each for each in llm.batch(texts, parallel=8, max_tokens=60, temperature=0)}
        assert pool.executor.n_free_pages == pool.executor.limits.n_pages
    assert [found[number].tokens for number in range(8)] == [stream.tokens for stream in plain]
    drafts = [each.stats.draft for each in found.values() if each.stats is not None and each.stats.draft is not None]
    accepted = [draft.sources["draft_model"].accepted for draft in drafts]
    assert sum(count > 20 for count in accepted) > 2
    assert sum(len(batch.tokens) for batch in asked) < 2 * sum(len(text) + 60 for text in texts)
