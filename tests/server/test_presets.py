"""Files of presets: what they say, and what is said of mistakes in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.presets import Presets, read_presets
from edgeinfer.errors import BadSetting
from edgeinfer.models.store import path_model
from edgeinfer.settings import load_settings
from tests.adapter_files import write_adapter
from tests.conftest import write_tiny_llama


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two models and an adapter."""
    for seed, name in enumerate(("one", "two")):
        write_tiny_llama(tmp_path / f"{name}.gguf", seed=seed)
    write_adapter(tmp_path / "one.gguf", tmp_path / "style.gguf", rank=4, seed=1)
    return tmp_path


def presets_of(folder: Path, text: str, **given: object) -> Presets:
    path = folder / "presets.toml"
    path.write_text(text)
    return read_presets(path, load_settings(given, environ={}, cwd=folder, config_path=folder / "none.toml"))


FULL = """
default = "qwen2.5:7b"

[defaults]
ctx = 256
temp = 0.1
threads = 1
keep_alive = "10m"

[small]
model = "one.gguf"
aliases = ["gpt-4o-mini", "little"]
temp = 0.9
lora = ["style.gguf:0.5"]
keep_alive = -1

["qwen2.5:7b"]
model = "two.gguf"
top_k = 3
kv = "q8"
load_on_startup = false
"""


def test_tables_say_how_models_are_loaded_and_answer(folder: Path) -> None:
    presets = presets_of(folder, FULL)
    small, qwen = presets.by_name.values()
    assert (small.model.name, small.model.path) == ("small", folder / "one.gguf")
    assert (small.settings.load.n_context, small.settings.load.threads, small.settings.generation.temp) == (256, 1, 0.9)
    assert [(each.path, each.scale) for each in small.settings.load.adapters] == [(str(folder / "style.gguf"), 0.5)]
    assert (small.aliases, small.keep_s, small.has_keep_s) == (("gpt-4o-mini", "little"), None, True)
    assert presets.defaults_of(small.model) == {"temperature": 0.9}
    assert presets.defaults_of(qwen.model) == {"temperature": 0.1, "top_k": 3}
    assert (qwen.settings.load.kv, qwen.keep_s, qwen.opens_at_start) == ("q8", 600, False)
    assert presets.default == "qwen2.5:7b"
    assert presets.settings_of(path_model(folder / "one.gguf")).generation.temp == 0.1  # [defaults] are for all


def test_the_command_line_comes_first(folder: Path) -> None:
    text = '[defaults]\ntemp = 0.1\n[small]\nmodel = "one.gguf"\ntemp = 0.9\nctx = 128\n'
    small = presets_of(folder, text, temp=0.5, top_k=7).by_name["small"]
    assert (small.settings.generation.temp, small.settings.generation.top_k) == (0.5, 7)
    assert small.settings.load.n_context == 128
    assert small.settings.origins["ctx"].endswith("presets.toml")


def test_names_aliases_and_files_mean_presets(folder: Path) -> None:
    presets = presets_of(folder, FULL)
    other = path_model(write_tiny_llama(folder / "three.gguf", seed=3))
    stored = [path_model(folder / "one.gguf"), other]
    names = ModelList(lambda: stored, None, (), presets)
    assert [model.name for model in names.models()] == ["qwen2.5:7b", "small", "three"]
    for name, found in (
        *((name, "small") for name in ("small", "SMALL", "gpt-4o-mini", "Little", "one", "one.gguf", "small:latest")),
        *((name, "qwen2.5:7b") for name in (None, "", "default", "qwen2.5:7b", "two")),
        ("three", "three"),
    ):
        assert names.find(name).name == found, name
    with pytest.raises(APIError, match=r"there are: qwen2\.5:7b, small, three"):
        names.find("four")
    assert names.is_configured(stored[0])
    assert not names.is_configured(other)
    assert [model.name for model in names.first_models()] == []
    assert presets_of(folder, FULL.replace("keep_alive", "keep-alive")) == presets
    text = FULL.replace("false", "true").replace("keep_alive = -1", "load_on_startup = true")
    assert [m.name for m in ModelList(list, None, (), presets_of(folder, text)).first_models()] == [
        "qwen2.5:7b",
        "small",
    ]


