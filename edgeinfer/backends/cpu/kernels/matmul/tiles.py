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


class OneTile:
    """Where records lie: those of a tile's tokens side by side, `apart` tokens to a block."""

    def __init__(self, builder, activations, apart):
        self._builder = builder
        self._activations = activations
        self._apart = apart

    def after(self, n_blocks):
        """The places that many blocks further on."""
        at = self._builder.mul(n_blocks, emit.integer(self._apart * act.RECORD_BYTES))
        return OneTile(self._builder, self._builder.add(self._activations, at), self._apart)

    def record(self, block, token):
        """(address, offset) of a token's record of a block."""
        return self._activations, (block * self._apart + token) * act.RECORD_BYTES


class TwoTiles:
    """Where records lie: four tokens of one tile, then `n_rest`, one to three, of another; its last one fills it up."""

    def __init__(self, builder, first, rest, n_rest):
        self._builder = builder
        self._first = first
        self._rest = rest
        self._n_rest = n_rest

    def after(self, n_blocks):
        """The places that many blocks further on."""
        add, mul, record = self._builder.add, self._builder.mul, emit.integer(act.RECORD_BYTES)
        first = add(self._first, mul(n_blocks, emit.integer(4 * act.RECORD_BYTES)))
        rest = add(self._rest, mul(n_blocks, mul(self._n_rest, record)))
        return TwoTiles(self._builder, first, rest, self._n_rest)

    def record(self, block, token):
        """(address, offset) of a token's record of a block."""
        if token < 4:
            return self._first, (block * 4 + token) * act.RECORD_BYTES
        builder, place = self._builder, emit.integer(token - 4)
        last = builder.sub(self._n_rest, emit.integer(1))
        place = builder.select(builder.icmp_signed("<", place, last), place, last)
        place = builder.add(place, builder.mul(self._n_rest, emit.integer(block)))
        return builder.add(self._rest, builder.mul(place, emit.integer(act.RECORD_BYTES))), 0


class PairEmitter:
    """Emit code for one pair of blocks of some panels times a tile of tokens."""

    def __init__(self, builder, panel, isa, readers, places, n_tokens, lines_ahead):
        self._builder = builder
        self._panel = panel
        self._isa = isa
        self._readers = readers
        self._signed_dot = isa.signed_dot if panel.dot_bits == 8 and panel.offset == 128 else None
        self._places = places
        self._n_tokens = n_tokens
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
                address, at = self._places.record(block, token)
                values = emit.broadcast_bytes(builder, address, at + column)
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
            starts = [nothing if signs is not None else self._start(block, token, group) for token in tokens]

            def eight(index, carried, first=group * per_group):
                eighth = builder.add(index, emit.integer(first))
                at, own = builder.mul(eighth, emit.integer(8)), [isa_dot(value) for value in carried[-len(tokens) :]]
                for part, weights in enumerate(entries.eight(eighth)):
                    for token, dot in zip(tokens, own, strict=True):
                        address, offset = self._places.record(block, token)
                        values = emit.broadcast_bytes(builder, builder.add(address, at), offset + 4 * part)
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

    def _dots(self, block, token):
        """A dot for each group that starts with the correction for the codes' offset."""
        if self._signed_dot is not None:
            return [self._signed_dot(self._builder, emit.repeated(emit.I32S, 0)) for _ in range(self._panel.groups)]
        return [
            self._isa.dot(self._builder, self._start(block, token, group), self._panel.dot_bits)
            for group in range(self._panel.groups)
        ]

    def _start(self, block, token, group):
        """-offset * sum of the group's activations; a record holds it for some offsets, all powers of two."""
        builder, panel = self._builder, self._panel
        address, at = self._places.record(block, token)
        if panel.offset == 0:
            return emit.repeated(emit.I32S, 0)
        if panel.groups == 2:
            at, held = at + act.HALF_LESS_AT + 4 * group, 1
        else:
            at, held = (at + act.LESS_128_AT, 128) if panel.offset == 128 else (at + act.LESS_8_AT, 8)
        less = emit.splat(builder, emit.load(builder, address, emit.I32, at, 4))
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
                address, at = self._places.record(block, token)
                factor = emit.broadcast_float(builder, address, at + act.SCALE_AT)
                dot = builder.sitofp(own[group].finish(builder), emit.F32S)
                total = emit.fma(builder, builder.fmul(dot, factor), scale, results[token])
                if minimum is not None:
                    sum_at = act.SUM_AT if panel.groups == 1 else act.HALF_SUMS_AT + 4 * group
                    share = emit.broadcast_float(builder, address, at + sum_at)
                    total = emit.fma(builder, minimum, share, total)
                results[token] = total
        return results


