"""Records the terminal app as a moving picture, docs/pictures/app.svg: questions, answers as they come, the machine.

Run: `python -m scripts.record_app [--model NAME|FILE] [--out FILE.svg]`, on a quiet machine. The app runs as it does in
a terminal, except that its cells are kept instead of shown; answers and figures are the model's own, at their own
times. Without --model the starter model answers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.color import Color
from rich.style import Style
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import TextArea

from edgeinfer.app.plans.measured import measured_profile
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.launch import opened
from edgeinfer.engine.measure.profiles import ProfileStore, machine_name
from edgeinfer.models.download.header import file_header
from edgeinfer.models.file_facts import quant_name
from edgeinfer.models.store import STARTER_NAME, ModelStore
from scripts.moving_picture import Row, Run, TerminalFrame, moving_svg

OUT = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "app.svg"
SIZE = (100, 32)
FRAMES_A_SECOND, KEY_S = 12, 0.035
QUESTIONS = ("What is photosynthesis?", "What is a prime number? Two sentences.")
READ_S, LOOK_S = 1.2, 2.5
MOST_BYTES = 1_000_000
DIM = 0.6
"""What is left of a dimmed colour, the rest is the ground's."""


class Recorder:
    """Keeps the cells of the app's screen, FRAMES_A_SECOND times a second, whenever they have changed."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._began_s = time.monotonic()
        self.frames: list[TerminalFrame] = []

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def look(self) -> None:
        """Keep a frame, if it is another one."""
        strips = self._app.screen._compositor.render_strips()  # Textual shows its cells in no other way but as a file
        rows = tuple(row_of(strip) for strip in strips)
        is_whole = len(rows) == SIZE[1]  # not while a screen is laid out
        if is_whole and (not self.frames or rows != self.frames[-1].rows):
            self.frames.append(TerminalFrame(self.now_s if self.frames else 0.0, rows))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(1 / FRAMES_A_SECOND)


def row_of(strip: Strip) -> Row:
    """A row of the screen as runs of one look."""
    runs: list[Run] = []
    for segment in strip:
        style = segment.style or Style()
        ground = _hex(style.bgcolor, "#121212")
        colour = _hex(style.color, "#e0e0e0")
        if style.reverse:
            colour, ground = ground, colour
        if style.dim:
            colour = _blended(colour, ground, DIM)
        look = (bool(style.bold), bool(style.italic), bool(style.underline))
        run = Run(segment.text, segment.cell_length, colour, ground, *look)
        last = runs[-1] if runs else None
        if last is not None and (last.colour, last.ground, last.is_bold, last.is_italic, last.is_underlined) == (
            colour,
            ground,
            *look,
        ):
            runs[-1] = Run(last.text + run.text, last.n_cells + run.n_cells, colour, ground, *look)
        else:
            runs.append(run)
    return tuple(runs)


def _hex(colour: Color | None, default: str) -> str:
    return default if colour is None or colour.is_default else colour.get_truecolor().hex


def _blended(one: str, other: str, share: float) -> str:
    parts = (
        round(int(one[at : at + 2], 16) * share + int(other[at : at + 2], 16) * (1 - share)) for at in range(1, 7, 2)
    )
    return "#" + "".join(f"{part:02x}" for part in parts)


async def record(model: str) -> tuple[list[TerminalFrame], float, float]:
    """Lead the conversation; returns the frames, how long it took, and when the last answer was there."""
    overrides = {"model": model, "theme": "textual-dark", "temp": 0.0, "max_tokens": 160, "device": "cpu"}
    with opened(overrides) as app:
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: app.state.model is not None)
            await say(app, pilot, "Hi", 0.0)  # what a first answer still compiles is no part of the picture
            await pilot.press("ctrl+n")
            await pilot.pause(9)  # until notices are gone
            recorder = Recorder(app)
            watching = asyncio.create_task(recorder.run())
            try:
                for question in QUESTIONS:
                    await asyncio.sleep(READ_S / 2)
                    await say(app, pilot, question, KEY_S)
                    await asyncio.sleep(READ_S)
                still_s = recorder.now_s
                await pilot.press("f3")
                await asyncio.sleep(LOOK_S)
            finally:
                watching.cancel()
            recorder.look()
            return recorder.frames, recorder.now_s, still_s


async def say(app: ChatApp, pilot: Pilot[int], text: str, key_s: float) -> None:
    """Type a text, key by key, send it, and wait for the end of the answer."""
    area = app.chat_screen.query_one(TextArea)
    for sign in text:
        area.insert(sign)
        if key_s:
            await asyncio.sleep(key_s)
    n_after = len(app.chat_screen.chat.branch) + 2
    await pilot.press("enter")
    await until(pilot, lambda: app.chat_screen.writing is None and len(app.chat_screen.chat.branch) >= n_after)


async def until(pilot: Pilot[int], happened: Callable[[], bool], patience_s: float = 120.0) -> None:
    """Let the app run until something happened. Raises TimeoutError."""
    pause: Callable[[float], Awaitable[None]] = pilot.pause
    ends_s = time.monotonic() + patience_s
    while not happened():
        if time.monotonic() > ends_s:
            raise TimeoutError(f"the app did not go on within {patience_s:.0f} s")
        await pause(0.05)


@contextmanager
def own_home(model: Path) -> Iterator[str]:
    """A home with this model and nothing else; gives its name."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGEINFER_HOME"] = home
        (Path(home) / "models").mkdir()
        (Path(home) / "models" / model.name).symlink_to(model)
        yield model.stem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model's name or file")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    given = Path(options.model or "")
    model = given if given.is_file() else ModelStore().find(options.model or STARTER_NAME).path
    with own_home(model.resolve()) as name:
        ProfileStore().save(measured_profile(short=True, formats=(quant_name(file_header(model)) or "Q4_0",)))
        frames, ends_s, still_s = asyncio.run(record(name))
    day = datetime.now().astimezone().date().isoformat()
    caption = f"{name} on {machine_name()}, {day}, in real time"
    ground = max((run.ground for row in frames[0].rows for run in row), key=[*_grounds(frames[0])].count)
    svg = moving_svg(frames, ends_s, still_s, ground, "edgeinfer chat", caption)
    size = len(svg.encode())
    if size > MOST_BYTES:
        sys.exit(f"error: {size:,} bytes, {MOST_BYTES:,} allowed: ask for shorter answers")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(svg, encoding="utf-8")
    print(f"wrote {options.out}: {ends_s:.1f} s, {len(frames)} frames, {size:,} bytes")
    return 0


def _grounds(frame: TerminalFrame) -> Iterator[str]:
    for row in frame.rows:
        for run in row:
            yield from (run.ground,) * run.n_cells


if __name__ == "__main__":
    sys.exit(main())
