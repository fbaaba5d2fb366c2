"""Vocabularies, tokenizers, chat templates and streaming detokenisation.

Importing this loads neither `tokenizers` nor `jinja2`: each is imported on first use.
"""

from edgeinfer.models.text.chat_template import ChatTemplate, Rendering
from edgeinfer.models.text.message import Message
from edgeinfer.models.text.template_meter import TemplateLimits
from edgeinfer.models.text.token_types import TokenType
from edgeinfer.models.text.tokenizer import StreamDecoder, Tokenizer, vocabulary_of
from edgeinfer.models.text.vocabulary import TokenizerMetadata, Vocabulary

__all__ = [
    "ChatTemplate",
    "Message",
    "Rendering",
    "StreamDecoder",
    "TemplateLimits",
    "TokenType",
    "Tokenizer",
    "TokenizerMetadata",
    "Vocabulary",
    "vocabulary_of",
]
