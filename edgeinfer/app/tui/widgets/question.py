"""stand-in"""
from __future__ import annotations
from textual.widgets import Static
class Question(Static):
    def __init__(self, number: int, text: str, attachments=(), *, label="") -> None:
        super().__init__(text, markup=False)
        self.number = number
    def show_siblings(self, index, n): pass
