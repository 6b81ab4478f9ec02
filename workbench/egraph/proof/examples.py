"""Examples in the comments of a rule file: programs that a rule fires on, and near misses that it must leave alone.

    ; Given (let $a (Input 0 "" (F32) [4 6]))
    ; Fires "sgemm RmRm" on (let $c (Matmul [] #4 #5 #6 $a [] ..))
    ; Not on (F32) => (I32)
    ; Not on #6 => #7 and (F32) => (F64)

`Given` stands in front of every program of the file. `Fires` names a rule, or several by alternatives in braces, which
`{}` in the program stands for: `Fires "lower {Exp2 Log2} to a map" on (let $y ({} [4] $x))`. `Not on` is the example
with texts replaced (all occurrences, `Given` included), or a program that stands alone where there is no `=>`. A block
goes on in lines that begin with `;   `.

`[2 z*4 n]` is a list of expressions and `#z*4` one expression: `z` the iterator, a number, another word a dimension.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.egraph.rules import RuleFile
from workbench.errors import RuleError, printable

_BEGINS = re.compile(r';\s*(Given|Fires "(?P<rule>[^"]*)" on|Not on)\s*(?P<text>.*)')
_CONTINUES = re.compile(r";\s{3,}(?P<text>\S.*)")
_LIST = re.compile(r"\[([^\[\]]*)\]")
_SINGLE = re.compile(r"#([\w.]+(?:[*/%+][\w.]+)*)")
_TOKEN = re.compile(r"\d+|[A-Za-z_][\w.]*|[*/%+()]")
_OPERATORS = ({"+": "MAdd"}, {"*": "MMul", "/": "MDiv", "%": "MMod"})


@dataclass(frozen=True, slots=True)
class Example:
    """A program (egglog text) in which `rule` is to fire, or not."""

    rule: str
    program: str
    fires: bool
    file: str
    line: int


def examples_of(file: RuleFile) -> list[Example]:
    """The examples of a file. Raises RuleError (file:line) for one that cannot be read."""
    given = ""
    found: list[Example] = []
    rules: list[tuple[str, str]] = []
    text = ""
    for line, kind, pattern, body in _blocks(file):
        if kind == "Given":
            given += body + "\n"
        elif kind == "Fires":
            text = body
            rules = list(_alternatives(pattern))
            found += [_example(file, line, r, given, _filled(body, word), True) for r, word in rules]
        elif not rules:
            raise RuleError(f"{printable(file.name)}:{line}: a near miss without an example before it")
        else:
            found += [_near_miss(file, line, r, given, text, body, word) for r, word in rules]
    return found


def _blocks(file: RuleFile) -> Iterator[tuple[int, str, str, str]]:
    """(line, kind, rule pattern, text) of each block."""
    current: tuple[int, str, str, str] | None = None
    for number, line in enumerate(file.text.splitlines(), 1):
        begins = _BEGINS.fullmatch(line.strip())
        more = _CONTINUES.fullmatch(line.strip())
        if begins is not None:
            if current is not None:
                yield current
            kind = begins[1].split()[0]
            current = (number, kind, begins["rule"] or "", begins["text"])
        elif more is not None and current is not None:
            current = (*current[:3], f"{current[3]} {more['text']}")
        elif current is not None:
            yield current
            current = None
    if current is not None:
        yield current


def _alternatives(pattern: str) -> Iterator[tuple[str, str]]:
    """(rule name, alternative) of a pattern."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        yield pattern, ""
        return
    for word in braces[1].split():
        yield pattern[: braces.start()] + word + pattern[braces.end() :], word


def _filled(text: str, word: str) -> str:
    return text.replace("{}", word) if word else text


def _near_miss(file: RuleFile, line: int, rule: str, given: str, text: str, body: str, word: str) -> Example:
    if "=>" not in body:
        return _example(file, line, rule, "", _filled(body, word), False)
    whole = given + _filled(text, word)
    for change in body.split(" and "):
        old, _, new = (part.strip() for part in change.partition("=>"))
        if not old or old not in whole:
            raise RuleError(f"{printable(file.name)}:{line}: '{printable(old, 60)}' is not in the example")
        whole = whole.replace(old, new)
    return _example(file, line, rule, "", whole, False)


def _example(file: RuleFile, line: int, rule: str, given: str, text: str, fires: bool) -> Example:
    try:
        return Example(rule, expanded(given + text) + "\n", fires, file.name, line)
    except ValueError as error:
        raise RuleError(f"{printable(file.name)}:{line}: {printable(str(error))}") from None


def expanded(text: str) -> str:
    """`[..]` and `#..` written out. Raises ValueError."""
    text = _LIST.sub(lambda found: _list(found[1].split()), text)
    return _SINGLE.sub(lambda found: _expression(found[1]), text)


def _list(items: Sequence[str]) -> str:
    term = "(ENil)"
    for item in reversed(items):
        term = f"(ECons {_expression(item)} {term})"
    return term


def _expression(text: str) -> str:
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        raise ValueError(f"'{text}' is no expression")
    return _sum(tokens, 0)


def _sum(tokens: list[str], level: int) -> str:
    """Operators of one level, from left to right; takes its tokens from the front."""
    if level == len(_OPERATORS):
        token = tokens.pop(0) if tokens else ""
        if token.isdigit():
            return f"(MNum {token})"
        if token == "z":
            return "(MIter)"
        if not token.isidentifier():
            raise ValueError(f"'{token}' where a number or a name belongs")
        return f'(MVar "{token}")'
    left = _sum(tokens, level + 1)
    while tokens and tokens[0] in _OPERATORS[level]:
        operator = _OPERATORS[level][tokens.pop(0)]
        left = f"({operator} {left} {_sum(tokens, level + 1)})"
    return left
