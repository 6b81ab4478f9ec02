"""The one table of keys. Bindings, footer, command palette and help are all made from it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType


@dataclass(frozen=True, slots=True)
class Key:
    """One action. `scope` says where it works: everywhere ("app") or in one pane; "move" keys work in every pane."""

    id: str
    key: str
    title: str
    help: str
    scope: str
    shown: str = ""
    hint: bool = False
    """show it in the footer"""
    palette: bool = True
    kind: str = ""
    """the kind of session that it is for, where not for every one"""

    @property
    def label(self) -> str:
        """The key as people write it."""
        return self.shown or self.key


SCOPES = {
    "app": "Everywhere",
    "move": "Moving about",
    "graph": "Graph pane",
    "program": "Program pane",
    "rules": "Rules pane",
    "search": "Search pane",
    "explorer": "E-class explorer",
}
NOT_OF_PROGRAMS = ("graph", "search")
"""scopes without keys in a session on an egglog program"""

COMPILE, EGG = "compile", "egg"

KEYS = (
    Key("rerun", "r", "rerun", "Run the search again, keeping the e-graphs", "app", hint=True, kind=COMPILE),
    Key(
        "saturate",
        "s",
        "saturate",
        "Saturate again with the rules as they are now, then search",
        "app",
        hint=True,
        kind=COMPILE,
    ),
    Key("pause", "p", "pause", "Pause between two candidates, or go on", "app", hint=True, kind=COMPILE),
    Key("saturate", "s", "run again", "Run the program again, as its file is now", "app", hint=True, kind=EGG),
    Key("pause", "p", "pause", "Hold the engine where it is, or let it go on", "app", hint=True, kind=EGG),
    Key("cancel", "c", "cancel", "Stop the running work; what was reached stays", "app", hint=True),
    Key("new_seed", "n", "new seed", "Search again with a new seed", "app", hint=True, kind=COMPILE),
    Key(
        "toggle_break",
        "b",
        "break",
        "Add or remove a graph break behind the selected node, and split again",
        "app",
        kind=COMPILE,
    ),
    Key("open", "o", "open", "Open another model or session", "app"),
    Key("filter", "/", "filter", "Filter the graph or rules, search the program; enter keeps it, esc clears it", "app"),
    Key("zoom", "z", "zoom", "Show only the focused pane, or all again", "app"),
    Key("copy", "y", "copy", "Copy the pane's selection (OSC 52); also into the session's copied.txt", "app"),
    Key("previous_group", "[", "previous group", "Select the previous group", "app", kind=COMPILE),
    Key("next_group", "]", "next group", "Select the next group", "app", kind=COMPILE),
    Key("pane('graph')", "1", "graph", "Go to the graph", "app", kind=COMPILE),
    Key("pane('program')", "2", "program", "Go to the egglog program", "app", kind=COMPILE),
    Key("pane('rules')", "3", "rules", "Go to the rule statistics", "app", kind=COMPILE),
    Key("pane('search')", "4", "search", "Go to the search", "app", kind=COMPILE),
    Key(
        "explore",
        "m",
        "e-class",
        "The e-nodes of the variable that the program's line defines, or of the first e-class",
        "app",
        hint=True,
        kind=EGG,
    ),
    Key("pane('program')", "1", "program", "Go to the program", "app", kind=EGG),
    Key("pane('rules')", "2", "rules", "Go to the rule statistics", "app", kind=EGG),
    Key("pane('output')", "3", "output", "Go to what the commands print", "app", kind=EGG),
    Key("next_pane", "tab", "next pane", "Go to the next pane", "app", palette=False),
    Key("previous_pane", "shift+tab", "previous pane", "Go to the previous pane", "app", palette=False),
    Key("compare", "D", "compare", "What differs from an earlier run, or from another session", "app"),
    Key("edit_error", "E", "edit error", "Open the place of the error in the rules in $VISUAL or $EDITOR", "app"),
    Key("log", "l", "log", "Show the session's log", "app"),
    Key("theme", "t", "dark/light", "Switch between the dark and the light theme", "app"),
    Key("help", "?", "help", "All keys, and what the panes show", "app"),
    Key("palette", "ctrl+p", "commands", "Find any of these by name", "app", palette=False),
    Key("escape", "escape", "dismiss", "Put away the notice; clear the filter", "app", shown="esc", palette=False),
    Key("quit", "q", "quit", "Leave; the engine goes on. `luminal-tui attach` comes back to it", "app"),
    Key("down", "j,down", "down", "One line down", "move", shown="j ↓", palette=False),
    Key("up", "k,up", "up", "One line up", "move", shown="k ↑", palette=False),
    Key("page_down", "pagedown,space", "page down", "One page down", "move", shown="space PgDn", palette=False),
    Key("page_up", "pageup", "page up", "One page up", "move", shown="PgUp", palette=False),
    Key("top", "g,home", "top", "To the first line", "move", shown="g Home", palette=False),
    Key("bottom", "G,end", "bottom", "To the last line", "move", shown="G End", palette=False),
    Key(
        "left",
        "h,left",
        "left",
        "Scroll left; in the graph: fold, or go up",
        "move",
        shown="h ←",
        palette=False,
    ),
    Key("right", "right", "right", "Scroll right; in the graph: unfold", "move", shown="→", palette=False),
    Key("fold", "enter", "fold", "Fold or unfold; on 'more': show more nodes", "graph", palette=False, hint=True),
    Key(
        "xray_node",
        "x",
        "X-ray",
        "Why a rule does not fire at the selected node: pick the rule, see which premise fails and what stands there",
        "graph",
        hint=True,
    ),
    Key(
        "members",
        "m",
        "e-class",
        "The e-nodes of the selected node's e-class, who made each, what the best candidate uses; of a group: its root",
        "graph",
        hint=True,
    ),
    Key("next_match", "enter,full_stop", "next match", "Go to the next match of the search", "program", shown="."),
    Key("previous_match", "comma", "previous match", "Go to the previous match of the search", "program", shown=","),
    Key("sort_left", "<", "sort left", "Sort by the column to the left", "rules", hint=True),
    Key("sort_right", ">", "sort right", "Sort by the column to the right", "rules", hint=True),
    Key("invert", "i,=", "invert", "Turn the order round", "rules", shown="i =", hint=True),
    Key(
        "xray_rule",
        "x",
        "X-ray",
        "Why the rule does not fire in the group: what survives each premise, and what stands where the first fails",
        "rules",
        hint=True,
    ),
    Key("rule_view", "v", "view", "Rules, rulesets, or functions, with their sizes over the steps", "rules", hint=True),
    Key("edit_rule", "e", "edit", "Open the rule at its line in $VISUAL or $EDITOR", "rules", hint=True),
    Key("differences", "d", "differences", "Show what changed since the run before, or not", "rules", hint=True),
    Key(
        "made",
        "m",
        "e-nodes",
        "The e-nodes that the rule made first, with their e-classes",
        "rules",
        hint=True,
        kind=COMPILE,
    ),
    Key("all_groups", "a", "all groups", "Sum over all groups, or only the selected one", "rules", hint=True),
    Key("previous_point", "<", "previous point", "The search at the previous value of --dim", "search"),
    Key("next_point", ">", "next point", "The search at the next value of --dim NAME=VALUE,VALUE,..", "search"),
    Key("follow", "enter", "follow", "Unfold an e-node; go to the e-class of a child; show more", "explorer"),
    Key("back", "backspace", "back", "To the page before", "explorer", shown="bksp"),
    Key("users", "u", "users", "The e-nodes that use the class, or those in it again", "explorer"),
    Key("xray_maker", "x", "X-ray", "X-ray the rule that made the e-node, at this node", "explorer"),
    Key("edit_maker", "e", "edit", "Open the rule that made the e-node in $VISUAL or $EDITOR", "explorer"),
    Key("reveal", "t", "tree", "Show the node in the graph pane", "explorer"),
    Key("seek", "/", "filter", "Only e-nodes whose term or rule has the words", "explorer"),
    Key("copy_page", "y", "copy", "Copy the page as text", "explorer"),
    Key("close", "escape,q", "close", "Back to the workbench", "explorer", shown="esc"),
)

PANES = ("graph", "program", "rules", "search")


def keys(scope: str, kind: str = COMPILE) -> list[Key]:
    """The keys of one scope in a kind of session, in the order of the table."""
    return [key for key in KEYS if key.scope == scope and key.kind in ("", kind)]


def bindings(*scopes: str, kind: str = COMPILE) -> list[BindingType]:
    """Textual bindings of the scopes. Their actions carry the key's id."""
    wanted = [key for key in KEYS if key.scope in scopes and key.kind in ("", kind) and key.id != "palette"]
    return [Binding(key.key, key.id, key.title, show=False) for key in wanted]


def hints(pane: str, kind: str = COMPILE) -> list[Key]:
    """What the footer shows for a focused pane, the most useful first."""
    own = [key for key in keys(pane, kind) if key.hint]
    common = [key for key in keys("app", kind) if key.hint]
    last = [key for key in keys("app", kind) if key.id in ("toggle_break", "filter", "zoom", "help", "quit")]
    by_id = {key.id: key for key in last}
    first = [by_id["filter"]] if pane not in ("search", "output") else []
    if pane == "graph":
        first.append(by_id["toggle_break"])
    return [*first, *own, by_id["help"], *common, by_id["zoom"], by_id["quit"]]
