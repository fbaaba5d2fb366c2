"""Takes screenshots of the terminal app with the starter model, for docs/screenshots.

Run: `edgeinfer probe; python scripts/screenshots.py [FOLDER]`, with cairosvg installed (`pip install cairosvg`), on
quiet cores: the pictures show what is measured. The app runs as it does in a terminal, except that its cells are drawn
into pictures; the answers are the model's own. With a model that reads images, `python scripts/screenshots.py FOLDER
MODEL IMAGE` takes the one picture of an image that is being read, and `python scripts/screenshots.py FOLDER several`
that of several answers side by side.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cairosvg

from edgeinfer.app.tui.app import ChatApp
from edgeinfer.engine.measure.profiles import ProfileStore
from edgeinfer.models.store import STARTER_NAME, ModelStore

WIDE, SMALL, BROAD = (110, 34), (40, 12), (140, 30)
QUESTIONS = (
    "Write a Python function that adds the numbers of a list, and explain it in two sentences.",
    "Name three lighthouses as a list.",
)


BRAILLE = re.compile(r"<text (?=[^>]*>[^<]*[\u2800-\u28ff])")
"""Where text in braille begins, which DejaVu Sans Mono lacks."""
SUM = "What is 6 times 7? Explain in one sentence."
SEED = 1


class Camera:
    """Takes pictures of a running app."""

    def __init__(self, app: ChatApp, folder: Path) -> None:
        self._app = app
        self._folder = folder

    def take(self, name: str) -> None:
        """Take a picture of the current screen."""
        svg = self._app.export_screenshot(title="edgeinfer chat")
        svg = re.sub(r"@font-face\s*{[^}]*}", "", svg).replace("Fira Code", "DejaVu Sans Mono")
        svg = svg.replace("font-size: 20px", "font-size: 20.2px")
        svg = BRAILLE.sub('<text font-family="DejaVu Sans" ', svg)
        cairosvg.svg2png(bytestring=svg.encode(), write_to=str(self._folder / f"{name}.png"), scale=0.9)


async def photograph(folder: Path, theme: str, size: tuple[int, int], model: str, suffix: str) -> None:
    """Photograph a conversation and every screen of the app."""
    from textual.widgets import TextArea

    from edgeinfer.app.tui.launch import opened

    overrides = {"model": model, "theme": theme, "temp": 0.0, "max_tokens": 160, "device": "cpu"}
    with opened(overrides) as app:
        camera = Camera(app, folder)
        async with app.run_test(size=size) as pilot:
            screen = app.chat_screen

            async def settle(seconds: float = 1.0) -> None:
                await pilot.pause(seconds)

            async def say(text: str) -> None:
                area = screen.query_one(TextArea)
                area.clear()
                area.insert(text)
                await settle(0.2)
                await pilot.press("enter")
                await settle(0.3)
                while screen.writing is not None:
                    await settle(0.1)

            while app.state.model is None:
                await settle(0.1)
            for question in QUESTIONS:
                await say(question)
            await settle(9)  # until notifications are gone
            camera.take(f"chat{suffix}")
            if size == SMALL:
                return
            await say("/drafts")
            await settle()
            camera.take(f"drafts{suffix}")
            for key, name in (("f3", "machine"), ("ctrl+o", "sessions"), ("ctrl+l", "models"), ("f2", "settings")):
                await pilot.press(key)
                await settle(3)
                if name == "machine":
                    await pilot.press("r")
                    await settle(2)
                camera.take(f"{name}{suffix}")
                await pilot.press("escape")
                await settle(0.5)
            await say("/regen")
            await pilot.press("ctrl+t")
            await settle()
            camera.take(f"branches{suffix}")
            await pilot.press("escape")
            await pilot.press("f1")
            await settle()
            camera.take(f"help{suffix}")


async def photograph_image(folder: Path, model: Path, image: Path) -> None:
    """Photograph a question about an image while it is being read, and the same image in the next draft."""
    from textual.widgets import TextArea

    from edgeinfer.app.tui.launch import opened

    os.chdir(image.parent)
    with opened({"model": str(model), "theme": "textual-dark", "max_tokens": 16, "device": "cpu"}) as app:
        async with app.run_test(size=WIDE) as pilot:
            screen = app.chat_screen
            while app.state.model is None:
                await pilot.pause(0.1)
            app.clear_notifications()
            screen.composer.attach(image)
            screen.query_one(TextArea).insert("What is on this picture?")
            while not screen.composer.n_tokens:
                await pilot.pause(0.1)
            await pilot.press("enter")
            while "reading the image" not in shown_text(app):
                await pilot.pause()
            screen.composer.attach(image)
            screen.query_one(TextArea).insert("And which colour has the roof?")
            while not screen.composer.n_tokens:
                await pilot.pause(0.1)
            Camera(app, folder).take("image")


async def photograph_several(folder: Path) -> None:
    """Photograph four answers to one question, one of which is kept, on a wide terminal."""
    from textual.widgets import TextArea

    from edgeinfer.app.tui.launch import opened

    overrides = {"model": STARTER_NAME, "theme": "textual-dark", "temp": 0.5, "seed": SEED, "max_tokens": 160}
    with opened({**overrides, "device": "cpu"}) as app:
        async with app.run_test(size=BROAD) as pilot:
            screen = app.chat_screen
            while app.state.model is None:
                await pilot.pause(0.1)
            screen.query_one(TextArea).insert(f"/several 4 {SUM}")
            await pilot.pause(0.2)
            await pilot.press("enter")
            await pilot.pause(0.3)
            while screen.writing is not None:
                await pilot.pause(0.1)
            await pilot.pause(9)  # until notifications are gone
            Camera(app, folder).take("several")


def shown_text(app: ChatApp) -> str:
    """The transcript as it is on the screen."""
    transcript = app.chat_screen.transcript
    return "\n".join(transcript.render_line(y).text for y in range(transcript.size.height))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screenshots").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 3:
        with tempfile.TemporaryDirectory() as home:
            os.environ["EDGEINFER_HOME"] = home
            asyncio.run(photograph_image(folder, Path(sys.argv[2]).absolute(), Path(sys.argv[3]).absolute()))
        return
    model, profiles = ModelStore().find(STARTER_NAME).path, ProfileStore().folder
    with own_home(model, profiles):
        asyncio.run(photograph_several(folder))
    if sys.argv[2:] == ["several"]:
        return
    for theme, size, suffix in (
        ("textual-dark", WIDE, ""),
        ("textual-light", WIDE, "-light"),
        ("textual-dark", SMALL, "-small"),
    ):
        with own_home(model, profiles):
            asyncio.run(photograph(folder, theme, size, STARTER_NAME, suffix))


@contextmanager
def own_home(model: Path, profiles: Path) -> Iterator[None]:
    """A home with the starter model and what `edgeinfer probe` has measured, and nothing else."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGEINFER_HOME"] = home
        (Path(home) / "models").mkdir()
        (Path(home) / "models" / model.name).symlink_to(model)
        if profiles.is_dir():
            shutil.copytree(profiles, Path(home) / "profiles")
        yield


if __name__ == "__main__":
    main()
