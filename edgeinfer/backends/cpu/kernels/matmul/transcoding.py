"""Panels whose codes are dear to read, written out as panels of bytes: worth it where many tokens are multiplied.

Memory: a panel of `n_records` records, and room for as many columns of `panels.plain_panel`. The values, and so all
products, keep their bits. The NumPy twin is the codes of `models.quants`.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.matmul.codes import VECTOR, PairReader
from edgeinfer.backends.cpu.kernels.matmul.entries import EIGHTHS
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS, IntegerPanel, plain_panel
from edgeinfer.jit import emit
from edgeinfer.jit.targets import target

SCALE_BYTES = 4 * PANEL_ROWS


@intrinsic(prefer_literal=True)
def transcode(context, panel_key, isa_name, panel_address, n_records, to):
    """Write a panel's values to `to` as a plain panel."""
    panel, isa = IntegerPanel.parse(panel_key.literal_value), target(isa_name.literal_value)
    plain, n_pairs = plain_panel(panel), panel.record_pairs
    up = emit.byte_table([plain.offset - panel.offset], VECTOR)

    def codes_at(block):
        return plain.codes_at + block * plain.code_bytes

    def write_codes(builder, entries, to):
        """A block's codes, eight columns at a time."""

        def eight(index, carried):
            place = builder.add(to, builder.mul(index, emit.integer(8 * PANEL_ROWS)))
            for part, weights in enumerate(entries.eight(index)):
                codes = entries.signed(weights, entries.moved(carried[0], part)) if carried else weights
                emit.store(builder, builder.add(codes, up), place, part * VECTOR, 64)
            return [entries.moved(signs, 2) for signs in carried]

        signs = entries.signs()
        emit.loop(builder, emit.hidden(builder, emit.integer(EIGHTHS)), [] if signs is None else [signs], eight)

    def generate(context, builder, signature, values):
        _, _, address, n_records, to = values

        def pair(index, nothing):
            record, number = builder.sdiv(index, emit.integer(n_pairs)), builder.srem(index, emit.integer(n_pairs))
            at = builder.add(address, builder.mul(record, emit.integer(panel.record_bytes)))
            reader = PairReader(builder, panel, isa, at, number)
            out = builder.add(to, builder.mul(index, emit.integer(plain.record_bytes)))
            for block in range(2):
                for group in range(panel.groups):
                    scale_at = (block * panel.groups + group) * SCALE_BYTES
                    emit.store(builder, reader.scale(block, group), out, scale_at, 64)
                write_codes(builder, reader.entries(block), builder.add(out, emit.integer(codes_at(block))))
            return []

        emit.loop(builder, builder.mul(n_records, emit.integer(n_pairs)), [], pair)
        return context.get_dummy_value()

    return types.void(panel_key, isa_name, *[types.intp] * 3), generate
