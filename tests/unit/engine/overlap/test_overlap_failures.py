"""The overlap executor when a device fails, when it is closed, and whether both devices work at the same time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from edgeinfer.backends.base import Lane, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities, HostLane
from edgeinfer.backends.reference import ReferenceDevice, ReferenceFragment
from edgeinfer.engine.overlap.attending import AttentionJob, HostAttention
from edgeinfer.engine.overlap.passes import paired
from edgeinfer.engine.shared_lane.timeline import DeviceSpan
from edgeinfer.errors import DeviceFailed, DoesNotFit, EngineClosed
from edgeinfer.graph.graph import Fragment, ModelSpec
from edgeinfer.graph.step import PAGE, Floats, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.batch.schedules import SCHEDULES
from edgeinfer.steps import Progress, no_progress
from tests.golden.goldens import Golden
from tests.unit.engine.overlap.journeys import (
    EACH,
    LIMITS,
    Journey,
    accelerator,
    alone,
    assert_as_alone,
    chain,
    cpu,
    overlapping,
    texts,
    travel,
)

GOLDEN = Golden.read("llama-q8_0")


class Breaking(ReferenceDevice):
    """A device of which every lane fails once so many steps were run."""

    def __init__(self, n_steps: int) -> None:
        super().__init__(activations="int8", kv="f16")
        self.n_left, self.n_open = n_steps, 0

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> ReferenceFragment:
        lane, device = super().compile_fragment(fragment, file, limits, progress), self
        wait, close = lane.wait, lane.close
        self.n_open += 1

        def failing() -> Mapping[str, Floats]:
            device.n_left -= 1
            if device.n_left == 0:
                raise DeviceFailed("the driver was reset")
            return wait()

        def closing() -> None:
            device.n_open -= 1
            close()

        lane.wait, lane.close = failing, closing  # type: ignore[method-assign]
        return lane


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_failure_in_the_middle_breaks_off_what_is_under_way(schedule: str) -> None:
    """Committed tokens stay, and once the device works again all goes on."""
    device = Breaking(60)
    with overlapping(GOLDEN, device, schedule) as executor, alone(GOLDEN, cpu()) as single:
        found = {executor.create(EACH): Journey(text, (9, *(1,) * 20)) for text in texts(GOLDEN, 4, 60)}
        with pytest.raises(DeviceFailed, match="driver was reset"):
            travel(executor, found)
        assert executor.in_flight == frozenset()
        for sequence, journey in found.items():
            journey.under_way = 0
            assert executor.n_cached(sequence) == journey.n_read
        travel(executor, found)
        assert_as_alone(found, single)
        for sequence in found:
            executor.free(sequence)
        assert executor.n_free_pages == 2 * EACH // PAGE + LIMITS.n_pages
    assert device.n_open == 0
    with pytest.raises(EngineClosed):
        executor.advance([])
    executor.close()


@pytest.mark.parametrize("schedule", ["overlap", "asymmetric"])
def test_attention_that_fails_breaks_off_what_is_under_way(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attended, n_left = HostAttention._attended, [20]

    def failing(self: HostAttention, job: AttentionJob) -> Floats:
        n_left[0] -= 1
        if not n_left[0]:
            raise DeviceFailed("a core is on fire")
        return attended(self, job)

    monkeypatch.setattr(HostAttention, "_attended", failing)
    with overlapping(GOLDEN, accelerator("reference"), schedule) as executor, alone(GOLDEN, cpu()) as single:
        found = {executor.create(EACH): Journey(text, (9, *(1,) * 20)) for text in texts(GOLDEN, 4, 60)}
        with pytest.raises(DeviceFailed, match="on fire"):
            travel(executor, found)
        assert executor.in_flight == frozenset()
        for journey in found.values():
            journey.under_way = 0
        travel(executor, found)
        assert_as_alone(found, single)


def test_attention_that_never_ends_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, attended = threading.Event(), HostAttention._attended

    def lasting(self: HostAttention, job: AttentionJob) -> Floats:
        ended.wait(20)
        return attended(self, job)

    monkeypatch.setattr(HostAttention, "_attended", lasting)
    with overlapping(GOLDEN, accelerator("reference"), "overlap", n_resident=0) as executor:
        sequence = executor.create()
        executor._open().host.patience_s = 0.05
        with pytest.raises(DeviceFailed, match="did not end in"):
            travel(executor, {sequence: Journey(GOLDEN.tokens, (9,))})
        ended.set()


def test_what_was_compiled_is_closed_where_the_rest_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's lane does not fit; or there is no room for pages."""
    device, host = Breaking(0), cpu()

    def too_large(*others: object) -> HostLane:
        raise MemoryError

    with open_model(GOLDEN.model, 128) as model:
        with pytest.raises(DoesNotFit):
            paired(model.spec, model.file, host, device, LIMITS, full)
        assert device.n_open == 0
        monkeypatch.setattr(type(host), "compile_sections", too_large)
        with pytest.raises(MemoryError):
            paired(model.spec, model.file, host, device, LIMITS, lambda _: (4, 24))
        assert device.n_open == 0


