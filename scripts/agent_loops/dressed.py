"""A model with another family's chat template, and that family's marks as control tokens.

In: a GGUF file, the source of a template. Out: a copy whose spare control tokens are the marks and the tags that the
template writes, as in files of the family; the weights stay, so that what the model writes means little.
"""

from __future__ import annotations

import re
from pathlib import Path

import gguf

_MARK = re.compile(r'<\|?/?[a-z_]+\|?>|<\|"\|>|\[/?[A-Z_]+\]|<｜[\w▁]+｜>')
_OWN = ("bos", "eos", "eot", "eom", "unknown", "padding")
_TAG = re.compile(r"</?[a-z_]+>")
_TAGS = re.compile(r"</?(?:tool_call|tool_response|arg_key|arg_value)>")
"""Tags that are tokens in files of Qwen and GLM, which are written out as other tokens are."""
CONTROL, USER_DEFINED = 3, 4


def marks_of(template: str, n: int) -> list[str]:
    """At most `n` marks that a template writes, in order; of tags only those of thoughts."""
    marks = list(dict.fromkeys(_MARK.findall(template)))
    return [mark for mark in marks if not _TAG.fullmatch(mark) or "think" in mark][:n]


def tags_of(template: str, n: int) -> list[str]:
    """At most `n` tags of calls that a template writes, in order."""
    return list(dict.fromkeys(_TAGS.findall(template)))[:n]


def dress(source: Path, template: str, out: Path) -> Path:
    """Write a copy of a model with a template and its marks."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    tokens = list(reader.fields["tokenizer.ggml.tokens"].contents())
    types = list(reader.fields["tokenizer.ggml.token_type"].contents())
    keys = [key for name in _OWN if (key := f"tokenizer.ggml.{name}_token_id") in reader.fields]
    own = {reader.fields[key].contents() for key in keys}
    spare = [number for number, kind in enumerate(types) if kind == CONTROL and number not in own]
    taken = set(tokens)
    marks = [mark for mark in marks_of(template, len(spare)) if mark not in taken]
    tags = [tag for tag in tags_of(template, len(spare) - len(marks)) if tag not in taken]
    for number, mark in zip(spare, [*marks, *tags], strict=False):
        tokens[number] = mark
        types[number] = CONTROL if mark in marks else USER_DEFINED
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    changed |= {"tokenizer.chat_template": template, "general.name": out.stem}
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, changed.pop(key, None) or field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
