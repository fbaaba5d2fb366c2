"""What campaigns did, added up over all their pieces.

In: a folder, and what a piece did. Out: a line of JSON in the folder's TARGET.jsonl for every piece; where the next
piece goes on; one table of all lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ENDING = ".jsonl"


@dataclass
class Piece:
    """Inputs that were tried: their seed, the first one's number, how many, seconds, and how many were read whole.

    `found`: by kind, the number of the first input of each, and what was told of it.
    """

    target: str
    seed: int
    first: int
    inputs: int = 0
    seconds: float = 0.0
    read: int = 0
    guided: bool = False
    found: dict[str, tuple[int, str]] = field(default_factory=dict)


def add(folder: Path, piece: Piece) -> None:
    """Append a piece to its target's file."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{piece.target}{ENDING}").open("a") as file:
        file.write(json.dumps({**asdict(piece), "seconds": round(piece.seconds, 1)}) + "\n")


def pieces(folder: Path) -> Iterator[Piece]:
    """All pieces of a folder."""
    for path in sorted(folder.glob(f"*{ENDING}")):
        for line in path.read_text().splitlines():
            yield Piece(**json.loads(line))


def next_input(folder: Path, target: str, seed: int) -> int:
    """The number after the last input that was tried with a seed."""
    own = [each for each in pieces(folder) if (each.target, each.seed, each.guided) == (target, seed, False)]
    return max((each.first + each.inputs for each in own), default=0)


def table(folder: Path) -> str:
    """A table in Markdown: a row for each target, all its pieces together."""
    by_target: dict[str, list[Piece]] = {}
    for piece in pieces(folder):
        by_target.setdefault(piece.target + (" (guided)" if piece.guided else ""), []).append(piece)
    lines = ["| target | inputs | s | inputs/s | read whole | found |", "|---|---|---|---|---|---|"]
    for target, own in sorted(by_target.items()):
        n_inputs, seconds = sum(each.inputs for each in own), sum(each.seconds for each in own)
        rate = n_inputs / seconds if seconds else 0.0
        found = {kind: f"{number}: {told}" for each in own for kind, (number, told) in each.found.items()}
        told = "; ".join(found.values()).replace("|", "\\|") or "–"
        read = sum(each.read for each in own)
        lines.append(f"| {target} | {n_inputs:,} | {seconds:.0f} | {rate:.3g} | {read:,} | {told} |")
    return "\n".join(lines)