@intrinsic(prefer_literal=True)
def multiply(context, panel_key, isa_name, n_tokens, apart, panels, activations, n_records, ahead, sums):
    """Sums of a tile over all records: float32[n_panels, n_tokens, 16] for a tuple of panel addresses.

    The tokens are part of a tile of `apart`. Lines `ahead` bytes further on are prefetched, unless it is the literal 0.
    """
    size, width = n_tokens.literal_value, apart.literal_value
    add_up = sums_of_panels(panel_key.literal_value, isa_name.literal_value, len(panels), size, ahead)

    def generate(context, builder, signature, values):
        _, _, _, _, panels, activations, n_records, ahead, out = values
        add_up(builder, panels, OneTile(builder, activations, width), n_records, ahead, out)
        return context.get_dummy_value()

    return types.void(panel_key, isa_name, n_tokens, apart, panels, *[types.intp] * 4), generate


@intrinsic(prefer_literal=True)
def multiply_two_tiles(context, panel_key, isa_name, panels, first, rest, n_rest, n_records, ahead, sums):
    """Sums of a tile of four tokens and one of `n_rest`, one to three, as `multiply` of eight tokens writes them.

    Eight tokens side by side take less time than four and then two. The sums of tokens that are not there are the last
    one's.
    """
    add_up = sums_of_panels(panel_key.literal_value, isa_name.literal_value, len(panels), 8, ahead)

    def generate(context, builder, signature, values):
        _, _, panels, first, rest, n_rest, n_records, ahead, out = values
        add_up(builder, panels, TwoTiles(builder, first, rest, n_rest), n_records, ahead, out)
        return context.get_dummy_value()

    return types.void(panel_key, isa_name, panels, *[types.intp] * 6), generate


def sums_of_panels(panel_key, isa_name, n_panels, n_tokens, ahead):
    """The emitter of all records' sums: (builder, panels, places, n_records, ahead, out) -> None."""
    panel, isa = IntegerPanel.parse(panel_key), target(isa_name)
    asks = not isinstance(ahead, types.IntegerLiteral)
    pair_bytes = -(-panel.record_bytes // panel.record_pairs // 64) * 64

    def add_up(builder, panels, places, n_records, ahead, out):
        addresses = [builder.extract_value(panels, number) for number in range(n_panels)]

        def sums_of(addresses):
            """The sums of some panels, read side by side."""

            def record(index, sums):
                at = builder.mul(index, emit.integer(panel.record_bytes))
                records = [builder.add(address, at) for address in addresses]

                def pair(number, sums):
                    at = builder.add(ahead, builder.mul(number, emit.integer(pair_bytes)))
                    starts = [builder.add(address, at) for address in records if asks]
                    pairs_before = builder.add(builder.mul(index, emit.integer(panel.record_pairs)), number)
                    readers = [PairReader(builder, panel, isa, address, number) for address in records]
                    here = places.after(builder.mul(pairs_before, emit.integer(2)))
                    lines_ahead = LinesAhead(builder, starts, pair_bytes)
                    emitter = PairEmitter(builder, panel, isa, readers, here, n_tokens, lines_ahead)
                    return emitter.block(1, emitter.block(0, sums))

                if panel.record_pairs == 1:
                    return pair(emit.integer(0), sums)
                return emit.loop(builder, emit.integer(panel.record_pairs), sums, pair)

            return emit.loop(builder, n_records, [emit.repeated(emit.F32S, 0.0)] * (len(addresses) * n_tokens), record)

        if panel.book:  # entries of a book fill the registers by themselves
            sums = [total for address in addresses for total in sums_of([address])]
        else:
            sums = sums_of(addresses)
        for place, total in enumerate(sums):
            emit.store(builder, total, out, 64 * place, 64)

    return add_up
