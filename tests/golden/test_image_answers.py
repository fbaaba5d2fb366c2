"""Prompts with images: tokens and answers of transformers, the same bits however they are read, nothing read twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer import LLM, Image
from edgeinfer.errors import BadSetting, UnsupportedModel
from edgeinfer.graph.step import PAGE
from edgeinfer.models.load import open_model
from edgeinfer.setting_values import Spec
from tests.golden.goldens import DATA

VISION = DATA / "vision"
JUDGED = sorted(path.stem for path in VISION.glob("*.npz") if "prompt" in np.load(path))
N_CONTEXT = 1024
N_LIKELY = 20
TOLERANCE = 0.02
"""Of log probabilities of likely tokens."""
MARKS = re.compile(r"\(<image>\./</image>\)|(?:<[^<>]+>|\[[A-Z_]+\])+")

pytest.importorskip("PIL")


class Judged:
    """A golden model that sees, opened with a template that writes contents as they are."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.held = name, np.load(VISION / f"{name}.npz")
        self.before, self.placeholder, self.after = _around(str(self.held["prompt"]))
        template = folder / f"{name}.jinja"
        template.write_text(
            "{% for message in messages %}{% for part in message.content %}{% if part.type == 'text' %}"
            f"{{{{ part.text }}}}{{% else %}}{self.placeholder}{{% endif %}}{{% endfor %}}{{% endfor %}}"
        )
        self.template = template
        self.llm = self.opened()

    def opened(self, spec: Spec = "auto", mmproj: str = "auto", *, keeps: bool = False) -> LLM:
        """The model once more. `keeps`: it keeps prefixes on disk."""
        own = {"n_context": N_CONTEXT, "device": "cpu", "chat_template_file": self.template}
        return edgeinfer.load(VISION / f"{self.name}.gguf", **own, spec=spec, mmproj=mmproj, prefix_cache=keeps)

    def image(self, number: int) -> Image:
        return Image.of(self.held[f"pixels{number}"])

    @property
    def n_images(self) -> int:
        return sum(key.startswith("pixels") for key in self.held)

    def messages(self, number: int) -> list[dict[str, object]]:
        parts = [{"type": "text", "text": self.before}, {"type": "image", "image": self.image(number)}]
        return [{"role": "user", "content": [*parts, {"type": "text", "text": self.after}]}]


def _around(prompt: str) -> tuple[str, str, str]:
    """What stands before the marks of an image in a golden prompt, the marks, and what stands after them."""
    marks = MARKS.search(prompt)
    assert marks is not None
    return prompt[: marks.start()], marks.group(), prompt[marks.end() :]


@pytest.fixture(scope="module", params=JUDGED)
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    opened = Judged(request.param, tmp_path_factory.mktemp("templates"))
    with opened.llm:
        yield opened


def test_tokens_and_answers_are_those_of_transformers(judged: Judged) -> None:
    assert judged.llm.info.reads_images
    for number in range(judged.n_images):
        stream = judged.llm.chat(judged.messages(number), max_tokens=1, temperature=0.0, logprobs=N_LIKELY)
        stream.read()
        assert [max(token, -1) for token in stream.prompt] == judged.held[f"ids{number}"].tolist()
        logits = judged.held[f"last{number}"].astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        likely = stream.logprobs[0].top
        assert len(likely) == N_LIKELY
        for token, logprob in likely:
            assert abs(logprob - expected[token]) < TOLERANCE


def test_an_image_is_encoded_once(judged: Judged) -> None:
    reader = judged.llm._media
    assert reader is not None
    first = judged.messages(0)
    answer = judged.llm.chat(first, max_tokens=8, temperature=0.0).read()
    n_encoded = reader.n_encoded
    further = [*first, {"role": "assistant", "content": [{"type": "text", "text": answer}]}, *judged.messages(0)]
    stream = judged.llm.chat(further, max_tokens=8, temperature=0.0)
    stream.read()
    assert stream.stats is not None
    n_prompt = len(judged.held["ids0"])
    with open_model(VISION / f"{judged.name}.gguf") as model:  # states go back to a whole page
        n_kept = n_prompt // PAGE * PAGE if model.spec.states else n_prompt
    assert stream.stats.n_cached >= n_kept > 0
    assert reader.n_encoded == n_encoded


def test_an_image_on_disk_is_not_encoded_again(judged: Judged, home: Path) -> None:
    messages = judged.messages(0)
    messages[0]["content"].append({"type": "text", "text": " and then the dog" * 50})  # type: ignore[attr-defined]
    found = []
    for _ in range(2):
        with judged.opened(keeps=True) as llm:
            stream = llm.chat(messages, max_tokens=8, temperature=0.0, logprobs=3)
            stream.read()
            assert stream.stats is not None
            assert llm._media is not None
            found.append((stream.tokens, stream.logprobs, stream.stats.n_from_disk > 0, llm._media.n_encoded > 0))
    assert found[0][:2] == found[1][:2]
    assert [each[2:] for each in found] == [(False, True), (True, False)]


def test_counting_tokens_encodes_nothing(judged: Judged) -> None:
    reader = judged.llm._media
    assert reader is not None
    n_encoded = reader.n_encoded
    messages = judged.messages(1)
    messages[0]["content"][1]["image"] = Image.of(judged.held["pixels1"] ^ 1)  # type: ignore[index]
    assert judged.llm.prompts.n_tokens(messages) == len(judged.held["ids1"])
    assert reader.n_encoded == n_encoded


def test_drafts_and_batches_change_no_token(judged: Judged) -> None:
    prompts = [judged.messages(number) for number in range(judged.n_images)] * 2
    options = {"max_tokens": 24, "temperature": 0.8, "seed": 7}
    alone = [judged.llm.chat(each, **options).read() for each in prompts]  # type: ignore[arg-type]
    together = {answer.number: answer.text for answer in judged.llm.batch(prompts, parallel=3, **options)}  # type: ignore[arg-type]
    assert [together[number] for number in range(len(prompts))] == alone
    with judged.opened(spec="off") as plain:
        assert [plain.chat(each, **options).read() for each in prompts] == alone  # type: ignore[arg-type]


def test_a_template_with_thoughts_may_end_soon_after_an_image(judged: Judged, tmp_path: Path) -> None:
    template = tmp_path / "thinks.jinja"
    marks = "{% if false %}<think></think>{% endif %}"
    template.write_text(judged.template.read_text() + marks)
    path = VISION / f"{judged.name}.gguf"
    with edgeinfer.load(path, n_context=N_CONTEXT, device="cpu", chat_template_file=template) as llm:
        assert llm.prompts.thoughts is not None
        stream = llm.chat(judged.messages(0), max_tokens=2, temperature=0.0)
        stream.read()
        assert [max(token, -1) for token in stream.prompt] == judged.held["ids0"].tolist()


def test_a_model_without_its_projector_says_what_would_work(judged: Judged) -> None:
    with (
        judged.opened(mmproj="off") as blind,
        pytest.raises(UnsupportedModel, match="--mmproj"),
    ):
        blind.chat(judged.messages(0))


def test_a_projector_of_another_model_is_refused() -> None:
    mmproj = VISION / f"mmproj-{JUDGED[0]}.gguf"
    with pytest.raises(BadSetting, match="another model"):
        edgeinfer.load(DATA / "qwen35-q8_0.gguf", device="cpu", mmproj=mmproj)
