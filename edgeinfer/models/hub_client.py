"""The Hugging Face hub client: its package, token and progress, with its errors translated to ours.

In: names of repositories, addresses. Out: the imported package, `Remote`s, edgeinfer's own errors. The client is an
optional dependency and is imported only here. Independent of which files are models.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgeinfer.errors import DownloadFailed, ModelNotFound
from edgeinfer.models.download.http import ConnectionCutError, Refused, Remote, probe
from edgeinfer.models.download.part import FULL, disk_full
from edgeinfer.models.download.policy import DownloadPolicy, Progress, ProgressMeter
from edgeinfer.models.download.transfer import ask
from edgeinfer.process import refuse_telemetry

MISSING_CLIENT = (
    "hf: sources need the client of the Hugging Face hub; run: python -m pip install 'edgeinfer[hub]' - "
    "or give the path or the address of a .gguf file"
)


def require_client() -> None:
    """Raises DownloadFailed, saying how to install the client, if it is missing."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise DownloadFailed(MISSING_CLIENT)


def client() -> tuple[Any, Any]:
    """The client's package and its errors. It is optional, so names cannot be imported from it statically."""
    refuse_telemetry()
    hub = importlib.import_module("huggingface_hub")
    importlib.import_module("huggingface_hub.constants")
    return hub, importlib.import_module("huggingface_hub.errors")


@contextmanager
def hub_api(text: str, repo: str, policy: DownloadPolicy) -> Iterator[Any]:
    """The hub's API, once the hub is known to be reachable; errors inside the `with` become ours, naming `text`.

    Raises DownloadFailed, ModelNotFound.
    """
    hub, errors = client()
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    if not hub.constants.HF_HUB_OFFLINE:
        _check_reachable(str(api.endpoint), text, policy)
    try:
        yield api
    except errors.GatedRepoError:
        raise DownloadFailed(f"{repo} is gated: accept its terms on the hub, then set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise ModelNotFound(f"the hub has no repository {repo}, or it is private: then set HF_TOKEN") from None
    except errors.OfflineModeIsEnabled:
        raise DownloadFailed(f"{text} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it") from None
    except errors.HfHubHTTPError as error:
        raise DownloadFailed(f"{text}: the hub answered: {str(error).splitlines()[0]}") from None
    except OSError as error:
        if error.errno in FULL:
            raise disk_full(Path(hub.constants.HF_HUB_CACHE), None, text) from None
        raise _unreachable(text, error) from None
    except Exception as error:
        if not type(error).__module__.startswith(("httpx", "requests", "urllib3", "huggingface_hub", "httpcore")):
            raise
        raise _unreachable(text, error) from None


def readable(location: str, endpoint: str, policy: DownloadPolicy) -> Remote:
    """A file as requested by our own downloader; the token is sent to the hub only, never to where it redirects."""
    hub, _ = client()
    token = hub.get_token() if location.startswith(endpoint) else None
    return ask(location, policy, (("Authorization", f"Bearer {token}"),) if token else ())


def _check_reachable(endpoint: str, text: str, policy: DownloadPolicy) -> None:
    """Make one quick request: without a network the client itself would retry for half a minute."""
    try:
        probe(endpoint, policy)
    except Refused:
        return
    except ConnectionCutError as cut:
        if not cut.answered:
            raise _unreachable(text, cut.cause) from None


def _unreachable(text: str, cause: object) -> DownloadFailed:
    return DownloadFailed(f"{text}: the hub could not be reached ({cause}); check the network, or give a path")


def progress_bar_class(progress: Progress, before_bytes: int, total_bytes: int) -> type[Any]:
    """A `tqdm` class for the hub client; `before_bytes` of the model's `total_bytes` already exist."""
    base: Any = importlib.import_module("tqdm").tqdm
    meter = ProgressMeter(progress)

    class SilentBar(base):  # type: ignore[misc]
        """A progress bar that reports instead of drawing."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*arguments, **{**options, "file": io.StringIO(), "disable": False})
            meter.start(before_bytes + int(self.n), total_bytes)  # bytes of an earlier download do not count as speed

        def update(self, n: float | None = 1) -> bool | None:
            """Count `n` more bytes and report them."""
            shown = super().update(n)
            meter.report(before_bytes + int(self.n), total_bytes)
            return bool(shown)

    return SilentBar
