"""Models on the CPU and the CUDA device together, against the CPU alone; run under the simulator.

However rows, attention and layers are placed, and whether the weights have room on the GPU or are sent in each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import DEVICES, Device, DeviceOptions, Limits
from edgeinfer.backends.cuda.device import CudaDevice
from edgeinfer.backends.cuda.driver import FAILURES, Driver, Stream
from edgeinfer.backends.cuda.footprint import weight_regions
from edgeinfer.backends.cuda.lane import CudaFragmentLane
from edgeinfer.backends.cuda.layout import slab_bytes
from edgeinfer.backends.cuda.model import CudaModel, together
from edgeinfer.backends.cuda.placing import GpuWeights, stage_weights
from edgeinfer.backends.cuda.step import LaunchShape
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_evaluator, open_executor
from edgeinfer.engine.probing import combination
from edgeinfer.engine.run.evaluators import SequenceEvaluator, open_subject
from edgeinfer.engine.shared_lane.lane import SharedLane, fragment_of
from edgeinfer.engine.shared_lane.partition import partition
from edgeinfer.errors import DoesNotFit, EdgeInferError
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.machine.profile import Link
from edgeinfer.scheduling.placement.placement import Placement, RowRange
from edgeinfer.steps import no_progress
from tests.golden.goldens import Golden, Player, distance
from tests.unit.backends.cuda import quick_blocks
from tests.unit.engine.run.test_executor import chain
from tests.unit.engine.shared_lane.placements import alike, at_random
from tests.unit.engine.shared_lane.test_shared_lanes import Together, spec_of
from tests.unit.scheduling.profiles import device, machine

TWO = ["cpu", "cuda"]
NOISE = 2e-2
"""Relative: another order of sums now and then rounds an activation to another int8, which is most of what is seen."""
quick_blocks.install()


@pytest.fixture(scope="module")
def driver() -> Driver:
    return Driver()


@pytest.fixture(scope="module")
def cpu() -> Iterator[Device]:
    found = DEVICES.get("cpu").open(DeviceOptions(n_workers=2))
    yield found
    found.close()


def split(spec: ModelSpec, home: str, attention: str, share: float) -> Placement:
    """Every product with `share` of its rows on the CPU."""
    return alike(spec, home, attention, {"cpu": share, "cuda": 1 - share})


def cuda_lanes(player: Player) -> list[CudaFragmentLane]:
    """The parts that a player's model has on the GPU."""
    assert isinstance(player.lane, SharedLane)
    return [lane for lane in player.lane.parts if isinstance(lane, CudaFragmentLane)]


def held_bytes(player: Player) -> int:
    return sum(lane.resident_bytes for lane in cuda_lanes(player))


def streamed_bytes(player: Player) -> int:
    lanes = cuda_lanes(player)
    return lanes[0].streamed_bytes if lanes else 0


def budget_for(name: str, placement: Placement, driver: Driver, share: float) -> int:
    """Bytes with which streaming just works, and a share of those that are missing to hold all weights."""
    golden = Golden.read(name)
    with Player(Together(placement, {"cuda": CudaDevice(driver)}), golden) as player:
        whole, weights = held_bytes(player), cuda_lanes(player)[0].model._weights.resident_bytes
    least = whole - weights + 1
    with pytest.raises(DoesNotFit, match="may use 1 bytes") as refused:
        Player(Together(placement, {"cuda": CudaDevice(driver, least)}), golden)
    least += int(str(refused.value).rpartition(" ")[2])
    return least + int((whole - least) * share)


def check(name: str, placement: Placement, cpu: Device, driver: Driver, budget: int | None = None) -> tuple[int, int]:
    """A prompt, a single token and a draft tree come out as on the CPU alone, but for the noise.

    Gives the bytes held on the GPU and those streamed in each step.
    """
    golden = Golden.read(name)
    cuda = CudaDevice(driver, budget)
    with Player(Together(placement, {"cuda": cuda}), golden) as player, Player(cpu, golden) as alone:
        for chunk in np.split(golden.tokens[:7], [6]):
            assert distance(player.feed(chunk), alone.feed(chunk)) < NOISE
        tree, parents = golden.tokens[7:11], [-1, 0, 0, 1]
        assert distance(player.look(tree, parents), alone.look(tree, parents)) < NOISE
        return held_bytes(player), streamed_bytes(player)


