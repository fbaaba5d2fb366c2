"""The source tree of the site: pages from all over the repository, links that lead there, no notes for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.docs_site import assemble as assembling
from scripts.docs_site.assemble import assemble, with_links


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docs" / "log").mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "run.py").write_text("")
    (tmp_path / "README.md").write_text("# Read me\n")
    (tmp_path / "SECURITY.md").write_text("# Security\n\n[privacy](docs/PRIVACY.md#where)\n")
    (tmp_path / "docs" / "PRIVACY.md").write_text(
        "# Privacy\n\n<!-- parsed: network -->\n```sh\n[a](../SECURITY.md)\n```\n\n[defended](../SECURITY.md)\n"
    )
    (tmp_path / "docs" / "log" / "one.md").write_text(
        "[start](../../README.md) ![p](../p.svg) [it](../../scripts/run.py)\n"
    )
    (tmp_path / "docs" / "p.svg").write_text("<svg/>")
    monkeypatch.setattr(assembling, "ROOT", tmp_path)
    return tmp_path


def test_pages_and_pictures(repository: Path) -> None:
    out = repository / "build"
    out.mkdir()
    (out / "of before.md").write_text("")
    assemble(out)
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {"PRIVACY.md", "log/one.md", "p.svg", "security.md"}
    assert (out / "security.md").read_text() == "# Security\n\n[privacy](PRIVACY.md#where)\n"
    assert (out / "PRIVACY.md").read_text() == (
        "# Privacy\n\n```sh\n[a](../SECURITY.md)\n```\n\n[defended](security.md)\n"
    )
    assert (out / "log" / "one.md").read_text() == "[start](../index.md) ![p](../p.svg) it (`scripts/run.py`)\n"


@pytest.mark.parametrize(
    "link",
    ["[a](https://example.org/README.md)", "[a](#there)", "[a](no-such-file.md)", "`[a](../SECURITY.md)`"],
    ids=str,
)
def test_links_that_stay(repository: Path, link: str) -> None:
    """Those that lead nowhere stay too: mkdocs names them."""
    assert with_links(link, "docs/PRIVACY.md", "PRIVACY.md") == link
