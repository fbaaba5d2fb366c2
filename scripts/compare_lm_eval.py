"""lm-evaluation-harness over the server, judged item by item by the Python API.

Run: `python scripts/compare_lm_eval.py MODEL [--lm-eval PROGRAM] [--device cpu]`, with lm-evaluation-harness in any
environment (`pip install 'lm-eval[api]'`); nothing is fetched from a hub. A server is started, and two tasks made here
are run through it: multiple choice by log probabilities (`local-completions`, `echo` with `logprobs`), and words that
are written (`local-chat-completions`, exact match). The same items are then scored by `LLM.score` and answered by
`LLM.chat`: log probabilities, words and accuracies have to be the same. Prints a table; exits 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load

CAPITALS = (
    "France Paris, Italy Rome, Japan Tokyo, Spain Madrid, Egypt Cairo, Germany Berlin, Russia Moscow, China Beijing, "
    "Greece Athens, Peru Lima, Cuba Havana, Austria Vienna, Norway Oslo, Kenya Nairobi, Iran Tehran"
)
OPPOSITES = (
    "hot cold, big small, up down, left right, day night, fast slow, old new, wet dry, rich poor, light dark, "
    "hard soft, early late, open closed, full empty, loud quiet"
)
SENTENCES = {"The capital of {} is": CAPITALS, "The opposite of {} is": OPPOSITES}
N_CHOICES = 4
MOST_TOKENS = 12
ENDS = ["."]
WORD = re.compile(r"(\w+)\W*$")
"""What is compared of an answer: its last word."""


@dataclass(frozen=True, slots=True)
class Item:
    """A question, what may follow it, and the place of what does."""

    question: str
    choices: tuple[str, ...]
    answer: int

    @property
    def asked(self) -> str:
        """The question as one is asked in a conversation."""
        return f"Finish the sentence with one word. {self.question}"

    @property
    def word(self) -> str:
        """The right answer."""
        return self.choices[self.answer]


def items(seed: int = 3) -> list[Item]:
    """Questions about all pairs, each with choices of its kind."""
    rng, found = random.Random(seed), list[Item]()
    for sentence, told in SENTENCES.items():
        pairs = [pair.split() for pair in told.split(", ")]
        for subject, right in pairs:
            others = rng.sample([each for _, each in pairs if each != right], N_CHOICES - 1)
            choices = sorted((right, *others))
            found.append(Item(sentence.format(subject), tuple(choices), choices.index(right)))
    return found


def write_tasks(folder: Path, asked: Sequence[Item]) -> None:
    """Write the items and the two tasks as lm-evaluation-harness reads them."""
    lines = [
        json.dumps({"question": each.question, "asked": each.asked, "choices": each.choices, "answer": each.answer})
        for each in asked
    ]
    (folder / "items.jsonl").write_text("\n".join(lines), encoding="utf-8")
    data = {"data_files": str(folder / "items.jsonl")}
    shared = {"dataset_path": "json", "dataset_kwargs": data, "test_split": "train"}
    tasks: dict[str, dict[str, Any]] = {
        "own_choices": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
        "own_words": {
            "output_type": "generate_until",
            "doc_to_text": "{{asked}}",
            "doc_to_target": "{{choices[answer]}}",
            "generation_kwargs": {"until": ENDS, "max_gen_toks": MOST_TOKENS, "do_sample": False},
            "filter_list": [
                {
                    "name": "last",
                    "filter": [
                        {"function": "regex", "regex_pattern": WORD.pattern, "group_select": -1},
                        {"function": "take_first"},
                    ],
                }
            ],
            "metric_list": [{"metric": "exact_match", "ignore_case": True}],
        },
    }
    for name, task in tasks.items():  # YAML contains JSON
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **shared, **task}), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Run:
    """What lm-evaluation-harness found: its numbers by name, and a record of each item in order."""

    results: dict[str, Any]
    samples: list[dict[str, Any]]


def run(program: str, kind: str, url: str, model: str, task: str, asked: Sequence[Item], *more: str) -> Run:
    """Run a task; `kind`: its name for the API. Raises RuntimeError with what it printed if it failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tasks(folder, asked)
        told = f"model={model},base_url={url},max_retries=1,num_concurrent=2"
        command = [program, "--model", kind, "--model_args", told, "--include_path", name, "--tasks", task]
        command += ["--log_samples", "--output_path", str(folder / "out"), *more]
        silent = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": name, "NO_COLOR": "1"}
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            command, env={**variables, **silent, "OPENAI_API_KEY": "none"}, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{program} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        (results,) = (folder / "out").rglob("results_*.json")
        (samples,) = (folder / "out").rglob("samples_*.jsonl")
        records = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
        numbers: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))["results"][task]
        return Run(numbers, sorted(records, key=lambda each: int(each["doc_id"])))


