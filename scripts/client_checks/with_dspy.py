"""dspy: Predict, tools, streams and embeddings. A provider of its own says that the server obeys schemas.

As `openai/NAME` dspy does not send the schema, for want of knowing the model; the prompt alone asks for it then.
"""

from __future__ import annotations

from typing import Any

import dspy
from check_parts import CALL, NO_MODEL, QUESTION, TOO_LONG, error_of, run_checks, weather
from dspy._vendor.lm15 import AccessPolicy
from dspy.lm15 import ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider

COLOUR = "text -> colour: Literal['red', 'green', 'blue']"


def there(address: str, model: str) -> Any:
    access = AccessPolicy(provider="edgeinfer", base_url=f"{address}/v1")
    provider = ProviderDefinition.chat(access, compat=OpenAIChatCompat(), placeholder_key="none")
    register_provider(provider, supports=ModelSupport(response_schema=True, function_calling=True))
    options: dict[str, Any] = {"max_tokens": 300, "cache": False, "num_retries": 0}
    return dspy.LM(f"edgeinfer/{model}", **options)


def plain(address: str, model: str) -> object:
    return there(address, model)(QUESTION)[0]


def predicted(address: str, model: str) -> object:
    with dspy.context(lm=there(address, model), adapter=dspy.JSONAdapter()):
        return dspy.Predict("question -> answer: str")(question=QUESTION).answer


def structured(address: str, model: str) -> object:
    with dspy.context(lm=there(address, model), adapter=dspy.JSONAdapter()):
        return dspy.Predict(COLOUR)(text="Snow is as white as a rose is red.").colour


class Calling(dspy.Signature):
    """Answer with the tools."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def tools(address: str, model: str) -> object:
    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    with dspy.context(lm=there(address, model), adapter=adapter):
        (call,) = dspy.Predict(Calling, tool_choice="required")(
            question=CALL, tools=[dspy.Tool(weather)]
        ).calls.tool_calls
    return [call.name, call.args, call.execute([dspy.Tool(weather)])]


async def streamed(address: str, model: str) -> object:
    with dspy.context(lm=there(address, model), adapter=dspy.JSONAdapter()):
        listener = dspy.streaming.StreamListener(signature_field_name="answer")
        program = dspy.streamify(dspy.Predict("question -> answer: str"), stream_listeners=[listener])
        *parts, last = [part async for part in program(question=QUESTION)]
    pieces = [part.chunk for part in parts if isinstance(part, dspy.streaming.StreamResponse)]
    assert last.answer in "".join(pieces), pieces
    return f"{len(pieces)} pieces: {last.answer}"


async def streamed_raw(address: str, model: str) -> object:
    """The server's own chunks, as dspy hands them on where no field is listened to."""
    with dspy.context(lm=there(address, model), adapter=dspy.JSONAdapter()):
        *parts, last = [part async for part in dspy.streamify(dspy.Predict(COLOUR))(text="A rose is red.")]
    assert parts, "no chunk"
    return f"{len(parts)} {type(parts[0]).__name__}: {last.colour}"


async def streamed_tools(address: str, model: str) -> object:
    """Calls put together from a stream."""
    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    with dspy.context(lm=there(address, model), adapter=adapter):
        program = dspy.streamify(dspy.Predict(Calling, tool_choice="required"))
        *parts, last = [part async for part in program(question=CALL, tools=[dspy.Tool(weather)])]
    (call,) = last.calls.tool_calls
    assert parts, "no chunk"
    return [f"{len(parts)} chunks", call.name, call.args, call.execute([dspy.Tool(weather)])]


def embeddings(address: str, model: str) -> object:
    embedder = dspy.Embedder(f"openai/{model}", api_base=f"{address}/v1", api_key="none", caching=False)
    return f"vectors of shape {embedder(['a text', 'another']).shape}"


def unknown_model(address: str, model: str) -> object:
    return error_of(lambda: there(address, NO_MODEL)(QUESTION))


def too_long(address: str, model: str) -> object:
    return error_of(lambda: there(address, model)(TOO_LONG))


if __name__ == "__main__":
    run_checks(
        plain=plain,
        predicted=predicted,
        structured=structured,
        tools=tools,
        streamed=streamed,
        streamed_raw=streamed_raw,
        streamed_tools=streamed_tools,
        embeddings=embeddings,
        unknown_model=unknown_model,
        too_long=too_long,
    )
