"""Forecasts from headers: what fits, how fast, and what is said where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.app.catalogue.forecast import UNMEASURED, Forecast, by_size, estimated, forecast_of
from edgeinfer.app.plans.planning import PlanRequest, plan_model
from edgeinfer.models.download.header import file_header
from edgeinfer.models.gguf import Header
from edgeinfer.models.load import spec_of
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.prediction import MeasuredSpeeds
from tests.tiny_models import write_hollow_llama

GB = 1_000_000_000


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Header:
    """A llama of 800 MB, of which only the header is written."""
    return file_header(write_hollow_llama(tmp_path_factory.mktemp("hollow") / "hollow.gguf"))


def forecast(header: Header, profile: Profile | None = None, ram_bytes: int = 8 * GB, n_context: int = 512) -> Forecast:
    return forecast_of(header, 800_000_000, n_context, profile=profile, available_bytes=ram_bytes)


def test_without_a_profile_it_is_said_what_would_make_one(home: Path, header: Header) -> None:
    found = forecast(header)
    assert (found.fits, found.decode_tok_s, found.note) == (True, None, UNMEASURED)
    assert found.ram_bytes > found.weight_bytes > 700_000_000


def test_rates_are_those_of_the_plan(home: Path, header: Header, profile: Profile) -> None:
    found = forecast(header, profile)
    planned = plan_model(
        profile, work_of(spec_of(header.metadata, header.tensors), header.tensors), PlanRequest(512, schedule="cpu")
    )
    assert found.decode_tok_s == pytest.approx(planned.decode_tok_s)
    assert found.prefill_tok_s == pytest.approx(planned.prefill_tok_s)
    assert found.bound_by == planned.decode.time.bound_by
    assert (found.architecture, found.n_context_trained, found.note) == ("llama", 512, "")


def test_a_longer_context_takes_more_memory_and_is_slower_when_full(
    home: Path, header: Header, profile: Profile
) -> None:
    short, long = forecast(header, profile), forecast(header, profile, n_context=16384)
    assert long.kv_bytes > 20 * short.kv_bytes
    assert long.full_decode_tok_s is not None
    assert short.full_decode_tok_s is not None
    assert long.full_decode_tok_s < short.full_decode_tok_s


def test_what_does_not_fit_says_the_numbers(home: Path, header: Header, profile: Profile) -> None:
    found = forecast(header, profile, ram_bytes=100_000_000)
    assert not found.fits
    assert "MB" in found.note
    assert found.decode_tok_s is None


def test_weights_that_have_no_room_are_read_from_disk(home: Path, header: Header) -> None:
    found = forecast(header, None, ram_bytes=700_000_000)
    assert found.fits
    assert found.streamed_bytes > 0
    assert found.ram_bytes <= 700_000_000


def test_another_quant_is_reckoned_in_proportion(home: Path, header: Header, profile: Profile) -> None:
    known = forecast(header, profile)
    half = estimated(known, 800_000_000, 400_000_000)
    assert half.is_estimate
    assert half.weight_bytes == pytest.approx(known.weight_bytes / 2, abs=2)
    assert known.decode_tok_s is not None
    assert half.decode_tok_s == pytest.approx(2 * known.decode_tok_s)
    huge = estimated(known, 800_000_000, 80 * GB)
    assert (huge.fits, huge.decode_tok_s) == (False, None)


def test_measured_speeds_of_one_quant_are_not_those_of_another(home: Path, header: Header) -> None:
    known = replace(forecast(header), measured=MeasuredSpeeds(decode_tok_s=50.0))
    assert estimated(known, 10, 5).measured == MeasuredSpeeds()


def test_files_without_a_readable_header_are_judged_by_size() -> None:
    assert by_size(GB, 4096, 8 * GB).fits
    assert not by_size(9 * GB, 4096, 8 * GB).fits
