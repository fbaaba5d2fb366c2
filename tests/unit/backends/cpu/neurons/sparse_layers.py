"""Feed-forward layers with chosen zeros, run whole by the kernels of dense models and by active neurons alone.

In: formats, sizes, values before the activation. Out: hidden values and outputs of both ways, to be compared.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.panels import FloatPanel, IntegerPanel, panel_for
from edgeinfer.backends.cpu.neurons import catalogue as neuron_catalogue
from edgeinfer.backends.cpu.neurons.kernels.layout import (
    NeuronLayout,
    columns_of,
    neuron_layout,
    rows_of_panels,
    shared_scales,
)
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address, aligned
from edgeinfer.models.quants import FORMATS, BlockFormat
from tests.unit.backends.cpu.kernel_calls import UNTOUCHED, buffer, call, count_of, quantised
from tests.unit.backends.cpu.packing_calls import pack_rows, random_rows

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
ACTIVATION = "relu"


def held(values: NDArray[Any]) -> NDArray[Any]:
    """A copy in memory of its own."""
    copied = aligned(values.shape, values.dtype)
    copied[...] = values
    return copied


def drawn(*shape: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_matrix(key: str, n_rows: int, columns: int, seed: int) -> Bytes:
    """Raw rows of ordinary numbers: any codes, scales of about 0.02."""
    form, random = FORMATS.get(key), np.random.default_rng(seed)
    if not isinstance(form, BlockFormat):
        values = drawn(n_rows, columns, seed=seed)
        exact = {"f32": values, "f16": values.astype(np.float16), "bf16": (values.view(np.uint32) >> 16).astype("u2")}
        return exact[key].view(np.uint8).reshape(n_rows, -1)
    assert form.layout is not None
    raw = random_rows(form, n_rows, columns, seed)
    blocks = raw.reshape(n_rows, -1, form.block_bytes)
    for at in (form.layout.scale, form.layout.minimum):
        if at is not None:
            numbers = (random.standard_normal(blocks.shape[:2]) * 0.02).astype(np.float16)
            blocks[:, :, at : at + 2] = numbers[..., None].view(np.uint8)
    return raw


def gates(n_tokens: int, n_neurons: int, zeros: float, seed: int) -> Floats:
    """Values before the activation, of which about this share are not above zero."""
    random = np.random.default_rng(seed)
    values = np.abs(drawn(n_tokens, n_neurons, seed=seed)) + np.float32(0.01)
    return np.where(random.random(values.shape) < zeros, -values, values).astype(np.float32)


@dataclass(slots=True)
class Layer:
    """A layer: raw up rows (none without a gate) and down rows, on an instruction set."""

    library: KernelLibrary
    isa: str
    up_key: str | None
    down_key: str
    width: int
    n_neurons: int
    up: Bytes | None
    down: Bytes
    layout: NeuronLayout

    @classmethod
    def random(cls, library: KernelLibrary, isa: str, up: str | None, down: str, width: int, n_neurons: int) -> Layer:
        layout = neuron_layout(None if up is None else FORMATS.get(up), FORMATS.get(down), width, n_neurons)
        assert layout is not None
        rows = None if up is None else random_matrix(up, n_neurons, width, 1)
        return cls(*(library, isa, up, down, width, n_neurons, rows), random_matrix(down, width, n_neurons, 2), layout)

    def _product(self, key: str, raw: Bytes, columns: int, source: Floats, out: Floats, **fields: object) -> None:
        """out = source times a whole matrix."""
        form, missing = FORMATS.get(key), -len(raw) % 32
        panel = panel_for(form)
        data = pack_rows(self.library, form, np.pad(raw, ((0, missing), (0, 0))), columns)
        given = {"bias": aligned((32,), np.float32), "bias_stride": 0, "block_tokens": 16, "n_units": len(data) // 2}
        given |= {"weights": data, "out": out, "out_stride": out.strides[0], "count": count_of(len(source))}
        if isinstance(panel, IntegerPanel):
            given |= {"unit_bytes": 2 * data.shape[1], "second": data.shape[1], "n_blocks": -(-columns // 64) * 2}
            given |= {"n_records": panel.n_records(columns), "activations": quantised(self.library, source)}
            call(self.library, catalogue.product(panel, self.isa), 1, **(given | fields))
            return
        assert isinstance(panel, FloatPanel)
        rows = buffer(source)
        given |= {"source": rows, "source_stride": rows.strides[0], "n_rounds": -(-columns // 4)}
        given |= {"panel_bytes": data.shape[1]}
        call(self.library, catalogue.product_float(panel, self.isa), 1, **(given | fields))

    def whole(self, normed: Floats, gate: Floats, up_bias: Floats | None, out: Floats, **fields: object) -> Floats:
        """Hidden values by whole products; `out` (+)= the layer's output."""
        before, hidden = buffer(gate), buffer(np.zeros_like(gate))
        sizes = {"stride": hidden.strides[0], "n_vectors": hidden.shape[1] // 16, "count": count_of(len(gate))}
        if self.up is None or self.up_key is None:
            call(self.library, catalogue.ACT[ACTIVATION], 1, source=before, other=before, out=hidden, **sizes)
        else:
            up = buffer(np.zeros_like(gate))
            own = {} if up_bias is None else {"bias": buffer(up_bias[None])[0], "bias_stride": 128}
            self._product(self.up_key, self.up, self.width, normed, up, **own)
            sizes["other_stride"] = up.strides[0]
            call(self.library, catalogue.GATED[ACTIVATION], 1, source=before, other=up, out=hidden, **sizes)
        self.down_product(hidden, out, **fields)
        return hidden

    def down_product(self, hidden: Floats, out: Floats, **fields: object) -> None:
        """out (+)= the whole down product of hidden values."""
        self._product(self.down_key, self.down, self.n_neurons, hidden[:, : self.n_neurons], out, **fields)

    def fused(self, gate_rows: Bytes, normed: Floats) -> Floats:
        """Hidden values by the product of a gate and an up matrix at once."""
        assert self.up_key is not None
        assert self.up is not None
        form, hidden = FORMATS.get(self.up_key), aligned((len(normed), self.n_neurons), np.float32)
        both = pack_rows(self.library, form, np.concatenate([gate_rows, self.up]), self.width)
        fields = {"unit_bytes": both.shape[1], "second": both.shape[1] * (len(both) // 2), "n_units": len(both) // 2}
        fields |= {"curve": records.CURVES[ACTIVATION]}
        self._product(self.up_key, self.up, self.width, normed, hidden, **{"weights": both} | fields)
        return hidden

    def gate_product(self, gate_rows: Bytes, normed: Floats) -> Floats:
        """The product of the gate matrix alone."""
        assert self.up_key is not None
        gate: Floats = aligned((len(normed), self.n_neurons), np.float32)
        self._product(self.up_key, gate_rows, self.width, normed, gate)
        return gate

    def activated(self, gate: Floats, workers: int) -> tuple[Floats, NDArray[np.int32]]:
        """Activated values and the neurons that are active."""
        source, values = buffer(gate), buffer(np.zeros_like(gate))
        sizes = {"stride": values.strides[0], "n_vectors": values.shape[1] // 16, "count": count_of(len(gate))}
        call(self.library, catalogue.ACT[ACTIVATION], workers, source=source, other=source, out=values, **sizes)
        return values, self.listed(values, workers)

    def listed(self, values: Floats, workers: int) -> NDArray[np.int32]:
        """Neurons with a value that is not zero."""
        sizes = {"stride": values.strides[0], "n_vectors": values.shape[1] // 16, "count": count_of(len(values))}
        neurons, number = held(np.full(values.shape[1], -1, np.int32)), held(np.full(1, -1, np.int64))
        marks = held(np.full(values.shape[1] // 32, 0x55, np.uint32))
        given = {"source": values, "marks": marks, "neurons": neurons, "n_active": number, **sizes}
        for kernel in (neuron_catalogue.MARK_ACTIVE, neuron_catalogue.LIST_ACTIVE):
            call(self.library, kernel, workers, **given)
        assert (neurons[number[0] :] == -1).all()
        return neurons[: number[0]].copy()

    def sparse(
        self,
        normed: Floats,
        gate: Floats,
        up_bias: Floats | None,
        out: Floats,
        workers: int,
        cuts: list[int],
        tiled: int = 0,
        **fields: int,
    ) -> Floats:
        """The same by active neurons, some blocks of 32 at a time, which `cuts` divide."""
        values, active = self.activated(gate, workers)
        hidden = buffer(np.full_like(gate, UNTOUCHED))
        held_records = self._records()
        n_blocks = self.layout.n_blocks
        width = -(-self.width // 32) * 32
        joined = aligned((len(gate), (1 if self.layout.down.has_scales else 2) * width), np.float32)
        joined[:] = UNTOUCHED
        bounds = [0, *(cut for cut in cuts if cut < n_blocks), n_blocks]
        for first, stop in itertools.pairwise(bounds):
            chosen = held(active[(active >= 32 * first) & (active < 32 * stop)])
            begin, end = 32 * first, min(32 * stop, hidden.shape[1])
            if self.layout.up is None:
                hidden[:, begin:end] = values[:, begin:end]
            else:
                self._chosen(normed, values, hidden, held_records, chosen, up_bias, workers, tiled, (begin, end))
            part = np.zeros((len(gate), 32 * (stop - first)), np.float32)
            part[:, : end - begin] = hidden[:, begin:end]
            given = {"is_first": int(first == 0), "is_last": int(stop == n_blocks), **fields}
            self._columns(part, joined, held_records, chosen, first, out, workers, tiled, given)
        return hidden

    def _records(self) -> Bytes:
        """All neurons of the layer."""
        columns = columns_of(FORMATS.get(self.down_key), self.down, 0, self.n_neurons)
        rows = None
        if self.up is not None and self.up_key is not None and self.layout.up is not None:
            raw = np.pad(self.up, ((0, -len(self.up) % 16), (0, 0)))
            data = pack_rows(self.library, FORMATS.get(self.up_key), raw, self.width)
            rows = rows_of_panels(self.layout.up, data)[: self.n_neurons]
        found: Bytes = aligned((self.n_neurons, self.layout.record_bytes), np.uint8)
        found[:] = self.layout.records(rows, columns)
        return found

    def _chosen(
        self,
        normed: Floats,
        values: Floats,
        hidden: Floats,
        records: Bytes,
        chosen: NDArray[np.int32],
        bias: Floats | None,
        workers: int,
        tiled: int,
        columns: tuple[int, int],
    ) -> None:
        panel = self.layout.up
        assert panel is not None
        panel_bytes = panel.panel_bytes(self.width)
        scratch = aligned((workers, -(-panel_bytes // 64) * 64), np.uint8)
        nobody = held(np.zeros(self.layout.row_bytes, np.uint8))
        rows = held(np.full(-(-len(chosen) // 16) * 16, address(nobody)))
        rows[: len(chosen)] = address(records) + chosen.astype(np.int64) * records.shape[1]
        call(
            self.library,
            neuron_catalogue.chosen_product(panel, self.isa),
            workers,
            rows=rows,
            neurons=chosen,
            n_chosen=count_of(len(chosen)),
            begin=columns[0],
            end=columns[1],
            n_records=panel.n_records(self.width),
            scratch=scratch,
            scratch_stride=scratch.strides[0],
            n_blocks=-(-self.width // 64) * 2,
            activations=quantised(self.library, normed, tiled=tiled),
            tiled=tiled,
            activated=values,
            activated_stride=values.strides[0],
            out=hidden,
            out_stride=hidden.strides[0],
            count=count_of(len(normed)),
            **({} if bias is None else {"bias": held(bias)}),
        )

    def _columns(
        self,
        part: Floats,
        joined: Floats,
        records: Bytes,
        chosen: NDArray[np.int32],
        first: int,
        out: Floats,
        workers: int,
        tiled: int,
        fields: dict[str, int],
    ) -> None:
        form, n_blocks = FORMATS.get(self.down_key), part.shape[1] // 32
        addresses = held(address(records) + chosen.astype(np.int64) * records.shape[1] + self.layout.column_at)
        given: dict[str, object] = {}
        if isinstance(form, BlockFormat):
            shared, minima = shared_scales(form, self.down, self.layout.n_blocks)
            given |= {"scales": held(shared), "scales_stride": shared.strides[0]}
            given |= {} if minima is None else {"minima": held(minima)}
            given |= {"activations": rounded_blocks(self.library, part, tiled), "tiled": tiled}
        else:
            moved = buffer(part)  # as if it were the columns from `first` on of whole rows
            given |= {"activations": address(moved) - 128 * first, "activations_stride": moved.strides[0]}
        call(
            self.library,
            neuron_catalogue.column_product(self.layout.down, self.isa),
            workers,
            columns=addresses,
            neurons=chosen,
            n_chosen=count_of(len(chosen)),
            first_block=first,
            n_blocks=n_blocks,
            n_units=-(-self.width // 32),
            sums=joined,
            sums_stride=joined.strides[0],
            out=out,
            out_stride=out.strides[0],
            count=count_of(len(part)),
            **({"bias": aligned((32,), np.float32), "bias_stride": 0} | given | fields),  # type: ignore[arg-type]
        )


def rounded_blocks(library: KernelLibrary, part: Floats, tiled: int) -> Bytes:
    """The int8 records of some blocks of rows, without padding."""
    n_blocks, source = part.shape[1] // 32, buffer(part)
    found: Bytes = aligned((len(part) * n_blocks * 64,), np.uint8)
    sizes = {"n_blocks": n_blocks, "n_padded": n_blocks, "count": count_of(len(part)), "tiled": tiled}
    call(library, catalogue.ROUND_ROWS, 1, source=source, source_stride=source.strides[0], out=found, **sizes)
    return found
