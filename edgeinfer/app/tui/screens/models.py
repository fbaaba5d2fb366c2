"""The models screen: local and downloadable models, whether they fit, and how fast they would be.

In: a catalogue, the model in use, the context. Out: the model to use, if one was chosen. All disk and network access
runs in workers, which post messages. Pulls belong to the catalogue and continue after the screen is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from edgeinfer.app.catalogue.catalogue import Catalogue, ModelEntry, is_here
from edgeinfer.app.catalogue.forecast import UNMEASURED
from edgeinfer.app.catalogue.pulling import PullStatus
from edgeinfer.app.catalogue.words import context_word, one_line, size_word, why_not
from edgeinfer.app.plain_text import counted
from edgeinfer.app.step_clock import joined
from edgeinfer.app.tui.screens.model_work import (
    CatalogueWork,
    EntriesRead,
    ForecastMade,
    LookTaken,
    Measuring,
    ModelRemoved,
    ModelTrouble,
    OffersFound,
    PullCancelled,
)
from edgeinfer.app.tui.screens.questions import ModelQuestion
from edgeinfer.app.tui.widgets.model_list import ModelDetail, ModelHints, ModelTable, PullLines
from edgeinfer.app.tui.widgets.text_fields import Field

CONTEXTS = tuple(1024 << doubling for doubling in range(1, 8))


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The model to use, and the context that its forecast was shown for."""

    name: str
    n_context: int


