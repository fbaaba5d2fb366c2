"""The CUDA device under Numba's simulator: every kernel and whole golden models, each in a process of its own."""

from __future__ import annotations

from tests.unit.backends.cuda.simulated import simulate


def test_kernels_compute_what_their_twins_do() -> None:
    simulate("checks_kernels.py", lanes=2)


def test_models_are_those_of_transformers() -> None:
    simulate("checks_models.py", lanes=1)
