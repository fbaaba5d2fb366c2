"""What turns texts into tokens for a loaded model: our own tokenizer, or that of the program that runs the model.

In: a file's metadata, an evaluator that may have a tokenizer, the template that was chosen, if any. Out: a `Tokenizer`
and a `ChatTemplate`. Knows no devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.backends.evaluator import ProgramText
from edgeinfer.errors import BadGGUF, BadTemplate, UnsupportedModel
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.decoder_folder import is_decoder_folder
from edgeinfer.models.gguf import GGUFFile, Metadata
from edgeinfer.models.ollama_params import ollama_params
from edgeinfer.models.text import ChatTemplate, Tokenizer, Vocabulary, vocabulary_of
from edgeinfer.models.text.template_choice import TemplateChoice, template_choice
from edgeinfer.models.text.tokenizer_file import FolderText
from edgeinfer.models.text.written_marks import NO_STAND_INS, StandIns

if TYPE_CHECKING:
    from edgeinfer.engine.run.evaluators import SequenceEvaluator, Subject

Texts = tuple[Tokenizer, ChatTemplate]

LINE_END = "\n"


def chosen_template(options: LoadOptions) -> TemplateChoice | None:
    """The template in place of the model's own, if one is chosen. Raises BadSetting, BadTemplate if it is none."""
    chosen = template_choice(options.chat_template, options.chat_template_file)
    if chosen is not None:
        try:
            ChatTemplate({chosen.origin: chosen.source}).check()
        except BadTemplate as reason:
            raise BadTemplate(f"{chosen.origin}: {reason}") from None
    return chosen


def texts_beside(subject: Subject, options: LoadOptions, beside: ThreadPoolExecutor) -> Future[Texts] | None:
    """Start building tokenizer and template in another thread; None if another program runs the model and has them."""
    if subject.spec is None:
        return None
    vocabulary = vocabulary_of(subject.file.metadata)
    check_vocabulary(subject.file.path, vocabulary.n_tokens, subject.spec.n_vocab)
    return beside.submit(own_texts, subject.file.metadata, vocabulary, chosen_template(options), _kept_beside(subject))


def program_texts(subject: Subject, options: LoadOptions, executor: SequenceEvaluator) -> Texts:
    """Tokenizer and template of a model that another program runs."""
    program = executor.capabilities.program
    assert program is not None
    texts = texts_with(subject.file.metadata, program.text, chosen_template(options), _kept_beside(subject))
    check_vocabulary(subject.file.path, texts[0].n_tokens, program.n_vocab)
    return texts


def _kept_beside(subject: Subject) -> str:
    """The template that Ollama keeps for the name by which the model was opened; "" for other models."""
    return ollama_params(subject.file.path, subject.source).template


def own_texts(
    metadata: Metadata, vocabulary: Vocabulary, chosen: TemplateChoice | None = None, beside: str = ""
) -> Texts:
    """Our own tokenizer and template. Raises UnsupportedModel if edgeinfer lacks the tokenizer, BadGGUF."""
    template = ChatTemplate.from_metadata(metadata, vocabulary, chosen, beside)
    template.prepare()
    return Tokenizer.with_vocabulary(vocabulary, metadata), template


def check_vocabulary(path: Path, n_tokens: int, n_vocab: int) -> None:
    """Raises BadGGUF if the tokenizer has more tokens than the model."""
    if n_tokens > n_vocab:
        raise BadGGUF(
            f"{path} has a tokenizer of {n_tokens} tokens and a model of {n_vocab}: "
            "the tokenizer belongs to another model; get the file again or convert it anew"
        )


def texts_with(
    metadata: Metadata, program: ProgramText, chosen: TemplateChoice | None = None, beside: str = ""
) -> Texts:
    """Our own tokenizer and template if edgeinfer has the tokenizer, else the program's."""
    try:
        return own_texts(metadata, vocabulary_of(metadata), chosen, beside)
    except (UnsupportedModel, BadGGUF):
        vocabulary = program.vocabulary()
        template = ChatTemplate.from_metadata(metadata, vocabulary, chosen, beside)
        template.prepare()
        return ProgramTokenizer(vocabulary, program), template


def tokenizer_of(path: Path) -> Tokenizer:
    """The tokenizer of a model that is not loaded: from a GGUF file, or from a folder with a decoder.

    Raises BadGGUF, ModelNotFound, UnsupportedModel if edgeinfer lacks the tokenizer.
    """
    if is_decoder_folder(path):
        found = FolderText(path)
        return ProgramTokenizer(found.vocabulary(), found)
    with GGUFFile.open(path) as file:
        return Tokenizer.from_metadata(file.metadata)


class ProgramTokenizer(Tokenizer):
    """Another program's tokenizer with our own interface."""

    def __init__(self, vocabulary: Vocabulary, program: ProgramText) -> None:
        super().__init__(vocabulary, _Pieces(program))
        self._program = program

    @property
    def strips_first_space(self) -> bool:
        """Whether encoding puts a space before a text, which decoding removes again."""
        return self.vocabulary.add_space_prefix

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        goes_on: bool = False,
        stand_ins: StandIns = NO_STAND_INS,
    ) -> list[int]:
        """Ids of `text` from the program; lone surrogates, which have no UTF-8 form, become U+FFFD.

        If the program puts a space before every text, a text that `goes_on` is passed with a line end before it.
        A text with `stand_ins` is passed in parts.
        """
        if stand_ins:
            return self._in_parts(text, add_special, goes_on, stand_ins)
        written = text.encode("utf-8", "replace").decode()
        if goes_on and written and self.strips_first_space:
            before = self._program.encode(LINE_END, add_special=False, parse_special=False)
            ids = self._program.encode(LINE_END + written, add_special=False, parse_special=parse_special)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self._program.encode(written, add_special=add_special, parse_special=parse_special)

    def _in_parts(self, text: str, add_special: bool, goes_on: bool, stand_ins: StandIns) -> list[int]:
        ids, vocabulary = self.encode("", add_special=add_special), self.vocabulary
        ending = [ids.pop()] if vocabulary.add_eos and ids[-1:] == [vocabulary.eos_id] else []
        for part in self._parts(text, True, stand_ins):
            if isinstance(part, str):
                ids += self.encode(part, add_special=False, parse_special=False, goes_on=goes_on)
            else:
                ids.append(part)
            goes_on = isinstance(part, str) or not vocabulary.begins_anew(part)
        return ids + ending


class _Pieces:
    """The encoder of a tokenizer that encodes by itself; used only for the pieces of tokens."""

    def __init__(self, program: ProgramText) -> None:
        self._program = program

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of a plain text."""
        return self._program.encode(text, add_special=False, parse_special=False)

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        return self._program.piece(token)

    def unwritable(self, text: str) -> str:
        """The characters of `text` that are lost in encoding and decoding."""
        back = b"".join(map(self.piece, self.encode(text, starts=True))).decode("utf-8", "replace")
        return "".join(character for character in _distinct(text) if character not in back)


def _distinct(text: str) -> Iterable[str]:
    return dict.fromkeys(text)
