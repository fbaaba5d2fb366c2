"""A process that holds one engine and measures it: `python -m edgeinfer.app.bench.child`.

In: a `BenchOpening` on standard input, then jobs, a line each. Out: a reply to each on the standard output it was
started with; whatever the engine itself prints goes to standard error. Between jobs it waits for a line and computes
nothing. With `--first-token OPENING` it loads, evaluates a short prompt, prints a line and ends: the start of a peer.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from edgeinfer.app.bench.messages import BenchJob, BenchOpening, BenchReply, decode_job, decode_opening, encode
from edgeinfer.app.bench.subject import BenchSubject
from edgeinfer.errors import EdgeInferError

FIRST_TOKEN = "--first-token"
START_PROMPT_TOKENS = 31
"""As many as a chat template makes of "Hi"."""


def open_subject(opening: BenchOpening) -> BenchSubject:
    """Load the model with the engine that the opening names. Raises what that engine raises."""
    from edgeinfer.app.bench.peers import PEERS, module_name

    peer = module_name(opening.executor)
    if peer in PEERS:
        if opening.cores is not None and sys.platform == "linux":
            os.sched_setaffinity(0, opening.cores)
        return PEERS.get(peer).open(opening)
    from edgeinfer.app.bench.ours import open_ours

    return open_ours(opening)


def main() -> None:
    replies = _own_output()
    if sys.argv[1:2] == [FIRST_TOKEN]:
        subject = open_subject(decode_opening(sys.argv[2]))
        subject.run(BenchJob("prefill", START_PROMPT_TOKENS))
        _say(replies, "first token")
        return
    line = sys.stdin.readline()
    if not line:
        return
    try:
        subject = open_subject(decode_opening(line))
    except Exception as reason:  # a peer may raise anything; the bench goes on without it
        _say(replies, encode(BenchReply(problem=_in_words(reason))))
        return
    _say(replies, encode(BenchReply()))
    for line in sys.stdin:
        _say(replies, encode(_answer(subject, line)))
    subject.close()


def _answer(subject: BenchSubject, line: str) -> BenchReply:
    try:
        return subject.run(decode_job(line))
    except Exception as reason:
        return BenchReply(problem=_in_words(reason))


def _in_words(reason: Exception) -> str:
    if isinstance(reason, EdgeInferError):
        return str(reason)
    first = str(reason).strip().splitlines()[:1]
    return f"{type(reason).__name__}: {first[0] if first else 'no message'}"


def _own_output() -> TextIO:
    """Standard output for replies alone; everything else that is printed goes to standard error from here on."""
    sys.stdout.flush()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _say(replies: TextIO, line: str) -> None:
    replies.write(line + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
