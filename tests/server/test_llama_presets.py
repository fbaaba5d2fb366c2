"""llama-server's files of presets: what they say in our words, and what is said of mistakes in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.server.llama_presets import LEFT_OUT
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.presets import Preset, Presets, read_presets
from edgeinfer.errors import BadSetting
from edgeinfer.models.store import ModelStore
from edgeinfer.models.store_files import Manifest, ModelFile, manifest_file_name
from edgeinfer.settings import load_settings
from tests.adapter_files import write_adapter
from tests.conftest import write_tiny_llama

FULL = """version = 1
; for all models
[*]
ctx-size = 256 ; tokens
LLAMA_ARG_TEMP = 0.25
n-gpu-layers = 99

[unsloth/small:Q8_0]
m = one.gguf
alias = gpt-4o-mini, little
top-k = 3
lora-scaled = style.gguf:0.5
n-predict = -1
sleep-idle-seconds = 600
cache-type-k = q8_0
cache-type-v = q4_0
load-on-startup = true
no-mmap = 1

# drafts
[large]
hf-repo = user/large
spec-draft-hf = user/draft
reasoning = off
temp = 0
c = 0
"""


@pytest.fixture
def store(home: Path, tmp_path: Path) -> Path:
    """A folder with a model and an adapter, and a store with two models that were pulled."""
    (home / "models").mkdir(parents=True)
    for seed, name in enumerate(("one", "user/large", "user/draft")):
        path = write_tiny_llama(tmp_path / f"{name.rpartition('/')[2]}.gguf", seed=seed)
        if name != "one":
            file, source = ModelFile(path, path.stat().st_size, None), f"hf:{name}"
            manifest = Manifest(f"{name}:F32", f"{source}:F32", source, source, (file,))
            manifest.write(home / "models" / manifest_file_name(manifest.name))
    write_adapter(tmp_path / "one.gguf", tmp_path / "style.gguf", rank=4, seed=1)
    return tmp_path


def presets_of(folder: Path, text: str) -> Presets:
    path = folder / "models.ini"
    path.write_text(text)
    return read_presets(path, load_settings({}, environ={}, cwd=folder, config_path=folder / "none.toml"))


def test_sections_say_how_models_are_loaded_and_answer(store: Path) -> None:
    presets = presets_of(store, FULL)
    small, large = presets.by_name.values()
    load, answers = small.settings.load, small.settings.generation
    assert (small.model.name, small.model.path) == ("unsloth/small:Q8_0", store / "one.gguf")
    assert (small.aliases, small.keep_s, small.opens_at_start) == (("gpt-4o-mini", "little"), 600, True)
    assert (load.n_context, load.kv, answers.temp, answers.top_k, answers.max_tokens) == (256, "q8q4", 0.25, 3, None)
    assert [(each.path, each.scale) for each in load.adapters] == [(str(store / "style.gguf"), 0.5)]
    assert (large.model.path, large.settings.load.draft_from) == (store / "large.gguf", (str(store / "draft.gguf"),))
    thinking = large.settings.generation.enable_thinking
    assert (large.opens_at_start, thinking, large.settings.generation.temp) == (False, "off", 0)
    assert presets.default == "unsloth/small:Q8_0"


@pytest.mark.parametrize(("where", "hidden"), [("", False), ("dedup-cache-models = 1\n", True)])
def test_models_of_presets_are_listed_once_where_that_is_wanted(store: Path, where: str, hidden: bool) -> None:
    names = ModelList(ModelStore().models, None, (), presets_of(store, f"[*]\n{where}{FULL.partition('[*]')[2]}"))
    own, pulled = {"unsloth/small:Q8_0", "large"}, {"user/large:F32", "user/draft:F32"}
    assert {model.name for model in names.models()} == (own if hidden else own | pulled)
    assert names.find("user/draft:F32").path == store / "draft.gguf"  # hidden from lists alone
    assert names.find("user/large:F32").path == store / "large.gguf"


def only(presets: Presets) -> Preset:
    (preset,) = presets.by_name.values()
    return preset


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('chat-template-kwargs = {"enable_thinking": true, "reasoning_effort": "low"}', "enable_thinking", "on"),
        ("chat-template = chatml", "chat_template", "chatml"),
        ("ctk = q4_0", "kv", "q4"),
        ("spec-type = none", "spec", "off"),
        ("spec-type = draft-simple", "spec", "on"),
        ("reasoning = auto", "enable_thinking", "auto"),
        ("reasoning-budget = 0", "max_thought_tokens", 0),
        ("reasoning-budget = -1", "max_thought_tokens", None),
        ("threads = -1", "threads", None),
        ("predict = 7", "max_tokens", 7),
        ("mmproj = /models/mmproj.gguf", "mmproj", "/models/mmproj.gguf"),
        ("mmproj-auto = off", "mmproj", "off"),
        ("no-mmproj = true", "mmproj", "off"),
        ("seed=5;x", "seed", 5),
    ],
)
def test_keys_in_our_words(store: Path, text: str, name: str, value: Any) -> None:
    assert only(presets_of(store, f"[a]\nmodel = one.gguf\n{text}\n")).settings.value(name) == value


def test_what_places_a_model_is_left_out(store: Path) -> None:
    lines = "\n".join(f"{key} = x\nno-{key} = x" for key in sorted(LEFT_OUT))
    assert only(presets_of(store, f"[a]\nmodel = one.gguf\n{lines}\n")).model.name == "a"


ONE = "[small]\nmodel = one.gguf\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"has no model"),
        ("temp = 1\n" + ONE, r"line 1: temp belongs into a section: \[\*\]"),
        (ONE + "mirostat = 2\n", r"line 3, \[small\]: mirostat has no equal in edgeinfer; there are: alias, "),
        (ONE + "temp = 9\n", r"line 3, \[small\]: temp needs a number from 0 to 2, not 9"),
        (ONE + "top-k = many\n", r"line 3, \[small\]: top_k needs .* not 'many'"),
        (ONE + "nonsense\n", r"line 3, \[small\]: this is neither a \[section\] nor KEY = VALUE"),
        (ONE + "ctk = q5_1\n", r"line 3, \[small\]: a KV cache of q5_1 with q5_1 is not among ours"),
        (ONE + "chat-template = {{ x }}\n", r"line 3, \[small\]: chat-template is a name here"),
        (ONE + "chat-template-kwargs = {}x\n", r"line 3, \[small\]: of these variables"),
        (ONE + "load-on-startup = maybe\n", r"line 3, \[small\]: this needs true or false, not 'maybe'"),
        (ONE + "spec-draft-hf = nobody/none\n", r"line 3, \[small\]: draft_from: .*edgeinfer pull"),
        ("[small]\n\nhf-repo = nobody/none\n", r"line 3, \[small\]: model: .*edgeinfer pull"),
        ("[defaults]\nmodel = one.gguf\n", r"line 1: a model needs another name than defaults"),
    ],
)
def test_mistakes_are_told_with_their_lines(store: Path, text: str, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        presets_of(store, text)
