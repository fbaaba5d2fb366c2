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
    [
        ("tmep", "1", "no setting is called 'tmep'; did you mean temp?"),
        ("temp", "hot", "temp needs a number from 0 to 2, not 'hot'"),
        ("temp", "9", "temp needs a number from 0 to 2, not '9'"),
        ("temp", "-1", "temp needs a number from 0 to 2, not '-1'"),
        ("temp", "-0.5", "temp needs a number from 0 to 2, not '-0.5'"),
        ("top_p", "2", "top_p needs a number above 0, 1 at most, not '2'"),
        ("theme", "nrod", "theme needs a theme, not 'nrod'; did you mean nord?"),
        ("device", "abacus", "device needs a device, not 'abacus'; there are: auto, cpu"),
        ("schedule", "x", "schedule needs a schedule, not 'x'"),
        ("ram", "lots", "ram needs a size such as 3GB"),
    ],
)
def test_what_cannot_be_set(
    home: Path, capsys: pytest.CaptureFixture[str], name: str, value: str, message: str
) -> None:
    code, out, err = run(capsys, "config", "set", name, value)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert not (home / "config.toml").exists()


def test_the_same_rule_counts_in_every_place(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rule = "needs a number from 0 to 2, not"
    assert run(capsys, "run", "--temp", "9", "hi")[::2] == (2, f"error: --temp {rule} '9'\n")
    monkeypatch.setenv("EDGEINFER_TEMP", "9")
    assert run(capsys, "config", "show")[::2] == (1, f"error: EDGEINFER_TEMP {rule} '9'\n")
    monkeypatch.delenv("EDGEINFER_TEMP")
    (tmp_path / "edgeinfer.toml").write_text("temp = 9\n")
    assert run(capsys, "config", "show")[::2] == (1, f"error: {tmp_path / 'edgeinfer.toml'}: temp {rule} 9\n")


def test_a_setting_is_taken_out(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "config", "set", "temp", "0.5")
    run(capsys, "config", "set", "top-k", "7")
    code, out, err = run(capsys, "config", "unset", "temp")
    assert (code, out) == (0, "")
    assert err.endswith("the default is: model's, else 0.7\n")
    assert tomllib.loads((home / "config.toml").read_text()) == {"top_k": 7}
    record = json.loads(run(capsys, "config", "unset", "top_k", "--json")[1])
    assert record == {"name": "top_k", "value": None, "path": str(home / "config.toml")}
    assert run(capsys, "config", "unset", "tmep")[::2] == (
        2,
        "error: no setting is called 'tmep'; did you mean temp?\n",
    )


def test_a_place_that_goes_before_the_file_is_told(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_TEMP", "1")
    assert "note: EDGEINFER_TEMP sets temp too" in run(capsys, "config", "set", "temp", "0.5")[2]


def test_what_is_not_set_is_shown_with_what_counts(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "/a/folder/with/a/name/that/is/longer/than/the/column/of/values/model.gguf"
    run(capsys, "config", "set", "model", long)
    out = run(capsys, "config", "show")[1]
    assert "(unset)" not in out
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["seed"].endswith("  default")
    assert "random  " in lines["seed"]
    assert "model's, else 1  " in lines["repeat_penalty"]
    assert lines["model"].split() == ["model", long, str(home / "config.toml")]  # a long value leaves its place alone
    assert lines["device"].split() == ["device", "auto", "default"]


def test_a_broken_file_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    path = home / "config.toml"
    path.write_text("temp = [")
    code, _, err = run(capsys, "config", "set", "temp", "1")
    assert code == 1
    assert "mend it by hand" in err
    assert path.read_text() == "temp = ["
