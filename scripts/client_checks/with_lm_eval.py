"""lm-evaluation-harness: options, generated and whole texts by its model `local-completions`, with tasks made here.

It asks the server for the tokenizer too, so that a GGUF file is all there has to be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check_parts import NO_MODEL, run_checks

QUESTIONS = (
    ("The capital of France is", ("Paris", "London", "Berlin"), 0),
    ("Two plus two is", ("seven", "four", "nine"), 1),
    ("The opposite of hot is", ("cold", "tall", "green"), 0),
    ("A dog is an", ("engine", "animal", "island"), 1),
    ("The sun rises in the", ("kitchen", "west", "east"), 2),
    ("Water is made of hydrogen and", ("oxygen", "gold", "sugar"), 0),
    ("The first month of the year is", ("July", "January", "March"), 1),
    ("Bees make", ("honey", "milk", "paper"), 0),
)
TEXT = "The sun is a star. The earth goes around it once a year, and the moon goes around the earth once a month."


def tasks(folder: Path) -> None:
    """Write tasks of three kinds, and what they ask."""
    documents = [
        {"question": question, "choices": choices, "answer": answer, "word": choices[answer], "text": TEXT}
        for question, choices, answer in QUESTIONS
    ]
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": str(folder / "documents.jsonl")},
        "test_split": "train",
    }
    asked = {**shared, "doc_to_text": "{{question}}"}
    kinds = {
        "own_choices": {
            **asked,
            "output_type": "multiple_choice",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
        "own_answers": {
            **asked,
            "output_type": "generate_until",
            "doc_to_target": "{{word}}",
            "generation_kwargs": {"until": ["."], "max_gen_toks": 8, "do_sample": False},
            "filter_list": [{"name": "first", "filter": [{"function": "regex", "regex_pattern": "(\\w+)"}]}],
            "metric_list": [{"metric": "exact_match", "ignore_case": True}],
        },
        "own_texts": {
            **shared,
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
        },
    }
    for name, task in kinds.items():  # YAML contains JSON
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **task}), encoding="utf-8")


def evaluated(
    address: str, model: str, task: str, n_together: int = 1, **further: object
) -> subprocess.CompletedProcess[str]:
    """Run a task."""
    with tempfile.TemporaryDirectory() as folder:
        tasks(Path(folder))
        told = {"model": model, "base_url": f"{address}/v1/completions", "max_retries": 1, **further}
        arguments = ",".join(f"{name}={value}" for name, value in told.items())
        command = [str(Path(sys.executable).with_name("lm_eval")), "--model", "local-completions"]
        command += [
            "--model_args",
            arguments,
            "--include_path",
            folder,
            "--tasks",
            task,
            "--batch_size",
            str(n_together),
        ]
        silent = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": folder, "NO_COLOR": "1"}
        return subprocess.run(command, env={**os.environ, **silent}, capture_output=True, text=True)


def table(address: str, model: str, task: str, n_together: int = 1, **further: object) -> str:
    """The lines of its table. `n_together`: prompts in a request."""
    done = evaluated(address, model, task, n_together, **further)
    assert done.returncode == 0, done.stderr[-900:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(lines) > 2, done.stdout[-900:]
    return "\n".join(lines)


def choices(address: str, model: str) -> object:
    return table(address, model, "own_choices")


def choices_together(address: str, model: str) -> object:
    """Several in a request, and several requests at a time: the same table."""
    found = table(address, model, "own_choices", 8, num_concurrent=2)
    assert found == table(address, model, "own_choices", tokenized_requests=False)
    return found


def answers(address: str, model: str) -> object:
    return table(address, model, "own_answers")


def texts(address: str, model: str) -> object:
    return table(address, model, "own_texts")


def unknown_model(address: str, model: str) -> object:
    done = evaluated(address, NO_MODEL, "own_choices")
    assert done.returncode != 0
    return next(line for line in done.stderr.splitlines() if NO_MODEL in line and "error message" in line)


if __name__ == "__main__":
    run_checks(
        choices=choices,
        choices_together=choices_together,
        answers=answers,
        texts=texts,
        unknown_model=unknown_model,
    )
