"""Prompts with sound: tokens and answers of transformers, the same bits however they are read, nothing read twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer import LLM, Sound
from edgeinfer.errors import BadSound, UnsupportedModel
from edgeinfer.setting_values import Spec
from tests.golden.goldens import DATA

SOUNDS, VISION = DATA / "sounds", DATA / "vision"
JUDGED = ("qwen2a", "voxtral")
N_CONTEXT = 1024
N_LIKELY = 20
TOLERANCE = 0.02
"""Of log probabilities of likely tokens."""
MARKS = re.compile(r"(?:<[^<>]+>|\[[A-Z_]+\])+")


class Hearing:
    """A golden model that hears, opened with a template that writes contents as they are."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.held = name, np.load(SOUNDS / f"{name}.npz")
        prompt = str(self.held["prompt"])
        marks = MARKS.search(prompt)
        assert marks is not None
        self.before, self.after = prompt[: marks.start()], prompt[marks.end() :]
        self.template = folder / f"{name}.jinja"
        self.template.write_text(
            "{% for message in messages %}{% for part in message.content %}{% if part.type == 'text' %}"
            f"{{{{ part.text }}}}{{% else %}}{marks.group()}{{% endif %}}{{% endfor %}}{{% endfor %}}"
        )
        self.llm = self.opened()

    def opened(self, spec: Spec = "auto", mmproj: str = "auto", *, keeps: bool = False) -> LLM:
        """The model once more. `keeps`: it keeps prefixes on disk."""
        own = {"n_context": N_CONTEXT, "device": "cpu", "chat_template_file": self.template}
        return edgeinfer.load(SOUNDS / f"{self.name}.gguf", **own, spec=spec, mmproj=mmproj, prefix_cache=keeps)

    def sound(self, number: int) -> Sound:
        return Sound.of(self.held[f"samples{number}"].astype(np.float32) / 128)

    @property
    def n_sounds(self) -> int:
        return sum(key.startswith("samples") for key in self.held)

    def messages(self, number: int) -> list[dict[str, object]]:
        parts = [{"type": "text", "text": self.before}, {"type": "audio", "audio": self.sound(number)}]
        return [{"role": "user", "content": [*parts, {"type": "text", "text": self.after}]}]


@pytest.fixture(scope="module", params=JUDGED)
def hearing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hearing]:
    opened = Hearing(request.param, tmp_path_factory.mktemp("templates"))
    with opened.llm:
        yield opened


def test_tokens_and_answers_are_those_of_transformers(hearing: Hearing) -> None:
    assert hearing.llm.info.reads_sound
    assert not hearing.llm.info.reads_images
    judged = [number for number in range(hearing.n_sounds) if f"ids{number}" in hearing.held]
    assert len(judged) > 1
    for number in judged:
        stream = hearing.llm.chat(hearing.messages(number), max_tokens=1, temperature=0.0, logprobs=N_LIKELY)
        stream.read()
        assert [max(token, -1) for token in stream.prompt] == hearing.held[f"ids{number}"].tolist()
        logits = hearing.held[f"last{number}"].astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        likely = stream.logprobs[0].top
        assert len(likely) == N_LIKELY
        for token, logprob in likely:
            assert abs(logprob - expected[token]) < TOLERANCE


def test_a_sound_is_encoded_once(hearing: Hearing) -> None:
    reader = hearing.llm._media
    assert reader is not None
    first = hearing.messages(hearing.n_sounds - 1)
    answer = hearing.llm.chat(first, max_tokens=8, temperature=0.0).read()
    n_encoded = reader.n_encoded
    further = [*first, {"role": "assistant", "content": [{"type": "text", "text": answer}]}, *first]
    stream = hearing.llm.chat(further, max_tokens=8, temperature=0.0)
    stream.read()
    assert stream.stats is not None
    assert stream.stats.n_cached >= hearing.llm.prompts.n_tokens(first) > 0
    assert reader.n_encoded == n_encoded


