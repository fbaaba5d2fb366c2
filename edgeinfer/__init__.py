"""edgeinfer: language models on the computer you already have.

Public names are resolved on first use: importing edgeinfer loads neither numpy, numba nor textual.

    import edgeinfer

    with edgeinfer.load("SmolLM2-135M-Instruct.Q4_1.gguf") as llm:
        for piece in llm.chat([{"role": "user", "content": "Hi"}]):
            print(piece, end="", flush=True)
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers treat this as true; importing typing takes too long
if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM as LLM
    from edgeinfer.engine.loading import load as load
    from edgeinfer.engine.model_info import ModelInfo as ModelInfo
    from edgeinfer.engine.requests.module_prompts import Module as Module
    from edgeinfer.engine.requests.prompt_rows import PromptRows as PromptRows
    from edgeinfer.engine.requests.sampling import SamplingSettings as SamplingSettings
    from edgeinfer.engine.scheduler.batcher import BatchAnswer as BatchAnswer
    from edgeinfer.engine.scheduler.batcher import BatchStream as BatchStream
    from edgeinfer.engine.scheduler.batcher import Prompt as Prompt
    from edgeinfer.engine.scheduler.stats import DraftSpan as DraftSpan
    from edgeinfer.engine.scheduler.stats import QueueStats as QueueStats
    from edgeinfer.engine.scheduler.stats import RequestProgress as RequestProgress
    from edgeinfer.engine.scheduler.stats import Stats as Stats
    from edgeinfer.engine.scheduler.stream import TextStream as TextStream
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs as TokenLogprobs
    from edgeinfer.engine.scoring import Score as Score
    from edgeinfer.engine.session import Session as Session
    from edgeinfer.errors import BadBundle as BadBundle
    from edgeinfer.errors import BadFlag as BadFlag
    from edgeinfer.errors import BadGGUF as BadGGUF
    from edgeinfer.errors import BadImage as BadImage
    from edgeinfer.errors import BadSetting as BadSetting
    from edgeinfer.errors import BadSound as BadSound
    from edgeinfer.errors import BadTemplate as BadTemplate
    from edgeinfer.errors import ContextOverflow as ContextOverflow
    from edgeinfer.errors import DeviceFailed as DeviceFailed
    from edgeinfer.errors import DeviceUnavailable as DeviceUnavailable
    from edgeinfer.errors import DoesNotFit as DoesNotFit
    from edgeinfer.errors import DownloadFailed as DownloadFailed
    from edgeinfer.errors import EdgeInferError as EdgeInferError
    from edgeinfer.errors import EngineClosed as EngineClosed
    from edgeinfer.errors import ModelNotFound as ModelNotFound
    from edgeinfer.errors import NotFinite as NotFinite
    from edgeinfer.errors import OtherKindOfModel as OtherKindOfModel
    from edgeinfer.errors import PackFailed as PackFailed
    from edgeinfer.errors import SessionsFailed as SessionsFailed
    from edgeinfer.errors import SessionsUnwritable as SessionsUnwritable
    from edgeinfer.errors import UnknownKey as UnknownKey
    from edgeinfer.errors import UnsupportedModel as UnsupportedModel
    from edgeinfer.models.images.image import Image as Image
    from edgeinfer.models.sounds.sound import Sound as Sound
    from edgeinfer.models.text import Message as Message
    from edgeinfer.models.text.tools import ToolCall as ToolCall

__version__ = "0.2.0"

__all__ = [
    "LLM",
    "BadBundle",
    "BadFlag",
    "BadGGUF",
    "BadImage",
    "BadSetting",
    "BadSound",
    "BadTemplate",
    "BatchAnswer",
    "BatchStream",
    "ContextOverflow",
    "DeviceFailed",
    "DeviceUnavailable",
    "DoesNotFit",
    "DownloadFailed",
    "DraftSpan",
    "EdgeInferError",
    "EngineClosed",
    "Image",
    "Message",
    "ModelInfo",
    "ModelNotFound",
    "Module",
    "NotFinite",
    "OtherKindOfModel",
    "PackFailed",
    "Prompt",
    "PromptRows",
    "QueueStats",
    "RequestProgress",
    "SamplingSettings",
    "Score",
    "Session",
    "SessionsFailed",
    "SessionsUnwritable",
    "Sound",
    "Stats",
    "TextStream",
    "TokenLogprobs",
    "ToolCall",
    "UnknownKey",
    "UnsupportedModel",
    "__version__",
    "load",
]

_FORMER = {"Facts": "ModelInfo", "Live": "RequestProgress", "Load": "QueueStats", "Mark": "DraftSpan"}
"""Names from version 0.1, to be removed in 0.4."""


def _home(name: str) -> str:
    """Return the module that defines a public name."""
    homes = {
        "BatchAnswer": "engine.scheduler.batcher",
        "BatchStream": "engine.scheduler.batcher",
        "LLM": "engine.llm",
        "ModelInfo": "engine.model_info",
        "RequestProgress": "engine.scheduler.stats",
        "QueueStats": "engine.scheduler.stats",
        "DraftSpan": "engine.scheduler.stats",
        "Image": "models.images.image",
        "Message": "models.text",
        "Module": "engine.requests.module_prompts",
        "Prompt": "engine.scheduler.batcher",
        "PromptRows": "engine.requests.prompt_rows",
        "SamplingSettings": "engine.requests.sampling",
        "Score": "engine.scoring",
        "Session": "engine.session",
        "Sound": "models.sounds.sound",
        "Stats": "engine.scheduler.stats",
        "TextStream": "engine.scheduler.stream",
        "TokenLogprobs": "engine.scheduler.token_choice",
        "ToolCall": "models.text.tools",
        "load": "engine.loading",
    }
    return f"edgeinfer.{homes.get(name, 'errors')}"


def __getattr__(name: str) -> object:
    if name in _FORMER:
        import warnings

        said = f"edgeinfer.{name} is called {_FORMER[name]} now; the former name works until version 0.4"
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        name = _FORMER[name]
    if name not in __all__:
        from edgeinfer.foreign_names import OF_PACKAGE

        told = f"; {OF_PACKAGE[name]}" if name in OF_PACKAGE else ""
        raise AttributeError(f"module 'edgeinfer' has no attribute {name!r}{told}")
    import importlib

    found: object = getattr(importlib.import_module(_home(name)), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
