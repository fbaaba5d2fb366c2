"""Whether keys and values of a kind of pages have 4 bits: constants where kernels use them, so one branch is compiled.

In: a kind of pages as a literal. Out: truth values. A kernel of float16 pages has None in its place and asks nothing.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.meanings import FORMS


def forms_of(kind):
    """The forms of keys and of values, for the type of a literal."""
    found = FORMS[kind.literal_value]
    assert found is not None
    return found


@intrinsic(prefer_literal=True)
def has_small_keys(context, kind):
    """Whether keys have 4 bits."""
    found = forms_of(kind)[0] == "q4"

    def generate(context, builder, signature, values):
        return context.get_constant(types.boolean, found)

    return types.boolean(kind), generate


@intrinsic(prefer_literal=True)
def has_small_values(context, kind):
    """Whether values have 4 bits."""
    found = forms_of(kind)[1] == "q4"

    def generate(context, builder, signature, values):
        return context.get_constant(types.boolean, found)

    return types.boolean(kind), generate
