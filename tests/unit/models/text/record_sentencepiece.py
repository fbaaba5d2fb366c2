"""Writes `data/sentencepiece.json`: a small trained vocabulary and the ids that the `sentencepiece` package gives.

Run with `python -m tests.unit.models.text.record_sentencepiece`; needs the `sentencepiece` package.
"""

from __future__ import annotations

import json

from tests.unit.models.text.small_vocabularies import DATA, SAMPLES, random_texts, trained_sentencepiece


def main() -> None:
    trained = trained_sentencepiece()
    prefix = "tokenizer.ggml."
    vocabulary = {key.removeprefix(prefix): value for key, value in trained.metadata.items() if key != f"{prefix}model"}
    vocabulary["types"] = vocabulary.pop("token_type")
    texts = [text for text in (*SAMPLES, *random_texts(40, seed=11)) if "▁" not in text]
    cases = [[text, trained.judge.encode(text)] for text in texts]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    text = f'{{"vocabulary": {json.dumps(vocabulary, ensure_ascii=False)},\n"cases": [\n{lines}\n]}}\n'
    (DATA / "sentencepiece.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
