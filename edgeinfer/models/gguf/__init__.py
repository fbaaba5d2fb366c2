"""Reading GGUF files: header, metadata and zero-copy tensor bytes, from the memory-mapped file.

In: a path, or the first bytes of a file that is still elsewhere. Out: `GGUFFile` or `Header`. Reads versions 2 and 3,
little-endian, whole or split. Does not interpret tensor bytes or models. Source: docs/gguf.md of the ggml project.
"""

from __future__ import annotations

from edgeinfer.models.gguf.file import GGUFFile
from edgeinfer.models.gguf.header import Header, TensorInfo, parse_beginning, parse_header
from edgeinfer.models.gguf.metadata import Metadata
from edgeinfer.models.gguf.values import HeaderIncomplete, MetadataValue

__all__ = [
    "GGUFFile",
    "Header",
    "HeaderIncomplete",
    "Metadata",
    "MetadataValue",
    "TensorInfo",
    "parse_beginning",
    "parse_header",
]
