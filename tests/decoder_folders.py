"""Folders with ONNX decoders for tests: golden models exported, and one written here by the onnx package alone.

The written one is a llama in plain operators whose past and present meet in a Concat, as optimum's exporters make it;
its weights come from a golden file, so transformers' logits of that file are what it must give.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

from edgeinfer.models.load import open_model
from edgeinfer.steps import no_progress

SHARED, COPIED = "onnx-folder-shared", "onnx-folder-copied"
"""Graphs that write into the memory of the past, and graphs that write past and present anew."""
KINDS = (SHARED, COPIED)


@cache
def exported(model: Path, kind: str, n_context: int = 256) -> Path:
    """A folder as `edgeinfer export` writes it, of either kind. Kept until the tests end."""
    from edgeinfer.backends.onnx.folder import SpecialIds, write_folder

    folder = Path(tempfile.mkdtemp(prefix="edgeinfer-decoder-"))
    with open_model(model, n_context) as opened:
        write_folder(folder, opened.spec, opened.file, n_context, SpecialIds(1, (2,), None), no_progress)
    settings = json.loads((folder / "genai_config.json").read_text())
    settings["search"]["past_present_share_buffer"] = kind == SHARED
    (folder / "genai_config.json").write_text(json.dumps(settings))
    write_tokenizer(folder, settings["model"]["vocab_size"])
    return folder


def write_tokenizer(folder: Path, n_tokens: int) -> None:
    """A byte-level tokenizer of so many tokens, 256 of which are bytes and the others of no use."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from tests.conftest import CHATML, SPECIAL, byte_characters

    words = [*SPECIAL, *byte_characters()][:n_tokens]
    words += [f"word{index}" for index in range(len(words), n_tokens)]
    made = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    (folder / "tokenizer.json").write_text(made.to_str())
    settings = {"eos_token": {"content": SPECIAL[2]}, "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
