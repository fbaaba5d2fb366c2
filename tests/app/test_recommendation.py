"""Which models are recommended: they open, they fit, they are fast enough, and rates are near those of real headers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.app.catalogue.catalogue import Catalogue, ModelEntry, is_here
from edgeinfer.app.catalogue.forecast import QUICKLY_MEASURED, forecast_of
from edgeinfer.app.catalogue.recommendation import (
    READING_TOK_S,
    format_of_quant,
    judged,
    known_forecast,
    known_need,
    recommended,
)
from edgeinfer.app.catalogue.words import fit_text
from edgeinfer.app.cli import main
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.known_models import TASKS, KnownModel, Task, known_models
from edgeinfer.models.store import ModelStore
from edgeinfer.scheduling.machine.catalogue import machine_names, machine_profile

GIB = 1 << 30
LAPTOP = machine_profile("rtx4060-laptop")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


@pytest.mark.parametrize("machine", machine_names())
@pytest.mark.parametrize("task", TASKS)
def test_what_is_recommended_opens_fits_and_is_fast(machine: str, task: Task) -> None:
    for memory in (1, 8, 64):
        found = recommended(task, memory * GIB, machine_profile(machine))
        ranks = [each.model.rank for each in found]
        assert ranks == sorted(ranks, reverse=True)
        for each in found:
            assert each.model.opens
            assert each.forecast.fits
            assert each.forecast.ram_bytes < memory * GIB
            assert (each.forecast.decode_tok_s or 0) >= READING_TOK_S
            assert task in each.model.tasks


def test_more_memory_and_a_faster_machine_allow_better_models() -> None:
    slow, fast = machine_profile("raspberry-pi-5"), machine_profile("a10-16core")
    best = [recommended("chat", memory * GIB, fast)[0].model.rank for memory in (2, 4, 8, 16, 64)]
    assert best == sorted(best)
    assert len(set(best)) > 2
    assert recommended("chat", 16 * GIB, slow)[0].model.rank < recommended("chat", 16 * GIB, fast)[0].model.rank


def test_an_architecture_that_is_not_there_is_not_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    models = known_models()
    strange = replace(models["qwen3-4b"], name="strange", architecture="strange", rank=100)
    names = {"strange": strange, "qwen3-4b": models["qwen3-4b"]}
    monkeypatch.setattr("edgeinfer.app.catalogue.recommendation.known_models", lambda: names)
    assert [each.model.name for each in judged("chat", 64 * GIB, LAPTOP)] == ["qwen3-4b"]


def test_models_whose_projector_does_not_open_are_not_recommended_for_images(monkeypatch: pytest.MonkeyPatch) -> None:
    model = known_models()["qwen3-vl-2b"]
    strange = replace(model, name="strange", projector="strange")
    names = {"strange": strange, "qwen3-vl-2b": model}
    monkeypatch.setattr("edgeinfer.app.catalogue.recommendation.known_models", lambda: names)
    assert [each.model.name for each in judged("vision", 64 * GIB, LAPTOP)] == ["qwen3-vl-2b"]
    assert {each.model.name for each in judged("chat", 64 * GIB, LAPTOP)} == {"strange", "qwen3-vl-2b"}


def test_an_encoder_takes_memory() -> None:
    model = known_models()["gemma-3-4b"]
    need, blind = known_need(model, "Q4_K_M"), known_need(replace(model, projector=""), "Q4_K_M")
    assert need.encoder_bytes == need.weight_bytes - blind.weight_bytes == model.projector_bytes
    assert need.total_bytes - blind.total_bytes > model.projector_bytes


def test_a_mixture_is_as_fast_as_its_active_part_and_dense_models_of_its_size_are_left_out() -> None:
    found = {each.model.name: each.forecast for each in judged("chat", 1000 * GIB, LAPTOP)}
    mixture, dense = found["qwen3-30b-a3b"].decode_tok_s, found["qwen3-32b"].decode_tok_s
    assert mixture is not None
    assert dense is not None
    assert mixture > 5 * dense
    names = {each.model.name for each in recommended("chat", 1000 * GIB, LAPTOP)}
    assert "gpt-oss-20b" in names
    assert "llama-3.3-70b" not in names


def test_fits_counts_the_cache_the_program_and_what_the_system_needs() -> None:
    large, nbytes = known_models()["qwen3.6-35b-a3b"], known_models()["qwen3.6-35b-a3b"].quants["UD-Q4_K_M"]
    need = known_need(large, "UD-Q4_K_M")
    assert need.n_context == 8192
    assert need.weight_bytes > nbytes
    assert need.kv_bytes == 2 * large.kv_numbers * 8192
    words = {}
    for available in (nbytes // 50, nbytes, int(nbytes * 1.06), need.total_bytes, int(need.total_bytes * 1.06)):
        found = known_forecast(large, "UD-Q4_K_M", None, available, LAPTOP)
        assert found.ram_bytes <= available or not found.fits
        words[available] = fit_text(found)
        assert (found.decode_tok_s is None) == (not found.fits)
        assert (found.streamed_bytes > 0) == (words[available] == "from disk")
    assert list(words.values()) == ["too large", "from disk", "from disk", "from disk", "fits"]


def test_layers_with_windows_take_less_of_a_long_context_than_others() -> None:
    model = known_models()["gemma-3-27b"]
    short, long = known_need(model, "Q4_K_M", 1024), known_need(model, "Q4_K_M", 131072)
    assert short.window_bytes == 2 * model.window_numbers * 1024
    assert long.window_bytes < 20 * short.window_bytes
    assert long.kv_bytes - long.window_bytes == 128 * (short.kv_bytes - short.window_bytes)


def test_what_is_read_from_disk_is_slower_and_comes_after_what_fits() -> None:
    models = judged("chat", 24 * GIB, LAPTOP)
    words = [fit_text(each.forecast) for each in models]
    assert words == sorted(words, key=["fits", "from disk", "too large"].index)
    disk = next(each for each in models if each.forecast.streamed_bytes)
    whole = known_forecast(disk.model, disk.quant, None, 1000 * GIB, LAPTOP)
    assert (whole.decode_tok_s or 0) > (disk.forecast.decode_tok_s or 0) > 0


@pytest.mark.parametrize(
    ("quant", "form"),
    [("Q4_K_M", "Q4_K"), ("UD-Q4_K_XL", "Q4_K"), ("Q8_0", "Q8_0"), ("MXFP4_MOE", "MXFP4"), ("IQ4_XS", "IQ4_XS")],
)
def test_formats_of_quants(quant: str, form: str) -> None:
    assert format_of_quant(quant) == form


@pytest.mark.model
@pytest.mark.parametrize("machine", ["cloud-2core", "raspberry-pi-5", "a10-16core"])
def test_the_rate_is_near_that_of_the_header(starter_model: Path, machine: str) -> None:
    profile, known = machine_profile(machine), known_models()["smollm2-135m"]
    with GGUFFile.open(starter_model) as file:
        real = forecast_of(file, starter_model.stat().st_size, 2048, profile=profile)
    found = known_forecast(known, "Q4_1", 2048, real.available_bytes, profile)
    assert real.decode_tok_s is not None
    assert found.decode_tok_s is not None
    assert found.decode_tok_s == pytest.approx(real.decode_tok_s, rel=0.25)
    assert found.ram_bytes == pytest.approx(real.ram_bytes, rel=0.25)


def test_a_look_at_a_busy_machine_says_so(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for idle, told in ((0.25, "others used 75 % of the machine meanwhile: speeds may be too low"), (0.95, "")):
        profile = replace(machine_profile("arc-laptop"), idle_share=idle)
        monkeypatch.setattr("edgeinfer.app.plans.measured.kept_or_quick_profile", lambda found=profile: found)
        code, _, err = run(capsys, "models", "--recommend")
        assert code == 0
        assert ("others used" in err) == bool(told)
        assert told in err


def test_the_command_lists_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "models", "--recommend", "--task", "embed", "--json")
    found = json.loads(out)
    assert (code, found["task"]) == (0, "embed")
    assert {"embeddinggemma-300m", "bge-small-en-v1.5"} <= {each["name"] for each in found["models"]}
    assert all(each["fits"] and each["source"].startswith(("hf:", "pypi:")) for each in found["models"])
    code, out, err = run(capsys, "models", "--recommend")
    assert code == 0
    assert out.split()[:4] == ["name", "size", "fits", "tok/s"]
    assert f"edgeinfer pull {out.splitlines()[1].split()[0]} " in err
    assert "the KV cache of 8192 tokens" in err
    assert QUICKLY_MEASURED in err
    assert "?" not in out
    assert all("~" in line for line in out.splitlines()[1:])
    code, out, err = run(capsys, "models", "--all", "--json")
    words = {each["name"]: each["fit"] for each in json.loads(out)["models"]}
    assert words.keys() >= {"smollm2-135m", "gpt-oss-120b"}
    assert set(words.values()) <= {"fits", "from disk", "too large"}
    code, out, err = run(capsys, "models", "--task", "vision", "--all", "--json")
    seeing = {each["name"]: each for each in json.loads(out)["models"]}
    assert all(each["reads_images"] for each in seeing.values())
    smallest, known = seeing["smolvlm-256m"], known_models()["smolvlm-256m"]
    assert smallest["size_bytes"] == known.quants["Q8_0"] + smallest["projector_bytes"]
    code, out, err = run(capsys, "models", "--task", "cooking")
    assert code != 0
    assert "choose from chat, code, embed, vision" in err


def test_the_catalogue_offers_them_with_forecasts(home: Path) -> None:
    with Catalogue(ModelStore()) as catalogue:
        offers = catalogue.recommended()
        assert offers
        for offer in offers:
            forecast = catalogue.forecast(offer, 2048)
            assert forecast is not None
            assert (forecast.fits, forecast.n_context, forecast.is_estimate) == (True, 2048, True)
        pulled = ModelEntry("M-Q4_K_M", offers[0].source, None, 1, path=Path("/m"))
        assert is_here(offers[0], pulled)


def test_a_smaller_quant_is_named_if_only_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    known: KnownModel = replace(known_models()["qwen3-4b"], quants={"Q8_0": 4 * GIB, "Q2_K": GIB})
    monkeypatch.setattr("edgeinfer.app.catalogue.recommendation.known_models", lambda: {"qwen3-4b": known})
    (found,) = recommended("chat", 4 * GIB, machine_profile("a10-16core"))
    assert (found.pull_name, found.source) == (
        "qwen3-4b:Q2_K",
        "hf:unsloth/Qwen3-4B-Instruct-2507-GGUF:Q2_K",
    )
