"""Costs on one device: closed forms, bounds that no prediction is below, caches in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.graph.op import AttentionHeads, BlockAttention
from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass, chunks, from_device_s, to_device_s
from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape, StageWork
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, DeviceRates, Link, ProductRates, Profile
from edgeinfer.scheduling.prediction import Predictor

GB, G = 1e9, 1e9
HEADS = AttentionHeads(8, 2, 64, 64)
MATRIX = MatMulWork("ffn_up", "Q4_0", 0.5625, 4096, 1024)
LAYER = StageShape((MATRIX,), HEADS, 4000, 10)
HEAD = StageShape((MatMulWork("output", "Q4_0", 0.5625, 32000, 1024),), None, 1024, 3, for_outputs=True)


def device(
    read: Curve | float = 30 * GB, products: dict[str, ProductRates] | None = None, **changes: object
) -> DeviceRates:
    named: dict[str, object] = {
        "name": "cpu",
        "kind": "cpu",
        "memory_bytes": 16 << 30,
        "read": read if isinstance(read, Curve) else Curve.level(read),
        "products": products or {"*": ProductRates(0.5625, Curve.level(200 * G))},
        "attention": (AttentionRates(64, Curve.level(50 * G)),),
        "element_rate": Curve.level(2 * G),
    }
    return DeviceRates(**(named | changes))  # type: ignore[arg-type]


def model(n_layers: int = 3) -> ModelWork:
    layers = [StageWork(f"blk.{n}", LAYER, ("up",)) for n in range(n_layers)]
    return ModelWork("tiny", (*layers, StageWork("head", HEAD, ("output",))), 1024)


def test_one_token_is_bound_by_memory_and_many_by_arithmetic():
    cost = DeviceCost(device(), 1 << 30)
    one, many = cost.product(MATRIX, 4096, 1), cost.product(MATRIX, 4096, 512)
    assert one.total == pytest.approx(MATRIX.n_bytes / (30 * GB))
    assert many.total == pytest.approx(MATRIX.n_weights * 512 / (200 * G))
    assert (one.largest, many.largest) == ("memory bandwidth", "arithmetic")


def test_a_pass_reads_and_multiplies_the_experts_of_its_tokens():
    cost = DeviceCost(device(), 1 << 30)
    experts = MatMulWork("ffn_up_exps", "Q4_0", 0.5625, 64 * 512, 1024, experts=64, active=8)
    one, few, many = (cost.product(experts, experts.n_rows, n) for n in (1, 4, 4096))
    assert one.total == pytest.approx(experts.n_bytes / 8 / (30 * GB))
    assert few.total == pytest.approx(experts.n_bytes * (1 - 0.875**4) / (30 * GB))
    assert many.total == pytest.approx(experts.n_weights / 8 * 4096 / (200 * G))
    dense = MatMulWork("ffn_up", "Q4_0", 0.5625, 64 * 512, 1024)
    assert few.total < cost.product(dense, dense.n_rows, 4).total


def test_a_pass_adds_up_over_its_stages():
    cost = DeviceCost(device(op_s=1e-6, pass_s=1e-4, token_s=1e-5), 1 << 30)
    step = Pass(16, 100, n_outputs=4)
    matrix_s = MATRIX.n_weights * 16 / (200 * G)
    attention_s = HEADS.multiply_adds(16, 100) / (50 * G)
    layer_s = matrix_s + attention_s + 10 * 1e-6 + 16 * 4000 / (2 * G)
    head_s = max(32000 * 1024 * 0.5625 / (30 * GB), 32000 * 1024 * 4 / (200 * G)) + 3 * 1e-6 + 4 * 1024 / (2 * G)
    assert cost.model(model(), step).total == pytest.approx(3 * layer_s + head_s + 1e-4 + 16 * 1e-5)


def test_attention_counts_what_each_token_sees():
    everything = sum(100 + token + 1 for token in range(16))
    assert HEADS.multiply_adds(16, 100) == 2 * 8 * 64 * everything
    windowed = AttentionHeads(8, 2, 64, 64, window=105)
    assert windowed.multiply_adds(16, 100) == 2 * 8 * 64 * sum(min(105, 100 + token + 1) for token in range(16))
    assert windowed.multiply_adds(4, 1000) == 2 * 8 * 64 * 4 * 105


def test_attention_without_a_mask_counts_what_comes_after_too():
    whole = AttentionHeads(8, 2, 64, 64, causal=False)
    assert whole.multiply_adds(16, 0) == 2 * 8 * 64 * 16 * 16
    assert whole.multiply_adds(16, 0) < 2 * HEADS.multiply_adds(16, 0)
    windowed = AttentionHeads(8, 2, 64, 64, window=5, causal=False)
    assert windowed.multiply_adds(16, 0) == 2 * 8 * 64 * 16 * 9
    assert windowed.multiply_adds(4, 0) == 2 * 8 * 64 * 4 * 4


def test_blocks_with_a_budget_pay_for_what_they_see_and_for_choosing():
    within = AttentionHeads(8, 2, 64, 64, blocks=BlockAttention(64, 512, 4))
    assert within.multiply_adds(64, 448) == HEADS.multiply_adds(64, 448)
    assert within.multiply_adds(63, 4096) == HEADS.multiply_adds(63, 4096)
    choosing = 8 * 64 * sum(4096 + token + 1 for token in range(256)) * 4 / 64
    assert within.multiply_adds(256, 4096) == pytest.approx(2 * 8 * 64 * 256 * 512 + choosing)


def test_weights_that_caches_hold_in_part_cost_something_in_between():
    read = Curve((32e6, 64e6, 256e6), (120 * GB, 60 * GB, 30 * GB))
    rates = ProductRates(0.5625, Curve.level(40 * G), cached=Curve.level(80 * G), footprint=256e6)
    seconds = [
        DeviceCost(device(read, {"Q4_0": rates}), footprint).product(MATRIX, 4096, 1).total
        for footprint in (16e6, 64e6, 256e6, 1e9)
    ]
    assert seconds[0] == pytest.approx(MATRIX.n_weights / (80 * G))
    assert seconds[2] == seconds[3] == pytest.approx(MATRIX.n_weights / (40 * G))
    # read at 60 GB/s instead of 30 and 120: a third of the way from the cached to the slow case
    assert seconds[1] == pytest.approx(MATRIX.n_weights * (1 / 80 + (1 / 40 - 1 / 80) / 3) / G)


def test_models_larger_than_what_was_measured_are_no_slower_a_byte() -> None:
    """However much slower larger buffers were read than the measured one: that is the noise of two measurements."""
    rates = ProductRates(0.5625, Curve.level(40 * G), cached=Curve.level(80 * G), footprint=100e6)
    noisy = Curve((16e6, 100e6, 256e6), (200 * G, 60 * G, 40 * G))
    seconds = [
        DeviceCost(device(noisy, {"Q4_0": rates}), footprint).product(MATRIX, 4096, 1).total
        for footprint in (50e6, 100e6, 1e9)
    ]
    assert seconds[0] < seconds[1] == seconds[2] == pytest.approx(MATRIX.columns * 4096 / (40 * G))


@given(
    read=st.floats(1e9, 1e12),
    rate=st.floats(1e9, 1e13),
    cached=st.floats(1e9, 1e13),
    n_tokens=st.integers(1, 512),
    footprint=st.floats(1e6, 1e12),
)
def test_no_product_is_below_its_bounds(
    read: float, rate: float, cached: float, n_tokens: int, footprint: float
) -> None:
    rates = ProductRates(0.5625, Curve.level(rate), Curve.level(cached), 1e9, 768, Curve.level(rate * 0.9), 4096)
    curve = Curve((1e6, 1e9), (2 * read, read))
    spent = DeviceCost(device(curve, {"Q4_0": rates}), footprint).product(MATRIX, 4096, n_tokens)
    assert spent.total >= MATRIX.n_bytes / curve(footprint) * 0.999999
    assert spent.total >= MATRIX.n_weights * n_tokens / rates.best * 0.999999
    assert spent.memory >= 0
    assert spent.arithmetic >= 0


def test_between_measured_numbers_of_tokens_times_lie_on_a_line():
    curve = Curve((1, 4, 16), (10.0, 20.0, 40.0))
    assert curve.seconds(4) == pytest.approx(0.2)
    assert curve.seconds(10) == pytest.approx((0.2 + 0.4) / 2)
    assert curve.seconds(64) == pytest.approx(64 / 40)
    assert curve(10) == pytest.approx(30)


@pytest.mark.parametrize(("at", "values"), [((), ()), ((1, 1), (1.0, 2.0)), ((1, 2), (1.0,)), ((1,), (0.0,))])
def test_a_curve_that_is_none_is_refused(at: tuple[float, ...], values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="curve"):
        Curve(at, values)


def test_a_format_without_rates_takes_those_of_the_nearest_in_size():
    rates = {"Q4_0": ProductRates(0.5625, Curve.level(1.0)), "Q8_0": ProductRates(1.0625, Curve.level(2.0))}
    assert device(products=rates).product("Q6_K", 0.82) is rates["Q8_0"]
    assert device(products=rates).product("Q3_K", 0.43) is rates["Q4_0"]
    assert device(products=rates).product("Q8_0", 9.9) is rates["Q8_0"]


def test_prompts_are_read_in_passes():
    assert chunks(600, 256, 10) == [Pass(256, 10, 0), Pass(256, 266, 0), Pass(88, 522, 1)]
    predictor = Predictor(Profile("machine", (device(),)), model())
    expected = sum(predictor.seconds(step).total for step in chunks(600, 256))
    assert predictor.prompt_s(600) == pytest.approx(expected)


def test_decoding_slows_down_with_depth():
    predictor = Predictor(Profile("machine", (device(),)), model())
    assert predictor.decode_s(64, 4000) > predictor.decode_s(64, 0)
    exact = sum(predictor.pass_s(1, n) for n in range(64))
    assert predictor.decode_s(64) == pytest.approx(exact, rel=0.01)


def test_messages_take_a_latency_and_their_bytes():
    link = Link(12 * GB, 6 * GB, 1e-5)
    assert to_device_s(link, 12 * GB) == pytest.approx(1 + 1e-5)
    assert from_device_s(link, 12 * GB) == pytest.approx(2 + 1e-5)
    assert to_device_s(link, 0) == 0
