"""stand-in"""
from __future__ import annotations
from textual.containers import VerticalScroll
from edgeinfer.app.tui.widgets.answer import Answer
class Transcript(VerticalScroll):
    selected = None
    async def show(self, widgets):
        await self.remove_children(); await self.mount_all(widgets); self.anchor()
    async def add(self, widget): await self.mount(widget)
    def answer(self, number): return next((a for a in self.query(Answer) if a.number == number), None)
    @property
    def last_answer(self): return next(reversed(list(self.query(Answer))), None)
    def follow(self): self.anchor()
    def scroll_to_message(self, number): pass
    def toggle_thinking(self): pass
    def select_next(self): pass
    def select_previous(self): pass
