"""Kills and stops real commands at moments of their lives, and looks at what is left as a user would.

Run:  python scripts/faults kill TARGET… [--times 200] [--seed 1] [--out DIR] [--model FILE]
      python scripts/faults stop TARGET… [--times 5] [--seconds 60]
      python scripts/faults clock TARGET… [--times 5]
      python scripts/faults --list

Each run starts a command in a home of its own, kills it (SIGKILL, all its processes or the parent alone), stops it for
a time (SIGSTOP, all or its helpers alone) or sets its clock by a year, and checks what the target promises; that no
process lives 5 s later; and that the next start leaves no temporary file, lock or shared memory. The seed and a run's
number decide its moment. Rows are kept in DIR: the same command goes on where it was ended. A table is printed at the
end; 1 is returned if anything was found.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from campaign import HEAD, Campaign  # noqa: E402  # found by the path above


def main() -> int:
    """Run the targets; 1 if anything was found."""
    known = sorted(path.stem for path in (HERE / "targets").glob("*.py") if path.stem != "__init__")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", nargs="?", choices=("kill", "stop", "clock"), default="kill")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(known))
    parser.add_argument("--times", type=int, default=200, help="runs of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a command is stopped")
    parser.add_argument("--out", type=Path, default=Path("faults"))
    parser.add_argument("--model", type=Path, help="a small chat model (GGUF); default: the starter model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if given.list:
        print(*known, sep="\n")
        return 0
    if unknown := [name for name in given.targets if name not in known]:
        parser.error(f"there is no target {unknown[0]}; there are: {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the command of a run ends too
    campaigns = []
    for name in given.targets or known:
        out = given.out.absolute()
        campaign = Campaign(name, given.fault, given.seed, out, given.model, given.device, given.seconds)
        campaign.run(given.times)
        campaigns.append(campaign)
    print(HEAD, *(campaign.line() for campaign in campaigns), sep="\n", flush=True)
    return int(any(row.problems for campaign in campaigns for row in campaign.rows))


if __name__ == "__main__":
    sys.exit(main())
