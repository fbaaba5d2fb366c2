"""`edgeinfer chat` line by line: over a pipe, and at a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.chat.commands import is_command, slash_commands
from edgeinfer.app.chat.dialogue import Dialogue, GivenAnswer, LineCommands, Then
from edgeinfer.app.cli import build_app
from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Message

OPTIONS = {"temperature": 0.0, "max_tokens": 8}
WAIT_S = 60


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="reference") as loaded:
        yield loaded


@pytest.fixture
def dialogue(llm: LLM) -> Dialogue:
    return Dialogue(llm.session(), dict(OPTIONS), None)


def chat(model: Path, lines: str, *arguments: str) -> Result:
    options = ["chat", "-m", str(model), "--device", "reference", "--temp", "0", "--max-tokens", "8", *arguments]
    return CliRunner().invoke(build_app(), options, input=lines)


def answers(llm: LLM, questions: list[str], system: str | None = None) -> list[str]:
    """What a conversation answers, each turn in a session of its own."""
    messages = [{"role": "system", "content": system}] if system else []
    found = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        with llm.session() as session:
            found.append(session.chat(messages, **OPTIONS).read())
        messages.append({"role": "assistant", "content": found[-1]})
    return found


def out(result: Result) -> str:
    """What was printed, line ends as they were."""
    return result.stdout_bytes.decode()


def printed(texts: list[str]) -> str:
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in texts)


@pytest.mark.parametrize("arguments", [[], ["--plain"], ["--system", "inner"], ["--mode", "quiet"]])
def test_each_line_of_stdin_is_a_turn_and_only_answers_are_printed(
    tiny_model: Path, llm: LLM, arguments: list[str]
) -> None:
    result = chat(tiny_model, "the rain\n\nan inn\n//hen\nlast line without an end", *arguments)
    wanted = answers(
        llm, ["the rain", "an inn", "/hen", "last line without an end"], "inner" if "--system" in arguments else None
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert out(result) == printed(wanted)


def test_a_question_of_the_command_line_is_the_first_turn(tiny_model: Path, llm: LLM, home: Path) -> None:
    result = chat(tiny_model, "an inn\n", "the", "rain")
    assert (result.exit_code, result.stderr) == (0, "")
    assert out(result) == printed(answers(llm, ["the rain", "an inn"]))
    assert out(chat(tiny_model, "", "/hen")) == printed(answers(llm, ["/hen"]))
    assert not (home / "chats.db").exists()  # what a script asks is not kept


def test_a_chat_is_continued_and_kept(tiny_model: Path, llm: LLM, home: Path) -> None:
    first = chat(tiny_model, "the rain\n", "--continue", "--system", "inner")
    assert first.stderr == "note: there is no earlier chat to continue; this is a new one\n"
    second = chat(tiny_model, "an inn\n/regen\n", "-c")
    assert second.stderr == "note: going on with: the rain\n"
    wanted = answers(llm, ["the rain", "an inn"], "inner")
    assert out(first) + out(second) == printed([*wanted, wanted[1]])
    with SessionStore(home / "chats.db") as store:
        (kept,) = store.sessions()
        messages = store.messages(kept.number)
    assert (kept.title, kept.system, kept.model) == ("the rain", "inner", "tiny")
    assert [message.text for message in messages] == ["the rain", wanted[0], "an inn", wanted[1], wanted[1]]
    assert [message.state for message in messages] == ["whole"] * 5
    assert messages[1].figures is not None


def test_the_system_prompt_of_the_command_line_goes_before_that_of_the_chat(tiny_model: Path, llm: LLM) -> None:
    chat(tiny_model, "the rain\n", "-c", "--system", "inner")
    result = chat(tiny_model, "/regen\n/new\nan inn\n", "-c", "--system", "hens")
    assert out(result) == printed([*answers(llm, ["the rain"], "hens"), *answers(llm, ["an inn"], "hens")])


def test_a_chat_with_a_summary_and_attachments_is_continued(tiny_model: Path, llm: LLM, home: Path) -> None:
    home.mkdir(exist_ok=True)
    with SessionStore(home / "chats.db") as store:
        number = store.create("inner", "tiny").number
        summary = store.add(number, None, "summary", "hens were praised")
        attached = (Attachment("a.txt", "rain\n"),)
        question = store.add(number, summary.number, "user", "the rain", attachments=attached)
        store.add(number, question.number, "assistant", "in the inn")
        wanted = Chat(store, store.session(number)).prompt()
    wanted.append(Message("user", "an inn"))
    with llm.session() as session:
        answer = session.chat(wanted, **OPTIONS).read()
    assert out(chat(tiny_model, "an inn\n", "--continue")) == printed([answer])


def test_kept_chats_that_cannot_be_read_are_no_reason_to_begin_another(tiny_model: Path, home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "chats.db").write_bytes(b"no database" * 100)
    result = chat(tiny_model, "the rain\n", "--continue")
    assert (result.exit_code, out(result)) == (1, "")
    assert "chats.db" in result.stderr


def test_slash_commands_work_over_a_pipe_and_answer_on_stderr(tiny_model: Path, llm: LLM) -> None:
    result = chat(tiny_model, "the rain\n/new\n/stats\nan inn\n/stats\n/exit\nnever asked\n")
    assert out(result) == printed([*answers(llm, ["the rain"]), *answers(llm, ["an inn"])])
    assert result.stderr.splitlines()[:2] == ["a new conversation", "there is no answer yet"]
    assert "8 tokens" in result.stderr
    kept = chat(tiny_model, "/new\n/exit\n", "--system", "inner")
    assert kept.stderr.splitlines()[0] == "a new conversation; its system prompt stays, /system none removes it"


def test_no_input_is_no_error_and_errors_exit_1(tiny_model: Path) -> None:
    assert (chat(tiny_model, "").exit_code, chat(tiny_model, "").stdout) == (0, "")
    too_long = chat(tiny_model, "x" * 600 + "\nthe rain\n")
    assert (too_long.exit_code, too_long.stdout) == (1, "")
    assert "the context holds 512" in too_long.stderr
    unknown = chat(tiny_model, "/sistem x\n")
    assert unknown.exit_code == 1
    assert "did you mean /system?" in unknown.stderr


def test_a_conversation_that_outgrows_the_context_is_noted(tiny_model: Path) -> None:
    result = chat(tiny_model, "\n".join(f"{n} " * 50 for n in range(6)), "--system", "inner")
    assert result.exit_code == 0
    assert "oldest messages were left out" in result.stderr


def test_the_commands_change_what_they_name(dialogue: Dialogue) -> None:
    assert LineCommands(dialogue).run("/temp 0.25").text == "temp: 0.25"
    assert dialogue.options["temperature"] == 0.25
    assert LineCommands(dialogue).run("/seed 7").text == "seed: 7"
    assert LineCommands(dialogue).run("/seed none").text == "seed: random"
    assert LineCommands(dialogue).run("/system be kind to hens").text == "system prompt: be kind to hens"
    assert LineCommands(dialogue).run("/system none").text == "system prompt: none"
    assert LineCommands(dialogue).run("/regen").text == "there is no answer yet"
    assert LineCommands(dialogue).run("/exit").then is Then.LEAVE
    shown = LineCommands(dialogue).run("/help").text
    assert all(f"/{command.form}" in shown for command in slash_commands(LineCommands))
    with pytest.raises(BadSetting, match="/temp needs a number from 0 to 2, not '1000'"):
        LineCommands(dialogue).run("/temp 1000")
    with pytest.raises(BadSetting, match="/help lists them"):
        LineCommands(dialogue).run("/xyzzy")
    assert [is_command(line) for line in ("/help", "//help", "help")] == [True, False, False]


def test_modules_stand_before_the_first_question(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "the rules.txt"
    file.write_text("the rain in the tin, the hen in the inn")
    result = chat(tiny_model, f"/modules add {file} as rules\nwho is in?\n/modules\n/modules remove rules\n/modules\n")
    assert result.exit_code == 0, result.output
    with load(tiny_model, device="reference") as llm:
        llm.modules.add("rules", file.read_text())
        options: Any = {"temperature": 0.0, "max_tokens": 8, "modules": ["rules"]}
        assert result.stdout == llm.chat([{"role": "user", "content": "who is in?"}], **options).read() + "\n"
        n_tokens = len(llm.modules["rules"].tokens)
    told = result.stderr
    assert f"rules: {n_tokens} tokens, before the first question of chats; their answers are approximate" in told
    assert told.index("the answer is approximate") < told.index(f"\nrules: {n_tokens} tokens\n")
    assert told.index("rules is removed") < told.index("there are no modules; /modules add FILE as NAME")


def test_modules_that_cannot_be_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\0\1\2")
    for line, message in (
        ("/modules add nothing.txt", "nothing.txt is no file"),
        ("/modules add", "/modules cannot do 'add'"),
        ("/modules forget x", "/modules cannot do 'forget x'"),
        ("/modules remove x", "there is no module 'x'; there are: none"),
        (f"/modules add {tmp_path / 'picture'}", "is not text"),
    ):
        result = chat(tiny_model, f"{line}\n")
        assert result.exit_code == 1
        assert message in result.stderr


def test_another_answer_takes_the_place_of_the_last_one(llm: LLM, dialogue: Dialogue) -> None:
    for question in ("the rain", "an inn"):
        stream = dialogue.ask(question)
        stream.read()
        dialogue.keep(question, GivenAnswer(stream, stream.text))
    assert LineCommands(dialogue).run("/regen").then is Then.ANSWER
    again = dialogue.ask_again()
    assert again.read() == dialogue.turns[1].answer
    dialogue.keep_instead(GivenAnswer(again, again.text))
    assert len(dialogue.turns) == 2
    assert [turn.answer for turn in dialogue.turns] == answers(llm, ["the rain", "an inn"])


def test_with_a_fixed_seed_another_answer_has_the_next_seed(dialogue: Dialogue) -> None:
    dialogue.options |= {"temperature": 1.0, "seed": 5}
    seeds = []
    stream = dialogue.ask("the rain")
    stream.read()
    dialogue.keep("the rain", GivenAnswer(stream, stream.text))
    for _ in range(2):
        seeds.append(dialogue.turns[-1].stats.seed)
        stream = dialogue.ask_again()
        stream.read()
        dialogue.keep_instead(GivenAnswer(stream, stream.text))
    assert [*seeds, dialogue.turns[-1].stats.seed] == [5, 6, 7]


def test_a_turn_reads_only_what_is_new(dialogue: Dialogue) -> None:
    stream = dialogue.ask("the rain")
    stream.read()
    dialogue.keep("the rain", GivenAnswer(stream, stream.text))
    second = dialogue.ask("an inn")
    second.read()
    assert second.stats.n_cached > 20


class Terminal:
    """`edgeinfer chat` in a pseudo-terminal."""

    def __init__(self, arguments: list[str], environ: dict[str, str]) -> None:
        import pty

        self._file, inside = pty.openpty()
        code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from edgeinfer.app.cli import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=environ,
            start_new_session=True,
        )
        os.close(inside)
        self.shown = ""

    def wait_for(self, text: str, start: int = 0, repeat: str = "") -> int:
        """Read until `text` is shown after `start`; where it ends. `repeat` is typed whenever nothing comes."""
        import select

        deadline = time.monotonic() + WAIT_S
        while text not in self.shown[start:]:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._file], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self._file, 4096).decode("utf-8", "replace")
                except OSError:
                    break
            else:
                self.type(repeat)
        assert text in self.shown[start:], self.shown
        return self.shown.index(text, start) + len(text)

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def leave(self) -> int:
        code = self._process.wait(WAIT_S)
        os.close(self._file)
        return code


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_at_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_leaves(tiny_model: Path, home: Path) -> None:
    arguments = ["chat", "-m", str(tiny_model), "--device", "reference", "--temp", "0", "--ctx", "60000"]
    terminal = Terminal(arguments, {**os.environ, "TERM": "dumb", "NO_COLOR": "1"})
    at = terminal.wait_for("> ", terminal.wait_for("/help shows the commands."))
    terminal.type("the rain\n")
    at = terminal.wait_for("the", terminal.wait_for("\n", at))
    terminal.type("\x03")
    at = terminal.wait_for("> ", terminal.wait_for("note: stopped", at))
    terminal.type("/stats\n")
    at = terminal.wait_for("> ", terminal.wait_for("cancelled", at))
    # A Ctrl-C that comes just before the line editor waits is seen with the next key only: press it until it is.
    at = terminal.wait_for("> ", terminal.wait_for("Ctrl-D or /exit leaves.", at, repeat="\x03"))
    terminal.type("/nonsense\n")
    at = terminal.wait_for("> ", terminal.wait_for("error: there is no command /nonsense", at))
    terminal.type("\x04")
    assert terminal.leave() == 0
    assert "\x1b" not in terminal.shown
    assert "the rain" in (home / "chat_history").read_text()
    with SessionStore(home / "chats.db") as store:
        (kept,) = store.sessions()
        question, answer = store.messages(kept.number)
        assert (question.text, question.state, answer.state) == ("the rain", "whole", "stopped")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_at_a_terminal_a_chat_is_continued_with_a_question(tiny_model: Path, home: Path) -> None:
    arguments = ["chat", "--plain", "-m", str(tiny_model), "--device", "reference", "--temp", "0", "--max-tokens", "8"]
    for question in ("the rain", "an inn"):
        terminal = Terminal([*arguments, "-c", *question.split()], {**os.environ, "TERM": "xterm", "NO_COLOR": "1"})
        at = terminal.wait_for(f"> {question}", terminal.wait_for("/help shows the commands."))
        terminal.wait_for("> ", at)
        terminal.type("\x04")
        assert terminal.leave() == 0
    assert "going on with: the rain" in terminal.shown
    with SessionStore(home / "chats.db") as store:
        (kept,) = store.sessions()
        assert [m.text for m in store.messages(kept.number)][::2] == ["the rain", "an inn"]
