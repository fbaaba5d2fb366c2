"""A vocabulary as files for other programs: tokenizer.json of the `tokenizers` package and its settings.

In: the metadata of a GGUF file. Out: two JSON texts. Byte-level vocabularies only: SentencePiece vocabularies merge by
scores, which no list of merges expresses exactly (`sentencepiece`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.text.byte_level import first_ids, merging_tokenizer
from edgeinfer.models.text.chat_template import ChatTemplate
from edgeinfer.models.text.pretokenizers import pre_tokenizer
from edgeinfer.models.text.tokenizer import vocabulary_of
from edgeinfer.models.text.vocabulary import TokenizerMetadata, Vocabulary

BYTE_LEVEL = "gpt2"
CLASSES = {"qwen2": "Qwen2Tokenizer"}
"""The tokenizer class that readers use for a pre-tokenizer, if not the default one."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Contents of tokenizer.json and tokenizer_config.json."""

    tokenizer: str
    settings: str


def tokenizer_files(metadata: TokenizerMetadata, n_context: int) -> TokenizerFiles:
    """The files of a vocabulary. Raises UnsupportedModel if it is not byte-level, BadGGUF."""
    vocabulary = vocabulary_of(metadata)
    if vocabulary.model != BYTE_LEVEL:
        raise UnsupportedModel(
            "the vocabulary is a SentencePiece one, whose order of merges no tokenizer.json can state exactly; take "
            "the tokenizer files from where the model was published"
        )
    return TokenizerFiles(_tokenizer(vocabulary, metadata), _settings(vocabulary, metadata, n_context))


def _tokenizer(vocabulary: Vocabulary, metadata: TokenizerMetadata) -> str:
    from tokenizers import AddedToken, decoders, processors

    key = "tokenizer.ggml.merges"
    if key not in metadata:
        raise BadGGUF(f"{key} is missing: a byte-level BPE vocabulary (tokenizer.ggml.model = gpt2) needs its merges")
    made = merging_tokenizer(first_ids(vocabulary), metadata.strings(key), pre_tokenizer(vocabulary.pre))
    for token in vocabulary.special_ids():
        control = vocabulary.is_control(token)
        made.add_tokens([AddedToken(vocabulary.tokens[token], special=control, normalized=False)])
    made.decoder = decoders.ByteLevel()
    before = [vocabulary.bos_id] if vocabulary.add_bos else []
    after = [vocabulary.eos_id] if vocabulary.add_eos else []
    around = [(vocabulary.tokens[token], token) for token in (*before, *after) if token is not None]
    if around:
        names = [[f"{vocabulary.tokens[token]}" for token in part if token is not None] for part in (before, after)]
        made.post_processor = processors.TemplateProcessing(
            single=[*names[0], "$A", *names[1]], pair=None, special_tokens=around
        )
    text: str = made.to_str(pretty=True)
    return text


def _settings(vocabulary: Vocabulary, metadata: TokenizerMetadata, n_context: int) -> str:
    template = ChatTemplate.from_metadata(metadata, vocabulary)
    settings: dict[str, object] = {
        "tokenizer_class": CLASSES.get(vocabulary.pre, "GPT2Tokenizer"),
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": n_context,
        **vocabulary.special_texts(),
    }
    if template.names:
        settings["chat_template"] = template.sources[template.names[0]]
    return json.dumps(settings, ensure_ascii=False, indent=2) + "\n"
