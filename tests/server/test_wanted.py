"""What requests ask for: done as it is asked, or refused with what would work, never ignored."""

from __future__ import annotations

from tests.server.conftest import Running

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "the rain in the tin"}]


def conversation(server: Running, n_tokens: int) -> list[dict[str, str]]:
    """Several turns that the model is given as so many tokens."""
    turns = [{"role": role, "content": "the hen"} for role in ("user", "assistant", "user")]
    while (n_more := n_tokens - server.llm.prompts.n_tokens(turns)) > 0:
        turns[-1]["content"] += "z" * n_more
    assert server.llm.prompts.n_tokens(turns) == n_tokens
    return turns


def test_a_conversation_may_fill_the_context(server: Running) -> None:
    http, n_context = server.http(), server.llm.facts.n_context
    for n_tokens, n_answer in ((n_context * 7 // 8, 20), (n_context, 1)):
        body = {"messages": conversation(server, n_tokens), "max_tokens": 20, "logit_bias": {"2": -100}}
        found = http.post(CHAT, json=body).json()
        assert found["usage"]["prompt_tokens"] == n_tokens
        assert found["usage"]["completion_tokens"] == n_answer
        assert found["choices"][0]["finish_reason"] == "length"
    body = {"messages": conversation(server, n_context + 1), "max_tokens": 1}
    message = http.post(CHAT, json=body).json()["error"]["message"]
    assert message.startswith(f"the conversation has {n_context + 1} tokens and the context holds {n_context};")


def test_functions_count_as_part_of_the_conversation(server: Running) -> None:
    body = {"messages": MESSAGES, "tools": [{"function": {"name": "clock", "description": "the hen " * 200}}]}
    message = server.http().post(CHAT, json=body).json()["error"]["message"]
    n_tokens = int(message.split()[3])
    assert n_tokens > server.llm.facts.n_context > server.llm.prompts.n_tokens(MESSAGES)
