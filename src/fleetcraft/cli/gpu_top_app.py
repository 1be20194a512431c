"""The screen of `gpu top`. It only shows: reading runs in a thread, and a slow file system never freezes a key.

Imported only when the screen is wanted, since its library takes a second to load.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import get_current_worker

from fleetcraft.cli.gpu_top_view import HEADS, WIDTHS, Line, details, header, lines
from fleetcraft.core.errors import FleetcraftError
from fleetcraft.core.quantities import format_duration
from fleetcraft.readmodel.gpu_filter import SORTS, kept, parse_filter
from fleetcraft.readmodel.gpu_picture import GpusNow


class TopApp(App[None]):
    """One table that is read again and again."""

    CSS = """
    #head { height: auto; padding: 0 1; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    DataTable { height: 1fr; }
    #about { height: auto; max-height: 3; padding: 0 1; color: $text-muted; }
    """
    TITLE = "fleetcraft gpu top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "end"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "clear", "no filter", show=False),
        Binding("p", "pause", "pause"),
        Binding("e", "export", "export"),
    ]

    def __init__(
        self, look: Callable[[], GpusNow], *, interval_s: float = 5.0, filter_text: str = "", sort: str = "host",
        reverse: bool = False, now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        super().__init__()
        self._look = look
        self._interval_s = interval_s
        self._filter = parse_filter(filter_text)
        self._sort, self._reverse = sort, reverse
        self._now = now
        self._paused = False
        self._trouble = ""
        self._shown: list[Line] = []
        self.picture: GpusNow | None = None

    def compose(self) -> ComposeResult:
        """Header, filter, table, what is chosen, keys."""
        yield Static("reading ...", id="head")
        yield Input(placeholder="class=free-idle host=n1* util<5 mem>=40G, or any word", id="filter")
        yield DataTable(cursor_type="row", zebra_stripes=False)
        yield Static("", id="about")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        table = self.query_one(DataTable)
        for head in HEADS:
            # Measuring every cell of thousands of lines at each look would make keys wait.
            table.add_column(head, width=WIDTHS.get(head))
        table.focus()
        self.set_interval(self._interval_s, self._tick)
        self._tick()

    def _tick(self) -> None:
        if not self._paused:
            self.run_worker(self._read, thread=True, exclusive=True, group="look")

    def _read(self) -> None:
        """In a thread: one look."""
        worker = get_current_worker()
        try:
            picture, trouble = self._look(), ""
        except (FleetcraftError, OSError) as error:
            picture, trouble = None, f"this look failed: {error}"
        if not worker.is_cancelled and self.is_running:
            self.call_from_thread(self._take, picture, trouble)

    def _take(self, picture: GpusNow | None, trouble: str) -> None:
        if not self.query("#about"):
            return  # a slow look came back after the end
        self._trouble = trouble
        # What was seen last stays on the screen, and the header says that it is old.
        self.picture = picture or self.picture
        self._show()

    def _show(self) -> None:
        head = self.query_one("#head", Static)
        if self.picture is None:
            head.update(self._trouble or "reading ...")
            return
        head.update(header(self.picture, self._notes(self.picture)))
        table = self.query_one(DataTable)
        key = self._chosen_key()
        top = table.scroll_y
        self._shown = lines(self.picture, self._filter, self._sort, descending=self._reverse)
        table.clear()
        for line in self._shown:
            table.add_row(*line.cells, key=line.key)
        place = next((at for at, line in enumerate(self._shown) if line.key == key), 0)
        table.cursor_coordinate = Coordinate(place, 0)
        table.scroll_to(y=top, animate=False)
        self._tell_chosen()

    def _notes(self, picture: GpusNow) -> list[str]:
        notes = [self._trouble] if self._trouble else []
        age_s = self._now() - picture.at_utc
        if self._paused:
            notes.append("paused; p goes on")
        elif age_s > 3 * self._interval_s + 5:
            notes.append(f"what is shown is {format_duration(age_s)} old")
        if self._filter.terms:
            notes.append(f"only {self._filter.text}; escape shows all")
        if self._sort != "host" or self._reverse:
            notes.append(f"by {self._sort}{', reversed' if self._reverse else ''}")
        return notes

    def _chosen_key(self) -> str:
        at = self.query_one(DataTable).cursor_row
        return self._shown[at].key if 0 <= at < len(self._shown) else ""

    def _tell_chosen(self) -> None:
        at = self.query_one(DataTable).cursor_row
        text = details(self._shown[at]) if 0 <= at < len(self._shown) else ""
        # No markup: a host or a task may be named like a tag.
        self.query_one("#about", Static).update(Text(text))

    def on_data_table_row_highlighted(self, _event: DataTable.RowHighlighted) -> None:
        """Another row was chosen."""
        if self.query("#about"):  # the last messages come when the widgets are gone
            self._tell_chosen()

    def action_sort(self) -> None:
        """Sort by the next column."""
        names = list(SORTS)
        self._sort = names[(names.index(self._sort) + 1) % len(names)]
        self._show()

    def action_reverse(self) -> None:
        """The other way round."""
        self._reverse = not self._reverse
        self._show()

    def action_filter(self) -> None:
        """Ask for a filter."""
        box = self.query_one("#filter", Input)
        box.value = self._filter.text
        box.add_class("shown")
        box.focus()

    def action_clear(self) -> None:
        """Show everything."""
        self._filter = parse_filter("")
        self._close_filter()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A filter was written."""
        try:
            self._filter = parse_filter(event.value)
        except FleetcraftError as error:
            self.notify(f"{error} {error.hint or ''}", severity="error", markup=False)
            return
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("shown")
        self.query_one(DataTable).focus()
        self._show()

    def action_pause(self) -> None:
        """Stop reading, or go on."""
        self._paused = not self._paused
        self._show()
        self._tick()

    def action_export(self) -> None:
        """Write what is shown into a file here."""
        if self.picture is None:
            return
        path = f"gpu-top-{round(self._now() * 1000)}.json"
        body = {"schema": "fleetcraft.gpu.top/1", "filter": self._filter.text}
        try:
            with open(path, "x", encoding="utf-8") as file:
                json.dump({**body, **kept(self.picture, self._filter).as_json()}, file, allow_nan=False)
        except OSError as error:
            self.notify(f"{path} was not written: {error.strerror}", severity="error", markup=False)
            return
        self.notify(f"written to {path}", markup=False)
