"""The exception hierarchy.

Every failure that a caller can act on is an `EdgeInferError`; its message says where, what, and what would work. User
interfaces print it as one line and exit with code 1. Knows nothing of the rest of the package.
"""

from __future__ import annotations


class EdgeInferError(Exception):
    """Base class of every error that edgeinfer raises on purpose. The message is meant for the user."""


class BadGGUF(EdgeInferError):
    """A GGUF file that is truncated, malformed or hostile."""


class UnsupportedModel(EdgeInferError):
    """A well-formed model whose architecture, quant format or tokenizer edgeinfer does not support."""


class OtherKindOfModel(UnsupportedModel):
    """A file for something else than writing a text token by token, which no other program does here either."""


class ModelNotFound(EdgeInferError):
    """A model name or path that does not exist."""


class BadBundle(EdgeInferError):
    """A bundle file that is incomplete, damaged, of another version or of another model."""


class PackFailed(EdgeInferError):
    """Packing failed: disk full, folder not writable, or another process working on the same file."""


class DownloadFailed(EdgeInferError):
    """A pull failed: no network, wrong checksum, disk full, or another pull in progress."""


class DoesNotFit(EdgeInferError):
    """A model or context that needs more memory than it may use. The message carries the numbers."""


class ContextOverflow(EdgeInferError):
    """A prompt longer than the context. `n_prompt`, `n_context`: the numbers of tokens, where both are known."""

    def __init__(self, message: str, n_prompt: int | None = None, n_context: int | None = None) -> None:
        super().__init__(message)
        self.n_prompt: int | None = n_prompt
        self.n_context: int | None = n_context


class BadTemplate(EdgeInferError):
    """A chat template that cannot be rendered within its limits."""


class BadSetting(EdgeInferError):
    """A setting or option with an unknown name or an invalid value."""


class BadImage(EdgeInferError):
    """What is no image, is damaged, or has too many bytes or pixels."""


class BadSound(EdgeInferError):
    """What is no sound, is damaged, or has too many bytes or seconds or too few."""


class BadFlag(BadSetting):
    """A command-line option with an invalid value."""


class UnknownKey(EdgeInferError):
    """A registry key that no module provides."""


class DeviceUnavailable(EdgeInferError):
    """A device that this machine lacks, or whose packages are not installed."""


class DeviceFailed(EdgeInferError):
    """A device that failed, ran out of memory or did not respond while running a model."""


class NotFinite(EdgeInferError):
    """A model computed something that is no finite number: its file is damaged, it overflows, or a device fails."""


class EngineClosed(EdgeInferError):
    """A call on a model or session after `close()`."""


class SessionsFailed(EdgeInferError):
    """Saved chats cannot be read or written: damaged or locked database, full disk, or not a database."""


class SessionsUnwritable(SessionsFailed):
    """Saved chats cannot be written at the moment: read-only folder or full disk."""
