"""Kernels of active neurons, compiled for a 64-bit ARM processor."""

from __future__ import annotations

from pathlib import Path

from tests.unit.backends.cpu.arm_machine import compile_for_arm


def test_kernels_of_active_neurons_compile_for_arm(tmp_path: Path) -> None:
    names = [
        "columns-u4-neon",
        "columns-i8-min-neon",
        "columns-f16",
        "chosen-i4-32-f16-neon",
        "mark_active",
        "list_active",
    ]
    compile_for_arm(names, tmp_path, "tests.unit.backends.cpu.neurons.arm_neurons")
    texts = {name: (tmp_path / f"{name}.s").read_text() for name in names}
    assert texts["columns-u4-neon"].count("\tmla\t") > 50
    assert texts["columns-i8-min-neon"].count("\tsmull\t") > 50
    assert "\tfmla\t" in texts["columns-f16"]
    assert texts["chosen-i4-32-f16-neon"].count("\tsdot\t") > 100
