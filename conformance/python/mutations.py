# SPDX-License-Identifier: Apache-2.0
"""One-token changes of C files: what automutants.py draws from."""

from __future__ import annotations

import dataclasses
import re

TOKEN = re.compile(r"""
    (?P<skip>\s+|/\*.*?\*/|//[^\n]*|^[ \t]*\#(?:\\\n|[^\n])*)
  | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
  | (?P<number>(?:0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[uUlLfF]*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<mark><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|[<>=!]=|&&|\|\||[-+*/%&|^]=|.)
""", re.VERBOSE | re.DOTALL | re.MULTILINE)

REPLACED = {
    "arithmetic": {"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "+=": ["-="], "-=": ["+="],
                   "*=": ["/="], "/=": ["*="], "%": ["*"], "++": ["--"], "--": ["++"]},
    "relation": {"<": ["<=", ">"], "<=": ["<", ">="], ">": [">=", "<"], ">=": [">", "<="],
                 "==": ["!="], "!=": ["=="]},
    "connective": {"&&": ["||"], "||": ["&&"]},
    "extreme": {"fmin": ["fmax"], "fmax": ["fmin"]},
    "integer": {"0": ["1"], "1": ["0", "2"], "2": ["1", "3"]},
}
TYPES = {"const", "static", "struct", "enum", "typedef", "union", "inline", "extern", "unsigned",
         "signed", "void", "char", "int", "long", "float", "double", "size_t"}
ASSIGNS = {"(", "=", "++", "--", "+=", "-=", "*=", "/=", "&=", "|=", "^="}
JUMPS = {"return", "break", "continue", "goto"}
NOT_A_STATEMENT = TYPES | {"if", "for", "while", "do", "switch", "case", "default", "else"}


@dataclasses.dataclass(frozen=True)
class Token:
    kind: str
    text: str
    at: int
    function: str


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    column: int
    operator: str
    function: str
    begin: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column}:{self.operator}:{self.new}"


def tokens_of(text: str) -> list[Token]:
    """The tokens with the function that each stands in; no comment, no directive."""
    found: list[Token] = []
    depth, function, last_call = 0, "", ""
    for match in TOKEN.finditer(text):
        kind, word = match.lastgroup, match.group()
        if kind == "skip":
            continue
        if depth == 0 and word == "(" and found and found[-1].kind == "name":
            last_call = found[-1].text
        if word == "{":
            if depth == 0:
                function = last_call if found[-1].text == ")" else ""
            depth += 1
        found.append(Token(kind, word, match.start(), function if depth else ""))
        if word == "}":
            depth -= 1
        if depth == 0 and word == ";":
            last_call = ""
    return found


def matching(tokens: list[Token], i: int) -> int:
    """Index of the bracket that closes the one at i."""
    depth = 0
    for j in range(i, len(tokens)):
        depth += tokens[j].text in "([{"
        depth -= tokens[j].text in ")]}"
        if depth == 0:
            return j
    raise ValueError(f"no end of {tokens[i]}")


def ends_operand(token: Token) -> bool:
    return token.kind in ("name", "number", "string") and token.text not in (
        JUMPS | TYPES | {"sizeof", "case"}) or token.text in (")", "]")


def static_asserts(tokens: list[Token]) -> set[int]:
    """Indices within static assertions and attributes."""
    inside: set[int] = set()
    for i, token in enumerate(tokens[:-1]):
        if token.text in ("static_assert", "_Static_assert", "__attribute__"):
            inside.update(range(i, matching(tokens, i + 1) + 1))
    return inside