def test_what_a_preset_hides(folder: Path) -> None:
    for hides, listed in (("file", ["small", "two"]), ("all", ["small"]), ("none", ["small", "one", "two"])):
        text = f'[defaults]\nhides = "{hides}"\n[small]\nmodel = "one.gguf"\ndraft_from = ["two.gguf"]\n'
        stored = [path_model(folder / f"{name}.gguf") for name in ("one", "two")]
        names = ModelList(stored.copy, None, (), presets_of(folder, text))
        assert [model.name for model in names.models()] == listed
        assert names.find("two").path == folder / "two.gguf"


def test_a_small_model_belongs_to_its_preset(folder: Path) -> None:
    text = '[defaults]\nhides = "all"\n[both]\nmodel = "one.gguf"\nsmall_model = "two.gguf"\nhand_over = "entropy=2"\n'
    presets = presets_of(folder, text)
    preset = presets.by_name["both"]
    assert preset.settings.load.small_model == str(folder / "two.gguf")
    stored = [path_model(folder / f"{name}.gguf") for name in ("one", "two")]
    assert [model.name for model in ModelList(stored.copy, None, (), presets).models()] == ["both"]
    with pytest.raises(BadSetting, match=r"\[both\]: small_model: "):
        presets_of(folder, text.replace("two.gguf", "seven"))


ONE = '[small]\nmodel = "one.gguf"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[small\n", "presets.toml is not valid TOML: .*line 1"),
        ("a = " + "[" * 100_000, "presets.toml is not valid TOML: .*recursion"),
        ("", r'has no model; add a table such as \["small"\]'),
        ("temp = 1\n" + ONE, r"line 1: temp belongs into a table: \[defaults\]"),
        (ONE + "contxt = 5\n", r"line 3, \[small\]: no setting is called contxt; did you mean ctx\?"),
        (ONE + "zzzzzzzz = 5\n", r"line 3, \[small\]: no setting is called zzzzzzzz; there are: temp, "),
        (ONE + "theme = 'x'\n", r"line 3, \[small\]: no setting is called theme"),
        (ONE + "system = 'x'\n", r"line 3, \[small\]: no setting is called system"),
        (ONE + "temp = 9\n", r"line 3, \[small\]: temp needs a number from 0 to 2, not 9"),
        (ONE + 'keep_alive = "soon"\n', r"line 3, \[small\]: keep_alive needs seconds, or a time"),
        (ONE + 'hides = "it"\n', r"line 3, \[small\]: hides needs file, all, none, not 'it'"),
        (ONE + "aliases = 5\n", r"line 3, \[small\]: aliases needs a list of names"),
        (ONE + 'load_on_startup = "x"\n', r"line 3, \[small\]: load_on_startup needs true or false, not 'x'"),
        (ONE + 'lora = ["none.gguf"]\n', r"line 3, \[small\]: lora: there is no file none.gguf"),
        (ONE + 'chat_template = "nothing"\n', r"line 3, \[small\]: .*chatml"),
        ('[small]\nmodel = "nothing"\n', r"line 2, \[small\]: model: no model is called 'nothing'"),
        ("[small]\nmodel = 5\n", r"line 2, \[small\]: model needs a name, path or source of a model, not 5"),
        ('[qwen2.5]\nmodel = "one.gguf"\n', r'line 1, \[qwen2\]: a name with a dot needs quotes: \["qwen2.5"\]'),
        ("[default]\n" + ONE, r"line 1, \[default\]: the table for all models is \[defaults\]"),
        ('default = "big"\n' + ONE, "line 1: default names 'big', which is none of its tables; there are: small"),
        (
            ONE + 'aliases = ["Big"]\n[big]\nmodel = "two.gguf"\n',
            r"line 3, \[small\]: the alias 'Big' means \[big\] already",
        ),
        (ONE + '[SMALL]\nmodel = "two.gguf"\n', "two tables differ only in capitals"),
        ('[defaults]\nmodel = "x"\n' + ONE, r"line 2, \[defaults\]: no setting is called model"),
    ],
)
def test_mistakes_are_told_with_their_place(folder: Path, text: str, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        presets_of(folder, text)


def test_a_file_that_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read: No such file"):
        read_presets(folder / "none.toml", load_settings({}, environ={}, cwd=folder))