def test_a_sound_on_disk_is_not_encoded_again(hearing: Hearing, home: Path) -> None:
    messages = hearing.messages(0)
    messages[0]["content"].append({"type": "text", "text": " and then the dog" * 50})  # type: ignore[attr-defined]
    found = []
    for _ in range(2):
        with hearing.opened(keeps=True) as llm:
            stream = llm.chat(messages, max_tokens=8, temperature=0.0, logprobs=3)
            stream.read()
            assert stream.stats is not None
            assert llm._media is not None
            found.append((stream.tokens, stream.logprobs, stream.stats.n_from_disk > 0, llm._media.n_encoded > 0))
    assert found[0][:2] == found[1][:2]
    assert [each[2:] for each in found] == [(False, True), (True, False)]


def test_counting_tokens_encodes_nothing(hearing: Hearing) -> None:
    reader = hearing.llm._media
    assert reader is not None
    n_encoded = reader.n_encoded
    sound = Sound.of(hearing.sound(1).samples() * np.float32(0.5))
    messages = hearing.messages(1)
    messages[0]["content"][1]["audio"] = sound  # type: ignore[index]
    assert hearing.llm.prompts.n_tokens(messages) == len(hearing.held["ids1"])
    n_rows, n_marks = int((hearing.held["ids1"] < 0).sum()), {"qwen2a": 2, "voxtral": 1}[hearing.name]
    assert hearing.llm.prompts.n_sound_tokens(sound) == n_rows + n_marks
    assert reader.n_encoded == n_encoded


def test_drafts_and_batches_change_no_token(hearing: Hearing) -> None:
    prompts = [hearing.messages(number) for number in range(hearing.n_sounds)] * 2
    options = {"max_tokens": 24, "temperature": 0.8, "seed": 7}
    alone = [hearing.llm.chat(each, **options).read() for each in prompts]  # type: ignore[arg-type]
    together = {answer.number: answer.text for answer in hearing.llm.batch(prompts, parallel=3, **options)}  # type: ignore[arg-type]
    assert [together[number] for number in range(len(prompts))] == alone
    with hearing.opened(spec="off") as plain:
        assert [plain.chat(each, **options).read() for each in prompts] == alone  # type: ignore[arg-type]


def test_a_model_without_its_projector_says_what_would_work(hearing: Hearing) -> None:
    with hearing.opened(mmproj="off") as deaf, pytest.raises(UnsupportedModel, match="reads no sound"):
        deaf.chat(hearing.messages(0))


def test_a_model_that_only_hears_refuses_images(hearing: Hearing) -> None:
    pytest.importorskip("PIL")
    image = {"type": "image", "image": np.zeros((40, 40, 3), np.uint8)}
    with pytest.raises(UnsupportedModel, match="reads no images"):
        hearing.llm.chat([{"role": "user", "content": [image]}])


def test_a_sound_shorter_than_a_window_is_refused(hearing: Hearing) -> None:
    messages = hearing.messages(0)
    messages[0]["content"][1]["audio"] = np.zeros(300, np.float32)  # type: ignore[index]
    with pytest.raises(BadSound, match="lasts 19 ms"):
        hearing.llm.chat(messages)


def test_ultravox_is_heard_by_a_template_that_knows_no_sound() -> None:
    held = np.load(SOUNDS / "ultravox.npz")
    part = {"type": "audio", "audio": held["samples3"].astype(np.float32) / 128}
    messages = [{"role": "user", "content": [{"type": "text", "text": "the cat "}, part]}]
    own = {"n_context": N_CONTEXT, "device": "cpu", "chat_template": "chatml"}
    with edgeinfer.load(VISION / "idefics3.gguf", **own, mmproj=str(SOUNDS / "mmproj-ultravox.gguf")) as llm:
        stream = llm.chat(messages, max_tokens=4, temperature=0.0)
        stream.read()
        assert sum(token < 0 for token in stream.prompt) == held["counts3"].sum()
        assert "[audio]" in llm.prompts.render(messages)
