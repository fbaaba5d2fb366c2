"""Checks whether answers follow their schemas, with drafts and without, and measures the cost of following them.

Run: `python scripts/measure_schemas.py [--schemas PLACE] [--wanted N] [--model NAME]`. PLACE is a file with a schema on
each line (`draw_schemas.py` writes one), or a folder of JSON Schema's own test suite; without it this script draws
schemas with its own strategies. The first N schemas that can be followed are answered, and the reasons why others
cannot are counted; schemas with characters that the model has no tokens for are left out. jsonschema judges, with
Python's numbers. The idle share of the machine is printed before and after.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
import psutil

import edgeinfer

MESSAGES = [{"role": "user", "content": "Tell me a long story about a lighthouse and the people who live in it."}]
MOST_TOKENS = 1000

Schema = dict[str, object]


def random_schemas(n: int) -> list[Schema]:
    """The largest of schemas drawn by hypothesis: nested strings, numbers, choices, lists and objects."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    names = st.from_regex("[a-z]{1,8}", fullmatch=True)
    few = st.integers(1, 3)
    whole = st.integers(-(2**53), 2**53)  # JSON readers disagree on larger ones
    leaves = st.one_of(
        st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 20)),
        st.builds(
            lambda form: {"type": "string", "pattern": form},
            st.sampled_from(["^[a-f]{2,5}$", "^x+$", "^\\d\\d:\\d\\d$"]),
        ),
        st.builds(
            lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more}, st.integers(-99, 99), few
        ),
        st.builds(lambda low: {"type": "number", "minimum": low}, st.integers(-9, 9)),
        st.sampled_from(
            [{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}, {"format": "date", "type": "string"}]
        ),
        st.builds(
            lambda some: {"enum": some},
            st.lists(st.one_of(names, whole, st.booleans()), min_size=1, max_size=4),
        ),
        st.builds(lambda one: {"const": one}, st.one_of(names, whole, st.none())),
    )

    def within(inner: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
        def record(members: dict[str, object], optional: int) -> dict[str, object]:
            required = list(members)[: max(0, len(members) - optional)]
            return {"type": "object", "properties": members, "required": required, "additionalProperties": False}

        lists = st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, few)
        records = st.builds(record, st.dictionaries(names, inner, min_size=1, max_size=4), st.integers(0, 1))
        choices = st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=2, max_size=3))
        return st.one_of(lists, records, choices)

    found: dict[str, dict[str, object]] = {}

    @settings(
        max_examples=6 * n, database=None, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(st.recursive(leaves, within, max_leaves=8))
    def collect(schema: dict[str, object]) -> None:
        found[json.dumps(schema, sort_keys=True)] = schema

    collect()
    return [found[text] for text in sorted(found, key=len, reverse=True)][:n]


def given_schemas(place: Path) -> list[Schema]:
    """Schemas from a file, one per line (`draw_schemas.py`), or from a folder of JSON Schema's own test suite.

    The suite is in the sdist of jsonschema, e.g. json/tests/draft7.
    """
    if place.is_file():
        return [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    groups = [group for path in sorted(place.glob("*.json")) for group in json.loads(path.read_text(encoding="utf-8"))]
    return [group["schema"] for group in groups if isinstance(group["schema"], dict)]


@dataclass
class Found:
    """Counts of answers. `n_closed`: the valid ones that were closed because their tokens ran out."""

    n_valid: int = 0
    n_closed: int = 0
    wrong: list[tuple[Schema, str, str]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    tokens: list[tuple[int, ...]] = field(default_factory=list)

    def judge(self, schema: Schema, stream: edgeinfer.TextStream) -> None:
        """Count an answer."""
        self.tokens.append(stream.tokens)
        is_cut = stream.stats is not None and stream.stats.finish_reason == "length"
        reason = problem(stream.text, schema)
        if reason is None:
            self.n_valid += 1
            self.n_closed += is_cut
        else:
            self.wrong.append((schema, stream.text, "cut" if is_cut else reason))


def problem(text: str, schema: Schema) -> str | None:
    """Why a text does not follow a schema; None if it does."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return None


def is_writable(schema: Schema, llm: edgeinfer.LLM) -> bool:
    """Whether the model has tokens for all characters of a schema."""
    text = json.dumps(schema, ensure_ascii=False)
    return llm.detokenize(llm.tokenize(text, add_special=False, parse_special=False)) == text


def answered(model: str, spec: str, schemas: Sequence[Schema], most: int) -> Found:
    """Answers to the first schemas that can be followed, each beside an unconstrained answer of the same length."""
    found = Found()
    n_tokens, seconds, plain_tokens, plain_seconds = 0, 0.0, 0, 0.0
    with edgeinfer.load(model, device="cpu", spec=spec, n_context=2048) as llm:  # type: ignore[arg-type]
        for number, schema in enumerate(schemas):
            if len(found.tokens) == most:
                break
            if not is_writable(schema, llm):
                found.refused["characters that no token writes"] += 1
                continue
            options = {"temperature": 0.8, "seed": number, "max_tokens": MOST_TOKENS}
            try:
                stream = llm.chat(MESSAGES, schema=schema, **options)  # type: ignore[arg-type]
            except edgeinfer.BadSetting as reason:
                found.refused[str(reason).partition(" followed: ")[2][:60]] += 1
                continue
            began = time.perf_counter()
            stream.read()
            seconds, n_tokens = seconds + time.perf_counter() - began, n_tokens + len(stream.tokens)
            found.judge(schema, stream)
            plain = llm.chat(MESSAGES, **{**options, "max_tokens": max(2, len(stream.tokens))})  # type: ignore[arg-type]
            began = time.perf_counter()
            plain.read()
            plain_seconds, plain_tokens = plain_seconds + time.perf_counter() - began, plain_tokens + len(plain.tokens)
    rate, plain_rate = n_tokens / seconds, plain_tokens / plain_seconds
    print(f"spec {spec}: {rate:.0f} tok/s with schemas, {plain_rate:.0f} without: {rate / plain_rate:.3f}")
    return found


def show(one: Found, other: Found) -> None:
    n_same = sum(a == b for a, b in zip(one.tokens, other.tokens, strict=True))
    print(
        f"{len(one.tokens)} schemas followed: {one.n_valid} valid ({one.n_closed} of them closed at {MOST_TOKENS} "
        f"tokens), {len(one.wrong)} not; {n_same} the same with drafts; {sum(one.refused.values())} not followed"
    )
    for reason, n in one.refused.most_common():
        print(f"  not followed {n}: {reason}")
    for schema, text, reason in one.wrong:
        print(f"  wrong: {json.dumps(schema)[:600]} {text[:300]!r}: {reason[:200]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=Path, metavar="PLACE")
    parser.add_argument("--wanted", type=int, default=500)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    given = parser.parse_args()
    schemas = random_schemas(given.wanted) if given.schemas is None else given_schemas(given.schemas)
    print(f"idle {psutil.cpu_times_percent(2).idle / 100:.2f} before")
    show(*(answered(given.model, spec, schemas, given.wanted) for spec in ("off", "auto")))
    print(f"idle {psutil.cpu_times_percent(2).idle / 100:.2f} after")


if __name__ == "__main__":
    main()
