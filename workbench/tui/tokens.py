"""Highlighting of egglog text, one line at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<comment>;.*)
    |(?P<string>"(?:\\.|[^"\\])*"?)
    |(?P<number>(?<![\w$.-])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w]))
    |(?P<option>:[A-Za-z][\w-]*)
    |(?P<head>(?<=\()[^\s()";]+)
    |(?P<paren>[()\[\]])
    |(?P<name>[^\s()";\[\]]+)
    |(?P<space>\s+)""",
    re.VERBOSE,
)

_KEYWORDS = """
let sort datatype datatype* constructor function relation ruleset rule rewrite birewrite run run-schedule saturate seq
repeat check extract push pop include input output set union delete subsume panic fail print-function print-size
unextractable unstable-combined-ruleset with-ruleset
"""
KEYWORDS = frozenset(_KEYWORDS.split())


def tokens(line: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of a line, all characters accounted for. Kinds: comment, string, number, option, keyword,
    constructor, name, variable, paren, space. Strings do not go on over lines in the programs this shows."""
    for found in _TOKEN.finditer(line):
        kind, text = found.lastgroup or "name", found.group()
        if kind == "head":
            kind = "keyword" if text in KEYWORDS else "constructor"
        elif kind == "name":
            if text in KEYWORDS:
                kind = "keyword"
            elif text[0] in "$?" or (text[0].islower() and not text[0].isdigit()):
                kind = "variable"
            elif text[0].isupper():
                kind = "constructor"
        yield kind, text
