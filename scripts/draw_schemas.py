"""Draws random JSON schemas with hypothesis-jsonschema's own schema generator, one per line, for measure_schemas.py.

The last release with that generator is from 2019 and needs other versions than the tests, so it needs its own
environment:

    python -m venv drawing && drawing/bin/pip install hypothesis-jsonschema==0.9.13 'hypothesis<5' 'jsonschema<4'
    drawing/bin/python scripts/draw_schemas.py 2000 > schemas.jsonl

Prints schemas that are objects, each once, with the draft they follow. Every run draws the same ones.
"""

from __future__ import annotations

import argparse
import json
import re

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis_jsonschema import _gen_schemas

DRAFT = "http://json-schema.org/draft-07/schema#"
STRANGE = re.compile(r"[*+?}]\+|\(\?>")
"""Possessive repeats and atomic groups: new in Python 3.11, unknown to that release and not part of ECMA 262."""


def drawn(n: int) -> list[dict[str, object]]:
    """The generator's results of `n` draws."""
    found: dict[str, dict[str, object]] = {}
    _gen_schemas.REGEX_PATTERNS = _gen_schemas.REGEX_PATTERNS.filter(lambda form: not STRANGE.search(form))

    @settings(
        max_examples=n,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(_gen_schemas.json_schemata())
    def collect(schema: object) -> None:
        if isinstance(schema, dict):
            found[json.dumps(schema, sort_keys=True)] = {"$schema": DRAFT, **schema}

    collect()
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draws", type=int, nargs="?", default=2000)
    for schema in drawn(parser.parse_args().draws):
        print(json.dumps(schema))


if __name__ == "__main__":
    main()