def full(products_bytes: int) -> tuple[int, int]:
    raise DoesNotFit(f"{products_bytes} bytes of products leave no room")


class Meeting:
    """The CPU, whose every section lasts until the accelerator has begun a part since, for some seconds at most.

    Since attention was sent away, or, `late`: since it began, so that both are seen to work at the same time.
    """

    batch_invariant = True

    def __init__(self, *, late: bool) -> None:
        self._cpu, self._late = cpu(), late
        self.name = self._cpu.name
        self.changed, self.n_begun, self.n_met = threading.Condition(), 0, 0
        self.at_sending: list[int] = []

    def begun(self) -> None:
        """The accelerator begins a part."""
        with self.changed:
            self.n_begun += 1
            self.changed.notify_all()

    @property
    def capabilities(self) -> DeviceCapabilities:
        return DeviceCapabilities(sections=self)

    def sent(self) -> None:
        """Attention is sent away."""
        with self.changed:
            self.at_sending.append(self.n_begun)

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane:
        return self._cpu.compile(spec, file, limits, progress)

    def compile_sections(
        self,
        spec: ModelSpec,
        exposed: Sequence[frozenset[str]],
        file: GGUFFile,
        limits: Limits,
        progress: Progress = no_progress,
    ) -> HostLane:
        sections, device = self._cpu.capabilities.sections, self
        assert sections is not None
        lane = sections.compile_sections(spec, exposed, file, limits, progress)
        run_section = lane.run_section

        def lingering(number: int) -> None:
            with device.changed:
                before = device.at_sending.pop(0)
                before = device.n_begun if device._late else before
                device.n_met += device.changed.wait_for(lambda: device.n_begun > before, 5)
            run_section(number)

        lane.run_section = lingering  # type: ignore[method-assign]
        return lane

    def close(self) -> None:
        self._cpu.close()


class Announcing(ReferenceDevice):
    """Tells the host's attention that a part has begun."""

    def __init__(self, host: Meeting) -> None:
        super().__init__(activations="int8", kv="f16")
        self.host = host

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> ReferenceFragment:
        lane, host = super().compile_fragment(fragment, file, limits, progress), self.host
        submit = lane.submit

        def announced(step: Step, inputs: Mapping[str, Floats]) -> None:
            host.begun()
            submit(step, inputs)

        lane.submit = announced  # type: ignore[method-assign]
        return lane


@pytest.mark.parametrize("schedule", ["overlap", "asymmetric"])
def test_the_cpu_attends_while_the_accelerator_works(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention ends only after the accelerator went on without it: whoever waited for it would wait too long."""
    host, send = Meeting(late=schedule == "overlap"), HostAttention.send

    def sending(self: HostAttention, job: AttentionJob) -> None:
        host.sent()
        send(self, job)

    monkeypatch.setattr(HostAttention, "send", sending)
    spans: list[DeviceSpan] = []
    with overlapping(GOLDEN, Announcing(host), schedule, host=host) as executor:
        found = {executor.create(EACH): Journey(text, (9, *(1,) * 40)) for text in texts(GOLDEN, 4, 60)}
        assert not executor.is_resident(list(found)[-1])
        for _ in range(5000):
            idle = [sequence for sequence in found if sequence not in executor.in_flight]
            for sequence in idle:
                if found[sequence].is_over:  # from the start again
                    executor.truncate(sequence, 0)
                    found[sequence] = Journey(GOLDEN.tokens, (9, *(1,) * 40))
            for sequence, logits in executor.advance([found[s].next(s) for s in idle]).items():
                found[sequence].arrived(executor, sequence, logits)
            spans += executor.timeline.spans
            attention = [span for span in spans if span.device == "cpu"]
            if len(attention) > 5:
                break
    products = [span for span in spans if span.device != "cpu"]
    assert len(attention) > 5
    assert host.n_met >= len(attention)
    if schedule == "overlap":
        assert all(any(a.began < p.began < a.ended for p in products) for a in attention)


def test_closing_while_attention_runs() -> None:
    for n_passes in range(6):
        with overlapping(GOLDEN, accelerator("reference"), "overlap", n_resident=1) as executor:
            found = [executor.create(EACH) for _ in range(6)]
            executor.advance([chain(sequence, 0, GOLDEN.tokens[:10].tolist()) for sequence in found])
            for _ in range(n_passes):
                executor.advance([])
            executor.close()
            executor.close()
            assert executor.resident_bytes == 0
            assert all(thread.name != "edgeinfer attention" for thread in threading.enumerate())
            with pytest.raises(EngineClosed):
                executor.evaluate(chain(found[0], 0, [1]))
