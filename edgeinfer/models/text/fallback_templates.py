"""Chat templates for models that bring none, written as the models' own are.

In: a vocabulary. Out: the name and the source of a template: ChatML where the vocabulary has its tokens, else speakers
named in plain text. Renders nothing.
"""

from __future__ import annotations

from edgeinfer.models.text.vocabulary import Vocabulary

_TEXT = (
    "{% macro text(content) %}{% if content is string %}{{ content }}{% elif content %}{% for part in content %}"
    "{% if part.type != 'text' %}{{ raise_exception('this model reads text only') }}{% endif %}{{ part.text }}"
    "{% endfor %}{% endif %}{% endmacro %}"
)
CHATML = (
    _TEXT + "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = (
    _TEXT + "{% for message in messages %}{% if message.role == 'system' %}{{ text(message.content) + '\\n\\n' }}"
    "{% else %}{{ message.role | capitalize + ': ' + text(message.content) + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def fallback(vocabulary: Vocabulary) -> tuple[str, str]:
    """The name ("chatml" or "plain") and the source of the template for a model without one."""
    if {"<|im_start|>", "<|im_end|>"} <= {vocabulary.tokens[token] for token in vocabulary.special_ids()}:
        return "chatml", CHATML
    return "plain", PLAIN
