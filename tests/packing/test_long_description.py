"""What the package index shows: README.md, all of whose links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE, TAG = "https://host.example/edgeinfer/", "v1.2.0"
AT = "https://host.example/edgeinfer/{}/v1.2.0/{}"
ADDRESS = re.compile(r"https?://[^\s)\"<>]+")


@pytest.fixture(scope="module")
def with_addresses() -> Callable[[str, str, str], str]:
    """The function of hatch_build.py; hatchling itself is there only while a package is built."""
    text = (ROOT / "hatch_build.py").read_text(encoding="utf-8")
    text = text.replace(
        "from hatchling.metadata.plugin.interface import MetadataHookInterface", "MetadataHookInterface = object"
    )
    scope: dict[str, object] = {"__name__": "hatch_build"}
    exec(compile(text, "hatch_build.py", "exec"), scope)
    found = scope["with_addresses"]
    assert callable(found)
    return found


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("[a](docs/A.md)", f"[a]({AT.format('blob', 'docs/A.md')})"),
        ("[a](./docs/A.md#part)", f"[a]({AT.format('blob', 'docs/A.md#part')})"),
        ("![a](docs/a.png)", f"![a]({AT.format('raw', 'docs/a.png')})"),
        ('![a](docs/a.svg "title")', f'![a]({AT.format("raw", "docs/a.svg")} "title")'),
        ("[![a](a.png)](b.md)", f"[![a]({AT.format('raw', 'a.png')})]({AT.format('blob', 'b.md')})"),
        ('<img src="docs/a.png" width="9">', f'<img src="{AT.format("raw", "docs/a.png")}" width="9">'),
        ('<source srcset="docs/a.svg">', f'<source srcset="{AT.format("raw", "docs/a.svg")}">'),
        ('<a href="LICENSE">', f'<a href="{AT.format("blob", "LICENSE")}">'),
        ("[a](https://a.example/b) [b](#part)", "[a](https://a.example/b) [b](#part)"),
        ("```sh\n[a](b)\n```\n[a](b)", f"```sh\n[a](b)\n```\n[a]({AT.format('blob', 'b')})"),
    ],
    ids=["link", "part", "picture", "title", "both", "img", "source", "a", "elsewhere", "code"],
)
def test_links_become_addresses(with_addresses: Callable[[str, str, str], str], text: str, becomes: str) -> None:
    assert with_addresses(text, SOURCE, TAG) == becomes


def test_every_link_of_the_readme_is_a_file_here(with_addresses: Callable[[str, str, str], str]) -> None:
    text = with_addresses((ROOT / "README.md").read_text(encoding="utf-8"), SOURCE, TAG)
    places = [address.removeprefix(SOURCE).split("/", 2)[2] for address in ADDRESS.findall(text) if SOURCE in address]
    assert len(places) > 5
    missing = [place for place in places if not (ROOT / place.partition("#")[0]).exists()]
    assert missing == []
