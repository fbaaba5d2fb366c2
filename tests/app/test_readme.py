"""The README's Python runs as it stands there, with the starter model."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.server.conftest import served

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
CLIENT = "http://127.0.0.1:8080"


@pytest.mark.model
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_it_runs(starter_model: Path, home: Path, capsys: pytest.CaptureFixture[str], number: int) -> None:
    code = BLOCKS[number]
    if "import edgeinfer" not in code and "edgeinfer.load" in code:
        code = "import edgeinfer\n" + code
    (home / "models").mkdir(parents=True)
    os.symlink(starter_model, home / "models" / starter_model.name)
    if CLIENT in code:
        with served(starter_model) as running:
            scope: dict[str, object] = {}
            exec(compile(code.replace(CLIENT, running.url), "README.md", "exec"), scope)
            scope["client"].close()  # type: ignore[attr-defined]
    else:
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_there_is_something_to_run() -> None:
    assert len(BLOCKS) >= 6
