"""Makes the counts that drafting starts with: how often candidates of each bucket were accepted, on many kinds of text.

Run from the repository root: `python scripts/make_starting_counts.py MODEL.gguf [--out FILE] [--mode sampled]`; with a
mode, the counts of the other one stay as they are in the file. The model answers the questions below, and questions
about passages of this project's documentation, greedily and sampled as in `edgeinfer chat`, and verifies trees of 16
drafted tokens. The counts do not depend on a vocabulary or a model; they only say how much each draft source can be
trusted. None of the questions comes from a benchmark. Takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.speculation.acceptance import STARTING_COUNTS, compact
from edgeinfer.engine.speculation.drafts import LAYOUT_VERSION, MODES, ModelDrafts

ROOT = Path(__file__).resolve().parent.parent
TREE_TOKENS = 16
ANSWER_TOKENS = 160
PASSAGE_CHARACTERS = (400, 1600)
N_PASSAGES = 28
QUESTIONS = (
    ("Write a letter to the neighbours about a street party next Saturday.", "Make it half as long."),
    ("Explain how a bicycle stays upright.", "Now explain it to a child of six."),
    ("Write a short story about a lighthouse keeper who finds a bottle.",),
    ("Give me a recipe for vegetable soup with a list of ingredients and numbered steps.", "And without onions?"),
    ("What are the advantages and disadvantages of working from home?",),
    ("Write a Python function that returns the n-th Fibonacci number, with a docstring.", "Add type hints and a test."),
    ("Write a shell script that counts the lines of all text files in a folder.",),
    ("Write an SQL query for the ten customers with the highest total of orders.",),
    ("Write a class in Python for a bank account with deposit and withdraw methods.", "Add a method for transfers."),
    ("A train travels 60 km in 45 minutes. What is its average speed in km per hour? Show each step.",),
    ("I have 3 boxes with 12 pencils each and give away 7 pencils. How many are left? Explain.",),
    ("What is 15 percent of 240? Then add 30 to it and divide by 6.",),
    ("A rectangle is 8 m long and 5 m wide. What are its area and its perimeter?",),
    ("Who wrote Don Quixote?",),
    ("What is the boiling point of water on a high mountain, and why?",),
    ("Which planets have rings?",),
    ("Name three rivers in South America and the countries they flow through.",),
    ("Translate into German: The meeting has been moved to Thursday because two of us are travelling.",),
    ("Translate into French: Please send the signed contract before the end of the month.",),
    ("Translate into Spanish: My grandmother used to bake bread every Sunday morning.",),
    ("You are a museum guide. Welcome some visitors and tell them about the rooms.", "Someone asks about tickets."),
    ("Pretend to be a pirate and describe your ship.",),
    ("Extract all names and dates from this text: Anna Berg met Luis Ortega on 4 May 2019 in Oslo; on 7 June 2020 they "
     "founded Nordlys with Mia Chen.",),
    ("Compare tea and coffee in a table with three rows.",),
    ("List ten words that rhyme with light.",),
    ("Is it ethical to keep animals in zoos? Give both sides.",),
    ("Describe the water cycle in five sentences.", "Now as a list."),
    ("Write a poem of eight lines about autumn.",),
    ("What should I pack for a week of hiking in the Alps?",),
    ("Explain the difference between a virus and a bacterium.",),
)  # fmt: skip
TASKS = (
    "Summarise the following text in three sentences.\n\n{}",
    "Answer the question from the text.\n\nText: {}\n\nQuestion: What is the text about, and what does it say first?",
    "{}\n\nList the main points of this text.",
    "Rewrite this text in simpler words:\n\n{}",
    "Correct any mistakes in this text and repeat it:\n\n{}",
    "Translate into German:\n\n{}",
    "Reference: {}\n\nUsing the reference, explain to a colleague how this works.",
)


def passages() -> list[str]:
    """Paragraphs of the documentation."""
    found: list[str] = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            if PASSAGE_CHARACTERS[0] <= len(paragraph) <= PASSAGE_CHARACTERS[1] and "|" not in paragraph:
                found.append(paragraph)
    return random.Random(0).sample(found, min(N_PASSAGES, len(found)))


def conversations() -> Iterator[tuple[str, ...]]:
    """Turns of the user, all kinds mixed."""
    about = [(TASKS[number % len(TASKS)].format(text),) for number, text in enumerate(passages())]
    led = [*QUESTIONS, *about]
    random.Random(1).shuffle(led)
    yield from led


def lead(llm: LLM, turns: tuple[str, ...], sampled: bool) -> None:
    """Run one conversation."""
    messages: list[dict[str, str]] = []
    with llm.session() as session:
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            temperature = 0.7 if sampled else 0.0
            stream = session.chat(messages, temperature=temperature, seed=1, max_tokens=ANSWER_TOKENS)
            messages.append({"role": "assistant", "content": stream.read()})


def answer(model: Path, led: Sequence[tuple[str, ...]], sampled: bool, files: tuple[Path, ...]) -> ModelDrafts:
    """Run conversations, with what earlier ones taught; returns what drafting has learned."""
    with load(model, spec=TREE_TOKENS, n_context=4096, history=True, draft_from=files) as llm:
        assert llm.drafts is not None
        if not llm.drafts.n_primed:
            llm.prime()
        for turns in led:
            lead(llm, turns, sampled)
        return llm.drafts


def kept(path: Path, mode: str) -> dict[str, np.ndarray]:
    """The counts of a mode in a file."""
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files if name.startswith(f"{mode}.")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "edgeinfer" / "engine" / "speculation" / STARTING_COUNTS)
    parser.add_argument("--mode", choices=tuple(MODES.values()), help="count only this kind of text anew")
    options = parser.parse_args()
    arrays: dict[str, np.ndarray] = {}
    for sampled, mode in MODES.items():
        if options.mode not in (None, mode):
            arrays |= kept(options.out, mode)
            continue
        with tempfile.TemporaryDirectory() as home:
            os.environ["EDGEINFER_HOME"] = home
            led = list(conversations())
            answer(options.model, led[::2], sampled, ())  # the first half becomes the history of the second
            drafts = answer(options.model, led[1::2], sampled, (ROOT / "docs",))
        arrays |= compact(drafts.acceptance[sampled], mode)
        print(f"{mode}: {len(led)} conversations")
    draft_sources, buckets = np.array(list(drafts.buckets)), np.array(list(drafts.buckets.values()))
    np.savez_compressed(options.out, version=LAYOUT_VERSION, draft_sources=draft_sources, buckets=buckets, **arrays)
    print(f"{options.out}: {options.out.stat().st_size} bytes, {drafts.layout}")


if __name__ == "__main__":
    main()
