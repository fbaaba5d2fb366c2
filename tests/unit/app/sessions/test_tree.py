"""The tree of messages, and what the model is given of a branch."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.app.sessions.conversation import fenced, messages_of
from edgeinfer.app.sessions.records import Attachment, KeptMessage, MessageTree, Role


def message(number: int, parent: int | None, role: Role = "user", text: str = "x") -> KeptMessage:
    return KeptMessage(number, 1, parent, role, text, "whole", 0.0)


TREE = MessageTree(
    [message(1, None), message(2, 1), message(3, 1), message(4, 2), message(5, None), message(6, 3), message(7, 2)]
)


def test_branches_children_and_siblings() -> None:
    assert [m.number for m in TREE.roots] == [1, 5]
    assert [m.number for m in TREE.path(7)] == [1, 2, 7]
    assert [m.number for m in TREE.children(1)] == [2, 3]
    assert TREE.children(99) == ()
    index, siblings = TREE.siblings(3)
    assert (index, [m.number for m in siblings]) == (1, [2, 3])
    assert TREE.siblings(5)[0] == 1
    assert (TREE.newest_leaf(1), TREE.newest_leaf(3), TREE.newest_leaf(5)) == (7, 6, 5)
    assert (TREE.newest(), MessageTree(()).newest()) == (7, None)
    assert TREE.has(4)
    assert not TREE.has(None)
    with pytest.raises(KeyError):
        TREE.path(99)


def test_broken_parents_do_no_harm() -> None:
    orphan = MessageTree([message(2, 1), message(3, 3)])
    assert [m.number for m in orphan.roots] == [2, 3]
    assert [m.number for m in orphan.path(3)] == [3]
    circle = MessageTree([message(1, 2), message(2, 1)])
    assert len(circle.path(1)) <= 3


@given(st.lists(st.integers(0, 30), max_size=30))
def test_each_message_is_at_the_end_of_its_branch_and_among_its_siblings(parents: list[int]) -> None:
    tree = MessageTree(message(n, parent if 0 < parent < n else None) for n, parent in enumerate(parents, 1))
    for each in tree.messages:
        path = tree.path(each.number)
        assert path[-1] == each
        assert path[0] in tree.roots
        assert [m.parent for m in path[1:]] == [m.number for m in path[:-1]]
        index, siblings = tree.siblings(each.number)
        assert siblings[index] == each
        leaf = tree.newest_leaf(each.number)
        assert tree.children(leaf) == ()
        assert each in tree.path(leaf)


def said(branch: list[KeptMessage], system: str | None = None) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in messages_of(branch, system)]


def test_a_conversation_is_given_as_it_was() -> None:
    branch = [message(1, None, "user", "q"), message(2, 1, "assistant", "a"), message(3, 2, "user", "r")]
    assert said(branch) == [("user", "q"), ("assistant", "a"), ("user", "r")]
    assert said(branch, "be brief")[0] == ("system", "be brief")
    assert said([], None) == []


def test_summaries_go_into_the_system_prompt() -> None:
    branch = [message(1, None, "summary", "it rained"), message(2, 1, "user", "q")]
    assert said(branch) == [("system", "Summary of the conversation so far:\nit rained"), ("user", "q")]
    assert said(branch, "be brief")[0][1].startswith("be brief\n\nSummary of")


def test_answers_that_never_came_are_left_out() -> None:
    branch = [
        message(1, None, "user", "one"),
        replace(message(2, 1, "assistant", " \n"), state="failed"),
        message(3, 2, "user", "two"),
        replace(message(4, 3, "assistant", "half"), state="stopped"),
        message(5, 4, "user", "three"),
        replace(message(6, 5, "assistant", ""), state="writing"),
    ]
    assert said(branch) == [("user", "two"), ("assistant", "half"), ("user", "three")]


def test_files_stand_before_the_text() -> None:
    one = replace(message(1, None, "user", "why?"), attachments=(Attachment("a.py", "x\n"), Attachment("b", "y")))
    assert said([one]) == [("user", "File: a.py\n```\nx\n```\n\nFile: b\n```\ny\n```\n\nwhy?")]


@given(st.lists(st.sampled_from(["```", "````", "`", "\n", "x", "```py\n"])).map("".join))
def test_no_text_closes_its_fence(text: str) -> None:
    fence, body = fenced(text).split("\n", 1)
    assert re.fullmatch("`{3,}", fence)
    assert fence not in body[: -len(fence)]
    assert body.endswith(fence)
