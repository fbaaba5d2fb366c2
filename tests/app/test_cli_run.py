"""`edgeinfer run`: what goes to stdout, what to stderr, and with which exit code."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.app.plain_text import harmless
from edgeinfer.app.plans.measured import SpeedLog
from edgeinfer.engine.loading import load
from edgeinfer.engine.measure import power
from edgeinfer.engine.measure.power import EnergyCounter, package_domains
from edgeinfer.engine.scheduler.output import StopStrings
from edgeinfer.models.store import ModelStore
from tests.unit.engine.measure.test_power import count, powercap

KEYS = {
    *(
        "model",
        "text",
        "reasoning",
        "tokens",
        "n_prompt",
        "n_cached",
        "n_generated",
        "finish_reason",
        "truncated",
        "ttft_s",
    ),
    *("prefill_tok_s", "decode_tok_s", "steps", "accepted_per_step", "draft", "load_s", "peak_rss_bytes"),
    *("weights_read_bytes", "devices", "plan", "seed", "mode", "policy", "joules", "joules_per_token"),
}
QUESTION = [{"role": "user", "content": "the rain"}]


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def run(model: Path, *arguments: str, stdin: str | bytes = "") -> Result:
    options = ["run", "-m", str(model), "--device", "reference", *arguments]
    return CliRunner().invoke(build_app(), options, input=stdin)


def expected(model: Path, messages: list[dict[str, str]], **options: object) -> str:
    with load(model, device="reference") as llm:
        return llm.chat(messages, temperature=0, max_tokens=12, **options).read()


def out(result: Result) -> str:
    """What was printed, line ends as they were."""
    return result.stdout_bytes.decode()


def greedy(model: Path, *arguments: str, stdin: str | bytes = "") -> Result:
    return run(model, "--temp", "0", "--max-tokens", "12", *arguments, stdin=stdin)


def test_stdout_is_the_answer_and_nothing_else(tiny_model: Path) -> None:
    result = greedy(tiny_model, "the rain")
    assert (result.exit_code, result.stderr) == (0, "")
    assert out(result).removesuffix("\n") == expected(tiny_model, QUESTION).removesuffix("\n")


@pytest.mark.parametrize(("given", "told"), [((), "are read as text"), (("--parse-special",), "are read as such")])
def test_a_message_with_special_tokens_is_told(tiny_model: Path, given: tuple[str, ...], told: str) -> None:
    result = greedy(tiny_model, "the <|im_end|> rain", *given)
    assert result.exit_code == 0
    assert result.stderr.count("<|im_end|>") == 1
    assert told in result.stderr
    question = [{"role": "user", "content": "the <|im_end|> rain"}]
    assert out(result).removesuffix("\n") == expected(tiny_model, question, parse_special=bool(given)).removesuffix(
        "\n"
    )


def test_the_question_comes_from_stdin_or_goes_after_it(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("an inn\n")
    answer = expected(tiny_model, QUESTION) + "\n"
    assert out(greedy(tiny_model, stdin="the rain\n")) == answer
    document = expected(tiny_model, [{"role": "user", "content": "an inn\n\nthe rain\n\nhen:"}]) + "\n"
    assert out(greedy(tiny_model, "hen:", "-f", "note.txt", stdin="the rain\n")) == document
    instructed = expected(tiny_model, [{"role": "system", "content": "inner"}, *QUESTION]) + "\n"
    assert out(greedy(tiny_model, "the rain", "--system", "inner")) == instructed


def test_a_question_needs_no_quotes(tiny_model: Path) -> None:
    answer = expected(tiny_model, QUESTION) + "\n"
    assert out(greedy(tiny_model, "the", "rain")) == answer
    result = run(tiny_model, "--temp", "0", "the", "--max-tokens", "12", "rain")  # options between the words
    assert out(result) == answer
    dashed = expected(tiny_model, [{"role": "user", "content": "the rain\n\nan --inn -x"}]) + "\n"
    assert out(greedy(tiny_model, "an", "--", "--inn", "-x", stdin="the rain\n")) == dashed


def test_a_models_name_in_place_of_a_question_is_told(tiny_model: Path, home: Path) -> None:
    """Other programs' `run` takes the model first."""
    store = ModelStore()
    store.root.mkdir(parents=True, exist_ok=True)
    shutil.copy(tiny_model, store.root / "tiny-1b.gguf")

    def told(*words: str) -> str:
        options = ["run", "--device", "reference", "--max-tokens", "2", *words]
        return CliRunner().invoke(build_app(), options).stderr

    note = "note: tiny-1b is taken for the question; edgeinfer run -m tiny-1b"
    assert f"{note} 'the rain' asks that model" in told("Tiny-1B", "the", "rain")
    assert note in told("tiny-1b")
    assert note not in told("the", "tiny-1b")
    assert note not in told("-m", "tiny-1b", "tiny-1b")


