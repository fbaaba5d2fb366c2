"""Random JSON schemas, drawn by hypothesis-jsonschema's own generator of schemas; one a line, for measure_serving.py.

Its last release with that generator is of 2019 and wants other versions than the tests do, so it has an environment of
its own:

    python -m venv drawing && drawing/bin/pip install hypothesis-jsonschema==0.9.13 'hypothesis<5' 'jsonschema<4'
    drawing/bin/python scripts/draw_schemas.py 2000 > schemas.jsonl

Prints those that are objects, each once, and says which draft they are of. The same ones every time.
"""

from __future__ import annotations

import argparse
import json
import re

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis_jsonschema import _gen_schemas

DRAFT = "http://json-schema.org/draft-07/schema#"
STRANGE = re.compile(r"[*+?}]\+|\(\?>")
"""Possessive repeats and atomic groups: new in Python 3.11, unknown to that release, and no ECMA 262 either."""


def drawn(n: int) -> list[dict[str, object]]:
    """What the generator gives in `n` draws."""
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
