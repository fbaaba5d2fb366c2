"""`edgeinfer config`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from edgeinfer.app.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


def test_the_path(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "config", "path") == (0, f"{home / 'config.toml'}\n", "")
    code, out, _ = run(capsys, "config", "path", "--json")
    assert (code, json.loads(out)) == (0, {"path": str(home / "config.toml"), "exists": False})


def test_showing_says_where_values_come_from(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGEINFER_TOP_K", "7")
    (tmp_path / "edgeinfer.toml").write_text('device = "cpu"\n')
    run(capsys, "config", "set", "temp", "0.25")
    shown = json.loads(run(capsys, "config", "show", "--json")[1])
    assert shown["temp"] == {"value": 0.25, "from": str(home / "config.toml")}
    assert shown["top_k"] == {"value": 7, "from": "EDGEINFER_TOP_K"}
    assert shown["device"] == {"value": ["cpu"], "from": str(tmp_path / "edgeinfer.toml")}
    assert shown["seed"] == {"value": None, "from": "default"}
    lines = run(capsys, "config", "show")[1].splitlines()
    assert any(line.split() == ["top_k", "7", "EDGEINFER_TOP_K"] for line in lines)


def test_setting_keeps_comments(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    path = home / "config.toml"
    path.write_text("# mine\ntemp = 0.5  # warm\n\n# cores\ncores = [0, 1]\n")
    assert run(capsys, "config", "set", "temp", "0.9")[0] == 0
    assert run(capsys, "config", "set", "max-tokens", "100")[0] == 0
    assert run(capsys, "config", "set", "cores", "none")[0] == 0
    text = path.read_text()
    assert "# mine" in text
    assert "temp = 0.9  # warm" in text
    assert tomllib.loads(text) == {"temp": 0.9, "max_tokens": 100}


def test_a_json_answer_to_set(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "config", "set", "cores", "0,2-3", "--json")
    assert json.loads(out) == {"name": "cores", "value": [0, 2, 3], "path": str(home / "config.toml")}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("tmep", "1", "did you mean 'temp'"), ("temp", "hot", "a number is wanted"), ("top_p", "2", "at most 1")],
)
def test_what_cannot_be_set(
    home: Path, capsys: pytest.CaptureFixture[str], name: str, value: str, message: str
) -> None:
    code, out, err = run(capsys, "config", "set", name, value)
    assert (code, out) == (1, "")
    assert message in err
    assert not (home / "config.toml").exists()


def test_a_broken_file_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    path = home / "config.toml"
    path.write_text("temp = [")
    code, _, err = run(capsys, "config", "set", "temp", "1")
    assert code == 1
    assert "mend it by hand" in err
    assert path.read_text() == "temp = ["
