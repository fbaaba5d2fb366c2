"""Fuzzes readers of files and texts that others made: no crash, no error but ours, no second, no 200 MB.

Run:  python scripts/fuzz TARGET… [--inputs 100000] [--seed 1] [--out DIR] [--first N | --go-on] [--seconds S]
      python scripts/fuzz TARGET --file PATH
      python scripts/fuzz TARGET --atheris [--seconds S] [--out DIR]
      python scripts/fuzz --list
      python scripts/fuzz --table DIR

Inputs are mutations of valid ones, made of the seed and a number, so every one can be made again. The target runs in a
child process: one that crashes or hangs is noted, and the next one goes on after that input. Findings of one kind are
told once, and their first input is saved in DIR as TARGET-NUMBER. DIR also gets TARGET.jsonl, a line for each piece of
a campaign: --go-on begins after the last input that is noted there, and ends after --inputs in all; --table adds all
pieces up.

--atheris lets coverage guide the mutations (libFuzzer): it needs the package atheris, which nothing else does. Such a
run ends after --seconds; what crashes the process ends it too, and is saved in DIR.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from campaign import Campaign  # noqa: E402  # found by the path above
from summary import next_input, table  # noqa: E402

GUIDED_S = 60


def main() -> int:
    """Run the targets; 1 if anything was found."""
    known = sorted(path.stem for path in (HERE / "targets").glob("*.py") if path.stem != "__init__")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(known))
    parser.add_argument("--inputs", type=int, default=100_000, help="most inputs of each target")
    parser.add_argument("--seconds", type=int, default=0, help="most seconds for each target; 0: no limit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--go-on", action="store_true", help="begin after the last input that DIR knows")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--file", type=Path, help="run the target once, on this file; errors are shown")
    parser.add_argument("--atheris", action="store_true", help="let coverage guide the inputs; needs that package")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", type=Path, metavar="DIR", help="print what all campaigns of a folder did")
    given = parser.parse_args()
    if given.list:
        print(*known, sep="\n")
        return 0
    if given.table is not None:
        print(table(given.table))
        return 0
    if unknown := [name for name in given.targets if name not in known]:
        parser.error(f"there is no target {unknown[0]}; there are: {', '.join(known)}")
    if given.file is not None:
        importlib.import_module(f"targets.{given.targets[0]}").run(given.file.read_bytes())
        return 0
    return max(_run(name, given) for name in given.targets or known)


def _run(name: str, given: argparse.Namespace) -> int:
    if given.atheris:
        out = [] if given.out is None else [str(given.out)]
        paths = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))
        command = [sys.executable, str(HERE / "guided.py"), name, str(given.seconds or GUIDED_S), *out]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}).returncode
    first = next_input(given.out, name, given.seed) if given.go_on and given.out is not None else given.first
    n_left = max(0, given.inputs - first) if given.go_on else given.inputs
    began, campaign = time.monotonic(), Campaign(name, given.seed, first, n_left, given.out)
    campaign.run(given.seconds)
    took_s = time.monotonic() - began
    told = f"{name}: {campaign.n_done} inputs in {took_s:.0f} s, {campaign.n_read} read whole"
    print(f"{told}, {len(campaign.kinds)} kinds of findings", flush=True)
    return int(len(campaign.kinds) > 0)


if __name__ == "__main__":
    sys.exit(main())
