"""Every golden model gives the logits of transformers, however its tokens are batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add_to_parts import AddToParts
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.causal_conv import CausalConv
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.gated_columns import GatedColumns
from edgeinfer.graph.ops.gated_delta_net import GatedDeltaNet
from edgeinfer.graph.ops.join_parts import JoinParts
from edgeinfer.graph.ops.keep_highest import KeepHighest
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.match_magnitude import MatchMagnitude
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.mix_parts import MixParts
from edgeinfer.graph.ops.mul_vector import MulVector
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.router import Router
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.graph.ops.soft_cap import SoftCap
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.graph.ops.zero import Zero
from edgeinfer.models.load import open_model
from tests.golden.conftest import Judged
from tests.golden.golden_devices import skip_refused
from tests.golden.goldens import BRANCHING, ONE_BY_ONE, PATHS, RESULTS, Golden, Player, distance

NAMES = [path.stem for path in RESULTS]
VARIED = [name for name in NAMES if name.endswith(("-f32", "-q8_0", "-k", "@long"))]

Edit = Callable[[Op], Op | None]


@pytest.fixture(scope="module", params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden.read(request.param)


@pytest.fixture(scope="module")
def compiled(judged: Judged, golden: Golden) -> Iterator[Player]:
    """One lane for all tests of a model on a device: what earlier texts left in its pages must not matter."""
    skip_refused(judged.device, golden)
    with Player(judged.device, golden) as player:
        yield player


@pytest.fixture
def player(compiled: Player) -> Player:
    compiled.begin()
    return compiled


def varied(*endings: str) -> pytest.MarkDecorator:
    """The models whose names end so."""
    names = [name for name in VARIED if any(ending in name for ending in endings)]
    return pytest.mark.parametrize("golden", names, indirect=True)


def test_logits_in_one_pass(judged: Judged, golden: Golden, player: Player) -> None:
    assert golden.error(player.feed(golden.tokens)) < judged.tolerance


@varied("")
def test_logits_in_chunks(judged: Judged, golden: Golden, player: Player) -> None:
    chunks = np.split(golden.tokens, [5, 6, 29, 45])
    assert golden.error(np.concatenate([player.feed(chunk) for chunk in chunks])) < judged.tolerance


@varied("f32", "-q8_0")
def test_logits_token_by_token(judged: Judged, golden: Golden, player: Player) -> None:
    rows = [player.feed(chunk) for chunk in np.split(golden.tokens, ONE_BY_ONE)]
    assert golden.error(np.concatenate(rows)) < judged.tolerance


@varied("")
def test_a_tree_gives_each_node_the_logits_of_its_path(judged: Judged, golden: Golden, player: Player) -> None:
    prefix, tokens = golden.tokens[:20], golden.tokens[20:32]
    player.feed(prefix)
    tree = player.look(tokens, BRANCHING)
    again = player.look(tokens, BRANCHING)
    assert distance(again, tree) < judged.batching
    for path in PATHS:
        player.begin()
        plain = player.feed(np.concatenate([prefix, tokens[path]]))[len(prefix) :]
        assert all(distance(tree[node], row) < judged.batching for node, row in zip(path, plain, strict=True))


@varied("")
def test_sequences_of_one_pass_do_not_see_each_other(judged: Judged, golden: Golden, player: Player) -> None:
    first, second = golden.tokens[:30], golden.tokens[30:]
    player.begin(2)
    player.feed(first[:11], 0)
    together = player.feed_together({0: first[11:], 1: second})
    alone = []
    for tokens in (first, second):  # with all pages to itself, so that it sees none of the other's
        player.begin()
        alone.append(player.feed(tokens))
    assert distance(together, np.concatenate([alone[0][11:], alone[1]])) < judged.batching


def edited(spec: ModelSpec, edit: Edit) -> ModelSpec:
    """The spec with every op replaced by its edit, or dropped."""
    kept = [(stage, [edit(op) for op in stage.ops]) for stage in spec.stages]
    stages = (replace(stage, ops=tuple(op for op in ops if op is not None)) for stage, ops in kept)
    return replace(spec, stages=tuple(stages))


def change(kind: type[Op], **values: object) -> Edit:
    """An edit of all ops of a kind."""
    return lambda op: replace(op, **values) if isinstance(op, kind) else op  # type: ignore[arg-type]


def _is_sigmoid(op: Op) -> bool:
    return isinstance(op, GatedAct) and op.activation == "sigmoid"


def rope_change(**values: object) -> Edit:
    """An edit of all rotary tables."""
    return lambda op: replace(op, table=replace(op.table, **values)) if isinstance(op, Rope) else op  # type: ignore[arg-type]


def one_more(op: Op) -> Op:
    """Windows one position too long."""
    return replace(op, window=op.window + 1) if isinstance(op, Attention) and op.window else op


def unwindowed_rope(op: Op) -> Op:
    """The rotary base of Gemma 3's global layers everywhere."""
    return replace(op, table=replace(op.table, base=1e6)) if isinstance(op, Rope) else op