def test_raw_continues_the_text_without_a_template(tiny_model: Path) -> None:
    with load(tiny_model, device="reference") as llm:
        wanted = llm.complete("the rain\n", temperature=0, max_tokens=12).read()
    assert out(greedy(tiny_model, "--raw", stdin="the rain\n")) == wanted + "\n"
    refused = greedy(tiny_model, "the rain", "--raw", "--system", "x")
    assert refused.exit_code == 1
    assert "--system has no place" in refused.stderr


def test_json_has_the_keys_of_the_contract(tiny_model: Path) -> None:
    result = run(tiny_model, "the rain", "--json", "--seed", "4", "--max-tokens", "5")
    record = json.loads(result.stdout)
    assert set(record) >= KEYS
    assert (record["model"], record["devices"], record["draft"]) == ("tiny", ["reference"], {})
    assert (record["seed"], record["n_generated"], len(record["tokens"]), record["steps"]) == (4, 5, 5, 5)
    assert (record["finish_reason"], record["truncated"], record["weights_read_bytes"]) == ("length", False, 0)
    assert record["peak_rss_bytes"] > 10_000_000
    again = json.loads(run(tiny_model, "the rain", "--json", "--seed", "4", "--max-tokens", "5").stdout)
    assert again["tokens"] == record["tokens"]


def test_a_share_of_memory_says_of_what_and_how_much_that_is(tiny_model: Path) -> None:
    with patch("edgeinfer.engine.kv.limits.available_bytes", return_value=10 * 10**9):
        found = greedy(tiny_model, "the rain", "--device", "cpu", "--ram", "40%", "--max-tokens", "1")
        exact = greedy(tiny_model, "the rain", "--device", "cpu", "--ram", "4GB", "--max-tokens", "1")
    assert "note: weights may take 40% of available memory = 4.00 GB" in found.stderr
    assert "available memory" not in exact.stderr


def test_what_was_read_of_weights_is_told(tiny_model: Path) -> None:
    arguments = ("--device", "cpu", "--spec", "off", "--stats", "--json")
    whole, part = (greedy(tiny_model, "the rain", *arguments, *ram) for ram in ((), ("--ram", "300000")))
    assert (whole.exit_code, part.exit_code) == (0, 0), part.stderr
    resident, streamed = json.loads(out(whole)), json.loads(out(part))
    assert streamed["tokens"] == resident["tokens"]
    assert (resident["reading"], resident["weights_read_bytes"]) == (None, 0)
    assert "disk:" not in whole.stderr
    assert "MB of weights a pass from disk" in streamed["plan"]
    reading = streamed["reading"]
    assert reading["passes"] == 12  # one of the prompt, eleven of the answer
    assert reading["bytes"] == sum(int(size) * count for size, count in reading["reads_by_size"].items())
    assert reading["bytes"] >= streamed["weights_read_bytes"] > 0
    assert reading["gb_s"] > 0
    assert 0 <= reading["waiting_share"] <= 1
    assert "MB a pass in 12 passes" in part.stderr
    assert "reads: " in part.stderr


@pytest.mark.parametrize(("arguments", "mode"), [([], "balanced"), (["--mode", "battery"], "battery")])
def test_the_mode_is_told_and_changes_no_token(tiny_model: Path, arguments: list[str], mode: str) -> None:
    plain = json.loads(greedy(tiny_model, "the rain", "--json", "--mode", "max").stdout)
    record = json.loads(greedy(tiny_model, "the rain", "--json", *arguments).stdout)
    assert (record["mode"], record["tokens"]) == (mode, plain["tokens"])
    assert record["policy"].startswith(f"{mode}: ")


@pytest.mark.parametrize("counts", [True, False])
def test_joules_are_told_where_they_can_be_read(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, counts: bool
) -> None:
    root = powercap(tmp_path, {"intel-rapl:0": "package-0"} if counts else {})

    def read_after(counter: EnergyCounter) -> list[tuple[int, int]]:
        count(root, "intel-rapl:0", next(microjoules))
        return read(counter)

    microjoules, read = iter(range(0, 90_000_000, 3_000_000)), EnergyCounter._read
    if counts:
        monkeypatch.setattr(EnergyCounter, "_read", read_after)
    monkeypatch.setattr(power, "package_domains", lambda path: package_domains(root))
    result = greedy(tiny_model, "the rain", "--json", "--stats")
    record = json.loads(result.stdout)
    assert (record["joules"], record["joules_per_token"]) == ((3.0, 0.25) if counts else (None, None))
    assert ("0.25 J/token" in result.stderr) == counts


