"""Writes Markdown tables from the output of `edgeinfer bench --json`, for docs/BENCHMARKS.md.

Run: `python scripts/bench_table.py RESULT.json… [--into docs/BENCHMARKS.md]`. One section per file, in the given order:
speeds with ratios, the cost of verification passes, the time of a pass by op. With --into the sections replace the text
between the two marks in that document. Computes nothing that is not in the files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- results: written by scripts/bench_table.py -->", "<!-- end of results -->"
OPS_SHOWN = 8
Bench = dict[str, Any]


def section(bench: Bench) -> Iterator[str]:
    """The section of one result."""
    machine, model = bench["machine"], bench["model"]
    read = "a rate not measured" if machine["read_gb_s"] is None else f"{machine['read_gb_s']:.1f} GB/s"
    if machine["read_model_gb_s"] is not None:
        read += f", a buffer as large as the weights at {machine['read_model_gb_s']:.1f} GB/s"
    read += " (on a busy machine)" if machine["read_busy"] else ""
    yield f"### {model['name']} ({model['quant']}, {model['file_bytes'] / 1e6:.0f} MB), {bench['threads']} threads"
    yield ""
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['isa']}; memory read at {read}; "
        f"idle {bench['idle_before']:.0%} before and {bench['idle_after']:.0%} after."
    )
    yield ""
    yield from speeds(bench)
    yield from verification(bench)
    yield from ops(bench)
    yield from problems(bench)


def speeds(bench: Bench) -> Iterator[str]:
    """Every test except verification: ours, then each other with the ratio of adjacent runs."""
    rows = [row for row in bench["rows"] if row["test"] != "verify" and row["seconds"]["median"] is not None]
    others = list(dict.fromkeys(one["against"] for one in bench["ratios"]))
    ours = [row for row in rows if row["executor"] not in others]
    if not ours:
        return
    yield from _head(
        "test", "depth", ours[0]["executor"], "of bandwidth", "of own size", *(f"{name} (ratio)" for name in others)
    )
    for row in ours:
        cells = [_title(row), str(row["depth"]), _speed(row)]
        shares = (row["share_of_bandwidth"], row["share_of_model_bandwidth"])
        cells += ["–" if share is None else f"{share:.0%}" for share in shares]
        yield _line(*cells, *(_other(bench, row, name) for name in others))
    yield ""


def verification(bench: Bench) -> Iterator[str]:
    """T(k) / T(1) of every executor at every depth."""
    rows = [row for row in bench["rows"] if row["test"] == "verify" and row["cost"] is not None]
    counts = sorted({row["n"] for row in rows})
    if not counts:
        return
    yield from _head("T(k)/T(1)", "depth", *(f"k = {count}" for count in counts))
    for name, depth in dict.fromkeys((row["executor"], row["depth"]) for row in rows):
        costs = {row["n"]: row["cost"] for row in rows if (row["executor"], row["depth"]) == (name, depth)}
        yield _line(name, str(depth), *(f"{costs[count]:.2f}" if count in costs else "–" for count in counts))
    yield ""


def ops(bench: Bench) -> Iterator[str]:
    """Where the time of a pass goes."""
    for one in bench["ops"]:
        yield f"One pass of {one['n']} at depth {one['depth']}: {one['seconds'] * 1e3:.2f} ms."
        yield ""
        yield from _head("op", "kernel", "calls", "µs", "waiting µs", "share", "MB", "GB/s", "cycles/byte")
        for each in sorted(one["times"], key=lambda each: -each["share"])[:OPS_SHOWN]:
            numbers = (f"{each['busy_s'] * 1e6:.0f}", f"{each['waiting_s'] * 1e6:.0f}", f"{each['share']:.1%}")
            yield _line(each["op"], each["kernel"], str(each["calls"]), *numbers, *_reading(each))
        yield ""
        if one["overhead"]:
            named = (f"a {name.removesuffix('_s')} {cost * 1e6:.2f} µs" for name, cost in one["overhead"].items())
            yield f"With nothing to compute: {', '.join(named)}. In Python: {one.get('python_s', 0) * 1e6:.0f} µs."
            yield ""


def _reading(op: Bench) -> tuple[str, str, str]:
    """What an op reads; earlier files do not say."""
    if op.get("gb_s") is None:
        return "–", "–", "–"
    cycles = op["cycles_per_byte"]
    return f"{op['bytes_read'] / 1e6:.1f}", f"{op['gb_s']:.1f}", "–" if cycles is None else f"{cycles:.3f}"


def problems(bench: Bench) -> Iterator[str]:
    """What could not be measured, and runs on a busy machine."""
    notes = []
    for row in bench["rows"]:
        place = f"{row['test']} at depth {row['depth']}, {row['executor']}"
        if row["problem"] is not None:
            notes.append(f"- {place}: {row['problem']}")
        if row["busy_runs"]:
            notes.append(f"- {place}: {row['busy_runs']} runs on a busy machine")
    yield from dict.fromkeys(notes)
    if notes:
        yield ""


def _other(bench: Bench, row: Bench, name: str) -> str:
    same = ("test", "depth", "cold")
    theirs = [one for one in bench["rows"] if one["executor"] == name and all(one[key] == row[key] for key in same)]
    found = [one for one in bench["ratios"] if one["against"] == name and all(one[key] == row[key] for key in same)]
    if not theirs or not found:
        return "–"
    ratio = found[0]
    return f"{_speed(theirs[0])} (**{ratio['median']:.2f}×**, {ratio['min']:.2f} to {ratio['max']:.2f})"


def _title(row: Bench) -> str:
    if row["test"] == "start":
        return "start, nothing compiled yet" if row["cold"] else "start to first token"
    return f"{row['test']} {row['n']}"


def _speed(row: Bench) -> str:
    if row["test"] == "start":
        return f"{row['seconds']['median']:.2f} s"
    return f"{row['tok_s']['median']:.{0 if row['tok_s']['median'] >= 100 else 1}f} tok/s"


def _head(*cells: str) -> Iterator[str]:
    yield _line(*cells)
    yield _line(*("---" for _ in cells))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--into", type=Path, help="a document with the two marks")
    options = parser.parse_args()
    lines = [line for path in options.results for line in section(json.loads(path.read_text(encoding="utf-8")))]
    text = "\n".join(lines).rstrip()
    if options.into is None:
        print(text)
        return 0
    document = options.into.read_text(encoding="utf-8")
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        print(f"{options.into} lacks the marks {BEGIN} and {END}", file=sys.stderr)
        return 1
    options.into.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
