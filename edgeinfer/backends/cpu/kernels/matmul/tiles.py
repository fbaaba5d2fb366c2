"""The innermost loop of integer products: a few panels of 16 rows times a few tokens, over all columns.

Memory: panels as `panels.IntegerPanel`, activations as `kernels.matmul.activations` lays them out. Per 32 (or 16)
columns the dot is an exact integer; one float chain per row and token runs over the groups in order, whatever the shape
of the tile, so a token's result never depends on its neighbours. The sums stay in registers for all columns.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.matmul.codes import PairReader
from edgeinfer.backends.cpu.kernels.matmul.entries import EIGHTHS
from edgeinfer.backends.cpu.layout import rounded as act
from edgeinfer.backends.cpu.layout.books import BOOKS
from edgeinfer.backends.cpu.layout.panels import IntegerPanel
from edgeinfer.jit import emit
from edgeinfer.jit.targets import target

STEPS = 16
"""Steps of four columns in a pair of blocks."""


class LinesAhead:
    """Prefetches of lines that are read later, a few per step: a burst would fill the buffers that loads wait in."""

    def __init__(self, builder, starts, n_bytes):
        self._builder = builder
        self._lines = [(start, line) for start in starts for line in range(0, n_bytes, 64)]
        self._n_steps, self._n_asked = 0, 0

    def step(self):
        """Prefetch the next few."""
        self._n_steps += 1
        due = -(-len(self._lines) * self._n_steps // STEPS)
        for start, line in self._lines[self._n_asked : due]:
            emit.prefetch(self._builder, start, line, nearness=2)
        self._n_asked = due


class Finished:
    """A dot that is complete."""

    def __init__(self, total):
        self._total = total

    def finish(self, builder):
        """Its sum."""
        return self._total


class PairEmitter:
    """Emit code for one pair of blocks of some panels times a tile of tokens."""

    def __init__(self, builder, panel, isa, readers, activations, n_tokens, apart, lines_ahead):
        self._builder = builder
        self._panel = panel
        self._isa = isa
        self._readers = readers
        self._signed_dot = isa.signed_dot if panel.dot_bits == 8 and panel.offset == 128 else None
        self._activations = activations
        self._n_tokens = n_tokens
        self._apart = apart
        self._lines_ahead = lines_ahead

    def block(self, block, sums):
        """The sums of each panel and token with the block's products added.

        Every four activations are loaded once for all panels.
        """
        builder, panel, tokens = self._builder, self._panel, range(self._n_tokens)
        if panel.book in BOOKS:
            return self._book_block(block, sums)
        dots = [[self._dots(block, token) for token in tokens] for _ in self._readers]
        for parts in zip(*(reader.codes(block) for reader in self._readers), strict=True):
            column = parts[0][0]
            self._lines_ahead.step()
            for token in tokens:
                values = emit.broadcast_bytes(builder, self._activations, self._at(block, token) + column)
                for own, (_, weights) in zip(dots, parts, strict=True):
                    own[token][column // panel.group].step(builder, weights, values)
        results = []
        for number, reader in enumerate(self._readers):
            own = sums[number * self._n_tokens : (number + 1) * self._n_tokens]
            results += self._scaled(block, reader, dots[number], own)
        return results

    def _book_block(self, block, sums):
        """The same for the panel of a code book, eight columns a round of a loop: LLVM would load all entries first.

        Signs turn the activations, so that products have no offset to correct for.
        """
        builder, panel, (reader,) = self._builder, self._panel, self._readers
        tokens, entries, book = range(self._n_tokens), reader.entries(block), BOOKS[panel.book]
        signs, bits = entries.signs(), book.magnitude_bits if book.has_signs else panel.dot_bits
        per_group, dots = EIGHTHS // panel.groups, [[] for _ in tokens]
        for group in range(panel.groups):
            nothing = emit.repeated(emit.I32S, 0)
            starts = [nothing if signs is not None else self._start(self._at(block, token), group) for token in tokens]

            def eight(index, carried, first=group * per_group):
                eighth = builder.add(index, emit.integer(first))
                at, own = builder.mul(eighth, emit.integer(8)), [isa_dot(value) for value in carried[-len(tokens) :]]
                for part, weights in enumerate(entries.eight(eighth)):
                    for token, dot in zip(tokens, own, strict=True):
                        place = builder.add(self._activations, at)
                        values = emit.broadcast_bytes(builder, place, self._at(block, token) + 4 * part)
                        if signs is not None:
                            turned = builder.bitcast(entries.moved(carried[0], part), emit.BYTES)
                            values = self._isa.negated(builder, values, turned)
                        dot.step(builder, weights, values)
                later = [] if signs is None else [entries.moved(carried[0], 2)]
                return [*later, *(dot.finish(builder) for dot in own)]

            def isa_dot(start):
                return self._isa.dot(builder, start, bits)

            carried = starts if signs is None else [entries.moved(signs, 2 * group * per_group), *starts]
            found = emit.loop(builder, emit.hidden(builder, emit.integer(per_group)), carried, eight)[-len(tokens) :]
            for own, total in zip(dots, found, strict=True):
                own.append(Finished(total))
        return self._scaled(block, reader, dots, sums)

    def _at(self, block, token):
        return (block * self._apart + token) * act.RECORD_BYTES

    def _dots(self, block, token):
        """A dot for each group that starts with the correction for the codes' offset."""
        if self._signed_dot is not None:
            return [self._signed_dot(self._builder, emit.repeated(emit.I32S, 0)) for _ in range(self._panel.groups)]
        return [
            self._isa.dot(self._builder, self._start(self._at(block, token), group), self._panel.dot_bits)
            for group in range(self._panel.groups)
        ]

    def _start(self, at, group):
        """-offset * sum of the group's activations; a record holds it for some offsets, all powers of two."""
        builder, panel = self._builder, self._panel
        if panel.offset == 0:
            return emit.repeated(emit.I32S, 0)
        if panel.groups == 2:
            at, held = at + act.HALF_LESS_AT + 4 * group, 1
        else:
            at, held = (at + act.LESS_128_AT, 128) if panel.offset == 128 else (at + act.LESS_8_AT, 8)
        less = emit.splat(builder, emit.load(builder, self._activations, emit.I32, at, 4))
        up = panel.offset.bit_length() - held.bit_length()
        if up == 0:
            return less
        shift = builder.shl if up > 0 else builder.ashr
        return shift(less, emit.repeated(emit.I32S, abs(up)))

    def _scaled(self, block, reader, dots, sums):
        """Sums of one panel + dot * activation scale * weight scale (+ minimum * scaled sum of activations)."""
        builder, panel, results = self._builder, self._panel, list(sums)
        for group in range(panel.groups):
            scale = reader.scale(block, group)
            minimum = reader.minimum(block, group) if panel.has_minimum else None
            for token, own in enumerate(dots):
                at = self._at(block, token)
                factor = emit.broadcast_float(builder, self._activations, at + act.SCALE_AT)
                dot = builder.sitofp(own[group].finish(builder), emit.F32S)
                total = emit.fma(builder, builder.fmul(dot, factor), scale, results[token])
                if minimum is not None:
                    sum_at = act.SUM_AT if panel.groups == 1 else act.HALF_SUMS_AT + 4 * group
                    share = emit.broadcast_float(builder, self._activations, at + sum_at)
                    total = emit.fma(builder, minimum, share, total)
                results[token] = total
        return results


