"""Reports that dependencies would send home are switched off before any of those packages is imported.

Out: environment variables, which children inherit, and modules that cannot be imported. Which package needs what stands
in docs/PRIVACY.md; that nothing else reports is tested by tracing system calls (tests/privacy). Imports nothing.
"""

from __future__ import annotations

import os
import sys
from typing import cast

VARIABLES = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime: no events, no uploads, no identifier on disk
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub
    "DO_NOT_TRACK": "1",  # a convention that several packages follow, huggingface_hub among them
}
REPORTING_MODULES = ("openvino_telemetry",)
"""Packages that do nothing but report: openvino goes on without its one, and has no other switch."""


def refuse_telemetry() -> None:
    """Switch reports off for this process and its children; call it before importing a package that has any.

    What is set stays set: a program that embeds edgeinfer sends no reports of these packages either. A package that the
    program itself imported earlier is left as it is.
    """
    os.environ.update(VARIABLES)
    modules = cast("dict[str, object]", sys.modules)
    for name in REPORTING_MODULES:
        modules.setdefault(name, None)  # None: importing it raises ImportError (Python's reference, 5.3.1)
