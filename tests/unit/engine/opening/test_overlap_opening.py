"""A model opened by device names: KV partitions by memory, notices, what is refused. Nothing is measured here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.limits import SPARE_PAGES
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.overlap import open_overlap
from edgeinfer.errors import BadSetting, DeviceUnavailable, DoesNotFit, EdgeInferError, UnsupportedModel
from edgeinfer.graph.step import PAGE
from edgeinfer.models.load import Model, open_model
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.topology import read_topology
from tests.golden.goldens import Golden
from tests.unit.engine.overlap.journeys import Journey, pretend_machine, travel

GOLDEN = Golden.read("llama-q8_0")
LIMITS = Limits(2 * PAGE, 12 + SPARE_PAGES, 64, 64)


@pytest.fixture
def model():
    with open_model(GOLDEN.model, LIMITS.n_context) as opened:
        yield opened


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A machine whose accelerator goes by the name that is asked for."""
    if len(read_topology().workers()) < 2:
        pytest.skip("two devices on the machine's own cores need two cores")
    return pretend_machine(monkeypatch)


def test_sequences_beyond_the_accelerators_pages_are_in_memory(model: Model) -> None:
    with open_overlap("reference,cpu", OpeningRequest(model.spec, model.file, LIMITS), resident_pages=4) as executor:
        assert executor.device == "cpu+reference"
        sequences = [executor.create() for _ in range(5)]
        assert [executor.is_resident(each) for each in sequences] == [True, True, False, False, False]
        assert "room for 2 whole contexts on reference, 4 in memory; schedule auto" in executor.notices[0]
        travel(executor, {each: Journey(GOLDEN.tokens, (20, 1, 1)) for each in sequences})
        assert all(executor.n_cached(each) == 22 for each in sequences)
        assert sum(tally.predicted_s for tally in executor.tallies.values()) > 0


def test_all_are_resident_where_memory_suffices(model: Model) -> None:
    with open_overlap("cpu,reference", OpeningRequest(model.spec, model.file, LIMITS), "overlap") as executor:
        assert all(executor.is_resident(executor.create()) for _ in range(8))
        assert not executor.is_resident(executor.create())


def test_what_does_not_fit_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.engine.opening.overlap.available_bytes", lambda: 10**6)
    with pytest.raises(DoesNotFit, match="smaller quant"):
        open_overlap("cpu,reference", OpeningRequest(model.spec, model.file, LIMITS))
    monkeypatch.setattr("edgeinfer.engine.opening.overlap.available_bytes", lambda: 3 * 10**9)
    with pytest.raises(DoesNotFit, match="fewer sequences"):
        open_overlap(
            "cpu,reference", OpeningRequest(model.spec, model.file, replace(LIMITS, n_pages=10**6)), resident_pages=2
        )


def test_what_cannot_be_opened_is_refused(model: Model) -> None:
    with pytest.raises(BadSetting, match="no schedule of batches"):
        open_overlap("cpu,reference", OpeningRequest(model.spec, model.file, LIMITS), schedule="rows")
    with pytest.raises(DeviceUnavailable, match="part of a model"):
        open_overlap("cpu,null", OpeningRequest(model.spec, model.file, LIMITS))


def test_a_mixture_of_experts_is_refused() -> None:
    with (
        open_model(Golden.read("olmoe-f16").model, 128) as mixture,
        pytest.raises(UnsupportedModel, match="mixture of experts, which cpu,reference does not run; --device cpu"),
    ):
        open_overlap("cpu,reference", OpeningRequest(mixture.spec, mixture.file, LIMITS))


def test_states_of_another_model_are_refused(model: Model) -> None:
    other = Golden.read("llama-f32")
    with (
        open_model(other.model, LIMITS.n_context) as second,
        open_overlap("cpu,reference", OpeningRequest(model.spec, model.file, LIMITS), resident_pages=2) as executor,
        open_overlap("cpu,reference", OpeningRequest(second.spec, second.file, LIMITS), resident_pages=2) as stranger,
    ):
        sequence = executor.create()
        travel(executor, {sequence: Journey(GOLDEN.tokens, (20,))})
        with pytest.raises(EdgeInferError, match="another model"):
            stranger.restore(stranger.create(), executor.save(sequence))