@intrinsic(prefer_literal=True)
def multiply(context, panel_key, isa_name, n_tokens, apart, panels, activations, n_records, ahead, sums):
    """Sums of a tile over all records: float32[n_panels, n_tokens, 16] for a tuple of panel addresses.

    The tokens are part of a tile of `apart`. Lines `ahead` bytes further on are prefetched, unless it is the literal 0.
    """
    panel, isa = IntegerPanel.parse(panel_key.literal_value), target(isa_name.literal_value)
    size, width, n_panels = n_tokens.literal_value, apart.literal_value, len(panels)
    asks = not isinstance(ahead, types.IntegerLiteral)

    def generate(context, builder, signature, values):
        _, _, _, _, panels, activations, n_records, ahead, out = values
        addresses = [builder.extract_value(panels, number) for number in range(n_panels)]
        pair_bytes = -(-panel.record_bytes // panel.record_pairs // 64) * 64

        def sums_of(addresses):
            """The sums of some panels, read side by side."""

            def record(index, sums):
                at = builder.mul(index, emit.integer(panel.record_bytes))
                records = [builder.add(address, at) for address in addresses]

                def pair(number, sums):
                    at = builder.add(ahead, builder.mul(number, emit.integer(pair_bytes)))
                    starts = [builder.add(address, at) for address in records if asks]
                    pairs_before = builder.add(builder.mul(index, emit.integer(panel.record_pairs)), number)
                    at = builder.mul(pairs_before, emit.integer(2 * width * act.RECORD_BYTES))
                    readers = [PairReader(builder, panel, isa, address, number) for address in records]
                    lines_ahead, tokens = LinesAhead(builder, starts, pair_bytes), builder.add(activations, at)
                    emitter = PairEmitter(builder, panel, isa, readers, tokens, size, width, lines_ahead)
                    return emitter.block(1, emitter.block(0, sums))

                if panel.record_pairs == 1:
                    return pair(emit.integer(0), sums)
                return emit.loop(builder, emit.integer(panel.record_pairs), sums, pair)

            return emit.loop(builder, n_records, [emit.repeated(emit.F32S, 0.0)] * (len(addresses) * size), record)

        if panel.book:  # entries of a book fill the registers by themselves
            sums = [total for address in addresses for total in sums_of([address])]
        else:
            sums = sums_of(addresses)
        for place, total in enumerate(sums):
            emit.store(builder, total, out, 64 * place, 64)
        return context.get_dummy_value()

    return types.void(panel_key, isa_name, n_tokens, apart, panels, *[types.intp] * 4), generate