def without_head_norms(op: Op) -> Op | None:
    """No norms of query and key heads."""
    return None if isinstance(op, RMSNorm) and op.source in ("query", "key") else op


def no_mean(op: Op) -> Op:
    """RMSNorm for LayerNorm."""
    return RMSNorm(op.source, op.out, op.weight, op.width, op.epsilon) if isinstance(op, LayerNorm) else op


def scaled_as(value: str, factor: float) -> Edit:
    """Another scale of a buffer."""
    return lambda op: replace(op, factor=factor) if isinstance(op, Scale) and op.value == value else op


def one_norm(op: Op) -> Op:
    """What attention reads for the feed-forward network too."""
    return replace(op, source="normed") if isinstance(op, MatMul) and op.source == "normed_ffn" else op


def without_latent_norms(op: Op) -> Op | None:
    """No norms of the rows that queries, keys and values come from."""
    return None if isinstance(op, RMSNorm) and op.source.startswith("latent") else op


def shifted_positions(op: Op) -> Op:
    """Positions from the first row of the table on."""
    if not isinstance(op, PositionEmbed):
        return op
    return replace(op, weight=replace(op.weight, start=op.weight.start - 2, stop=op.weight.stop - 2))


def without_positions(op: Op) -> Op | None:
    """No learned positions."""
    return None if isinstance(op, PositionEmbed) else op


def without_post_norms(op: Op) -> Op | None:
    """No norms of finished branches."""
    return None if isinstance(op, RMSNorm) and op.source == "branch" else op


def without_normed(out: str) -> Edit:
    """No norms of a buffer."""
    return lambda op: None if isinstance(op, RMSNorm) and op.out == op.source == out else op


def without(kind: type[Op]) -> Edit:
    """No ops of a kind."""
    return lambda op: None if isinstance(op, kind) else op


def values_as_keys(op: Op) -> Op:
    """A weight for the norms of values that are keys."""
    if not isinstance(op, RMSNorm) or op.weight is not None or op.source == op.out:
        return op
    return replace(op, weight=Weight("blk.1.attn_k_norm.weight", 0, op.width, 1))


def normalised_softmax(op: Op) -> Op:
    """Shares that add up to one."""
    return replace(op, normalised=True) if isinstance(op, Router) and op.scoring == "softmax" else op


def without_shared_expert(op: Op) -> Op | None:
    """No expert that every token has."""
    return None if isinstance(op, Experts) and len(op.gate) == 1 else op


def one_expert_more(op: Op) -> Op:
    """A token has one expert too many."""
    return replace(op, active=op.active + 1) if isinstance(op, Router | Experts) else op


def with_parts_reversed(op: Op) -> Op:
    """Heads joined from the last to the first."""
    return replace(op, sources=op.sources[::-1]) if isinstance(op, JoinParts) else op


