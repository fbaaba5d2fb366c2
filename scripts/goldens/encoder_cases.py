"""Encoders as published: configurations of models that read a text as a whole, rerankers among them.

In: nothing. Out: tiny configurations of transformers. Does not depend on GGUF.
"""

from __future__ import annotations

from transformers import (
    BertConfig,
    DistilBertConfig,
    EuroBertConfig,
    ModernBertConfig,
    NomicBertConfig,
    PretrainedConfig,
    T5Config,
    UMT5Config,
    XLMRobertaConfig,
)

from goldens.small_tokenizers import VOCABULARY

BYTE_IDS = {"vocab_size": VOCABULARY, "bos_token_id": 266, "eos_token_id": 268, "pad_token_id": 266}
BERT_CONTEXT = 96
BERT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": BERT_CONTEXT,
}


def bert() -> PretrainedConfig:
    """BERT with two token types."""
    return BertConfig(**BERT, pad_token_id=0)


def nomic() -> PretrainedConfig:
    """Nomic's BERT."""
    rope = {"rope_type": "default", "rope_theta": 1000.0}
    return NomicBertConfig(**BERT | {"max_position_embeddings": 2048}, rope_parameters=rope)


def eurobert() -> PretrainedConfig:
    """EuroBERT, with fewer heads of keys than of queries."""
    rope = {"rope_type": "default", "rope_theta": 1e5}
    return EuroBertConfig(**BERT | BYTE_IDS, num_key_value_heads=1, rope_parameters=rope, classifier_pooling="mean")


def modern_bert() -> PretrainedConfig:
    """ModernBERT, with windows shorter than the text in two of three layers."""
    ids = {"cls_token_id": 266, "sep_token_id": 268}
    sizes = BERT | BYTE_IDS | {"num_hidden_layers": 4}
    return ModernBertConfig(**sizes | ids, local_attention=24, layer_norm_eps=1e-5)


def modern_bert_reranker() -> PretrainedConfig:
    """ModernBERT with a head of one score over the mean of all rows, like gte-reranker-modernbert."""
    made = modern_bert()
    made.update({"num_labels": 1, "classifier_pooling": "mean"})
    return made


def distilbert() -> PretrainedConfig:
    """DistilBERT with a head of one score."""
    sizes = {"dim": 32, "hidden_dim": 64, "n_heads": 2, "n_layers": 2, "vocab_size": VOCABULARY}
    return DistilBertConfig(**sizes, max_position_embeddings=BERT_CONTEXT, num_labels=1)


T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 3, "num_heads": 4, "vocab_size": VOCABULARY}


def t5() -> PretrainedConfig:
    """T5, whose first layer has the biases of distances for all."""
    return T5Config(**T5)


def umt5() -> PretrainedConfig:
    """UMT5: a gate, biases of distances in each layer."""
    return UMT5Config(**T5, relative_attention_num_buckets=16)


def xlm_roberta() -> PretrainedConfig:
    """XLM-RoBERTa with a head of one score, like bge-reranker."""
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "type_vocab_size": 1}
    sizes = BERT | {"max_position_embeddings": BERT_CONTEXT + 2}
    return XLMRobertaConfig(**sizes, **ids, layer_norm_eps=1e-5, num_labels=1)
