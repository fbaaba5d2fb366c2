"""stand-in"""
from __future__ import annotations
from textual.containers import Vertical
from textual.widgets import Static
class Answer(Vertical):
    DEFAULT_CSS = "Answer { height: auto; }"
    def __init__(self, number: int, text: str = "", *, label: str = "", note: str = "") -> None:
        super().__init__()
        self.number = number; self.source = text; self.runs = (); self._note = note
        self._body = Static(text, markup=False); self._foot = Static(note, markup=False)
    def compose(self):
        yield self._body; yield self._foot
    def begin(self): self._foot.update("…")
    def grow(self, piece): self.source += piece; self._body.update(self.source)
    def finish(self, text, note): self.source = text; self._body.update(text); self._foot.update(note)
    def toggle_tint(self): pass
    def show_siblings(self, index, n): pass