@pytest.mark.parametrize("name", ["llama-k", "qwen2-q4_0", "phi3-f16"])
@pytest.mark.parametrize(("home", "attention", "share"), [("cpu", "cpu", 0.4), ("cuda", "cpu", 0.6)])
def test_rows_are_shared(driver: Driver, cpu: Device, name: str, home: str, attention: str, share: float) -> None:
    assert check(name, split(spec_of(name), home, attention, share), cpu, driver)[1] == 0


@pytest.mark.parametrize(("home", "attention", "share"), [("cpu", "cuda", 1.0), ("cuda", "cpu", 0.0)])
def test_attention_is_elsewhere_than_products(
    driver: Driver, cpu: Device, home: str, attention: str, share: float
) -> None:
    check("llama-q8_0", split(spec_of("llama-q8_0"), home, attention, share), cpu, driver)


@pytest.mark.parametrize("seed", range(3))
def test_any_placement_gives_the_same(driver: Driver, cpu: Device, seed: int) -> None:
    name = ("gemma2-q8_0", "llama-q8_0", "mistral-window-q8_0")[seed]
    check(name, at_random(spec_of(name), TWO, np.random.default_rng(seed)), cpu, driver)


def by_layers(spec: ModelSpec, first: str) -> Placement:
    """Half of the stages on each, those of `first` first, as llama.cpp splits models."""
    second = next(name for name in TWO if name != first)
    halves = [alike(spec, device, device, {device: 1.0}) for device in (first, second)]
    middle = len(spec.stages) // 2
    return Placement((*halves[0].stages[:middle], *halves[1].stages[middle:]))


@pytest.mark.parametrize("first", TWO)
def test_layers_lie_apart(driver: Driver, cpu: Device, first: str) -> None:
    check("llama-q8_0", by_layers(spec_of("llama-q8_0"), first), cpu, driver)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", ["llama-k", "qwen2-q4_0", "phi3-f16", "llama-bias-q8_0"])
def test_rows_are_sent_where_memory_is_short(driver: Driver, cpu: Device, name: str, share: float) -> None:
    """The limit holds for all parts of the model together."""
    placement = split(spec_of(name), "cpu", "cpu", 0.4)
    budget = budget_for(name, placement, driver, share)
    held, streamed = check(name, placement, cpu, driver, budget)
    assert held <= budget
    assert streamed > 0


@pytest.mark.parametrize(
    ("home", "attention", "share"), [("cuda", "cpu", 0.5), ("cpu", "cuda", 0.5), ("cuda", "cuda", 0.2)]
)
def test_weights_are_sent_for_any_split(driver: Driver, cpu: Device, home: str, attention: str, share: float) -> None:
    placement = split(spec_of("llama-q8_0"), home, attention, share)
    budget = budget_for("llama-q8_0", placement, driver, 0.5)
    held, streamed = check("llama-q8_0", placement, cpu, driver, budget)
    assert held <= budget
    assert streamed > 0


def three_parts(spec: ModelSpec, own: float, streamed: float) -> Placement:
    """Every product with shares that the GPU holds, that are sent to it, and that the CPU has."""

    def parts(n_rows: int) -> tuple[RowRange, ...]:
        first, second = round(own * n_rows), round((own + streamed) * n_rows)
        cuts = ((0, first, "cuda", "own"), (first, second, "cuda", "streamed"), (second, n_rows, "cpu", "own"))
        return tuple(RowRange(device, start, stop, held) for start, stop, device, held in cuts if stop > start)

    whole = alike(spec, "cpu", "cpu", {"cpu": 1.0})
    stages = [replace(stage, products=tuple(parts(p[-1].stop) for p in stage.products)) for stage in whole.stages]
    return Placement(tuple(stages))


@pytest.mark.parametrize(("own", "streamed"), [(0.25, 0.25), (0.0, 0.5), (0.5, 0.5), (0.2, 0.8)])
def test_three_shares_of_each_product(driver: Driver, cpu: Device, own: float, streamed: float) -> None:
    """HeteGen's: on the CPU, on the GPU, and sent to it."""
    placement = three_parts(spec_of("llama-q8_0"), own, streamed)
    budget = budget_for("llama-q8_0", placement, driver, 0.3)
    held, sent = check("llama-q8_0", placement, cpu, driver, budget)
    assert held <= budget
    assert sent > 0