class ModelsScreen(Screen[ChosenModel | None]):
    """A table of local and downloadable models."""

    AUTO_FOCUS = "ModelTable"
    DEFAULT_CSS = """
    ModelsScreen { layout: vertical; background: $background; }
    ModelsScreen #models-title { height: 1; padding: 0 1; color: $text-muted; }
    ModelsScreen #models-source { height: 1; border: none; padding: 0 1; background: $surface; }
    ModelsScreen #models-notice { height: auto; max-height: 3; padding: 0 1; color: $text-warning; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "back", id="models.back"),
        Binding("slash", "source", "look up", id="models.source"),
        Binding("enter", "use", "use or pull", id="models.use", show=False),
        Binding("r", "recommend", "recommended", id="models.recommend"),
        Binding("i", "detail", "detail", id="models.detail"),
        Binding("p", "pause", "pause", id="models.pause"),
        Binding("x", "cancel", "cancel", id="models.cancel"),
        Binding("delete", "delete", "delete", id="models.delete"),
        Binding("left_square_bracket", "context(-1)", "less context", id="models.less", show=False),
        Binding("right_square_bracket", "context(1)", "context", id="models.more", key_display="[ ]"),
        Binding("m", "measure", "measure", id="models.measure"),
    ]

    def __init__(self, catalogue: Catalogue, current: str | None = None, n_context: int = 4096) -> None:
        super().__init__()
        self._catalogue = catalogue
        self._work = CatalogueWork(catalogue, self.post_message)
        self._current_model = current
        self._contexts = tuple(sorted({*CONTEXTS, n_context}))
        self._n_context = n_context
        self._read: tuple[ModelEntry, ...] = ()
        self._offers: tuple[ModelEntry, ...] = ()
        self._shows_detail = False
        self._said_unmeasured = False

    def compose(self) -> ComposeResult:
        """Title, source field, table, and lines that appear when needed."""
        yield Static(id="models-title", markup=False)
        yield Field(
            placeholder="look up owner/name of the hub, https://…, a path, ollama:name, pypi:package",
            id="models-source",
            compact=True,
        )
        yield ModelTable(self._current_model, id="models-table")
        yield ModelHints(id="models-hints")
        yield PullLines(self._catalogue.pulls, id="models-pulls")
        yield ModelDetail(id="models-detail")
        yield Static(id="models-notice", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """List the local models."""
        self._show_title()
        self._read_entries()

    @property
    def _table(self) -> ModelTable:
        return self.query_one(ModelTable)

    def _begin(self, group: str, work: Callable[[], None]) -> None:
        """Run work in a thread, cancelling earlier work of the same group."""
        self.run_worker(work, thread=True, exclusive=True, group=f"models-{group}")

    # List

    def _read_entries(self, chosen: str = "") -> None:
        self._begin("entries", lambda: self._work.entries(chosen))

    @on(EntriesRead)
    def _show_entries(self, event: EntriesRead) -> None:
        self._read = event.entries
        self._list()
        self._table.select_name(event.chosen)
        self._pulls.look()

    def _list(self) -> None:
        """List local models, then downloadable ones, without duplicates."""
        listed = {entry.source: entry for entry in self._read if entry.path is None}
        listed |= {entry.source: entry for entry in self._offers}
        here = [entry for entry in self._read if entry.path is not None]
        offers = [entry for entry in listed.values() if not any(is_here(entry, each) for each in here)]
        self._table.show((*here, *offers), {each.source: each for each in self._catalogue.pulls.statuses()})
        self.query_one(ModelHints).show(here=bool(here), offers=[entry.name for entry in offers])
        self._forecast_all()

    @on(Input.Submitted, "#models-source")
    def _source_given(self, event: Input.Submitted) -> None:
        """Look a source up; the text stays in the field for corrections until something is found."""
        source = event.value.strip()
        event.stop()
        if source:
            self._notice(f"looking up {source} …")
            self._begin("offers", lambda: self._work.offers(source))
        else:
            self._table.focus()

    @on(OffersFound)
    def _show_offers(self, event: OffersFound) -> None:
        self._offers = event.offers
        self._list()
        if event.source in ("", self.query_one(Input).value.strip()):  # else the user is typing another source
            self._table.focus()
        new = [entry for entry in event.offers if self._table.shows(entry.key)]
        if new:
            self._table.select(new[0].key)
            offered = f"{event.source} offers {counted(len(new), 'model')}"
            known = f"{counted(len(new), 'model')} would suit this machine, the best first"
            self._notice(f"{offered if event.source else known}; Enter pulls the one under the cursor")
        else:
            self._table.select_name(event.offers[0].name)
            self._notice(f"{event.offers[0].name} is here already; Enter uses it")

    def action_recommend(self) -> None:
        """List known models that suit this machine."""
        self._begin("offers", self._work.recommended)

    # Forecasts

    def _forecast_all(self) -> None:
        entries = (*self._read, *(entry for entry in self._offers if entry not in self._read))
        n_context = self._n_context
        self._begin("forecasts", lambda: self._work.forecasts(entries, n_context))

    @on(ForecastMade)
    def _show_forecast(self, event: ForecastMade) -> None:
        if event.n_context != self._n_context:
            return
        self._table.set_forecast(event.key, event.found)
        is_unmeasured = event.found is not None and event.found.note == UNMEASURED
        if is_unmeasured and not self._said_unmeasured and not self.query_one("#models-notice").display:
            self._said_unmeasured = True
            self._notice("speeds are not predicted yet: m measures this machine")
        chosen = self._table.chosen
        if chosen is not None and chosen.key == event.key:
            self._show_detail()

    def action_context(self, step: int) -> None:
        """Forecast for the next smaller or larger context."""
        place = self._contexts.index(self._n_context) + step
        if 0 <= place < len(self._contexts):
            self._n_context = self._contexts[place]
            self._show_title()
            self._table.forget_forecasts()
            self._forecast_all()

    def action_measure(self) -> None:
        """Measure this machine, so that speeds can be predicted."""
        self._notice("measuring this machine; predictions follow …")
        self._begin("measurement", self._work.measurement)

    @on(Measuring)
    def _show_measuring(self, event: Measuring) -> None:
        if event.share < 1:
            self._notice(joined("measuring this machine", [event.what], event.share))
            return
        self._notice("this machine is measured")
        self._forecast_all()

    # Details

    def action_detail(self) -> None:
        """Show or hide the details of a model; for an offer, fetch its header first."""
        chosen = self._table.chosen
        is_new = chosen is not None and not self._catalogue.was_looked_at(chosen)
        self._shows_detail = is_new or not self._shows_detail
        self._show_detail()
        if is_new and chosen is not None:
            self._notice(f"looking at the header of {chosen.name} …")
            self._begin("look", lambda: self._work.look(chosen))

    @on(LookTaken)
    def _look_taken(self, event: LookTaken) -> None:
        self._notice("")
        self._read, self._offers = (
            tuple(event.entry if entry.key == event.entry.key else entry for entry in entries)
            for entries in (self._read, self._offers)
        )
        self._list()

    @on(DataTable.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._show_detail()

    def _show_detail(self) -> None:
        chosen = self._table.chosen
        detail = self.query_one(ModelDetail)
        detail.display = self._shows_detail and chosen is not None
        if detail.display and chosen is not None:
            detail.show(chosen, self._table.forecast(chosen))

    # Use, pull, delete

    @on(DataTable.RowSelected)
    def _row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.action_use()

    def action_use(self) -> None:
        """Use a local model, or pull one that is not local."""
        chosen = self._table.chosen
        if chosen is None:
            return
        if chosen.path is not None:
            self._use(chosen, chosen.path)
        else:
            self._ask_or_pull(chosen)

    def _use(self, chosen: ModelEntry, path: Path) -> None:
        if path.exists():
            self.dismiss(ChosenModel(chosen.name, self._n_context))
        else:
            self._notice(f"{path} is gone; the list is read again")
            self._read_entries()

    def _ask_or_pull(self, chosen: ModelEntry) -> None:
        found, status = self._table.forecast(chosen), self._catalogue.pulls.status(chosen.source)
        if status is not None and status.is_active:
            self._notice(f"{chosen.name} is being fetched; p pauses, x cancels")
        elif status is not None and status.state == "refused":
            self._ask(f"{one_line(status.message)}. Pull it all the same?", chosen)
        elif found is not None and not found.fits:
            self._ask(f"{chosen.name} does not fit: {why_not(found)}. Pull it all the same?", chosen)
        else:
            self._pull(chosen)

    def _ask(self, text: str, entry: ModelEntry) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._pull(entry, force=True)

        self.app.push_screen(ModelQuestion(text), answered)

    def _pull(self, entry: ModelEntry, *, force: bool = False) -> None:
        self._notice("")
        self._catalogue.pulls.add(entry.source, force=force)
        self._pulls.look()

    def action_pause(self) -> None:
        """Pause or resume the pull under the cursor."""
        status = self._meant_pull()
        if status is None:
            self._notice("nothing is being fetched here; Enter pulls the model under the cursor")
        elif status.state in ("running", "waiting"):
            self._catalogue.pulls.pause(status.source)
        else:
            self._catalogue.pulls.add(status.source)
        self._pulls.look()

    def _meant_pull(self) -> PullStatus | None:
        """The pull under the cursor; on a row without one, the only pull there is."""
        chosen = self._table.chosen
        return self._catalogue.pulls.meant("" if chosen is None or chosen.path is not None else chosen.source)

    def action_cancel(self) -> None:
        """Cancel the pull under the cursor and delete its partial download."""
        status = self._meant_pull()
        if status is None:
            self._notice("nothing is being fetched here")
            return
        self._begin("cancelling", lambda: self._work.cancel(status.source))

    def action_delete(self) -> None:
        """Delete the model under the cursor after confirmation."""
        chosen = self._table.chosen
        if chosen is None or chosen.path is None:
            self._notice("only models that are here can be deleted; x cancels a pull")
            return
        if chosen.name == self._current_model:
            self._notice(f"{chosen.name} is in use; switch to another model first")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._begin("removal", lambda: self._work.remove(chosen))

        question = f"delete {chosen.name} ({size_word(chosen)}, no undo)?"
        if self._catalogue.is_referenced(chosen):
            question = f"remove {chosen.name} from the list? The file stays at {chosen.path}"
        self.app.push_screen(ModelQuestion(question), answered)

    @on(ModelRemoved)
    def _removed(self, event: ModelRemoved) -> None:
        self._notice(event.text)
        self._read_entries()

    # Pulls

    @property
    def _pulls(self) -> PullLines:
        return self.query_one(PullLines)

    @on(PullCancelled)
    def _pull_cancelled(self) -> None:
        self._pulls.look()

    @on(PullLines.Moved)
    def _pulls_moved(self, event: PullLines.Moved) -> None:
        self._table.set_statuses(event.statuses)

    @on(PullLines.Landed)
    def _pull_landed(self, event: PullLines.Landed) -> None:
        """Show how a pull ended."""
        status = event.status
        if status.state == "done":
            self._offers = tuple(entry for entry in self._offers if entry.source != status.source)
            self._catalogue.pulls.forget(status.source)
            self._notice(f"{status.name} is here; Enter uses it")
            self._read_entries(status.name)
        elif status.state == "refused":
            self._notice(f"{status.message}; Enter asks whether to pull it all the same")
        else:
            self._notice(f"{status.message} (p tries again)")

    # Notices, title, focus

    @on(ModelTrouble)
    def _trouble(self, event: ModelTrouble) -> None:
        self._notice(event.text)

    def _notice(self, text: str) -> None:
        line = self.query_one("#models-notice", Static)
        line.display = bool(text)
        line.update(one_line(text))

    def _show_title(self) -> None:
        text = f"Context {context_word(self._n_context)} (press [ or ] to change); ~ means estimated"
        self.query_one("#models-title", Static).update(text)

    def action_source(self) -> None:
        """Focus the source field."""
        self.query_one(Input).focus()

    def action_leave(self) -> None:
        """Leave the source field, hide the details, or close the screen, in this order."""
        if isinstance(self.focused, Input):
            self._table.focus()
        elif self._shows_detail:
            self.action_detail()
        else:
            self.dismiss(None)
