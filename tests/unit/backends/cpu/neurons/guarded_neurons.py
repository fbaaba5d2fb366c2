"""Runs the kernels of active neurons on buffers between forbidden pages; see `guarded`."""

from __future__ import annotations

from edgeinfer.backends.cpu.catalogue import kernel_library
from tests.unit.backends.cpu import kernel_calls
from tests.unit.backends.cpu.guarded import guards
from tests.unit.backends.cpu.neurons import sparse_layers, test_cpu_sparse


def sparse() -> None:
    """Layers by active neurons alone: every form of columns, none and all active."""
    library = kernel_library()
    for up, down, width, n_neurons in test_cpu_sparse.LAYERS:
        for zeros in (0.0, 0.9, 1.0):
            layer = sparse_layers.Layer.random(library, kernel_calls.RUNNABLE[0], up, down, width, n_neurons)
            for n_tokens in (1, 7):
                test_cpu_sparse.check(layer, n_tokens, zeros, has_bias=True)


if __name__ == "__main__":
    for at_end in (True, False):
        with guards(at_end, (sparse_layers,)):
            sparse()
