"""Lines that commands read: prompts of a batch and what was answered of it, tasks to score, questions, token ids."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from json_changes import changed
from mutation import mutated as mutated_bytes
from scratch import scratch

from edgeinfer.app.batch_files import answered, digest, read_entries
from edgeinfer.app.bench.request import read_questions
from edgeinfer.app.commands.detokenize import read_ids
from edgeinfer.app.commands.score import _task

USUAL_BYTES = 3000
FOLDER = scratch()
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg=="}}
PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
PROMPTS = (
    {
        "prompt": "Hi",
        "id": "a",
        "system": "s",
        "images": ["a.png"],
        "sounds": ["a.wav"],
        "stop": "x",
        "temp": 0.5,
        "top_k": 3,
    },
    {
        "messages": [{"role": "user", "content": [PART, SOUND, {"type": "text", "text": "a"}]}],
        "max_tokens": 3,
        "seed": 1,
    },
    {"text": "go on", "enable_thinking": False, "reasoning_effort": "low", "lora": {"0": 0.5}, "stop": ["a", "b"]},
)
TASK = {"prompt": "The sky is", "options": ["blue", "green"]}
QUESTION = {"category": "c", "turns": ["a", "b"]}
ANSWER = {"index": 0, "id": 0, "digest": "0", "text": "t", "tokens": [1], "finish_reason": "stop"}
VALUES = {b"B": PROMPTS, b"S": (TASK,), b"Q": (QUESTION,), b"A": (ANSWER,), b"T": ({"tokens": [1, 2]}, [1, 2])}


def seeds() -> list[bytes]:
    """Some of each; the first byte says what they are."""
    return [kind + b"\n".join(json.dumps(one).encode() for one in some) for kind, some in VALUES.items()]


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """Lines with a changed value, or changed bytes."""
    if rng.random() < 0.3:
        return mutated_bytes(seeds, rng, limit)
    kind = rng.choice(tuple(VALUES))
    others = [one for some in VALUES.values() for one in some]
    lines = [changed(one, rng, others) for one in VALUES[kind]]
    return kind + b"\n".join(rng.sample(lines, rng.randint(1, len(lines))))


def run(data: bytes) -> None:
    """Read them as what they are."""
    kind, path = data[:1], FOLDER / "lines"
    path.write_bytes(data[1:])
    text = data[1:].decode("utf-8", "replace")
    if kind == b"S":
        for number, line in enumerate(text.split("\n")):
            _task(number, line)
    elif kind == b"Q":
        read_questions(path)
    elif kind == b"T":
        read_ids(text)
    elif kind == b"A":
        entries = read_entries(["a", "b"], None, FOLDER)
        path.write_bytes(data[1:].replace(b'"digest": "0"', b'"digest": "' + digest(entries[0]).encode() + b'"'))
        answered(path, entries)
    else:
        for entry in read_entries(text.split("\n"), None, FOLDER):
            digest(entry)
