"""AVX-512 VNNI with gathering loads: processors that have AVX512-FP16 too (Sapphire Rapids and later) gather fast.

Earlier ones with AVX-512 load as fast one by one, and those that mitigate Downfall (CVE-2022-40982) far faster.
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.jit.targets import avx512vnni

TARGET = replace(avx512vnni.TARGET, name="avx512fp16", gather=avx512vnni.gather)
