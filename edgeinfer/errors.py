"""The error tree.

Every failure that a caller can act on is an `EdgeInferError`; its message says where, what, and what would work.
Faces turn it into one line and exit code 1. Knows nothing of the rest of the package.
"""

from __future__ import annotations


class EdgeInferError(Exception):
    """Base of every error edgeinfer raises on purpose; the message is meant for the user."""


class BadGGUF(EdgeInferError):
    """A GGUF file that is truncated, malformed or hostile."""


class UnsupportedModel(EdgeInferError):
    """A well-formed model that uses an architecture, quant format or tokenizer edgeinfer does not have."""


class ModelNotFound(EdgeInferError):
    """A model name or path that leads nowhere."""


class BadBundle(EdgeInferError):
    """A bundle file that is half-written, damaged, of another version or of another model."""


class PackFailed(EdgeInferError):
    """Packing that could not finish: full disk, a folder that cannot be written, another process at the same file."""


class DownloadFailed(EdgeInferError):
    """A pull that could not finish: no network, wrong checksum, full disk, another pull in progress."""


class DoesNotFit(EdgeInferError):
    """A model or context larger than the memory it may use; the message carries the numbers."""


class ContextOverflow(EdgeInferError):
    """A prompt longer than the context."""


class BadTemplate(EdgeInferError):
    """A chat template that cannot be rendered within its limits."""


class BadSetting(EdgeInferError):
    """A setting or option with an unknown name or an impossible value."""


class BadFlag(BadSetting):
    """A value of an option on the command line that it cannot have."""


class UnknownKey(EdgeInferError):
    """A registry key that no module provides."""


class DeviceUnavailable(EdgeInferError):
    """A device that this machine does not have or that its packages are missing for."""


class DeviceFailed(EdgeInferError):
    """A device that broke down, ran out of memory or did not answer while it ran a model."""


class EngineClosed(EdgeInferError):
    """A call on a model or session after `close()`."""


class SessionsFailed(EdgeInferError):
    """Kept chats that cannot be read or written: a damaged or locked database, a full disk, a file that is none."""


class SessionsUnwritable(SessionsFailed):
    """Kept chats in a place that takes no writing just now: a read-only folder, a full disk."""