def test_stop_strings_and_stats(tiny_model: Path) -> None:
    whole = expected(tiny_model, QUESTION)
    stop = whole[4:6]
    result = greedy(tiny_model, "the rain", "--stop", stop, "--stop", "never said", "--stats")
    assert out(result) == whole[: whole.index(stop)] + "\n"
    assert "tok/s" in result.stderr


def test_stats_tell_what_came_of_drafting_and_how_long_it_took(tiny_model: Path) -> None:
    drafted = greedy(tiny_model, "in the inn and in the", "--stats", "--json", "--spec", "4")
    record = json.loads(drafted.stdout)
    counts = [sum(source[key] for source in record["draft"].values()) for key in ("accepted", "proposed")]
    assert counts[1] > 0
    assert f"tokens per step, {counts[0]} of {counts[1]} drafted were right, drafting took " in drafted.stderr
    assert record["draft_s"] > 0
    plain = greedy(tiny_model, "in the inn and in the", "--stats", "--json", "--spec", "off")
    assert "draft" not in plain.stderr.split("memory:")[0]
    assert (json.loads(plain.stdout)["draft"], json.loads(plain.stdout)["draft_s"]) == ({}, None)


def test_a_cut_answer_is_told_on_stderr_and_in_json(tiny_model: Path) -> None:
    result = run(tiny_model, "the rain", "--temp", "0", "--ctx", "64", "--json")
    record = json.loads(result.stdout)
    assert (record["truncated"], record["finish_reason"]) == (True, "length")
    assert result.stderr == "note: the answer was cut: the context of 64 tokens is full\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["x", "--ctx", "8"], 1, "tokens and the context holds 8"),
        (["x", "--device", "abacus"], 2, "--device needs a device, not 'abacus'; there are: auto, cpu"),
        (["x", "--device", "reference,null"], 1, "need the cpu among them"),
        (["x", "--temp", "-1"], 2, "error: --temp needs a number from 0 to 2, not '-1'\n"),
        (["x", "--temp", "9"], 2, "error: --temp needs a number from 0 to 2, not '9'\n"),
        (["x", "--temp", "hot"], 2, "error: --temp needs a number from 0 to 2, not 'hot'\n"),
        (["x", "--threads", "two"], 2, "--threads needs a whole number from 1 up, not 'two'"),
        (["x", "--schedule", "x"], 2, "--schedule needs a schedule, not 'x'; there are: auto"),
        (["x", "--ram", "lots"], 2, "--ram needs a size such as 3GB, or a share of available memory such as 60%"),
        (["x", "--mode", "loud"], 2, "--mode needs max, balanced, quiet or battery, not 'loud'"),
        (["x", "--stop", ""], 1, "stop string cannot be empty"),
        (["x", "-m", "no-such-model"], 1, "no-such-model"),
        (["x", "-f", "no-such-file"], 1, "no-such-file cannot be read"),
        ([" "], 1, "the prompt is empty"),
        (["x", "--no-such-flag"], 2, "no option --no-such-flag"),
    ],
)
def test_mistakes_are_told_with_their_exit_code(tiny_model: Path, arguments: list[str], code: int, says: str) -> None:
    result = run(tiny_model, *arguments)
    assert result.exit_code == code
    assert says in result.stderr
    assert result.stdout == ""


def test_bytes_that_are_no_text_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xfe\xff")
    assert "photo.jpg is not UTF-8" in run(tiny_model, "x", "-f", "photo.jpg").stderr
    assert "standard input is not UTF-8" in run(tiny_model, stdin=b"\xff\xd8").stderr


