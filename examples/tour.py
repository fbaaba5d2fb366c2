"""The whole Python API in one program: python examples/tour.py [MODEL]."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Literal

import edgeinfer

MODEL = "SmolLM2-135M-Instruct"


def show(what: str, done: int, total: int) -> None:
    """Print the steps of loading, each when it ends."""
    if done == total:
        print(f"{what}: done", file=sys.stderr)


def price(fruit: str, unit: Literal["kg", "piece"] = "kg") -> float:
    """The price of a fruit in euros, by kilogram or piece."""
    return 2.5 if unit == "kg" else 0.4


def answer(llm: edgeinfer.LLM) -> None:
    """Chat and complete: streams, options, statistics, log probabilities."""
    stream = llm.chat("Name three fruits.", system="You are brief.", temperature=0.7, seed=2, max_tokens=40)
    for piece in stream:
        print(piece, end="", flush=True)
    stats = stream.stats
    if stats is not None:
        print(f"\n{stats.finish_reason}: {stats.n_generated} tokens after {stats.n_prompt} of the prompt")
    stream = llm.complete("The capital of France is", max_tokens=3, temperature=0, logprobs=2)
    print(stream.read(), [round(token.logprob, 2) for token in stream.logprobs])


def forms(llm: edgeinfer.LLM) -> None:
    """Answers that follow a schema or call a function."""
    schema = {"type": "object", "properties": {"fruit": {"type": "string", "maxLength": 20}}, "required": ["fruit"]}
    print(json.loads(llm.chat("Name a fruit.", schema=schema, max_tokens=40).read()))
    stream = llm.chat("What do plums cost?", tools=[price], tool_choice="required", parallel_tools=False, max_tokens=60)
    stream.read()
    for call in stream.tool_calls:
        print(call.name, price(**json.loads(call.arguments)))


def remember(llm: edgeinfer.LLM, folder: Path) -> None:
    """A session: it goes on, branches, and is kept in a file."""
    with llm.session() as session:
        session.chat("My name is Ann.", max_tokens=20).read()
        session.save(folder / "ann.session")
        with session.branch() as other:
            print(other.chat("What is my name?", max_tokens=20).read())
    with llm.session() as session:
        session.restore(folder / "ann.session")
        print([message.role for message in session.messages])


def read(llm: edgeinfer.LLM) -> None:
    """Tokens, embeddings, and how likely texts are; nothing is generated."""
    tokens = llm.tokenize("a text")
    print(tokens, llm.detokenize(tokens), llm.prompts.n_tokens([edgeinfer.Message("user", "Hi")]))
    print(llm.embed(["a text", "another one"])[0].shape)
    print([round(score.logprob, 1) for score in llm.score("The capital of France is", [" Paris", " London"])])


def several(llm: edgeinfer.LLM) -> None:
    """Many answers side by side."""
    for each in llm.batch(["Once upon a time", "Far away"], parallel=2, max_tokens=10):
        print(each.number, each.text)
    print(llm.several("What is 2 + 2?", 4, pick="vote", max_tokens=20, seed=1).read())
    print(llm.map("Translate to French:", ["a plum", "a pear"], max_tokens=10).read())


async def ask(llm: edgeinfer.LLM) -> None:
    """Two answers in an event loop."""
    stream = llm.chat("Hi!", max_tokens=20)
    print("".join([piece async for piece in stream]))
    print(await llm.chat("Name a fruit.", priority="background", max_tokens=20).aread())


def main() -> None:
    """Load a model and do all of it."""
    name = sys.argv[1] if len(sys.argv) > 1 else MODEL
    try:
        llm = edgeinfer.load(name, n_context=2048, n_sessions=4, progress=show)
    except edgeinfer.ModelNotFound as reason:
        sys.exit(str(reason))
    with llm, tempfile.TemporaryDirectory() as folder:
        print(llm)
        answer(llm)
        forms(llm)
        remember(llm, Path(folder))
        read(llm)
        several(llm)
        asyncio.run(ask(llm))


if __name__ == "__main__":
    main()