def head_by_head(op: Op) -> Op:
    """Queries normed in slices of a head's width, with its part of the weight."""
    if not isinstance(op, RMSNorm) or op.source != "query":
        return op
    return replace(op, width=op.width // 2, groups=2, weight=replace(op.weight, stop=op.width // 2))


MISTAKES = {
    "mistral: no window": ("mistral-window-q8_0", change(Attention, window=None)),
    "mistral: window off by one": ("mistral-window-q8_0", one_more),
    "phi3: no window": ("phi3-window-q8_0", change(Attention, window=None)),
    "gemma2: no window": ("gemma2-f32", change(Attention, window=None)),
    "gemma2: window off by one": ("gemma2-f32", one_more),
    "gemma2: window everywhere": ("gemma2-f32", change(Attention, window=12)),
    "gemma2: no attention cap": ("gemma2-f32", change(Attention, soft_cap=None)),
    "gemma2: no logits cap": ("gemma2-f32", change(SoftCap, cap=1e6)),
    "gemma2: no embedding scale": ("gemma2-f32", change(Embed, scale=1.0)),
    "gemma2: other activation": ("gemma2-f32", change(GatedAct, activation="silu")),
    "gemma2: other scale": ("gemma2-f32", change(Attention, scale=0.3)),
    "gemma2: no post norms": ("gemma2-f32", without_post_norms),
    "gemma3: no window": ("gemma3-f32", change(Attention, window=None)),
    "gemma3: one rotary base": ("gemma3-f32", unwindowed_rope),
    "gemma3: no linear scaling": ("gemma3-f32", rope_change(scaling="none")),
    "gemma3: no head norms": ("gemma3-f32", without_head_norms),
    "qwen3: no head norms": ("qwen3-f32", without_head_norms),
    "qwen2: no bias": ("qwen2-f32", change(MatMul, bias=None)),
    "llama: no bias": ("llama-bias-q8_0", change(MatMul, bias=None)),
    "llama3: no factors": ("llama-llama3-q8_0", rope_change(factors=None)),
    "linear: no scaling": ("llama-linear-q8_0", rope_change(scaling="none")),
    "yarn: no scaling": ("llama-yarn-q8_0", rope_change(scaling="none")),
    "yarn: linear instead": ("llama-yarn-q8_0", rope_change(scaling="linear")),
    "yarn: no magnitude": ("llama-yarn-q8_0", rope_change(magnitude=1.0)),
    "yarn: other betas": ("qwen2-yarn-q8_0", rope_change(beta_fast=32.0, beta_slow=1.0)),
    "longrope: short for long": ("phi3-longrope-q8_0@long", rope_change(factors="rope_factors_short.weight")),
    "opt: no positions": ("opt-f32", without_positions),
    "opt: positions without their offset": ("opt-f32", shifted_positions),
    "opt: no mean, no bias": ("opt-f32", no_mean),
    "opt: other activation": ("opt-f32", change(Act, activation="relu2")),
    "opt: no bias": ("opt-f32", change(MatMul, bias=None)),
    "relu: other activation": ("llama-relu-f16", change(GatedAct, activation="silu")),
    "relu2: other activation": ("llama-relu2-q8_0", change(GatedAct, activation="relu")),
    "mixtral: shares not normalised": ("mixtral-f16", change(Router, normalised=False)),
    "mixtral: one expert fewer": ("mixtral-f16", change(Router, active=1)),
    "qwen2moe: shares normalised": ("qwen2moe-f32", normalised_softmax),
    "qwen2moe: no shared expert": ("qwen2moe-f32", without_shared_expert),
    "qwen2moe: shared expert without its share": ("qwen2moe-f32", change(Router, scoring="softmax")),
    "qwen3moe: one expert more": ("qwen3moe-f32", one_expert_more),
    "qwen3moe: no head norms": ("qwen3moe-f32", without_head_norms),
    "olmoe: shares normalised": ("olmoe-f32", change(Router, normalised=True)),
    "olmoe: no norms of queries and keys": ("olmoe-f32", without_head_norms),
    "olmoe: norms of heads": ("olmoe-f32", head_by_head),
    "qwen35: no gate of attention": ("qwen35-f32", lambda op: None if _is_sigmoid(op) else op),
    "qwen35: no activation of convolutions": ("qwen35-f32", change(CausalConv, activation=None)),
    "qwen35: value heads of other key heads": ("qwen35-f32", change(GatedDeltaNet, grouped=True)),
    "lfm2: no gate before": ("lfm2-f32", change(CausalConv, before=None)),
    "lfm2: no gate after": ("lfm2-f32", change(CausalConv, after=None)),
    "lfm2: an activation": ("lfm2-f32", change(CausalConv, activation="silu")),
    "gpt-oss: no sinks": ("gpt-oss-f32", change(Attention, sinks=None)),
    "gpt-oss: no window": ("gpt-oss-f32", change(Attention, window=None)),
    "gpt-oss: no biases of experts": ("gpt-oss-f32", change(Experts, biases=None)),
    "gpt-oss: other activation": ("gpt-oss-f32", change(Experts, activation="silu")),
    "gpt-oss: shares of all experts": ("gpt-oss-f32", change(Router, normalised=False)),
    "granite: no embedding scale": ("granite-f32", change(Embed, scale=1.0)),
    "granite: other scale of scores": ("granite-f32", change(Attention, scale=0.25)),
    "granite: branches whole": ("granite-f32", scaled_as("branch", 1.0)),
    "granite: logits whole": ("granite-f32", scaled_as("logits", 1.0)),
    "granitemoe: experts whole": ("granitemoe-f32", change(Router, scale=1.0)),
    "granitemoe: shared expert whole": ("granitemoe-f32", scaled_as("branch", 1.0)),
    "smollm3: rotation in no layer": ("smollm3-f32", lambda op: None if isinstance(op, Rope) else op),
    "olmo: another epsilon": ("olmo-f32", change(LayerNorm, epsilon=0.1)),
    "olmo2: no norms of queries and keys": ("olmo2-f32", without_head_norms),
    "olmo2: no post norms": ("olmo2-f32", without_post_norms),
    "olmo3: no window": ("olmo3-f32", change(Attention, window=None)),
    "olmo3: no scaling": ("olmo3-f32", rope_change(scaling="none")),
    "command-r: logits whole": ("command-r-f32", scaled_as("logits", 1.0)),
    "command-r: no mean": ("command-r-f32", no_mean),
    "cohere2: no window": ("cohere2-f32", change(Attention, window=None)),
    "cohere2: rotation in no layer": ("cohere2-f32", lambda op: None if isinstance(op, Rope) else op),
    "gptneox: one norm for both branches": ("gptneox-f32", one_norm),
    "phi2: whole heads rotated": ("phi2-f32", rope_change(rotary_width=16)),
    "glm4moe: one group": ("glm4moe-f32", change(Router, groups=1, active_groups=1)),
    "glm4moe: chosen without biases": ("glm4moe-f32", change(Router, bias=None)),
    "glm4moe: shares whole": ("glm4moe-f32", change(Router, scale=1.0)),
    "minicpm3: branches whole": ("minicpm3-f32", scaled_as("branch", 1.0)),
    "minicpm3: logits whole": ("minicpm3-f32", scaled_as("logits", 1.0)),
    "minicpm3: no embedding scale": ("minicpm3-f32", change(Embed, scale=1.0)),
    "minicpm3: rotation in no head": ("minicpm3-f32", lambda op: None if isinstance(op, Rope) else op),
    "minicpm3: no norms of latent rows": ("minicpm3-f32", without_latent_norms),
    "afmoe: nothing cleared": ("afmoe-f32", lambda op: None if isinstance(op, Zero) else op),
    "afmoe: no post norms": ("afmoe-f32", without_post_norms),
    "afmoe: no head norms": ("afmoe-f32", without_head_norms),
    "afmoe: no gate of attention": ("afmoe-f32", lambda op: None if _is_sigmoid(op) else op),
    "afmoe: no window": ("afmoe-f32", change(Attention, window=None)),
    "afmoe: window off by one": ("afmoe-f32", one_more),
    "afmoe: rotation in no layer": ("afmoe-f32", lambda op: None if isinstance(op, Rope) else op),
    "afmoe: no embedding scale": ("afmoe-f32", change(Embed, scale=1.0)),
    "afmoe: chosen without biases": ("afmoe-f32", change(Router, bias=None)),
    "afmoe: shares whole": ("afmoe-f32", change(Router, scale=1.0)),
    "afmoe: shares not normalised": ("afmoe-f32", change(Router, normalised=False)),
    "gemma: no embedding scale": ("gemma-f32", change(Embed, scale=1.0)),
    "arcee: plain ReLU": ("arcee-f32", change(Act, activation="relu")),
    "ernie4_5: another base": ("ernie4_5-f32", rope_change(base=20000.0)),
    "seed_oss: no biases": ("seed_oss-f32", change(MatMul, bias=None)),
    "exaone4: no post norms": ("exaone4-f32", without_post_norms),
    "exaone4: no head norms": ("exaone4-f32", without_head_norms),
    "exaone4: rotation in no layer": ("exaone4-windows-f32", lambda op: None if isinstance(op, Rope) else op),
    "exaone4: no window": ("exaone4-windows-f32", change(Attention, window=None)),
    "glm4: no post norms": ("glm4-f32", without_post_norms),
    "glm4: whole heads rotated": ("glm4-f32", rope_change(rotary_width=16)),
    "stablelm: whole heads rotated": ("stablelm-f32", rope_change(rotary_width=16)),
    "stablelm: no mean": ("stablelm-f32", no_mean),
    "nemotron: plain ReLU": ("nemotron-f32", change(Act, activation="relu")),
    "hunyuan-moe: no head norms": ("hunyuan-moe-f32", without_head_norms),
    "hunyuan-moe: shares not normalised": ("hunyuan-moe-f32", change(Router, normalised=False)),
    "bailingmoe2: whole heads rotated": ("bailingmoe2-f32", rope_change(rotary_width=16)),
    "bailingmoe2: no head norms": ("bailingmoe2-f32", without_head_norms),
    "bailingmoe2: one group": ("bailingmoe2-f32", change(Router, groups=1, active_groups=1)),
    "bailingmoe2: chosen without biases": ("bailingmoe2-f32", change(Router, bias=None)),
    "deepseek2: rotation in no head": ("deepseek2-f32", lambda op: None if isinstance(op, Rope) else op),
    "deepseek2: scores without YaRN's magnitude": ("deepseek2-f32", change(Attention, scale=48**-0.5)),
    "deepseek2: no norms of latent rows": ("deepseek2-f32", without_latent_norms),
    "deepseek2: heads in another order": ("deepseek2-f32", with_parts_reversed),
    "deepseek2: one group": ("deepseek2-f32", change(Router, groups=1, active_groups=1)),
    "starcoder2: ReLU": ("starcoder2-f32", change(Act, activation="relu")),
    "bitnet: SiLU": ("bitnet-f32", change(GatedAct, activation="silu")),
    "gemma4: other scale": ("gemma4-f32", change(Attention, scale=0.25)),
    "gemma4: no window": ("gemma4-f32", change(Attention, window=None)),
    "gemma4: one rotary base": ("gemma4-f32", unwindowed_rope),
    "gemma4: whole heads rotated": ("gemma4-f32", rope_change(factors=None)),
    "gemma4: layers whole": ("gemma4-f32", change(Scale, weight=None)),
    "gemma4: no logits cap": ("gemma4-f32", change(SoftCap, cap=1e6)),
    "gemma4: values normed with keys' weight": ("gemma4-f32", values_as_keys),
    "gemma4-small: values as they are": ("gemma4-small-f32", without_normed("value")),
    "gemma4-small: no norm of inputs": ("gemma4-small-f32", without_normed("gate")),
    "gemma4-small: epsilon of rows": ("gemma4-small-f32", change(RMSNorm, epsilon=0.01)),
    "gemma4-small: no rows of tokens": ("gemma4-small-f32", change(TokenRows, scale=0.0)),
    "gemma4-small: inputs of the first layer": ("gemma4-small-f32", change(GatedColumns, first=0)),
    "gemma4-small: other activation": ("gemma4-small-f32", change(GatedColumns, activation="silu")),
    "gemma4-small: inputs whole": ("gemma4-small-f32", scaled_as("layer_inputs", 1.0)),
    "gemma4-moe: experts whole": ("gemma4-moe-f32", change(Router, scales=None)),
    "gemma4-moe: scores whole": ("gemma4-moe-f32", scaled_as("scores", 1.0)),
    "gemma4-moe: experts not normed": ("gemma4-moe-f32", without_normed("routed")),
    "gemma4-moe: other activation": ("gemma4-moe-f32", change(Experts, activation="silu")),
    "gemma3n: rows not mixed": ("gemma3n-f32", without(MixParts)),
    "gemma3n: all rows corrected alike": ("gemma3n-f32", change(AddToParts, factors=None)),
    "gemma3n: inputs for the first row too": ("gemma3n-f32", change(AddToParts, first=0)),
    "gemma3n: factors unbounded": ("gemma3n-f32", without(SoftCap)),
    "gemma3n: rows of other magnitudes": ("gemma3n-f32", without(MatchMagnitude)),
    "gemma3n: all gates": ("gemma3n-f32", without(KeepHighest)),
    "gemma3n: gates above their mean": ("gemma3n-f32", change(KeepHighest, deviations=0.0)),
    "gemma3n: first row as it is": ("gemma3n-f32", without(MulVector)),
    "gemma3n: low rank not normed": ("gemma3n-f32", without_normed("laurel")),
    "gemma3n: sum of branches whole": ("gemma3n-f32", scaled_as("x", 1.0)),
    "gemma3n: router's rows whole": ("gemma3n-f32", scaled_as("modes", 1.0)),
    "gemma3n: other scale": ("gemma3n-f32", change(Attention, scale=0.25)),
    "longrope: no magnitude": ("phi3-longrope-q8_0@short", rope_change(magnitude=1.0)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_goldens_see_every_feature(mistake: str) -> None:
    name, edit = MISTAKES[mistake]
    golden = Golden.read(name)
    with open_model(golden.model, golden.n_context) as model:
        spec = edited(model.spec, edit)
    with Player(ReferenceDevice(), golden, spec) as player:
        assert golden.error(player.feed(golden.tokens)) > 1e-3
