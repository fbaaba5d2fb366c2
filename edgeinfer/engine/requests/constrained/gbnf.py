"""Rewrites llama.cpp's grammars (GBNF) so that llguidance reads them with the same meaning.

In: the text of a grammar. Out: the same grammar, with these changes: characters given by number stand as themselves;
characters in sets that llguidance's regular expressions would read as operators ([a-z&&b], [--9]) are given by number;
"any character" includes the new line; and no rule has llguidance's name for the root. Grammars in Lark's syntax stay as
they are. Does not validate: errors in a grammar are left to llguidance.
"""

from __future__ import annotations

import re

_FIRST_RULE = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_PART = re.compile(r'#[^\r\n]*|"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\.|(?<![\w-])start(?![\w-])', re.DOTALL)
"""A comment, a literal, a character set, any character, or a reserved name."""
_INSTEAD = {".": r"[^\x00]", "start": "start-here"}
_CHARACTER = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|.", re.DOTALL)
_OPERATORS = "&~-"


def spelled(grammar: str) -> str:
    """Rewrite a grammar for llguidance."""
    return _PART.sub(_part, grammar) if _FIRST_RULE.search(grammar) else grammar


def _part(found: re.Match[str]) -> str:
    text = _INSTEAD.get(found[0], found[0])
    if text != found[0] or text.startswith("#"):
        return text
    characters = _CHARACTER.findall(text[1:-1])
    return f"[{_set(characters)}]" if text.startswith("[") else f'"{"".join(map(_character, characters))}"'


def _set(characters: list[str]) -> str:
    """Rewrite the contents of a character set: characters, and ranges of them."""
    found = "^" if characters[:1] == ["^"] else ""
    rest = characters[len(found) :]
    while rest:
        n = 3 if len(rest) > 2 and rest[1] == "-" else 1
        found += "-".join(_character(end, _OPERATORS) for end in rest[:n:2])
        rest = rest[n:]
    return found


def _character(written: str, by_number: str = "") -> str:
    """Rewrite one character: by number if it is in `by_number`, a control character, or ASCII and given by number."""
    if written in by_number or written < " ":
        code = ord(written)
    elif written[0] == "\\" and len(written) > 2:
        code = int(written[2:], 16)
    else:
        return written
    if code < 0x80:
        return f"\\x{code:02x}"
    return written if 0xD800 <= code < 0xE000 or code > 0x10FFFF else chr(code)
