"""A folder in optimum's conventions, its graph written by the onnx package alone: a llama in plain operators.

Past and present meet in a Concat, as optimum's exporters make it. The weights are those of a golden file, whose logits
by transformers it must give. Knows nothing of edgeinfer's own graphs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.decoder_folders import write_tokenizer

LAYERS, WIDTH, HEADS, GROUPS, HEAD, FFN, VOCABULARY, CONTEXT = 2, 32, 4, 2, 16, 48, 264, 256
EPSILON, BASE = 1e-6, 10000.0
INT64 = TensorProto.INT64


@dataclass(slots=True)
class _Net:
    """Nodes and constants of a graph; values have numbers for names."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def do(self, operator: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def hold(self, values: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def norm(self, value: str, weight: np.ndarray) -> str:
        mean = self.do("ReduceMean", self.do("Mul", value, value), axes=[-1], keepdims=1)
        root = self.do("Sqrt", self.do("Add", mean, self.hold(EPSILON, np.float32)))
        return self.do("Mul", self.do("Div", value, root), self.hold(weight, np.float32))

    def linear(self, value: str, weight: np.ndarray) -> str:
        return self.do("MatMul", value, self.hold(weight.T, np.float32))

    def heads(self, value: str, count: int) -> str:
        """[B, T, count * K] as [B, count, T, K]."""
        return self.do("Transpose", self.do("Reshape", value, self.hold([0, 0, count, HEAD])), perm=[0, 2, 1, 3])

    def turned(self, value: str, cosine: str, sine: str) -> str:
        """Pairs of neighbours turned, the order of the weights in the file."""
        pairs = self.do("Reshape", value, self.hold([0, 0, 0, HEAD // 2, 2]))
        even, odd = (self.do("Gather", pairs, self.hold(index), axis=4) for index in (0, 1))
        first = self.do("Sub", self.do("Mul", even, cosine), self.do("Mul", odd, sine))
        second = self.do("Add", self.do("Mul", even, sine), self.do("Mul", odd, cosine))
        parts = [self.do("Unsqueeze", part, self.hold([4])) for part in (first, second)]
        return self.do("Reshape", self.do("Concat", *parts, axis=4), self.hold([0, 0, 0, HEAD]))

    def repeated(self, value: str) -> str:
        """[B, G, S, K] as [B, H, S, K]."""
        tiled = self.do("Tile", self.do("Unsqueeze", value, self.hold([2])), self.hold([1, 1, HEADS // GROUPS, 1, 1]))
        return self.do("Reshape", tiled, self.hold([0, HEADS, -1, HEAD]))


def write_optimum(folder: Path, model: Path, *, half: bool = False, branches: bool = False) -> Path:
    """Write the folder of a golden llama; `half`: keys, values and logits are float16; `branches`: one more input."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(model).tensors}
    net, kept = _Net(), TensorProto.FLOAT16 if half else TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("input_ids", INT64, ["batch_size", "sequence_length"]),
        helper.make_tensor_value_info("attention_mask", INT64, ["batch_size", "total_sequence_length"]),
        helper.make_tensor_value_info("position_ids", INT64, ["batch_size", "sequence_length"]),
    ]
    if branches:
        inputs.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    outputs = [helper.make_tensor_value_info("logits", kept, ["batch_size", "sequence_length", VOCABULARY])]
    cosine, sine = _angles(net)
    bias = _bias(net)
    x = net.do("Gather", net.hold(weights["token_embd.weight"], np.float32), "input_ids")
    for layer in range(LAYERS):
        for ports, name, rows in ((inputs, "past_key_values", "past"), (outputs, "present", "total")):
            shape = ["batch_size", GROUPS, f"{rows}_sequence_length", HEAD]
            for part in ("key", "value"):
                ports.append(helper.make_tensor_value_info(f"{name}.{layer}.{part}", kept, shape))
        x = net.do("Add", x, _attended(net, x, weights, layer, (cosine, sine, bias), kept))
        block = f"blk.{layer}."
        normed = net.norm(x, weights[f"{block}ffn_norm.weight"])
        gate = net.linear(normed, weights[f"{block}ffn_gate.weight"])
        act = net.do(
            "Mul", net.do("Mul", gate, net.do("Sigmoid", gate)), net.linear(normed, weights[f"{block}ffn_up.weight"])
        )
        x = net.do("Add", x, net.linear(act, weights[f"{block}ffn_down.weight"]))
    logits = net.linear(net.norm(x, weights["output_norm.weight"]), weights["token_embd.weight"])
    net.do("Cast", logits, out="logits", to=kept)
    _write(folder / "model.onnx", net, inputs, outputs)
    _write_settings(folder)
    return folder


def _attended(net: _Net, x: str, weights: dict[str, np.ndarray], layer: int, seen: Sequence[str], kept: int) -> str:
    cosine, sine, bias = seen
    block = f"blk.{layer}.attn_"
    normed = net.norm(x, weights[f"{block}norm.weight"])
    query = net.turned(net.heads(net.linear(normed, weights[f"{block}q.weight"]), HEADS), cosine, sine)
    key = net.turned(net.heads(net.linear(normed, weights[f"{block}k.weight"]), GROUPS), cosine, sine)
    value = net.heads(net.linear(normed, weights[f"{block}v.weight"]), GROUPS)
    both = []
    for part, fresh in (("key", key), ("value", value)):
        name = f"past_key_values.{layer}.{part}"
        joined = net.do("Concat", name, net.do("Cast", fresh, to=kept), axis=2, out=f"present.{layer}.{part}")
        both.append(net.repeated(net.do("Cast", joined, to=TensorProto.FLOAT)))
    scores = net.do("MatMul", query, net.do("Transpose", both[0], perm=[0, 1, 3, 2]))
    scaled = net.do("Add", net.do("Mul", scores, net.hold(HEAD**-0.5, np.float32)), bias)
    mixed = net.do("MatMul", net.do("Softmax", scaled, axis=-1), both[1])
    flat = net.do("Reshape", net.do("Transpose", mixed, perm=[0, 2, 1, 3]), net.hold([0, 0, HEADS * HEAD]))
    return net.linear(flat, weights[f"{block}output.weight"])


def _angles(net: _Net) -> list[str]:
    """Cosines and sines [B, 1, T, K / 2] of position_ids."""
    frequencies = BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    positions = net.do("Unsqueeze", net.do("Cast", "position_ids", to=TensorProto.FLOAT), net.hold([-1]))
    angles = net.do("Unsqueeze", net.do("Mul", positions, net.hold(frequencies, np.float32)), net.hold([1]))
    return [net.do("Cos", angles), net.do("Sin", angles)]


def _bias(net: _Net) -> str:
    """0 where a token sees a key, else very low: [B, 1, T, S] of position_ids and attention_mask."""
    total = net.do("Gather", net.do("Shape", "attention_mask"), net.hold(1))
    columns = net.do("Range", net.hold(0), total, net.hold(1))
    earlier = net.do("LessOrEqual", columns, net.do("Unsqueeze", "position_ids", net.hold([-1])))
    there = net.do("Unsqueeze", net.do("Cast", "attention_mask", to=TensorProto.BOOL), net.hold([1]))
    seen = net.do("Unsqueeze", net.do("And", earlier, there), net.hold([1]))
    return net.do("Where", seen, net.hold(0, np.float32), net.hold(-1e9, np.float32))


def _write(path: Path, net: _Net, inputs: list[Any], outputs: list[Any]) -> None:
    graph = helper.make_graph(net.nodes, "decoder", inputs, outputs, net.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _write_settings(folder: Path) -> None:
    config = {
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "num_hidden_layers": LAYERS,
        "head_dim": HEAD,
        "hidden_size": WIDTH,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCABULARY,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, VOCABULARY)
