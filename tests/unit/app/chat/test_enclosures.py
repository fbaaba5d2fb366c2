"""Enclosures: which mentions are still to be read, what stays away, and how many tokens they have."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.app.chat.attachments import Attached
from edgeinfer.app.chat.enclosures import Enclosures, TokenCounts, chip_text
from edgeinfer.app.sessions.kept_images import kept_image
from edgeinfer.app.sessions.records import Attachment
from tests.pictures import picture

A, B = Path("/here/a.txt"), Path("/here/b.txt")


def attached(name: str, text: str = "text") -> Attached:
    return Attached((Attachment(name, text),))


def test_mentions_come_and_go_added_files_stay() -> None:
    held = Enclosures()
    assert held.keep_mentioned([A, B]) == [A, B]
    held.add(A, attached("a.txt"), "mention")
    held.add(B, attached("b.txt"), "added")
    assert held.keep_mentioned([A, B]) == []
    assert held.keep_mentioned([]) == []
    assert [item.label for item in held.items] == ["b.txt"]


def test_what_was_removed_by_hand_is_not_read_again() -> None:
    held = Enclosures()
    held.add(A, attached("a.txt"), "mention")
    held.remove(held.items[0])
    assert held.keep_mentioned([A]) == []
    assert held.attachments == ()


def test_the_same_path_is_held_once() -> None:
    held = Enclosures()
    held.add(A, attached("a.txt", "old"), "mention")
    held.add(A, attached("a.txt", "new"), "added")
    assert held.attachments == (Attachment("a.txt", "new"),)


def test_pasted_texts_have_numbers_of_their_own() -> None:
    held = Enclosures()
    first, second = held.add_pasted("a\nb"), held.add_pasted("c")
    assert (first.label, second.label) == ("pasted text 1 (2 lines)", "pasted text 2 (1 line)")
    held.remove(first)
    assert held.add_pasted("d").label == "pasted text 3 (1 line)"
    assert held.add_pasted("a line\n" * 500).label == "pasted text 4 (500 lines)"
    assert held.add_pasted("a\n\n").label == "pasted text 5 (2 lines)"


def test_a_sum_is_known_when_all_its_parts_are() -> None:
    counts = TokenCounts()
    texts = ["one", "", "two"]
    assert counts.missing(texts) == "one"
    counts.known["one"] = 3
    assert counts.of(texts) is None
    assert counts.missing(texts) == "two"
    counts.known["two"] = None  # it could not be told: it is not asked again
    assert counts.missing(texts) is None
    assert counts.of(texts) is None
    counts.known["two"] = 4
    assert counts.of(texts) == 7
    assert counts.missing(["two"]) is None
    assert set(counts.known) == {"two"}


def test_chips_say_what_is_known() -> None:
    held = Enclosures()
    held.add(A, attached("a.txt"), "added")
    (item,) = held.items
    assert chip_text(item, None) == "a.txt 4 bytes"
    assert chip_text(item, {}) == "a.txt 4 bytes, … tok"
    assert chip_text(item, {"text": 1234}) == "a.txt 4 bytes, 1,234 tok"


def test_chips_of_images_say_their_pixels() -> None:
    held, image = Enclosures(), kept_image(picture(), "a.png")
    held.add(A, Attached((Attachment("a.png", "", image),)), "added")
    (item,) = held.items
    assert chip_text(item, {}) == "a.png 64 × 48, … tok"
    assert chip_text(item, {image: 1234}) == "a.png 64 × 48, 1,234 tok"
    counts = TokenCounts()
    assert counts.missing(["", image]) == image
