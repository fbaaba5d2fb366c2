"""The metrics of all replicas as one page in Prometheus format, each sample labelled with its replica.

In: names of replicas with their pages. Out: a page that keeps the samples of a metric together, as the format demands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SAMPLE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})?(?P<rest> .*)")


def merged_metrics(pages: Iterable[tuple[str, str]]) -> str:
    """One page of several. Comments of a metric are taken from the first page that has them."""
    comments: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, page in pages:
        family, is_new = "", False
        for line in page.splitlines():
            if line.startswith("#"):
                name = line.split(" ", 3)[2] if line.count(" ") >= 2 else ""
                if name != family:
                    family, is_new = name, name not in comments
                if is_new:
                    comments.setdefault(name, []).append(line)
            elif match := _SAMPLE.fullmatch(line):
                label = ",".join(filter(None, (match["labels"], f'replica="{replica}"')))
                samples.setdefault(family, []).append(f"{match['name']}{{{label}}}{match['rest']}")
    return "".join(f"{line}\n" for name, told in comments.items() for line in (*told, *samples.get(name, ())))
