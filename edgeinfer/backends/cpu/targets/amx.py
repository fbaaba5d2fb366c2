"""AMX: large products by tile registers (`kernels.product_amx`), all else as with AVX-512 VNNI."""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.backends.cpu.features import TILE_FEATURES
from edgeinfer.backends.cpu.targets import avx512vnni

TARGET = replace(avx512vnni.TARGET, name="amx", needs=(*avx512vnni.TARGET.needs, *TILE_FEATURES))