def test_what_a_plan_streams_goes_first(driver: Driver) -> None:
    """With room for all else and two halves, that and nothing else is sent."""
    golden = Golden.read("llama-k")
    with open_model(golden.model, 128) as model:
        tasks = partition(model.spec, three_parts(model.spec, 0.3, 0.2), "cpu")
        fragments = [fragment_of(model.spec, task) for task in tasks if task.device == "cuda"]
        whole = together(fragments)
        sizes = {
            weight: slab_bytes(list(regions.values()))
            for weight, regions in weight_regions(whole, model.file.tensors).items()
        }
        spare = frozenset(weight for fragment in fragments for weight in fragment.spare)
        loads = [sum(sizes[w] for w in stage_weights(stage) if w in spare) for stage in whole.stages]
        budget = sum(sizes.values()) - sum(loads) + 2 * max(loads)
        weights = GpuWeights(driver, whole, model.file, budget, no_progress, spare)
        assert {weight for load in weights._loads for weight in load.weights} == spare
        assert weights.resident_bytes <= budget
        weights.close()


def test_weights_are_on_their_way_before_they_are_needed(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second step on, every part finds its weights there or being sent, and none are sent twice."""
    name = "llama-q8_0"
    placement, golden = split(spec_of(name), "cpu", "cpu", 0.3), Golden.read(name)
    budget = budget_for(name, placement, driver, 0.5)
    with Player(Together(placement, {"cuda": CudaDevice(driver, budget)}), golden) as player:
        player.feed(golden.tokens[:1])
        model = cuda_lanes(player)[0].model
        weights, feeding = model._weights, model._feeding
        assert weights.n_sent > 2
        sent: list[int] = []
        plain, start = weights.send, CudaModel.start

        def send(number: int, stream: Stream) -> None:
            sent.append(number)
            plain(number, stream)

        def started(self: CudaModel, stages: Sequence[str], shape: LaunchShape) -> None:
            for number in weights.sent.get(stages[0], ()):
                assert feeding._holds[number % 2] == number
            start(self, stages, shape)

        monkeypatch.setattr(weights, "send", send)
        monkeypatch.setattr(CudaModel, "start", started)
        for token in (1, 2, 3):
            player.feed(golden.tokens[token : token + 1])
    assert sent
    assert len(sent) <= 3 * weights.n_sent


def test_a_step_that_was_broken_off_does_no_harm(driver: Driver, cpu: Device) -> None:
    """The next one finds other weights in the halves than it needs."""
    name = "llama-q8_0"
    placement, golden = split(spec_of(name), "cpu", "cpu", 0.3), Golden.read(name)
    budget = budget_for(name, placement, driver, 0.5)
    with (
        Player(Together(placement, {"cuda": CudaDevice(driver, budget)}), golden) as player,
        Player(cpu, golden) as alone,
    ):
        expected = alone.feed(golden.tokens[:2])
        assert distance(player.feed(golden.tokens[:2]), expected) < NOISE
        assert isinstance(player.lane, SharedLane)
        turns = player.lane._turns
        player.lane._turns = turns[: len(turns) // 2]
        player.look(golden.tokens[2:3], [-1])
        player.lane._turns = turns
        assert distance(player.feed(golden.tokens[2:3]), alone.feed(golden.tokens[2:3])) < NOISE


def test_too_small_a_limit_says_what_would_work(driver: Driver) -> None:
    name = "llama-q8_0"
    placement, golden = split(spec_of(name), "cpu", "cpu", 0.3), Golden.read(name)
    least = budget_for(name, placement, driver, 0.0)
    Player(Together(placement, {"cuda": CudaDevice(driver, least)}), golden).__exit__()
    with pytest.raises(DoesNotFit, match=r"raise EDGEINFER_CUDA_VRAM by 1$"):
        Player(Together(placement, {"cuda": CudaDevice(driver, least - 1)}), golden)


def test_states_are_saved_and_restored(driver: Driver) -> None:
    """Keys and values of some layers on the GPU, of others on the CPU, while weights are streamed."""
    golden, spec = Golden.read("llama-q8_0"), spec_of("llama-q8_0")
    there, here = (split(spec, "cpu", device, 0.5) for device in ("cuda", "cpu"))
    placement = Placement((*there.stages[:2], *here.stages[2:]))
    device = Together(placement, {"cuda": CudaDevice(driver, budget_for("llama-q8_0", placement, driver, 0.5))})
    pages = np.arange(12, dtype=np.int32)
    with Player(device, golden) as first, Player(device, golden) as second:
        first.feed(golden.tokens[:5])
        second.feed(golden.tokens[10:15])
        second.lane.write_pages(pages, first.lane.read_pages(pages))
        assert second.feed(golden.tokens[5:6]).tobytes() == first.feed(golden.tokens[5:6]).tobytes()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let probes have found that each of the two is as fast as the other, and that exchanges cost nothing."""
    pair = machine(device("cuda", link=Link(1e12, 1e12, 0.0), read=1e7, madds=1e7), cpu=device(read=1e7, madds=1e7))
    monkeypatch.setattr(combination, "combined_profile", lambda *given: pair)
    monkeypatch.setattr(combination, "alone_profiles", lambda *given: {"cpu": pair, "cuda": pair})


LIMITS = Limits(128, 4, 16, 4)


def logits_of(evaluator: SequenceEvaluator, sequence: int, tokens: list[int]) -> NDArray[np.float32]:
    """The logits of the last of these tokens, which are kept."""
    found = evaluator.evaluate(chain(sequence, evaluator.n_cached(sequence), tokens)).copy()
    evaluator.commit(sequence, np.arange(len(tokens), dtype=np.int32))
    return found


@pytest.mark.parametrize("schedule", ["rows", "hetegen", "static"])
def test_a_plan_is_carried_out(measured: None, schedule: str) -> None:
    """By names, as a user gives them."""
    golden = Golden.read("llama-q8_0")
    with open_model(golden.model, 128) as model:
        request = OpeningRequest(model.spec, model.file, LIMITS, DeviceOptions(n_workers=2))
        with open_executor("cuda,cpu", request, "model", schedule=schedule) as executor:
            assert schedule in executor.notices[0]
            assert executor.device == ("cuda" if schedule == "static" else "cpu+cuda")
            logits = logits_of(executor, executor.create(), golden.tokens[:5].tolist())
    assert distance(logits[:, golden.columns], golden.logits[4:5]) < 0.05


def test_a_gpu_that_fails_beside_the_cpu_is_dropped(measured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a text, while the CPU goes on from the same token."""
    golden = Golden.read("llama-q8_0")
    tokens = golden.tokens[:8].tolist()
    subject = open_subject(golden.model, LoadOptions(device="cpu,cuda", n_context=128))
    options = DeviceOptions(n_workers=2)
    with subject.file:
        evaluator = open_evaluator(subject, LIMITS, options, LoadOptions(device="cpu,cuda", schedule="rows"))
        alone = open_evaluator(subject, LIMITS, options, LoadOptions(device="cpu"))
        pair = [evaluator.create(), alone.create()]
        for part in (tokens[:4], tokens[4:5]):
            found, expected = (logits_of(e, s, part) for e, s in zip((evaluator, alone), pair, strict=True))
            assert distance(found, expected) < NOISE
        state = evaluator.save(pair[0])

        def fail(*arguments: object) -> None:
            raise FAILURES[0](700, "illegal address")

        monkeypatch.setattr(Driver, "launch", fail)
        for part in (tokens[5:6], tokens[6:]):
            found, expected = (logits_of(e, s, part) for e, s in zip((evaluator, alone), pair, strict=True))
            assert distance(found, expected) < 1e-6
        assert evaluator.device == "cpu"
        eventful = evaluator.capabilities.eventful
        assert eventful is not None
        (told,) = eventful.take_notices()
        assert told.startswith("cpu+cuda failed and was dropped; cpu goes on (")
        with pytest.raises(
            EdgeInferError, match="saved by the device cpu\\+cuda; load the model with --device cpu,cuda"
        ):
            evaluator.restore(evaluator.create(), state)
        evaluator.close()
        alone.close()
