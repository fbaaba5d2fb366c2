"""A terminal for tests: the other end of a pseudo-terminal answers queries, and keeps cells and pictures as Kitty does.

It knows what the app writes, and no more: cursor, text, colours of text, the other screen, Kitty's pictures, Sixel.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence

from edgeinfer.app.tui.graphics.kitty import NUMERALS, PLACEHOLDER
from tests.waiting import until

COLUMNS, ROWS, CELL = 100, 30, (8, 16)
_SEQUENCE = re.compile(
    r"\x1b\[(?P<arguments>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|\x1b_(?P<application>[^\x1b]*)\x1b\\"
    r"|\x1bP(?P<device>[^\x1b]*)\x1b\\"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[()].|\x1b[^\[_P\]()]"
)


class StandIn:
    """A terminal of 100 x 30 cells. `name`: as it calls itself when asked; `features`: its attributes (DA1)."""

    def __init__(self, name: str = "", features: str = "62;22") -> None:
        self._name, self._features = name, features
        self._end, self._program_end = os.openpty()
        size = struct.pack("HHHH", ROWS, COLUMNS, COLUMNS * CELL[0], ROWS * CELL[1])
        fcntl.ioctl(self._program_end, termios.TIOCSWINSZ, size)
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder, self._rest = codecs.getincrementaldecoder("utf-8")(), ""
        self._cells: dict[tuple[int, int], tuple[str, int]] = {}
        self._whole = threading.Lock()
        """Held while what was written is being drawn."""
        self._at, self._colour = (0, 0), -1
        self._sending: tuple[int, list[str]] = (0, [])
        self.is_other_screen = False
        self.pictures: dict[int, tuple[Mapping[str, str], str]] = {}
        """Keys and data by number: of those that the terminal has."""
        self.n_received = 0
        self.sixels: list[str] = []
        self.asked: list[str] = []
        self.written = ""

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a program in it."""
        streams = {"stdin": self._program_end, "stdout": self._program_end, "stderr": self._program_end}
        self._process = subprocess.Popen(command, **streams, env=environment, start_new_session=True)  # type: ignore[call-overload]
        os.close(self._program_end)
        threading.Thread(target=self._read, daemon=True).start()

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    @property
    def is_over(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        os.close(self._end)

    @property
    def lines(self) -> list[str]:
        """What is seen, without combining characters."""
        with self._whole:
            cells = {place: text[0] for place, (text, _) in self._cells.items()}
        return ["".join(cells.get((row, column), " ") for column in range(COLUMNS)).rstrip() for row in range(ROWS)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.text)

    def shown(self) -> dict[int, set[tuple[int, int]]]:
        """Rows and columns of each picture that placeholders on the screen show."""
        found: dict[int, set[tuple[int, int]]] = {}
        with self._whole:
            cells = [cell for cell in self._cells.values() if len(cell[0]) == 3]
        for text, colour in cells:
            assert text[0] == PLACEHOLDER
            found.setdefault(colour, set()).add((NUMERALS.index(text[1]), NUMERALS.index(text[2])))
        return found

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._end, 65536)
            except OSError:  # the program has ended
                return
            text = self._decoder.decode(data)
            self.written += text
            self._rest += text
            with self._whole:
                self._take()

    def _take(self) -> None:
        place = 0
        while place < len(self._rest):
            sign = self._rest[place]
            if sign == "\x1b":
                match = _SEQUENCE.match(self._rest, place)
                if match is None:
                    break  # the rest of it is to come
                place = match.end()
                self._obey(match)
                continue
            place += 1
            self._draw(sign)
        self._rest = self._rest[place:]

    def _draw(self, sign: str) -> None:
        row, column = self._at
        if sign == "\r":
            self._at = row, 0
        elif sign == "\n":
            self._at = row + 1, 0  # as terminals do that turn it into both
        elif sign in NUMERALS:
            text, colour = self._cells[row, column - 1]
            self._cells[row, column - 1] = text + sign, colour
        elif sign >= " ":
            self._cells[row, column] = sign, self._colour
            self._at = row, column + 1

    def _obey(self, match: re.Match[str]) -> None:
        if match["application"] is not None:
            self._picture(match["application"])
        elif match["device"] is not None:
            self.sixels.append(match["device"])
        elif match["final"] is not None:
            self._control(match["arguments"], match["between"] + match["final"])

    def _control(self, arguments: str, final: str) -> None:
        numbers = [int(number or 0) for number in re.findall(r"\d+|(?<=;)(?=;)", arguments)]
        if final == "H":
            row, column = (*numbers, 1, 1)[:2] if numbers else (1, 1)
            self._at = row - 1, column - 1
        elif final == "m":
            self._colour_text(numbers)
        elif (arguments, final) in (("?1049", "h"), ("?1049", "l")):
            self.is_other_screen = final == "h"
            self._cells.clear()
            self.pictures.clear()  # they belong to a screen
        elif (arguments, final) == (">", "q"):
            self._answer("name", f"\x1bP>|{self._name}\x1b\\" if self._name else "")
        elif (arguments, final) == ("16", "t"):
            self._answer("cell", f"\x1b[6;{CELL[1]};{CELL[0]}t")
        elif (arguments, final) == ("", "c"):
            self._answer("features", f"\x1b[?{self._features}c")

    def _answer(self, what: str, answer: str) -> None:
        self.asked.append(what)
        self.type(answer)

    def _colour_text(self, numbers: list[int]) -> None:
        if not numbers or 0 in numbers[:1] or 39 in numbers[:1]:
            self._colour = -1
        for place, number in enumerate(numbers):
            if number == 38 and numbers[place + 1] == 2:
                red, green, blue = numbers[place + 2 : place + 5]
                self._colour = red << 16 | green << 8 | blue
                return

    def _picture(self, command: str) -> None:
        assert command.startswith("G"), command
        head, _, data = command[1:].partition(";")
        keys = dict(key.split("=") for key in head.split(","))
        if keys.get("a") == "d":
            assert keys["d"] == "I"
            self.pictures.pop(int(keys["i"]), None)
            return
        if "i" in keys:
            self._keys = keys
            self._sending = int(keys["i"]), []
        assert len(data) <= 4096
        number, chunks = self._sending
        chunks.append(data)
        if keys["m"] == "0":
            self.pictures[number] = self._keys, "".join(chunks)
            self.n_received += 1
