"""What is kept for the next time, what is not, and files that cannot be read."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.speculation.drafters import suffix
from edgeinfer.engine.speculation.files import LEARNT, MOST_TOKENS, PRIMED, DraftFolder, clear_history, file_texts
from edgeinfer.engine.speculation.records import BEST
from edgeinfer.errors import BadSetting
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.speculation.drafting import follow, model_drafts, repeating

TEXT = repeating(400)


def test_a_full_automaton_goes_on_with_the_latest_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MOST_ROOM", 2500)
    monkeypatch.setattr(suffix, "READ_AGAIN", 1000)
    monkeypatch.setattr(suffix, "AHEAD", 100)
    drafts = model_drafts(fixed=8)
    file, draw = np.array(repeating(400, seed=99), np.int32), random.Random(5)
    drafts.read_files([file])
    session, other = drafts.session(), drafts.session()
    follow(other, repeating(200, seed=98), 150)
    n_renewed = 0
    for _turn in range(40):
        before = int(drafts.tables["suffix"]._fields["n_states"])
        text = [draw.randrange(1, 300) for _ in range(150)]
        session.begin(text)
        session.draft(text, 8, 8)
        n_renewed += int(drafts.tables["suffix"]._fields["n_states"]) < before
        session.begin([*text, 1, *text[40:60]])
        draft = session.draft([*text, 1, *text[40:60]], 8, 8)
        assert text[60] in draft.tokens.tolist()[1:]  # what was just said is known at any time
    assert n_renewed >= 1
    asked = [7, *file[100:120].tolist()]
    session.begin(asked)
    assert int(file[120]) in session.draft(asked, 8, 8).tokens.tolist()[1:]
    follow(other, repeating(300, seed=98), 250)
    assert other.report().sources["session"].accepted > 0


def test_arrays_come_back_and_other_layouts_do_not(tmp_path: Path) -> None:
    folder = DraftFolder("model", "layout 1", tmp_path)
    assert folder.read(LEARNT) == {}
    folder.write(LEARNT, {"numbers": np.arange(5)})
    assert folder.read(LEARNT)["numbers"].tolist() == [0, 1, 2, 3, 4]
    assert DraftFolder("model", "layout 2", tmp_path).read(LEARNT) == {}
    assert DraftFolder("other", "layout 1", tmp_path).read(LEARNT) == {}


def test_what_a_killed_program_had_begun_to_write_is_removed(tmp_path: Path) -> None:
    folder = DraftFolder("model", "layout", tmp_path)
    folder.write(LEARNT, {"a": np.arange(3)})
    program = (
        "import os, sys; from pathlib import Path; from edgeinfer.temporary import temporary_file\n"
        "temporary_file(Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder.path / LEARNT)], check=False).returncode == 9
    assert len(list(folder.path.iterdir())) == 2
    assert folder.read(LEARNT)["a"].tolist() == [0, 1, 2]
    assert [path.name for path in folder.path.iterdir()] == [LEARNT]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_what_was_learnt_of_texts_is_readable_by_the_user_alone(tmp_path: Path) -> None:
    folder = DraftFolder("model", "layout", tmp_path / "drafts")
    folder.write(LEARNT, {"numbers": np.arange(5)})
    assert (folder.path / LEARNT).stat().st_mode & 0o077 == 0
    assert folder.path.stat().st_mode & 0o077 == 0


def packed(name: str, content: bytes) -> bytes:
    """An archive with one member."""
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return kept.getvalue()


def array_alone() -> bytes:
    """An array as NumPy saves one, without an archive."""
    kept = io.BytesIO()
    np.save(kept, np.arange(3))
    return kept.getvalue()


HUGE = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999999,), }".ljust(127) + b"\n"
)
DEFLATED = packed("a.npy", b"a" * 900)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"PK\3\4 nothing", b"\0" * 5000, packed("layout.npy", HUGE)),
        *(DEFLATED[:40] + b"\xff\xff" + DEFLATED[42:], array_alone()),
    ],
    ids=["empty", "no archive", "zeros", "huge", "wrong stream", "an array alone"],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: bytes) -> None:
    folder = DraftFolder("model", "layout", tmp_path)
    folder.path.mkdir()
    (folder.path / LEARNT).write_bytes(content)
    assert folder.read(LEARNT) == {}


def test_a_cut_file_counts_as_none(tmp_path: Path) -> None:
    folder = DraftFolder("model", "layout", tmp_path)
    folder.write(LEARNT, {"numbers": np.arange(5000)})
    whole = (folder.path / LEARNT).read_bytes()
    for size in (len(whole) // 2, len(whole) - 10):
        (folder.path / LEARNT).write_bytes(whole[:size])
        assert folder.read(LEARNT) == {}


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    DraftFolder("model", "layout", tmp_path / "file").write(LEARNT, {"numbers": np.arange(5)})


def test_drafts_go_on_where_they_ended(tmp_path: Path) -> None:
    first = model_drafts()
    first.remember(DraftFolder("model", first.layout, tmp_path), texts=True)
    follow(first.session(), TEXT, 100)
    first.close()
    second = model_drafts()
    second.remember(DraftFolder("model", second.layout, tmp_path), texts=True)
    for (_, kept), (_, again) in zip(first._arrays_by_owner(), second._arrays_by_owner(), strict=True):
        for name in kept:
            assert (kept[name] == again[name]).all()
    session = second.session()
    n_passes = len(follow(session, TEXT[200:300], 20))
    assert n_passes < 60
    assert session.report().sources["history"].accepted > 0
    assert clear_history(tmp_path) == 1
    third = model_drafts()
    third.remember(DraftFolder("model", third.layout, tmp_path), texts=True)
    assert third._texts == []


def test_what_is_learnt_now_is_newer_than_what_was_kept(tmp_path: Path) -> None:
    first = model_drafts()
    first.remember(DraftFolder("model", first.layout, tmp_path), texts=True)
    follow(first.session(), TEXT, 100)
    first.close()
    second = model_drafts()
    second.remember(DraftFolder("model", second.layout, tmp_path), texts=True)
    stamps = second.tables["successors"].arrays()["rows"][..., 1]
    newest = stamps.max()
    assert newest > 0
    follow(second.session(), repeating(400, seed=9), 100)
    assert (stamps > newest).sum() > 50


def test_without_history_nothing_of_a_text_is_kept(tmp_path: Path) -> None:
    drafts = model_drafts()
    drafts.remember(DraftFolder("model", drafts.layout, tmp_path), texts=False)
    follow(drafts.session(), TEXT, 100)
    drafts.prime(0, np.zeros((4, BEST), np.int32))
    drafts.keep_primed()
    drafts.close()
    assert [path.name for path in (tmp_path / "model").iterdir()] == [PRIMED]


def test_damaged_counts_are_not_taken_over(tmp_path: Path) -> None:
    drafts = model_drafts()
    folder = DraftFolder("model", drafts.layout, tmp_path)
    counts = drafts.acceptance[False].counts.copy()
    counts["logit"] = np.nan
    folder.write(LEARNT, {"greedy.counts": counts, "recycling.rows": np.full((3, 3), 99999, np.int32)})
    drafts.remember(folder, texts=True)
    assert np.isfinite(drafts.acceptance[False].counts["logit"]).all()
    follow(drafts.session(), TEXT, 100)


def test_foreign_tokens_in_kept_tables_do_no_harm(tmp_path: Path) -> None:
    drafts = model_drafts()
    folder = DraftFolder("model", drafts.layout, tmp_path)
    draw = np.random.default_rng(0)
    arrays = {
        f"{name}.{key}": draw.integers(-(2**31), 2**31, array.shape).astype(np.int32)
        for name, kept in drafts._arrays_by_owner()
        for key, array in kept.items()
        if array.dtype == np.int32
    }
    texts = draw.integers(-5, 10**6, 5000).astype(np.int32)
    folder.write(LEARNT, {**arrays, "texts": texts})
    drafts.remember(folder, texts=True)
    for draft in follow(drafts.session(), TEXT, 100):
        assert ((draft.tokens >= 0) & (draft.tokens < drafts.n_vocab)).all()


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def test_text_files_of_a_folder_and_nothing_else(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("the first")
    (tmp_path / ".hidden").write_text("hidden")
    (tmp_path / "b.bin").write_bytes(b"\0\1\2")
    (tmp_path / "c.latin").write_bytes(b"caf\xe9 au lait")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.py").write_text("the second")
    texts, notice = file_texts([tmp_path], tokenizer)
    assert [tokenizer.decode(text.tolist()) for text in texts] == ["the first", "the second"]
    assert notice is None


def test_paths_that_are_no_text_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        file_texts([tmp_path / "missing"], tokenizer)
    (tmp_path / "b.bin").write_bytes(b"\0\1\2")
    with pytest.raises(BadSetting, match="not UTF-8 text"):
        file_texts([tmp_path / "b.bin"], tokenizer)


def test_more_text_than_there_is_room_for_is_said(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("x y " * MOST_TOKENS)
    (tmp_path / "b.txt").write_text("z")
    texts, notice = file_texts([tmp_path], tokenizer)
    assert sum(map(len, texts)) == MOST_TOKENS
    assert notice is not None
    assert "b.txt" in notice
