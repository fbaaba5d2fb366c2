"""Models as Ollama describes them: digests, details from the headers of files, settings, metadata.

In: listed models. Out: records. Details are cached by file, because clients list models often. Loads no model.
"""

from __future__ import annotations

import hashlib
import math
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.ollama_wire import time_text
from edgeinfer.errors import BadGGUF, EdgeInferError
from edgeinfer.models.author_sampling import author_sampling
from edgeinfer.models.decoder_folder import is_decoder_folder
from edgeinfer.models.download.header import file_header
from edgeinfer.models.file_facts import quant_name
from edgeinfer.models.local_model import LATEST
from edgeinfer.models.ollama_params import OllamaParams, ollama_params
from edgeinfer.models.text.gap_tokens import GapTokens
from edgeinfer.models.text.thought_formats import thoughts_of
from edgeinfer.models.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from edgeinfer.models.gguf import Header
    from edgeinfer.models.local_model import LocalModel

BEGINNING_BYTES = 1 << 16
TEMPLATE = "tokenizer.chat_template"
LEFT_OUT = frozenset({"general.name", TEMPLATE})
"""Metadata that is described elsewhere."""
LONG = frozenset(
    f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type", "merges", "precompiled_charsmap")
)
"""Metadata as long as the vocabulary, which is shown on request only."""
OLLAMA_NAMES = (("penalty_window", "repeat_last_n"),)
"""Sampling options that Ollama calls otherwise."""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """What a list says of a model; texts are empty if its file does not tell.

    `digest`: the SHA-256 of its file if that is known, otherwise that of its size and beginning.
    """

    digest: str
    modified_s: float
    form: str
    family: str = ""
    quant: str = ""
    n_parameters: int = 0

    def record(self) -> Record:
        """The details in Ollama's form."""
        return {
            "parent_model": "",
            "format": self.form,
            "family": self.family,
            "families": [self.family] if self.family else [],
            "parameter_size": count_text(self.n_parameters) if self.n_parameters else "",
            "quantization_level": self.quant,
        }


class DetailsCache:
    """Details of models, read once for each state of a file; usable from any thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[float, int], ModelDetails]] = {}
        self._lock = threading.Lock()

    def of(self, model: LocalModel) -> ModelDetails:
        """The details of a model. Raises OSError if its file is gone."""
        key, status = str(model.path), model.path.stat()
        state = status.st_mtime, model.nbytes
        with self._lock:
            known = self._known.get(key)
        if known is None or known[0] != state:
            known = state, _details(model, status.st_mtime)
            with self._lock:
                self._known[key] = known
        return known[1]


def _details(model: LocalModel, modified_s: float) -> ModelDetails:
    if is_decoder_folder(model.path):
        digest = hashlib.sha256(f"{model.path.name} {model.nbytes}".encode()).hexdigest()
        return ModelDetails(digest, modified_s, "onnx")
    digest = model.sha256 or _digest(model)
    try:
        headers = [file_header(path) for path in model.paths]
    except EdgeInferError:
        return ModelDetails(digest, modified_s, "gguf")
    n_parameters = sum(math.prod(tensor.shape) for header in headers for tensor in header.tensors.values())
    family = headers[0].metadata.text("general.architecture", "")
    return ModelDetails(digest, modified_s, "gguf", family, quant_name(headers[0]) or "", n_parameters)


def _digest(model: LocalModel) -> str:
    digest = hashlib.sha256(str(model.nbytes).encode())
    with model.path.open("rb") as file:
        digest.update(file.read(BEGINNING_BYTES))
    return digest.hexdigest()


def count_text(number: int) -> str:
    """A number of parameters as Ollama writes it: 134.52M, 8.0B, 7B."""
    for least, letter, digits in ((10**9, "B", 1), (10**6, "M", 2)):
        if number >= least:
            return f"{number / least:.{0 if number % least == 0 else digits}f}{letter}"
    return f"{number / 1e3:.0f}K" if number >= 10**3 else str(number)


def tagged(name: str) -> str:
    """A model's name with a tag: Ollama's clients expect one."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:{LATEST}"


def listed_record(model: LocalModel, details: ModelDetails) -> Record:
    """A model in a list."""
    name = tagged(model.name)
    return {
        "name": name,
        "model": name,
        "modified_at": time_text(details.modified_s),
        "size": model.nbytes,
        "digest": details.digest,
        "details": details.record(),
    }


def shown_record(model: LocalModel, details: ModelDetails, *, verbose: bool, reads_images: bool) -> Record:
    """All that a model's file says, and whether it reads images. Raises BadGGUF."""
    common = {"details": details.record(), "modified_at": time_text(details.modified_s)}
    if details.form != "gguf":
        return {"modelfile": f"FROM {model.path}\n", "parameters": "", "template": "", **common} | {
            "model_info": {},
            "capabilities": ["completion"],
        }
    header, ollama = file_header(model.path), ollama_params(model.path, model.source)
    template, parameters = header.metadata.text(TEMPLATE, ""), _parameters(header, ollama)
    settings = "".join(f"ADAPTER {path}\n" for path in ollama.adapters)
    settings += "".join(f"PARAMETER {' '.join(line.split(maxsplit=1))}\n" for line in parameters)
    return {
        "license": header.metadata.text("general.license", ""),
        "modelfile": f"# FROM {tagged(model.name)}\n\nFROM {model.path}\n{settings}",
        "parameters": "\n".join(parameters),
        "template": template,
        "system": ollama.system,
        **common,
        "model_info": {**_metadata(header, verbose=verbose), "general.parameter_count": details.n_parameters},
        "capabilities": [*_capabilities(header, template), *(("vision",) if reads_images else ())],
    }


def _parameters(header: Header, ollama: OllamaParams) -> list[str]:
    """The sampling options of a model, one a line, and the texts that end its answers."""
    renamed = dict(OLLAMA_NAMES)
    values = {**author_sampling(header.metadata), **ollama.sampling}
    lines = [f"{renamed.get(name, name):<30} {value:g}" for name, value in values.items()]
    return lines + [f'{"stop":<30} "{stop}"' for stop in ollama.stops]


def _capabilities(header: Header, template: str) -> list[str]:
    """What a model can be used for. Functions can be called with any template, if need be in words."""
    architecture = header.metadata.text("general.architecture", "")
    if f"{architecture}.pooling_type" in header.metadata:
        return ["embedding"]
    more = {"insert": _fills_gaps(header), "thinking": thoughts_of(template) is not None}
    return ["completion", "tools", *(name for name, is_there in more.items() if is_there)]


def _fills_gaps(header: Header) -> bool:
    """Whether a model has tokens for filling in gaps."""
    with suppress(BadGGUF):  # a file without a vocabulary
        return GapTokens.of(Vocabulary.from_metadata(header.metadata).gap) is not None
    return False


def _metadata(header: Header, *, verbose: bool) -> Record:
    values: Record = {}
    for key in sorted(header.metadata.keys() - LEFT_OUT):
        value = [] if key in LONG and not verbose else header.metadata[key]
        values[key] = _plain(value.tolist() if hasattr(value, "tolist") else value)
    return values


def _plain(value: object) -> object:
    """A value that JSON has: numbers that are none become null."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
