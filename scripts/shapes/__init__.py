"""Model shapes for which random weights are made, by name."""

from __future__ import annotations

from shapes.afmoe import Afmoe
from shapes.encoders import Bert, EmbeddingGemma
from shapes.gemma4 import Gemma4
from shapes.gpt_oss import GptOss
from shapes.hybrid import Hybrid
from shapes.shape import Shape

LFM2 = Hybrid(attending=(2, 5, 8, 10, 12, 14), head_width=64, taps=3)
LFM2_MOE = Hybrid(attending=(2, 6, 10, 14, 18, 21), head_width=64, taps=3)
QWEN35 = Hybrid((3, 7, 11, 15, 19, 23), head_width=256, taps=4, key_heads=16, value_heads=16, state_width=128)
QWEN35_MOE = Hybrid(tuple(range(3, 40, 4)), head_width=256, taps=4, key_heads=16, value_heads=32, state_width=128)
QWEN3_NEXT = Hybrid(tuple(range(3, 48, 4)), head_width=256, taps=4, key_heads=16, value_heads=32, state_width=128)
TRINITY = Afmoe(head_width=128, window=2048, scale=2.826)
GPT_OSS = GptOss(head_width=64, window=128, trained_context=4096, stretch=32.0)
GEMMA = EmbeddingGemma(head_width=256, window=512, inner=3072)
E2B = Gemma4(head_width=256, window=512, period=5, inputs=256)
SHAPES = {
    "135m": Shape(576, 30, 1536, 9, 3, 8192),
    "1b": Shape(2048, 16, 8192, 32, 8, 8192),
    "3b": Shape(3072, 28, 8192, 24, 8, 8192),
    "7b": Shape(4096, 32, 11008, 32, 32, 8192),
    "lfm2-1.2b": Shape(2048, 16, 8192, 32, 8, 32768, arch="lfm2", layout=LFM2),
    "qwen35-0.8b": Shape(1024, 24, 3584, 8, 2, 32768, arch="qwen35", layout=QWEN35),
    "qwen35-35b-a3b": Shape(2048, 40, 512, 16, 2, 32768, experts=256, active=8, arch="qwen35moe", layout=QWEN35_MOE),
    "gpt-oss-20b": Shape(2880, 24, 2880, 64, 8, 131072, experts=32, active=4, arch="gpt-oss", layout=GPT_OSS),
    "lfm2-8b-a1b": Shape(
        *(2048, 24, 1792, 32, 8, 32768),
        experts=32,
        active=4,
        arch="lfm2moe",
        layout=LFM2_MOE,
        dense_layers=2,
        dense_ffn=7168,
    ),
    "qwen3-next-80b-a3b": Shape(
        *(2048, 48, 512, 16, 2, 32768), experts=512, active=10, arch="qwen3next", layout=QWEN3_NEXT
    ),
    "trinity-nano-6b": Shape(
        *(1024, 56, 256, 8, 2, 32768),
        experts=128,
        active=8,
        arch="afmoe",
        layout=TRINITY,
        dense_layers=2,
        dense_ffn=3072,
    ),
    "gemma4-e2b": Shape(1536, 35, 6144, 8, 1, 131072, arch="gemma4", layout=E2B),
    "bge-small": Shape(384, 12, 1536, 12, 12, 512, arch="bert", layout=Bert()),
    "embeddinggemma-300m": Shape(768, 24, 1152, 3, 1, 2048, arch="gemma-embedding", layout=GEMMA),
}
