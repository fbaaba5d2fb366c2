"""What lists show of a model file, without reading its vocabulary: architecture, quant format, context.

In: a file, or a listed model. Out: `HeaderFacts`. If neither the start of the header nor the name states the quant
format, the file is read up to the end of its header. Reads no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import BadGGUF
from edgeinfer.models.download.header import file_header
from edgeinfer.models.file_names import quant_of
from edgeinfer.models.file_types import quant_name, quant_of_type
from edgeinfer.models.gguf import Metadata, parse_beginning
from edgeinfer.models.local_model import LocalModel

BEGINNING_BYTES = 1 << 16
VOCABULARY = "tokenizer."


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What the beginning of a header states; None for what it does not."""

    architecture: str | None
    quant: str | None
    n_context: int | None


def header_facts(path: Path) -> HeaderFacts:
    """The facts of a local GGUF file. Raises BadGGUF."""
    try:
        with path.open("rb") as file:
            metadata = parse_beginning(file.read(BEGINNING_BYTES), path.stat().st_size, str(path), VOCABULARY)
    except OSError as error:
        raise BadGGUF(f"{path} cannot be read: {error.strerror or error}") from None
    quant = quant_of_type(metadata) or quant_of(path.name) or quant_name(file_header(path))
    architecture = metadata.text("general.architecture", None)
    return HeaderFacts(architecture, quant, None if architecture is None else context_length(metadata, architecture))


def listed_format(model: LocalModel) -> tuple[str | None, str | None]:
    """Architecture and quant format of a listed model.

    The whole header is read, and so checked, except for models of other programs, of which there may be many. Raises
    BadGGUF.
    """
    if model.is_elsewhere:
        facts = header_facts(model.path)
        return facts.architecture, facts.quant
    header = file_header(model.path)
    return header.metadata.text("general.architecture", None), quant_name(header)


def context_length(metadata: Metadata, architecture: str) -> int | None:
    """The context a model was trained for, in tokens; None if its file does not state it. Raises BadGGUF."""
    return metadata.integer(f"{architecture}.context_length", None)
