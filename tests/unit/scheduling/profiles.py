"""Profiles for tests: any that a file can hold, and plain ones whose times can be reckoned by hand."""

from __future__ import annotations

from hypothesis import strategies as st

from edgeinfer.scheduling.machine.profile import (
    CPU,
    AttentionRates,
    CoreRates,
    Curve,
    DeviceRates,
    Disk,
    Joining,
    Link,
    NodeRates,
    ProductRates,
    Profile,
)

GB = 1e9
LINK = Link(8 * GB, 4 * GB, 0.0)


def device(name: str = CPU, read: float = 10 * GB, madds: float = 20e9, link: Link | None = None) -> DeviceRates:
    """A device with the same rates for every format, pass and size, and no overheads."""
    rates = ProductRates(2.0, Curve.level(madds))
    attention = AttentionRates(64, Curve.level(madds))
    return DeviceRates(
        name, "plain", 1 << 40, Curve.level(read), {"*": rates}, (attention,), Curve.level(1e15), link=link
    )


def machine(*accelerators: DeviceRates, cpu: DeviceRates | None = None) -> Profile:
    """A plain CPU (or `cpu`) and accelerators."""
    return Profile("plain", (cpu or device(), *accelerators))


NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
RATES = st.floats(1e3, 1e13)
SECONDS = st.floats(0, 1)
SIZES = st.integers(1, 1 << 45)


def curves(places: st.SearchStrategy[float], values: st.SearchStrategy[float] = RATES) -> st.SearchStrategy[Curve]:
    """Curves of one to eight points."""
    pairs = st.dictionaries(places, values, min_size=1, max_size=8).map(lambda found: sorted(found.items()))
    return st.one_of(values.map(Curve.level), pairs.map(lambda each: Curve(*zip(*each, strict=True))))


TOKEN_CURVES = curves(st.integers(1, 4096))
PRODUCTS = st.builds(
    ProductRates,
    bytes_per_weight=st.floats(0.1, 8),
    rate=TOKEN_CURVES,
    cached=st.none() | TOKEN_CURVES,
    footprint=st.floats(0, 1e12),
    columns=st.integers(0, 4096),
    wide=st.none() | TOKEN_CURVES,
    wide_columns=st.integers(4097, 16384),
)
ROWS = curves(st.integers(1, 4096), st.floats(1e-9, 1e-3))
SWITCHES = st.booleans(), st.booleans()
ATTENTION = st.builds(
    AttentionRates, st.integers(1, 512), curves(st.integers(1, 4096)), SECONDS, st.none() | ROWS, *SWITCHES
)
CORES = st.builds(CoreRates, st.integers(0, 999), NAMES, st.integers(0, 7), RATES, st.floats(0.01, 8))
LINKS = st.builds(Link, RATES, RATES, SECONDS, SECONDS)
JOINING = st.builds(Joining, st.integers(1, 4096), st.floats(1e3, 1e13))


def _nodes(count: int) -> st.SearchStrategy[tuple[NodeRates, ...]]:
    remote = st.just(()) | st.tuples(*[RATES] * count)
    return st.tuples(*(st.builds(NodeRates, st.just(number), SIZES, RATES, remote) for number in range(count)))


def devices(name: str) -> st.SearchStrategy[DeviceRates]:
    """Devices of that name, with what belongs to a CPU or to an accelerator."""
    own: dict[str, st.SearchStrategy[object]] = {"link": st.none() | LINKS}
    if name == CPU:
        cores = st.lists(CORES, max_size=4, unique_by=lambda core: core.number).map(tuple)
        own = {"cores": cores, "nodes": st.integers(0, 3).flatmap(_nodes)}
    return st.builds(
        DeviceRates,
        name=st.just(name),
        kind=NAMES,
        memory_bytes=SIZES,
        read=curves(st.floats(1, 1e12)),
        products=st.dictionaries(NAMES, PRODUCTS, min_size=1, max_size=3),
        attention=st.lists(ATTENTION, min_size=1, max_size=3).map(tuple),
        element_rate=curves(st.integers(1, 4096)),
        op_s=SECONDS,
        pass_s=SECONDS,
        token_s=SECONDS,
        joining=st.none() | JOINING,
        **own,
    )


PROFILES = st.builds(
    Profile,
    name=NAMES,
    devices=st.tuples(devices(CPU)) | st.tuples(devices(CPU), devices("cuda"), devices("npu")),
    disk=st.none()
    | st.builds(Disk, st.dictionaries(st.integers(1, 64), curves(st.integers(512, 1 << 30)), min_size=1)),
    fingerprint=st.just("") | NAMES,
    measured=st.just("") | NAMES,
    idle_share=st.none() | st.floats(0, 1),
    short=st.booleans(),
    assumptions=st.lists(st.text(st.characters(exclude_categories=("Cs",)))).map(tuple),
)
