"""The README: short, its two commands first, and nothing of it missing that other files count on."""

from __future__ import annotations

import re

from tests.docs.code_blocks import ROOT, blocks_of, lines_of

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert TEXT.count("\n") <= 150


def test_its_two_commands_come_first() -> None:
    first = next(blocks_of(README))
    assert [line.programs for line in lines_of(first)] == [(("make", "chat"),), (("make", "test"),)]
    assert TEXT.count("\n", 0, TEXT.index("make chat")) < 10


def test_its_python_is_short() -> None:
    """Four lines besides the import."""
    (python,) = [block for block in blocks_of(README) if block.language == "python"]
    assert len([line for line in python.text.splitlines() if line and not line.startswith("import ")]) <= 4


def test_it_says_where_it_loses() -> None:
    table = TEXT[TEXT.index("## Against others") : TEXT.index("## Hardware")]
    for name in ("llama.cpp", "Ollama", "LM Studio", "mistral.rs"):
        assert name in table
    assert "not run on one yet" in table


def test_it_links_every_page_of_the_site() -> None:
    """Those that lie in `docs` itself: from the README each is one step away."""
    linked = set(re.findall(r"\(docs/([\w-]+\.md)", TEXT))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages - linked <= {"index.md", "GGUF_KEYS.md", "python-api.md"}
