"""llama.cpp's grammars (GBNF), spelled so that llguidance reads in them what they mean.

In: text of a grammar. Out: the same grammar, where characters that are given by number stand as themselves, and those
in sets that llguidance's regular expressions would take for operators ([a-z&&b], [--9]) by their number; where any
character may be a new line too; and no rule has the name that llguidance gives the root. What is in Lark's form stays
as it is. Judges no grammar: what is wrong in one is left for llguidance to tell.
"""

from __future__ import annotations

import re

_FIRST_RULE = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_PART = re.compile(r'#[^\r\n]*|"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\.|(?<![\w-])start(?![\w-])', re.DOTALL)
"""A comment, a literal, a set of characters, any character, or a name that is taken."""
_INSTEAD = {".": r"[^\x00]", "start": "start-here"}
_CHARACTER = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|.", re.DOTALL)
_OPERATORS = "&~-"


def spelled(grammar: str) -> str:
    """A grammar as llguidance reads it."""
    return _PART.sub(_part, grammar) if _FIRST_RULE.search(grammar) else grammar


def _part(found: re.Match[str]) -> str:
    text = _INSTEAD.get(found[0], found[0])
    if text != found[0] or text.startswith("#"):
        return text
    characters = _CHARACTER.findall(text[1:-1])
    return f"[{_set(characters)}]" if text.startswith("[") else f'"{"".join(map(_character, characters))}"'


def _set(characters: list[str]) -> str:
    """What stands between the brackets of a set: characters, and ranges of them."""
    found = "^" if characters[:1] == ["^"] else ""
    rest = characters[len(found) :]
    while rest:
        n = 3 if len(rest) > 2 and rest[1] == "-" else 1
        found += "-".join(_character(end, _OPERATORS) for end in rest[:n:2])
        rest = rest[n:]
    return found


def _character(written: str, by_number: str = "") -> str:
    """One character; by its number if it is one of `by_number`, or of ASCII and given so, or a control character."""
    if written in by_number or written < " ":
        code = ord(written)
    elif written[0] == "\\" and len(written) > 2:
        code = int(written[2:], 16)
    else:
        return written
    if code < 0x80:
        return f"\\x{code:02x}"
    return written if 0xD800 <= code < 0xE000 or code > 0x10FFFF else chr(code)
