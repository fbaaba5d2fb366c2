"""The script that measures text read elsewhere, on a model with random weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import measure_reuse
from tests.unit.scripts.conftest import N_TOKENS


def test_what_was_read_elsewhere_differs_and_what_was_read_as_a_whole_does_not(
    model: Path, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["measure_reuse.py", str(model), str(questions), "--tokens", str(N_TOKENS), "--texts", "2"]
    monkeypatch.setattr(sys, "argv", [*given, "--scored", "8", "--json"])
    measure_reuse.main()
    records = {record["mode"]: record for record in json.loads(capsys.readouterr().out)}
    assert list(records) == ["exact (shifted)", "shifted", "exact (modules)", "modules", "modules@0.9"]
    for mode, record in records.items():
        assert (record["n_scored"], len(record["facts"])) == (16, 2)
        if mode.startswith("exact"):
            assert record["mean_kl"] == 0
            assert record["n_read"] == record["n_prompt"] > N_TOKENS
        else:
            assert record["mean_kl"] > 0
            assert 0 < record["n_read"] < record["n_prompt"] / 3
    for unknown in ("elsewhere", "modules@hot", "shifted@0.9"):
        monkeypatch.setattr(sys, "argv", [*given, unknown])
        with pytest.raises(SystemExit):
            measure_reuse.main()
        assert f"no mode '{unknown}'; there are: shifted, modules" in " ".join(capsys.readouterr().err.split())
