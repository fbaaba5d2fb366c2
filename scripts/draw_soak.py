"""Draws what a soaked server held: memory, threads and files over the hours, and the time to the first token.

Run: `python scripts/draw_soak.py OUT.svg ROWS…`, with files that `soak_server.py --out` wrote, one panel column each.
Needs matplotlib, which is in no extra. Rows may have "anonymous MB" too: what is held beside files that are mapped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PANELS = (("own MB", "anonymous MB"), ("threads", "files", "tasks"), ("first token ms",))


def main() -> int:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    out, *given = map(Path, sys.argv[1:])
    figure, axes = pyplot.subplots(
        len(PANELS), len(given), figsize=(5 * len(given), 7), sharex="col", squeeze=False, layout="constrained"
    )
    for column, path in enumerate(given):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        loaded = [row for row in rows if not row.get("at rest")]
        for panel, names in enumerate(PANELS):
            axis = axes[panel][column]
            for name in names:
                known = [row for row in loaded if name in row]
                if not known:
                    continue
                axis.plot([row["s"] / 60 for row in known], [row[name] for row in known], label=name, lw=1)
                at_rest = [(row["s"] / 60, row[name]) for row in rows if row.get("at rest") and name in row]
                axis.plot([s for s, _ in at_rest], [y for _, y in at_rest], "o", ms=4, color=axis.lines[-1].get_color())
            axis.set_ylim(bottom=0)
            axis.legend(loc="lower right")
        axes[0][column].set_title(path.stem.replace("-", " "))
        axes[-1][column].set_xlabel("minutes; dots: at rest")
    figure.savefig(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
