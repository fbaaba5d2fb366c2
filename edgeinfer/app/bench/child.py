"""A process that runs one engine and measures it: `python -m edgeinfer.app.bench.child`.

In: a `BenchOpening`, then jobs. Out: a reply to each. Between jobs it waits and computes nothing. With `--first-token
OPENING` it loads, evaluates a short prompt, prints a line and exits: this is how the start of a peer is measured.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace

from edgeinfer.app.answer_record import peak_rss_bytes
from edgeinfer.app.bench.subject import BenchJob, BenchOpening, BenchReply, BenchSubject
from edgeinfer.errors import EdgeInferError
from edgeinfer.ipc.channel import Channel
from edgeinfer.ipc.child import connect
from edgeinfer.ipc.records import from_json

FIRST_TOKEN = "--first-token"
START_PROMPT_TOKENS = 31
"""As many tokens as "Hi" has in a chat template."""


def open_subject(opening: BenchOpening) -> BenchSubject:
    """Load the model with the engine that the opening names. Raises what that engine raises."""
    from edgeinfer.app.bench.peers import PEERS, module_name

    peer = module_name(opening.executor)
    if peer in PEERS:
        if opening.conditions.cores is not None and sys.platform == "linux":
            os.sched_setaffinity(0, opening.conditions.cores)
        return PEERS.get(peer).open(opening)
    from edgeinfer.app.bench.ours import open_ours

    return open_ours(opening)


def main() -> None:
    if sys.argv[1:2] == [FIRST_TOKEN]:
        _print_first_token(from_json(BenchOpening, sys.argv[2]))
        return
    with connect() as channel, suppress(EOFError, OSError):
        try:
            subject = open_subject(channel.receive(BenchOpening))
        except Exception as reason:  # a peer may raise anything; the benchmark goes on without it
            channel.send(BenchReply(problem=_in_words(reason)))
            return
        channel.send(BenchReply())
        try:
            _serve(channel, subject)
        finally:
            subject.close()


def _serve(channel: Channel, subject: BenchSubject) -> None:
    """Do jobs until the benchmark ends. Raises EOFError at the end."""
    while True:
        job = channel.receive(BenchJob)
        try:
            reply = replace(subject.run(job), peak_rss_bytes=peak_rss_bytes())
        except Exception as reason:
            reply = BenchReply(problem=_in_words(reason))
        channel.send(reply)


def _print_first_token(opening: BenchOpening) -> None:
    """Evaluate a short prompt and print a line. The engine's own output goes to standard error."""
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    open_subject(opening).run(BenchJob("prefill", START_PROMPT_TOKENS))
    print("first token", file=output, flush=True)


def _in_words(reason: Exception) -> str:
    if isinstance(reason, EdgeInferError):
        return str(reason)
    first = str(reason).strip().splitlines()[:1]
    return f"{type(reason).__name__}: {first[0] if first else 'no message'}"


if __name__ == "__main__":
    main()
