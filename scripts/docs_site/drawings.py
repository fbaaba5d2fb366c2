"""Draws the pictures of `docs/how-it-works.md`: `python -m scripts.docs_site.drawings docs/pictures`.

In: the drawings below, as boxes, arrows and words at places. Out: an SVG file for each, with its own light background,
without fonts, scripts or anything else from elsewhere. Knows nothing of the program but the words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import MappingProxyType

INK, SOFT, PAPER = "#1f2933", "#7b8794", "#fbfbf9"
FILLS = MappingProxyType(
    {
        "plain": "#ffffff",
        "weights": "#d9ecea",
        "cache": "#e3e0f5",
        "text": "#fdf0d5",
        "good": "#cfe8cf",
        "bad": "#f3d6d3",
    }
)


@dataclass
class Drawing:
    """A picture that grows by shapes; sizes are in pixels."""

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, w: float, h: float, *lines: str, fill: str = "plain", dashed: bool = False
    ) -> None:
        """A box with centred lines of text, the first in bold where there are several."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="5" fill="{FILLS[fill]}" stroke="{INK}"{dash}/>'
        )
        first = y + h / 2 - 8 * (len(lines) - 1) + 4
        for number, line in enumerate(lines):
            is_head = number == 0 and len(lines) > 1
            self.words(x + w / 2, first + 16 * number, line, weight=600 if is_head else 400)

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        weight: int = 400,
        anchor: str = "middle",
        ink: str = INK,
    ) -> None:
        """One line of text."""
        style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{ink}"'
        self.shapes.append(f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float], text: str = "", ink: str = INK) -> None:
        """A line through points with a head at its end, and words above its first part."""
        path = " ".join(f"{x},{y}" for x, y in points)
        self.shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="1.5" marker-end="url(#head)"/>'
        )
        if text:
            (x0, y0), (x1, y1) = points[:2]
            self.words((x0 + x1) / 2, (y0 + y1) / 2 - 6, text, size=12, ink=SOFT)

    def svg(self) -> str:
        """The whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}" font-family="system-ui, sans-serif">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker></defs>'
        )
        paper = f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{PAPER}"/>'
        title = f"<title>{escape(self.title)}</title>"
        return "\n".join([head, title, marker, paper, *self.shapes, "</svg>", ""])


def one_answer() -> Drawing:
    """From a question to text: the loop of prefill and decode."""
    d = Drawing(760, 280, "From a question to an answer: prompt, tokens, passes, text")
    d.box(20, 40, 110, 54, "question", "messages", fill="text")
    d.box(180, 40, 120, 54, "prompt", "chat template")
    d.box(350, 40, 110, 54, "tokens", "tokenizer")
    d.box(510, 40, 140, 54, "pass", "all layers, once", fill="weights")
    d.box(510, 190, 140, 54, "logits", "one per known token")
    d.box(330, 190, 130, 54, "sampler", "seed, temperature")
    d.box(180, 190, 110, 54, "token", "its text")
    d.box(20, 190, 110, 54, "answer", "streams out", fill="text")
    d.box(680, 40, 64, 54, "weights", "read", fill="weights")
    d.box(680, 118, 64, 54, "KV", "cache", fill="cache")
    d.arrow((130, 67), (180, 67))
    d.arrow((300, 67), (350, 67))
    d.arrow((460, 67), (510, 67), text="prefill")
    d.arrow((580, 94), (580, 190))
    d.arrow((510, 217), (460, 217))
    d.arrow((330, 217), (290, 217))
    d.arrow((180, 217), (130, 217))
    d.arrow((235, 190), (235, 142), (545, 142), (545, 94))
    d.words(390, 136, "decode: the token goes into the next pass", size=12, ink=SOFT)
    d.arrow((680, 67), (650, 67))
    d.arrow((680, 145), (665, 145), (665, 85), (650, 85))
    return d


def drafts() -> Drawing:
    """A tree of drafted tokens that one pass verifies."""
    d = Drawing(760, 300, "A tree of drafted tokens, verified in one pass")
    d.words(20, 30, "text so far: The capital of France is", anchor="start", weight=600)
    nodes = {
        "Paris": (160, 90, "good"),
        "the": (160, 210, "bad"),
        ",": (300, 60, "bad"),
        ".": (300, 120, "good"),
        "city": (300, 210, "bad"),
        "It": (440, 90, "good"),
        "The": (440, 150, "bad"),
        "is": (580, 90, "good"),
    }
    for start, end in (("Paris", ","), ("Paris", "."), (".", "It"), (".", "The"), ("It", "is"), ("the", "city")):
        (x0, y0, _), (x1, y1, _) = nodes[start], nodes[end]
        d.arrow((x0 + 70, y0 + 15), (x1, y1 + 15))
    d.box(20, 150, 80, 30, "is", fill="text")
    d.arrow((100, 165), (160, 105))
    d.arrow((100, 165), (160, 225))
    for word, (x, y, fill) in nodes.items():
        d.box(x, y, 70, 30, word, fill=fill)
    d.box(680, 60, 64, 180, "one", "pass", "reads", "weights", "once", fill="weights")
    d.words(
        20,
        268,
        "Green: the sampler drew the same token, with its seed. Red: it did not; what follows is dropped.",
        anchor="start",
    )
    d.words(
        20,
        288,
        "Four tokens for the weights of one pass, and the very tokens that there would be without drafts.",
        anchor="start",
    )
    return d


def batching() -> Drawing:
    """Several sequences that share passes."""
    d = Drawing(760, 250, "Several requests share each pass")
    for number in range(5):
        d.box(150 + 118 * number, 20, 104, 24, f"pass {number + 1}", fill="weights")
    rows = (
        ("request A", "text", (0, 5)),
        ("request B", "text", (0, 3)),
        ("request C", "cache", (1, 5)),
        ("request D", "cache", (3, 5)),
    )
    for place, (name, fill, (first, last)) in enumerate(rows):
        y = 60 + 38 * place
        d.words(20, y + 19, name, anchor="start")
        for number in range(first, last):
            word = "prompt" if number == first and place > 0 else "token"
            d.box(150 + 118 * number, y, 104, 28, word, fill=fill)
    d.words(
        20,
        235,
        "Every pass reads the weights once for all of them; on the cpu each answer is the same as alone.",
        anchor="start",
    )
    return d


def streaming() -> Drawing:
    """Weights that do not fit in memory are read ahead of the layers that need them."""
    d = Drawing(760, 260, "Weights are read from disk while earlier layers compute")
    d.words(20, 50, "disk reads", anchor="start", weight=600)
    d.words(20, 110, "window", anchor="start", weight=600)
    d.words(20, 170, "cores", anchor="start", weight=600)
    for number in range(6):
        x = 120 + 104 * number
        d.box(x, 30, 96, 30, f"bundle {number + 3}", fill="weights")
        d.box(x, 90, 96, 30, f"{number + 1}, {number + 2}, {number + 3}", fill="cache")
        d.box(x, 150, 96, 30, f"layer {number + 1}", fill="good")
    d.arrow((168, 60), (168, 90))
    d.arrow((168, 120), (168, 150))
    d.words(
        20,
        212,
        "The window is a ring in memory: readers fill it ahead of the layer that computes, and into the next pass.",
        anchor="start",
    )
    d.words(
        20,
        234,
        "Layers that stay in memory lie between the others, so that disk and cores are both busy.",
        anchor="start",
    )
    return d


def planning() -> Drawing:
    """What a plan is made from."""
    d = Drawing(760, 230, "A plan is made from the file's header and the machine's measured rates")
    d.box(20, 30, 160, 54, "header of the file", "shapes, formats", fill="text")
    d.box(20, 130, 160, 54, "profile", "measured rates", fill="cache")
    d.box(240, 30, 160, 54, "work", "bytes and products")
    d.box(240, 130, 160, 54, "budgets", "memory, cores, mode")
    d.box(460, 80, 130, 54, "planner", "pure numbers", fill="weights")
    d.box(640, 30, 104, 54, "placement", "device, rows", fill="good")
    d.box(640, 130, 104, 54, "prediction", "tok/s, memory", fill="good")
    d.arrow((180, 57), (240, 57))
    d.arrow((180, 157), (240, 157))
    d.arrow((400, 57), (460, 97))
    d.arrow((400, 157), (460, 117))
    d.arrow((590, 97), (640, 57))
    d.arrow((590, 117), (640, 157))
    d.arrow((692, 184), (692, 208), (100, 208), (100, 184))
    d.words(396, 202, "measured answers correct later predictions", size=12, ink=SOFT)
    return d


DRAWINGS: Mapping[str, Callable[[], Drawing]] = MappingProxyType(
    {
        "one-answer": one_answer,
        "drafts": drafts,
        "batching": batching,
        "streaming": streaming,
        "planning": planning,
    }
)


def main() -> int:
    folder = Path(sys.argv[1])
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
