"""Switches off telemetry in dependencies before any of those packages is imported.

Out: environment variables, which child processes inherit, and modules blocked from import. docs/PRIVACY.md lists what
each package needs; tests/privacy traces system calls to check that nothing else reports. Imports nothing.
"""

from __future__ import annotations

import os
import sys
from typing import cast

VARIABLES = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime: no events, no uploads, no identifier on disk
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub
    "DO_NOT_TRACK": "1",  # a convention that several packages follow, including huggingface_hub
}
REPORTING_MODULES = ("openvino_telemetry",)
"""Packages that only report telemetry. openvino works without its own and has no other switch."""


def refuse_telemetry() -> None:
    """Switch telemetry off for this process and its children. Call it before importing a package that has any.

    The settings are permanent: a program that embeds edgeinfer sends no telemetry from these packages either. Packages
    that the program has already imported are left as they are.
    """
    os.environ.update(VARIABLES)
    modules = cast("dict[str, object]", sys.modules)
    for name in REPORTING_MODULES:
        modules.setdefault(name, None)  # None: importing it raises ImportError (Python's reference, 5.3.1)
