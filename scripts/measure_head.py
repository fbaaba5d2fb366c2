"""Measures what a trained head inside a model's file is worth: tokens per pass with it, and with other drafters alone.

Run: `python scripts/measure_head.py FILE --text questions.jsonl [--answers N] [--tokens N]`. The same questions are
continued without drafts, with all drafters but the head, and with the head too, greedy and sampled, in passes of 4 and
8 tokens and of as many as pay. Sessions know no earlier text. Exits 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from edgeinfer import load

SETTINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "sampled": {"temperature": 0.8, "seed": 1}}
PASSES: tuple[int | str, ...] = (4, 8, "on")


def write_without_head(model: Path, path: Path) -> Path:
    """Copy a model without its last block, the head."""
    reader = gguf.GGUFReader(model)
    kind = reader.fields["general.architecture"].contents()
    count = reader.fields[f"{kind}.block_count"].contents() - 1
    writer = gguf.GGUFWriter(path, kind)
    changed = {f"{kind}.block_count": count, f"{kind}.nextn_predict_layers": 0}
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, changed.get(field.name, field.contents()), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        if not tensor.name.startswith(f"blk.{count}."):
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def answers(
    path: Path, spec: int | str, prompts: list[str], n_tokens: int, setting: dict[str, Any]
) -> tuple[list[tuple[int, ...]], float, Counter[str]]:
    """The answers, tokens per pass, and the accepted tokens of each draft source."""
    found: list[tuple[int, ...]] = []
    n_passes, sources = 0, Counter[str]()
    with load(path, threads=1, spec=spec, n_context=512) as llm:  # type: ignore[arg-type]
        for prompt in prompts:
            with llm.session() as session:
                stream = session.complete(prompt, max_tokens=n_tokens, **setting)
                stream.read()
            assert stream.stats is not None
            found.append(stream.tokens)
            n_passes += stream.stats.steps
            if stream.stats.draft is not None:
                sources.update({name: count.accepted for name, count in stream.stats.draft.sources.items()})
    return found, sum(map(len, found)) / n_passes, sources


def main() -> int:
    """Read the arguments, measure, print a line for each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="a file of lines of JSON with turns: Spec-Bench's")
    parser.add_argument("--answers", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=96)
    asked = parser.parse_args()
    questions = [json.loads(line)["turns"][0] for line in asked.text.read_text().splitlines()]
    prompts = [question[:200] for question in questions[:: max(1, len(questions) // asked.answers)]][: asked.answers]
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder
        plain = write_without_head(asked.file, Path(folder) / "plain.gguf")
        for name, setting in SETTINGS.items():
            wanted, _, _ = answers(plain, "off", prompts, asked.tokens, setting)
            for spec in PASSES:
                for what, path in (("others", plain), ("with the head", asked.file)):
                    given, rate, sources = answers(path, spec, prompts, asked.tokens, setting)
                    wrong = sum(one != other for one, other in zip(given, wanted, strict=True))
                    differing += wrong
                    most = ", ".join(f"{source} {count}" for source, count in sources.most_common(3))
                    print(f"{name:8} {spec!s:3} {what:14} {rate:.2f} tokens a pass; {wrong} differ; accepted: {most}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
