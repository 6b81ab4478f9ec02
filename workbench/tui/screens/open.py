"""The open screen: the demo, recent sessions, models at hand, or a path."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from workbench.errors import WorkbenchError, printable
from workbench.tui import format as fmt
from workbench.tui.theme import look

if TYPE_CHECKING:
    from workbench.session.client import SessionSummary
    from workbench.tui.app import WorkbenchApp

MOST_SESSIONS, MOST_FILES = 12, 40


@dataclass(frozen=True, slots=True)
class Choice:
    """Something that can be opened: a model ("demo" or a path), a session directory, or a folder to look into."""

    model: str = ""
    session: Path | None = None
    folder: str = ""


class OpenScreen(Screen[None]):
    """Choose what to work on. Errors are shown in place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", show=False),
        Binding("q", "back", "back", show=False),
        Binding("slash", "type", "path", show=False),
        Binding("j", "down", "down", show=False),
        Binding("k", "up", "up", show=False),
    ]
    ESCAPE_TO_MINIMIZE = False

    def __init__(self) -> None:
        super().__init__()
        self.choices: list[Choice | None] = []
        self.busy = False

    @property
    def workbench(self) -> WorkbenchApp:
        return cast("WorkbenchApp", self.app)

    def compose(self) -> ComposeResult:
        yield Static("", id="open-title")
        with Vertical(id="open-box"):
            yield Input(placeholder="path of an .onnx model or a session directory", id="open-path", compact=True)
            yield OptionList(id="open-list", markup=False)
            yield Static("", id="open-status", markup=False)
        yield Static("", id="open-hints")

    def on_mount(self) -> None:
        the_look = look(self)
        colors, middot = the_look.colors, f" {the_look.glyphs.middot} "
        said = f"{middot}open a model or a session"
        title = Text.assemble((" luminal-tui", f"bold {colors.text}"), (said, colors.dim))
        self.query_one("#open-title", Static).update(title)
        keys = (("enter", "open"), ("/", "type a path"), ("tab", "list or path"), ("esc", "back"))
        hints = Text(" ")
        for key, what in keys:
            hints.append_text(Text.assemble((key, f"bold {colors.text}"), (f" {what}  ", colors.dim)))
        self.query_one("#open-hints", Static).update(hints)
        self.set_class(the_look.glyphs.border == "ascii", "ascii")
        self.fill("")
        self.query_one(OptionList).focus()

    def fill(self, typed: str) -> None:
        """List what fits the typed path; with nothing typed the demo, the sessions and the models here."""
        colors = look(self).colors
        self.choices = []
        options: list[Option] = []

        def heading(title: str) -> None:
            self.choices.append(None)
            options.append(Option(Text(title, style=f"bold {colors.accent}"), disabled=True))

        def offer(choice: Choice, label: Text) -> None:
            self.choices.append(choice)
            options.append(Option(label))

        if not typed:
            heading("Start here")
            built_in = Text.assemble(("  demo", f"bold {colors.text}"), ("  a small built-in transformer", colors.dim))
            offer(Choice(model="demo"), built_in)
            summaries = self.workbench.summaries()[:MOST_SESSIONS]
            if summaries:
                heading("Recent sessions")
            for summary in summaries:
                offer(Choice(session=Path(summary.directory)), self._session_label(summary))
        files = candidates(typed)
        if files:
            heading("Models here" if not typed else "Files")
        for path, is_folder in files:
            name = printable(path + "/" if is_folder else path)
            label = Text(f"  {name}", style=colors.dim if is_folder else colors.text)
            offer(Choice(folder=path) if is_folder else Choice(model=path), label)
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options(options)
        listed.highlighted = next((place for place, choice in enumerate(self.choices) if choice is not None), None)

    def _session_label(self, summary: SessionSummary) -> Text:
        the_look = look(self)
        colors = the_look.colors
        status = printable(str(summary.status), 12)
        color = {"finished": colors.good, "running": colors.accent, "failed": colors.bad}.get(status, colors.dim)
        return Text.assemble(
            "  ",
            (fmt.fit(printable(Path(summary.model).name, 60), 26, the_look), colors.text),
            (f" {fmt.fit(status, 10, the_look)}", color),
            (f" {fmt.fit(printable(str(summary.target)), 5, the_look)}", colors.cyan),
            (f" {datetime.fromtimestamp(summary.started):%Y-%m-%d %H:%M}", colors.dim),
            (f"  {printable(Path(summary.directory).name, 60)}", colors.faint),
        )

    def say(self, text: str, style: str, hint: str = "") -> None:
        """Write into the status line."""
        line = Text(printable(text, 1000), style=style)
        if hint:
            line.append(f"\n{printable(hint, 1000)}", style=look(self).colors.dim)
        self.query_one("#open-status", Static).update(line)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.fill(event.value.strip())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = event.value.strip()
        if not typed:
            self.query_one(OptionList).focus()
            return
        path = Path(typed).expanduser()
        if path.is_dir() and not (path / "events.jsonl").exists():
            self.look_into(typed)
        elif path.is_dir():
            self.choose(Choice(session=path))
        else:
            self.choose(Choice(model=typed if typed == "demo" else str(path)))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        choice = self.choices[event.option_index]
        if choice is None:
            return
        if choice.folder:
            self.look_into(choice.folder)
        else:
            self.choose(choice)

    def look_into(self, folder: str) -> None:
        """Put a folder into the path field, so that its files are listed."""
        field = self.query_one(Input)
        field.value = folder.rstrip("/") + "/"
        field.cursor_position = len(field.value)
        field.focus()

    def choose(self, choice: Choice) -> None:
        """Open something; meanwhile nothing else can be chosen."""
        if self.busy:
            return
        self.busy = True
        self.run_worker(self._open(choice), exclusive=True)

    async def _open(self, choice: Choice) -> None:
        colors = look(self).colors
        self.say(f"Opening {choice.session or choice.model}", colors.dim)
        try:
            await self.workbench.open(choice.model or choice.session or Path())
        except WorkbenchError as error:
            self.say(error.message, colors.bad, error.hint)
        except OSError as error:
            self.say(f"Cannot open it: {error}", colors.bad)
        finally:
            self.busy = False

    def on_key(self, event: Key) -> None:
        if event.key == "down" and isinstance(self.focused, Input):
            event.stop()
            self.query_one(OptionList).focus()

    def action_type(self) -> None:
        self.query_one(Input).focus()

    def action_down(self) -> None:
        self.query_one(OptionList).action_cursor_down()

    def action_up(self) -> None:
        self.query_one(OptionList).action_cursor_up()

    async def action_back(self) -> None:
        await self.workbench.leave_open()


def candidates(typed: str) -> list[tuple[str, bool]]:
    """Folders and .onnx files that begin with `typed`, as (path, is a folder); with nothing typed, models near here."""
    try:
        if not typed:
            near = sorted({*Path().glob("*.onnx"), *Path().glob("*/*.onnx")})
            return [(str(path), False) for path in near[:MOST_FILES]]
        folder, _, start = typed.rpartition("/")
        base = Path(folder or ("/" if typed.startswith("/") else ".")).expanduser()
        entries = sorted(
            (entry for entry in base.iterdir() if entry.name.startswith(start) and not entry.name.startswith(".")),
            key=lambda entry: (not entry.is_dir(), entry.name),
        )
        prefix = typed[: len(typed) - len(start)]
        wanted = [entry for entry in entries if entry.is_dir() or entry.suffix == ".onnx"]
        return [(prefix + entry.name, entry.is_dir()) for entry in wanted[:MOST_FILES]]
    except OSError:
        return []