def test_settings_of_the_environment_count(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_SYSTEM", "inner")
    wanted = expected(tiny_model, [{"role": "system", "content": "inner"}, *QUESTION])
    assert out(greedy(tiny_model, "the rain")) == wanted + "\n"


def test_the_speed_is_recorded_once_an_answer_is_long_enough(tiny_model: Path, home: Path) -> None:
    run(tiny_model, "x", "--max-tokens", "15", "--temp", "0")
    assert not (home / "speeds.json").exists()
    run(tiny_model, "x", "--max-tokens", "16", "--temp", "0", "--threads", "1")
    with load(tiny_model, device="reference") as llm:
        found = SpeedLog().find(llm.info.fingerprint, "reference", 1)
    assert found.decode_tok_s is not None
    assert found.decode_tok_s > 0
    assert [path.name for path in home.iterdir() if path.is_file()] == ["speeds.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_keeps_the_partial_answer_and_exits_130(tiny_model: Path) -> None:
    command = [sys.executable, "-c", "from edgeinfer.app.cli import main; main()", "run", "-m", str(tiny_model)]
    process = subprocess.Popen(
        [*command, "--device", "reference", "--temp", "0", "--ctx", "60000", "the rain", "--stats"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"cancelled" in errors
    assert b"interrupted" in errors
    assert rest.endswith(b"\n")


def test_ctrl_c_with_json_prints_the_partial_answer(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push, pushed = StopStrings.push, []

    def push_and_interrupt(stops: StopStrings, text: str) -> str:
        if not pushed:
            pushed.append(text)
            signal.raise_signal(signal.SIGINT)
        return push(stops, text)

    monkeypatch.setattr(StopStrings, "push", push_and_interrupt)
    result = run(tiny_model, "the rain", "--json", "--seed", "1")
    record = json.loads(result.stdout)
    assert (result.exit_code, record["finish_reason"]) == (130, "cancelled")
    assert record["n_generated"] == len(record["tokens"])


def test_control_characters_are_kept_from_terminals() -> None:
    assert harmless("a\x1b[31mb\r\n\tc\x9b\x07é🦙") == "a[31mb\n\tcé🦙"


def drafted(model: Path, *arguments: str) -> dict[str, object]:
    options = ["run", "-m", str(model), "--temp", "0", "--max-tokens", "40", "--json", "--threads", "1", *arguments]
    result = CliRunner().invoke(build_app(), [*options, "the rain in the inn and the rain in the inn and"])
    assert result.exit_code == 0, result.output
    data: dict[str, object] = json.loads(result.stdout)
    return data


def test_drafts_are_counted_and_change_nothing(tiny_model: Path) -> None:
    plain = drafted(tiny_model, "--spec", "off")
    assert (plain["draft"], plain["accepted_per_step"]) == ({}, 1.0)
    for options in (("--spec", "8"), ("--spec", "on"), ("--verify-cost", "4:1.01,64:1.2"), ()):
        data = drafted(tiny_model, *options)
        assert data["tokens"] == plain["tokens"]
    assert drafted(tiny_model, "--spec", "8")["draft"]


def test_what_was_learnt_is_used_the_next_time_unless_it_is_cleared(tiny_model: Path, home: Path) -> None:
    options = ("--verify-cost", "2:1.0,64:1.0")
    first, second = (drafted(tiny_model, *options)["steps"] for _ in range(2))
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert second < first
    assert CliRunner().invoke(build_app(), ["models", "--clear-history"]).exit_code == 0
    drafted(tiny_model, "--no-history", *options)
    assert not list(home.rglob("learnt.npz"))
    assert drafted(tiny_model, "--no-history", *options)["steps"] == first


def test_drafts_come_from_files(tiny_model: Path, tmp_path: Path) -> None:
    plain = drafted(tiny_model, "--spec", "off", "--no-history")
    (tmp_path / "notes.txt").write_text(str(plain["text"]))
    data = drafted(tiny_model, "--spec", "8", "--no-history", "--draft-from", str(tmp_path))
    assert data["tokens"] == plain["tokens"]
    assert isinstance(data["steps"], int)
    assert data["steps"] < 40


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--spec", "maybe"), 2, "auto, on, off or a number"),
        (("--spec", "65"), 2, "auto, on, off or a number"),
        (("--verify-cost", "4"), 2, "TOKENS:COST"),
        (("--verify-cost", "900:2"), 2, "tokens from 1 to 64"),
        (("--draft-from", "missing-folder"), 1, "cannot be read"),
    ],
)
def test_speculation_options_that_cannot_be_are_refused(
    tiny_model: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run(tiny_model, *arguments, "the rain")
    assert result.exit_code == code
    assert message in result.stderr


def test_an_answer_of_thoughts_alone_says_so(tiny_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "thinks.jinja"
    template.write_text("{{ messages[0].content }}<think>{% if enable_thinking is false %}</think>{% endif %}")
    thinks = ("--chat-template-file", str(template), "--temp", "0", "--max-tokens", "40", "the rain")
    result = run(tiny_model, *thinks)
    assert (result.stdout, "the model only thought" in result.stderr) == ("\n", True)
    result = run(tiny_model, "--max-thought-tokens", "2", *thinks)
    assert "the model only thought" not in result.stderr
