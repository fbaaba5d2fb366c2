"""Settings: precedence, origins, validation, and that reading them loads nothing."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.app.opening.loading import answer_options
from edgeinfer.errors import BadFlag, BadSetting
from edgeinfer.setting_values import THEMES, core_list
from edgeinfer.settings import (
    GROUPS,
    Settings,
    declared_options,
    find_option,
    flag_of,
    load_settings,
    read_value,
    user_config_path,
)

ROOT = Path(__file__).resolve().parents[2]


def load(tmp_path: Path, overrides: dict[str, object] | None = None, environ: dict[str, str] | None = None) -> Settings:
    """Settings that see nothing of the machine the test runs on."""
    return load_settings(overrides, environ=environ or {}, cwd=tmp_path, config_path=tmp_path / "config.toml")


def test_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    generation = settings.generation
    assert (generation.temp, generation.top_p, generation.top_k, generation.min_p) == (None, None, None, None)
    assert (generation.repeat_penalty, generation.seed, generation.max_tokens, settings.load.n_context) == (
        None,
        None,
        None,
        None,
    )
    assert (settings.load.threads, settings.load.cores, settings.load.device) == (None, None, "auto")
    assert settings.model.model is None
    assert set(settings.origins.values()) == {"default"}


def test_each_place_goes_before_the_next(tmp_path: Path) -> None:
    places: list[tuple[float | None, str]] = []
    user, project = tmp_path / "config.toml", tmp_path / "edgeinfer.toml"
    user.write_text("temp = 0.1\ntop_k = 1\n")
    places.append((load(tmp_path).generation.temp, load(tmp_path).origins["temp"]))
    project.write_text("temp = 0.2\n")
    places.append((load(tmp_path).generation.temp, load(tmp_path).origins["temp"]))
    environ = {"EDGEINFER_TEMP": "0.3"}
    places.append((load(tmp_path, None, environ).generation.temp, load(tmp_path, None, environ).origins["temp"]))
    settings = load(tmp_path, {"temp": 0.4, "seed": None}, environ)
    places.append((settings.generation.temp, settings.origins["temp"]))
    assert places == [(0.1, str(user)), (0.2, str(project)), (0.3, "EDGEINFER_TEMP"), (0.4, "command line")]
    assert (settings.generation.top_k, settings.origins["top_k"]) == (1, str(user))
    assert settings.origins["seed"] == "default"
    assert settings.value("temp") == 0.4


def test_an_empty_variable_is_unset(tmp_path: Path) -> None:
    assert load(tmp_path, None, {"EDGEINFER_TEMP": "", "EDGEINFER_HOME": "/x"}).origins["temp"] == "default"


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("temp", "0", 0.0),
        ("top_k", "0", 0),
        ("seed", "none", None),
        ("seed", 7, 7),
        ("ctx", "4096", 4096),
        ("max_tokens", "auto", None),
        ("cores", "0,2-5", (0, 2, 3, 4, 5)),
        ("cores", [3, 1], (1, 3)),
        ("cores", "4", (4,)),
        ("cores", "", None),
        ("device", "cpu, ONNX,cpu", "cpu,onnx"),
        ("device", ["cpu", "onnx"], "cpu,onnx"),
        ("kv", "q4", "q4"),
        ("kv", "int8", "q8"),
        ("mode", "quiet", "quiet"),
        ("device", "auto", "auto"),
        ("system", "none", "none"),
        ("chat_template", "llama3", "llama3"),
        ("chat_template", "none", None),
        ("chat-template-file", Path("a.jinja"), "a.jinja"),
        ("enable_thinking", "off", "off"),
        ("enable_thinking", True, "on"),
        ("enable_thinking", "false", "off"),
        ("max_thought_tokens", "0", 0),
        ("max_thought_tokens", "none", None),
        ("TOP-K", "3", 3),
    ],
)
def test_values_are_read(name: str, value: object, read: object) -> None:
    assert read_value(name, value) == read


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("temp", "hot", "a number from 0 to 2"),
        ("temp", "-0.1", "a number from 0 to 2"),
        ("temp", 9, "a number from 0 to 2"),
        ("temp", "nan", "a number from 0 to 2"),
        ("temp", True, "a number from 0 to 2"),
        ("top_p", 0, "above 0, 1 at most"),
        ("top_p", 1.5, "above 0, 1 at most"),
        ("top_k", 1.5, "whole number"),
        ("top_k", -1, "from 0 up"),
        ("threads", "0", "from 1 up"),
        ("ctx", "0", "from 1 up"),
        ("cores", "5-2", "0,2-5"),
        ("cores", "a", "0,2-5"),
        ("cores", "0-9999999999", "0,2-5"),
        ("cores", {}, "0,2-5"),
        ("device", "auto,cpu", "auto alone"),
        ("device", " , ", "device names"),
        ("kv", "f8", "q8q4 or q4"),
        ("mode", "loud", "max, balanced, quiet or battery"),
        ("ram", "lots", "a size such as 3GB"),
        ("ram", "0", "a size such as 3GB"),
        ("ram", "140%", "such as 60%"),
        ("model", 3, "text"),
        ("chat_template", 3, "text"),
        ("chat_template_file", 3, "a path"),
        ("enable_thinking", "maybe", "auto, on or off"),
        ("max_thought_tokens", -1, "from 0 up"),
    ],
)
def test_impossible_values_are_refused(tmp_path: Path, name: str, value: object, reason: str) -> None:
    with pytest.raises(BadFlag, match=f"^{flag_of(name)} needs .*{reason}.*, not ") as raised:
        load(tmp_path, {name: value})
    said = str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    assert str(raised.value).split("; ")[0].endswith(f", not {said}")


@pytest.mark.parametrize(
    ("name", "near"), [("tmep", "temp"), ("topk", "top_k"), ("thread", "threads"), ("qqqq", "there are")]
)
def test_unknown_names_get_the_nearest(tmp_path: Path, name: str, near: str) -> None:
    with pytest.raises(BadSetting, match=near):
        find_option(name)
    (tmp_path / "edgeinfer.toml").write_text(f"{name} = 1\n")
    with pytest.raises(BadSetting, match=r"edgeinfer\.toml.*" + near):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"temp = ", b"\xff\xfe", b"temp = 1\ntemp = 2\n", b"temp = " + b"[" * 100_000])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(BadSetting, match=r"config\.toml is not valid TOML"):
        load(tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(BadSetting, match="cannot be read"):
        load(tmp_path)


def test_every_option_is_declared_once_and_explained() -> None:
    fields = [field for group in GROUPS.values() for field in dataclasses.fields(group) if field.metadata]
    options = declared_options()
    assert [option.field for option in options.values()] == [field.name for field in fields]
    for option in options.values():
        assert option.help.endswith(".")
        assert option.read(option.default) == option.default


def test_the_user_file_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_config_path({"EDGEINFER_HOME": str(tmp_path)}) == tmp_path / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert user_config_path({}).name == "config.toml"
    assert "edgeinfer" in user_config_path({}).parts


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_core_list_survives_being_written(cores: set[int]) -> None:
    assert core_list(",".join(map(str, cores))) == tuple(sorted(cores))
    assert core_list(f"{min(cores)}-{max(cores)}") == tuple(range(min(cores), max(cores) + 1))


def test_reading_settings_loads_the_standard_library_only(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import edgeinfer.settings as s; s.load_settings({'temp': 1});"
        "print([m for m in ('numpy', 'numba', 'textual', 'tomlkit', 'typer', 'rich', 'pydantic') if m in sys.modules])"
    )
    environment = {"PYTHONPATH": str(ROOT), "EDGEINFER_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("word", ["on", "off"])
def test_thinking_is_told_to_the_template(tmp_path: Path, word: str) -> None:
    is_on = word == "on"
    options = answer_options(load(tmp_path, {"enable_thinking": word, "max_thought_tokens": 9}))
    assert options["template_variables"] == {"enable_thinking": is_on, "thinking": is_on}
    assert options["max_thought_tokens"] == 9


def test_the_effort_is_told_to_the_template(tmp_path: Path) -> None:
    assert "template_variables" not in answer_options(load(tmp_path, {}))
    options = answer_options(load(tmp_path, {"reasoning_effort": "low"}))
    assert options["template_variables"] == {"reasoning_effort": "low"}
    options = answer_options(load(tmp_path, {"reasoning_effort": "low", "enable_thinking": "on"}))
    assert options["template_variables"] == {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}


def test_marks_are_parsed_only_where_that_is_set(tmp_path: Path) -> None:
    assert answer_options(load(tmp_path, {"parse_special": "true"}))["parse_special"] is True


def test_what_is_not_set_is_left_to_the_author_of_the_model(tmp_path: Path) -> None:
    assert answer_options(load(tmp_path)) == {"seed": None, "max_tokens": None}
    given = {"temp": 0.0, "top_k": 0, "top_p": 0.5, "min_p": 0.0, "repeat_penalty": 1.3}
    assert answer_options(load(tmp_path, given)) == {
        **{name: value for name, value in given.items() if name != "temp"},
        "temperature": 0.0,
        "seed": None,
        "max_tokens": None,
    }


def test_the_themes_are_those_of_textual() -> None:
    from textual.theme import BUILTIN_THEMES

    assert tuple(BUILTIN_THEMES) == THEMES


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("theme", "nrod", "a theme, not 'nrod'; did you mean nord"),
        ("theme", "q", "there are: textual-dark"),
        ("thinking", "never", "fold, show or hide"),
        ("snapshots", "much", "a size such as 1GB"),
        ("snapshots", True, "a size such as 1GB"),
    ],
)
def test_values_that_the_app_cannot_have(name: str, value: object, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        read_value(name, value)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("theme", " Nord ", "nord"),
        ("snapshots", 0, "0"),
        ("snapshots", "off", "0"),
        ("snapshots", "500MiB", "500MiB"),
        ("verify_cost", {4: 1.05}, {4: 1.05}),
    ],
)
def test_values_that_the_app_can_have(name: str, value: object, wanted: object) -> None:
    assert read_value(name, value) == wanted


def test_words_are_known_from_the_types() -> None:
    options = declared_options()
    assert options["kv"].words == ("f16", "q8", "q8q4", "q4")
    assert options["pack"].words == ("true", "false")
    assert options["spec"].words == ()  # a number is possible too


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("auto", "auto"),
        ("LOCAL", "local"),
        ("10.0.0.5:6379", "10.0.0.5:6379"),
        ("[::1]:6379", "[::1]:6379"),
        ("off", None),
    ],
)
def test_where_ray_runs(tmp_path: Path, text: str, address: str | None) -> None:
    assert load(tmp_path, {"ray": text}).cluster.ray == address


@pytest.mark.parametrize("text", ["prompts.jsonl", "10.0.0.5", "ray", "a b:1", "host:port"])
def test_what_is_no_address_of_ray(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadSetting, match=r"--ray needs an address such as 10\.0\.0\.5:6379, auto"):
        load(tmp_path, {"ray": text})


def test_a_folder_does_not_choose_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "edgeinfer.toml").write_text('ray = "10.0.0.5:6379"\n')
    with pytest.raises(
        BadSetting, match="ray names computers that may run anything here, which a folder's file must not"
    ):
        load(tmp_path)
    (tmp_path / "edgeinfer.toml").unlink()
    (tmp_path / "config.toml").write_text('ray = "10.0.0.5:6379"\n')
    assert load(tmp_path).cluster.ray == "10.0.0.5:6379"


def test_settings_go_to_another_process_and_come_back_the_same(tmp_path: Path) -> None:
    overrides: dict[str, object] = {
        "temp": 0.4,
        "verify_cost": "4:1.05,8:1.15",
        "lora": "a.gguf:0.5",
        "approx": "kv=1024",
        "kv": "q8",
    }
    settings = load(tmp_path, overrides)
    assert pickle.loads(pickle.dumps(settings)) == settings