@dataclass(frozen=True, slots=True)
class Judged:
    """A task in numbers: how many items and values are the same, and accuracies by lm-evaluation-harness and by us."""

    task: str
    n_items: int
    n_same: int
    n_values: int
    theirs: dict[str, float]
    ours: dict[str, float]

    @property
    def is_same(self) -> bool:
        return self.n_same == self.n_values and self.theirs == self.ours


def judged_choices(llm: LLM, url: str, model: str, program: str, asked: Sequence[Item]) -> Judged:
    """Multiple choice: log probabilities bit for bit, and both accuracies."""
    found = run(program, "local-completions", f"{url}/v1/completions", model, "own_choices", asked, "--batch_size", "8")
    n_same, hits, hits_norm = 0, 0, 0
    for item, sample in zip(asked, found.samples, strict=True):
        scores = llm.score(item.question, [f" {choice}" for choice in item.choices])
        own = [sum(each.logprob for each in score.logprobs) for score in scores]
        n_same += sum(value == float(told[0][0]) for value, told in zip(own, sample["resps"], strict=True))
        by_length = [value / len(choice) for value, choice in zip(own, item.choices, strict=True)]
        hits += own.index(max(own)) == item.answer
        hits_norm += by_length.index(max(by_length)) == item.answer
    ours = {"acc": hits / len(asked), "acc_norm": hits_norm / len(asked)}
    theirs = {name: found.results[f"{name},none"] for name in ours}
    return Judged("own_choices", len(asked), n_same, len(asked) * N_CHOICES, theirs, ours)


def judged_words(llm: LLM, url: str, model: str, program: str, asked: Sequence[Item]) -> Judged:
    """Words that are written: texts, and the share of exact matches."""
    address, more = f"{url}/v1/chat/completions", "--apply_chat_template"
    found = run(program, "local-chat-completions", address, model, "own_words", asked, more)
    n_same, hits = 0, 0
    for item, sample in zip(asked, found.samples, strict=True):
        messages = [{"role": "user", "content": item.asked}]
        stream = llm.chat(messages, temperature=0, repeat_penalty=1.0, max_tokens=MOST_TOKENS, stop=ENDS, seed=1234)
        stream.read()
        n_same += stream.content == sample["resps"][0][0]
        words = WORD.findall(stream.content)
        hits += bool(words) and words[-1].lower() == item.word.lower()
    ours, theirs = {"exact_match": hits / len(asked)}, {"exact_match": found.results["exact_match,last"]}
    return Judged("own_words", len(asked), n_same, len(asked), theirs, ours)


@contextmanager
def serving(model: str, *options: str) -> Iterator[tuple[str, str]]:
    """Run a server; yields its address and the model's name."""
    command = [sys.executable, "-m", "edgeinfer", "serve", "-m", model, "--port", "0", "--ready-json", "--no-key"]
    command += ["--no-history", "--repeat-penalty", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            yield ready["url"], ready["model"]
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument(
        "--lm-eval", default=shutil.which("lm_eval"), metavar="PROGRAM", help="default: lm_eval of PATH"
    )
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.lm_eval is None:
        parser.error("there is no lm_eval: pip install 'lm-eval[api]', or name it with --lm-eval")
    asked = items()
    with serving(given.model, "--device", given.device) as (url, name), load(given.model, device=given.device) as llm:
        found = [judged(llm, url, name, given.lm_eval, asked) for judged in (judged_choices, judged_words)]
    print("| task | items | same values | lm-evaluation-harness | LLM.score, LLM.chat |\n|---|---|---|---|---|")
    for each in found:
        theirs, ours = (
            ", ".join(f"{key} {value:.4f}" for key, value in one.items()) for one in (each.theirs, each.ours)
        )
        print(f"| {each.task} | {each.n_items} | {each.n_same} of {each.n_values} | {theirs} | {ours} |")
    sys.exit(0 if all(each.is_same for each in found) else 1)


if __name__ == "__main__":
    main()
