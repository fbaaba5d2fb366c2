"""What goes along with a message: mentions, folders, long pastes, their chips and tokens, all by keyboard."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.events import Key

from edgeinfer.app.chat.attachments import Attached, attach, mentions
from edgeinfer.app.chat.enclosures import MessageDraft
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.widgets.chips import NOT_SENT, Chips
from edgeinfer.app.tui.widgets.composer import SETTLED_S
from edgeinfer.app.tui.widgets.sending import WaitingLine
from edgeinfer.app.tui.widgets.text_fields import LONG_PASTE_CHARACTERS, DraftInput
from tests.app.tui.composer_app import ComposerApp
from tests.app.tui.flows import wait_until

REFUSED = "is not text; only text files, images and sounds can be attached"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("notes.txt", "my file.md", "src/main.py", "src/other.py", "pic.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\0" if name == "pic.png" else f"text of {name}".encode())
    return tmp_path


async def test_a_completed_file_becomes_a_chip_and_goes_along(folder: Path) -> None:
    app = ComposerApp(folder, count_tokens=len)
    async with app.run_test() as pilot:
        await pilot.press(*"see @not")
        await wait_until(pilot, lambda: app.rows.is_open)
        await pilot.press("enter")
        assert app.text == "see @notes.txt "
        await wait_until(pilot, lambda: app.names == ["notes.txt"])
        await wait_until(pilot, lambda: app.composer.n_tokens == len("see @notes.txt ") + len("text of notes.txt"))
        shown = str(app.query_one(Chips).content)
        assert shown.startswith("32 tok in all  + notes.txt 17 bytes, 17 tok")
        await wait_until(pilot, lambda: app.edits)
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert app.sent == [MessageDraft("see @notes.txt ", (Attachment("notes.txt", "text of notes.txt"),))]
        assert app.names == []
        assert not app.query_one(Chips).display


@pytest.mark.parametrize("key", ["tab", "enter"])
async def test_keys_that_come_at_once_complete_what_they_follow(folder: Path, key: str) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"see @")
        await wait_until(pilot, lambda: app.rows.is_open)
        for letter in "src/oth":
            app.post_message(Key(letter, letter))
        app.post_message(Key(key, None))
        await wait_until(pilot, lambda: not app.rows.is_open)
        assert app.text == "see @src/other.py "
        assert app.sent == []


async def test_a_file_that_is_there_in_full_has_nothing_to_complete(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"@notes.txt")
        await wait_until(pilot, lambda: app.rows.is_open)
        await pilot.press("tab")
        assert not app.rows.is_open
        await pilot.press("backspace", "t")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert [attachment.name for attachment in app.sent[0].attachments] == ["notes.txt"]


async def test_sending_at_once_still_takes_the_file_along(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*'@"my file.md" and me@home', "escape", "enter")
        await wait_until(pilot, lambda: app.sent)
        assert [attachment.name for attachment in app.sent[0].attachments] == ["my file.md"]


class Lookups:
    """Looks for the files that a draft mentions; the first lookup waits until it may go on."""

    def __init__(self) -> None:
        self.begun: list[bool] = []
        """Of each lookup, whether the draft was to be sent."""
        self.go_on = threading.Event()

    def __call__(self, text: str, base: Path, *, missing: bool = False) -> list[Path]:
        self.begun.append(missing)
        if len(self.begun) == 1:
            assert self.go_on.wait(60)
        return mentions(text, base, missing=missing)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lookups]:
    made = Lookups()
    monkeypatch.setattr("edgeinfer.app.tui.widgets.chips.mentions", made)
    yield made
    made.go_on.set()


async def test_an_older_lookup_that_takes_long_does_not_hold_up_what_is_sent(folder: Path, lookups: Lookups) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"@notes.txt x")
        await wait_until(pilot, lambda: lookups.begun == [False])
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert [attachment.name for attachment in app.sent[0].attachments] == ["notes.txt"]
        lookups.go_on.set()
        await pilot.pause()
        assert app.names == []


async def test_what_is_being_sent_is_looked_up_once(folder: Path, lookups: Lookups) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"@notes.txt x", "enter")
        await wait_until(pilot, lambda: lookups.begun == [True])
        await pilot.pause(2 * SETTLED_S)
        assert lookups.begun == [True]
        lookups.go_on.set()
        await wait_until(pilot, lambda: app.sent)
        assert [attachment.name for attachment in app.sent[0].attachments] == ["notes.txt"]


async def test_a_missing_file_stops_what_is_sent_while_another_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def attach_late(path: Path, base: Path) -> Attached:
        assert path.name != "notes.txt" or go_on.wait(60)
        return attach(path, base)

    monkeypatch.setattr("edgeinfer.app.tui.widgets.chips.attach", attach_late)
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        app.composer.attach(Path("notes.txt"))
        await pilot.press(*"see @nothing.txt x", "enter")
        await wait_until(pilot, lambda: not app.query_one(DraftInput).read_only)
        go_on.set()
        await wait_until(pilot, lambda: app.names == ["notes.txt"])
        assert any(NOT_SENT in note.message for note in app._notifications)
        assert app.sent == []


async def test_a_mention_that_goes_takes_its_file_with_it(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"@notes.txt x")
        await wait_until(pilot, lambda: app.names == ["notes.txt"])
        await pilot.press("home", "delete")
        await wait_until(pilot, lambda: app.names == [])


async def test_folders_are_entered_and_attached(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"@sr")
        await wait_until(pilot, lambda: app.rows.is_open)
        await pilot.press("tab")
        assert app.text == "@src/"
        await wait_until(pilot, lambda: app.rows.is_open and app.rows.chosen is None)
        await pilot.press("tab")
        assert app.text == "@src/main.py "
        app.composer.put("@src/")
        await pilot.press("space")
        await wait_until(pilot, lambda: app.names == ["src/main.py", "src/other.py"])
        assert "+ src/ (2 files)" in str(app.query_one(Chips).content)


async def test_backspace_at_the_beginning_removes_the_last_chip(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        app.composer.attach(Path("notes.txt"))
        app.composer.attach(Path("src/main.py"))
        await wait_until(pilot, lambda: len(app.names) == 2)
        await pilot.press("x", "backspace", "backspace")
        assert len(app.names) == 1
        await pilot.press("enter")
        assert app.sent[0].text == ""
        assert len(app.sent[0].attachments) == 1


async def test_any_chip_is_removed_by_keyboard(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"@notes.txt ")
        await wait_until(pilot, lambda: app.names == ["notes.txt"])
        app.composer.attach(Path("src"))
        await wait_until(pilot, lambda: len(app.names) == 3)
        await pilot.press("shift+tab", "left", "delete")
        assert app.names == ["src/main.py", "src/other.py"]
        assert app.text == "@notes.txt "
        await pilot.press("delete")
        await wait_until(pilot, lambda: app.query_one(DraftInput).has_focus)
        await pilot.press("enter")  # a mention whose chip was removed stays text
        await wait_until(pilot, lambda: app.sent)
        assert app.sent == [MessageDraft("@notes.txt ")]


async def test_on_a_small_screen_everything_has_its_place(folder: Path) -> None:
    app = ComposerApp(folder, count_tokens=len)
    async with app.run_test(size=(40, 12)) as pilot:
        app.composer.attach(Path("notes.txt"))  # meant for the draft that is there now, whenever it is read
        app.composer.queued(["one", "two", "three", "four"])
        app.composer.put(
            "draft\n" * 9, [Attachment(f"name {number}", "text") for number in range(9)], mode="edit message 3"
        )
        await wait_until(pilot, lambda: app.composer.n_tokens == 6 * 9 + 4 * 9)
        chips, area = app.query_one(Chips), app.query_one(DraftInput)
        assert (app.query_one(WaitingLine).size.height, chips.size.height, area.size.height) == (1, 2, 3)
        assert area.region.bottom == 12
        assert str(chips.content).startswith("90 tok in all")
        assert "+ name 8 " in str(chips.content)
        area.blur()
        chips.focus()
        await pilot.press("right")
        assert "+ name 0 " in str(chips.content)
        assert "+ name 8 " not in str(chips.content)
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: app.names == ["notes.txt"])


async def test_a_file_that_cannot_go_along_is_told_before_it_is_sent(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        await pilot.press(*"@pic.png", "escape")
        await wait_until(pilot, lambda: app.notices == [f"pic.png {REFUSED}"])
        for n_sent in (1, 2):  # not even when it was told before
            await pilot.press("enter")
            await wait_until(pilot, lambda n=n_sent: len(app.notices) == 1 + n)
            assert app.notices[-1] == f"pic.png {REFUSED}. {NOT_SENT}"
            assert app.sent == []
            assert app.text == "@pic.png"
        await pilot.press("home", "`", "end", "`", "enter")
        await wait_until(pilot, lambda: app.sent == [MessageDraft("`@pic.png`")])
        app.composer.attach(Path("gone[b]"))
        await wait_until(pilot, lambda: len(app.notices) == 4)
        assert "gone[b] cannot be attached" in app.notices[3]


@pytest.mark.parametrize("name", ["gone.txt", "src/gone", "~/gone-for-good.md"])
async def test_a_missing_file_is_told_when_it_is_sent_and_the_text_stays(folder: Path, name: str) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        app.composer.put(f"see @{name} there")
        await pilot.pause(SETTLED_S * 2)
        assert app.notices == []  # it could be half a name
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.notices)
        assert app.notices == [f"{name} cannot be attached: it does not exist; check the path. {NOT_SENT}"]
        assert (app.sent, app.text) == ([], f"see @{name} there")
        (folder / "gone.txt").write_text("here now")
        app.composer.put("see @gone.txt there")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert app.sent[0].attachments == (Attachment("gone.txt", "here now"),)


async def test_a_folder_without_its_slash_goes_along(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        app.composer.put("what is in @src")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert [attachment.name for attachment in app.sent[0].attachments] == ["src/main.py", "src/other.py"]


async def test_an_address_and_a_name_that_is_no_file_are_sent_as_text(folder: Path) -> None:
    app = ComposerApp(folder)
    async with app.run_test() as pilot:
        app.composer.put("write to ada@b.org, @someone")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert app.sent == [MessageDraft("write to ada@b.org, @someone")]


async def test_what_can_never_be_answered_stays_with_its_reason(folder: Path) -> None:
    asked: list[MessageDraft] = []

    def why_unfit(draft: MessageDraft) -> str | None:
        asked.append(draft)
        return "too long" if draft.attachments or len(draft.text) > 1000 else None

    app = ComposerApp(folder, why_unfit=why_unfit)
    async with app.run_test() as pilot:
        app.composer.put("see @notes.txt")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.notices == ["not sent: too long"])
        assert (app.sent, app.text, app.names) == ([], "see @notes.txt", ["notes.txt"])
        app.composer.clear()
        app.composer.attach(Path("notes.txt"))
        await wait_until(pilot, lambda: app.names)
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(app.notices) == 2)
        app.composer.put("word " * 300)
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(app.notices) == 3)
        assert app.sent == []
        app.composer.put("word " * 150)
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent)
        assert len(asked) == 4


async def test_a_long_paste_becomes_an_attachment_and_can_be_unpacked(folder: Path) -> None:
    app = ComposerApp(folder)
    long = "line\n" * (LONG_PASTE_CHARACTERS // 5 + 1)
    async with app.run_test() as pilot:
        app.paste(long)
        await wait_until(pilot, lambda: app.names == ["pasted text 1"])
        assert app.text == ""
        assert "+ pasted text 1 (801 lines) 4.0 kB" in str(app.query_one(Chips).content)
        app.paste(long)  # the same again: it is wanted in the text
        await wait_until(pilot, lambda: app.text == long)
        assert app.names == []
        app.composer.clear()
        app.paste(long)
        await wait_until(pilot, lambda: app.names)
        await pilot.press("shift+tab", "enter")
        assert app.text == long


async def test_one_text_is_counted_at_a_time_and_again_for_another_model(folder: Path) -> None:
    inside, most, go = [0], [0], threading.Event()
    factor = [1]

    def count(text: str) -> int:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        go.wait(10)
        inside[0] -= 1
        return factor[0] * len(text)

    app = ComposerApp(folder, count_tokens=count)
    async with app.run_test() as pilot:
        app.composer.attach(Path("notes.txt"))
        app.composer.attach(Path("src"))
        await wait_until(pilot, lambda: len(app.names) == 3)
        assert "… tok" in str(app.query_one(Chips).content)
        assert app.composer.n_tokens is None
        go.set()
        total = sum(len(attachment.text) for attachment in app.composer.draft.attachments)
        await wait_until(pilot, lambda: app.composer.n_tokens == total)
        assert most == [1]
        factor[0] = 2
        app.composer.recount()
        await wait_until(pilot, lambda: app.composer.n_tokens == 2 * total)
