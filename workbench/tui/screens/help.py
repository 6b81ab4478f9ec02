"""The help: every key, and what the panes show."""

from __future__ import annotations

from textwrap import wrap
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import ModalScreen

from workbench.tui import keymap
from workbench.tui.later import after_refresh
from workbench.tui.lines import Lines
from workbench.tui.theme import Look, look

PANES = {
    "Graph": (
        "Groups are chunks whose egglog programs are the same; they share one e-graph and one search.",
        "group: members, HLIR nodes of one member, best time, gain over the first candidate, e-nodes.",
        "node: id, op, shape, dtype, label. Unfold it for its operands and their layouts. {cut} marks a break.",
    ),
    "Program": (
        "The egglog text that the selected chunk is saturated from. The selected node's line is marked.",
        "A group shows the program of the chunk that stands for it.",
    ),
    "Rules": (
        "matches: how often the rule's premises held; not how many facts that added. by step: in each run of the",
        "ruleset. ms, share: time in the rule, and its part of all rules. steps: the first and the last it fired in.",
        "e-nodes: those that it made before any other rule did. unions: those of them that joined an e-class which",
        "was there already; a rule that joins two classes without making an e-node is not counted. kind: the category.",
        "{zero} in matches: the rule never fired. The title counts those, and names the rule that ran away.",
        "Rulesets: rebuild is time behind the rules, e-nodes by how many the e-graph grew. Functions: facts too.",
        "After a rerun: since run N says what changed, against the last run with other rules; change, made: matches",
        "and e-nodes more or fewer; ratio: time as a factor. + new rules, - those gone, ~ those that match otherwise.",
    ),
    "X-ray": (
        "matches: bindings of the rule's variables that survive its premises down to this one, each counted once,",
        "on the saturated e-graph, subsumed e-nodes included. wanted, found: the part of the first failing premise",
        "that fails, and the e-nodes that stand there. with: a binding that survived the premises before it.",
    ),
    "The e-class explorer": (
        "{run}: the best candidate computes the class by this e-node. +: the search may choose it. ~: subsumed,",
        "so that rules no longer see it. Nothing: no kernel, and no part of one. Behind it: the rule that made it",
        "first, and the best candidate's kernel with its time, once the compiled program was measured.",
        "$tN: a node of the chunk's program; #N: an e-class without a name; z: the index along an axis.",
    ),
    "Search": (
        "A bar per group: candidates evaluated, the best in ms, and {times} how much faster it is than the first.",
        "With --dim NAME=VALUE,VALUE,.. there is one for each value that the group depends on; latency and kernels are",
        "at the value shown in detail, and in brackets stand the values of the runs that take what is found there.",
        "Plot, log scale: dots are profiled candidates, the line the best; very slow ones lie at the upper edge.",
        "Rejected candidates are counted by reason. Kernels: total ms in one run of the whole program.",
    ),
}


PROGRAM_PANES = {
    "Program": (
        "The file as it ran last. The line that runs is marked, and the line of an error; s runs it as it is now.",
    ),
    "Rules": PANES["Rules"],
    "X-ray": PANES["X-ray"],
    "Output": (
        "What the commands say, in order, each with its line. Declarations and actions say nothing and are not listed.",
    ),
}


class HelpScreen(ModalScreen[None]):
    """A page over the workbench."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "close", "close", show=False)]

    def __init__(self, kind: str = keymap.COMPILE) -> None:
        super().__init__()
        self.kind = kind

    def compose(self) -> ComposeResult:
        yield Lines(id="help-lines")

    def on_mount(self) -> None:
        page = self.query_one(Lines)
        page.border_title = " Help "
        page.border_subtitle = " esc closes "
        self.set_class(look(self).glyphs.border == "ascii", "ascii")
        page.focus()

    def on_resize(self, event: Resize) -> None:
        after_refresh(self, self.fill)

    def fill(self) -> None:
        """Write the page for the present width."""
        page = self.query_one(Lines)
        page.show(help_lines(look(self), max(40, page.scrollable_content_region.width - 1), self.kind))

    def action_close(self) -> None:
        self.dismiss()


def help_lines(look: Look, width: int, kind: str = keymap.COMPILE) -> list[Text]:
    """The page in `width` cells: keys by scope, then the panes."""
    colors, glyphs = look.colors, look.glyphs
    lines: list[Text] = []
    for scope, title in keymap.SCOPES.items():
        found = keymap.keys(scope, kind)
        if not found or (kind == keymap.EGG and scope in keymap.NOT_OF_PROGRAMS):
            continue
        lines.append(Text(title, style=f"bold {colors.accent}"))
        for key in found:
            label = key.label if glyphs.braille else key.label.encode("ascii", "ignore").decode().strip()
            first, *rest = wrap(key.help, width - 14)
            lines.append(Text.assemble((f"  {label:<12}", f"bold {colors.text}"), (first, colors.dim)))
            lines += [Text(" " * 14 + line, style=colors.dim) for line in rest]
        lines.append(Text(""))
    for title, said in PANES.items() if kind == keymap.COMPILE else PROGRAM_PANES.items():
        lines.append(Text(f"What {title} shows", style=f"bold {colors.accent}"))
        for sentence in said:
            shown = sentence.format(cut=glyphs.cut, zero=glyphs.zero, times=glyphs.times, run=glyphs.run)
            lines += [Text(f"  {line}", style=colors.dim) for line in wrap(shown, width - 4)]
        lines.append(Text(""))
    return lines[:-1]