def replacements(tokens: list[Token], i: int):
    """(operator, begin index, end index, new text) of the changes that begin at token i."""
    token, before, after = tokens[i], tokens[i - 1], tokens[i + 1]
    for operator, table in REPLACED.items():
        for new in table.get(token.text, []):
            if operator == "arithmetic" and token.text in "+-*/%" and (
                    not ends_operand(before) or after.text in ("*", ")", ",", ";")):
                continue
            yield operator, i, i, new
    if token.text in ("-", "!") and not ends_operand(before):
        yield "negation", i, i, ""
    if token.kind == "number" and re.search(r"[.pP]|^\d+[eE]", token.text):
        suffix = "f" if token.text[-1] in "fF" else ""  # a hexadecimal one ends in its exponent
        number = token.text.rstrip("fF")
        zero = (float.fromhex(number) if "x" in number else float(number)) == 0.0
        yield from (("real", i, i, new) for new in (
            [f"1.0{suffix}"] if zero else
            [f"({token.text} * 1.001{suffix})", f"({token.text} * 2.0{suffix})"]))
    if token.text == "[" and ends_operand(before) and after.text != "]":
        end = matching(tokens, i)
        declares = tokens[i - 2].kind == "name" and tokens[i - 2].text not in JUMPS
        if not declares:
            for sign in "+-":
                yield "index", end, end, f" {sign} 1]"
    if token.text == "?":
        yield from swapped(tokens, i)


def swapped(tokens: list[Token], i: int):
    """The branches of a plain conditional, exchanged."""
    depth, colon = 0, None
    for j in range(i + 1, len(tokens)):
        text = tokens[j].text
        if depth == 0 and text == "?":
            return
        if depth == 0 and text == ":" and colon is None:
            colon = j
        elif depth == 0 and text in (",", ";", ")", "]", "}", ":"):
            if colon:
                yield "branches", i, j - 1, ("swap", colon)
            return
        depth += text in "([{"
        depth -= text in ")]}"


def statement_starts(tokens: list[Token]) -> set[int]:
    """Where a statement can begin: after one, or after the head of if, for, while."""
    starts: set[int] = set()
    open_brackets: list[int] = []
    head_ends: set[int] = set()
    for i, token in enumerate(tokens):
        before = tokens[i - 1].text
        within = open_brackets and tokens[open_brackets[-1]].text != "{"
        if token.function and not within and (
                before in ("{", "}", ";", "else") or i - 1 in head_ends):
            starts.add(i)
        if token.text in "([{":
            open_brackets.append(i)
        elif token.text in ")]}":
            if tokens[open_brackets.pop() - 1].text in ("if", "for", "while"):
                head_ends.add(i)
    return starts


def removed(tokens: list[Token], i: int):
    """The expression or jump statement that begins at token i, left out."""
    first, second = tokens[i], tokens[i + 1]
    if first.text in NOT_A_STATEMENT or first.kind not in ("name", "mark"):
        return
    if first.kind == "mark" and first.text not in ("*", "++", "--"):
        return
    if first.kind == "name" and first.text not in JUMPS and (
            second.kind == "name" or second.text in ("*", ":", "{", ")", ",", "?")):
        return
    before = tokens[i - 1].text
    if first.text == "return" and before not in (")", "else"):
        return
    end = next(j for j in range(i, len(tokens)) if tokens[j].text == ";")
    words = [t.text for t in tokens[i:end]]
    depth = sum((word in "([{") - (word in ")]}") for word in words)
    if depth == 0 and (first.text in JUMPS or ASSIGNS & set(words)):
        yield "removal", i, end, ";"


def mutants_of(file: str, text: str, outside: set[str]) -> list[Mutant]:
    """Every change of a file, but in the functions that are outside."""
    tokens = tokens_of(text)
    excluded, starts = static_asserts(tokens), statement_starts(tokens)
    found = []
    for i in range(2, len(tokens) - 1):
        if i in excluded or tokens[i].function in outside:
            continue
        for operator, a, b, new in [*replacements(tokens, i),
                                    *(removed(tokens, i) if i in starts else [])]:
            begin, end = tokens[a].at, tokens[b].at + len(tokens[b].text)
            if isinstance(new, tuple):
                colon = tokens[new[1]].at
                yes, no = text[begin + 1:colon].strip(), text[colon + 1:end].strip()
                new = f"? {no} : {yes}"
            line = text.count("\n", 0, begin) + 1
            column = begin - (text.rfind("\n", 0, begin) + 1) + 1
            found.append(Mutant(file, line, column, operator, tokens[i].function, begin, end,
                                text[begin:end], new))
    return found
