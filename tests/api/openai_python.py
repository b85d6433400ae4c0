"""openai-python: chat, its stream helper, tools, parsing with a schema, completions, Responses, errors."""

import openai
from questions import CAPITAL, MODEL, OPENAI, PARIS, SUM, WEATHER, Weather, check

client = openai.OpenAI(base_url=OPENAI, api_key="any text")
chat = client.chat.completions

check("models", [m.id for m in client.models.list()] == [MODEL] and client.models.retrieve(MODEL).id == MODEL)

answer = chat.create(model=MODEL, messages=CAPITAL, temperature=0)
check("chat", answer.choices[0].message.content == PARIS, answer)
check("usage", answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens, answer.usage)

chunks = list(chat.create(model=MODEL, messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}))
check("stream", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == PARIS, chunks)
check("usage comes last", chunks[-1].usage is not None and all(c.usage is None for c in chunks[:-1]))

with chat.stream(model=MODEL, messages=CAPITAL, temperature=0, logprobs=True, top_logprobs=2) as stream:
    kinds = {event.type for event in stream}
    final = stream.get_final_completion()
check("stream helper", final.choices[0].message.content == PARIS and "content.done" in kinds, kinds)
tokens = final.choices[0].logprobs.content
check("logprobs", bytes(b for t in tokens for b in t.bytes).decode() == PARIS and len(tokens[0].top_logprobs) == 2, tokens)

parsed = chat.parse(model=MODEL, messages=CAPITAL, response_format=Weather, temperature=0)
check("parse", isinstance(parsed.choices[0].message.parsed, Weather), parsed)

tools = [openai.pydantic_function_tool(Weather, name="get_weather")]
called = chat.parse(model=MODEL, messages=WEATHER, tools=tools, temperature=0)
call = called.choices[0].message.tool_calls[0].function
check("tools", call.parsed_arguments == Weather(city="Rome", days=3), called)
check("finish reason", called.choices[0].finish_reason == "tool_calls")
with chat.stream(model=MODEL, messages=WEATHER, tools=tools, tool_choice="required", temperature=0) as stream:
    deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
    final = stream.get_final_completion()
check("streamed tools", final.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(city="Rome", days=3))
check("arguments stream", len(deltas) > 1, deltas)

messages = [*WEATHER, called.choices[0].message.to_dict(),
            {"role": "tool", "tool_call_id": called.choices[0].message.tool_calls[0].id, "content": "sunny, 21 degrees"}]
check("result of a tool", chat.create(model=MODEL, messages=messages, tools=tools, temperature=0).choices[0].message.content)

thought = chat.create(model=MODEL, messages=SUM, temperature=0, reasoning_effort="high").choices[0].message
check("reasoning", "42" in thought.content and len(thought.reasoning_content) > 10, thought)

text = client.completions.create(model=MODEL, prompt="The capital", max_tokens=5, temperature=0, logprobs=2).choices[0]
check("completions", text.text and len(text.logprobs.tokens) == 5, text)

response = client.responses.create(model=MODEL, input=CAPITAL[0]["content"], temperature=0)
check("responses", response.output_text == PARIS and response.status == "completed", response)
with client.responses.stream(model=MODEL, input=CAPITAL[0]["content"], temperature=0) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
check("responses stream", final.output_text == PARIS and kinds[0] == "response.created" and kinds[-1] == "response.completed")
check("responses parse", isinstance(client.responses.parse(
    model=MODEL, input="x", text_format=Weather, temperature=0).output_parsed, Weather))
tool = {"type": "function", "name": "get_weather", "parameters": Weather.model_json_schema(), "strict": True}
response = client.responses.create(model=MODEL, input=WEATHER[0]["content"], tools=[tool], tool_choice="required", temperature=0)
check("responses tools", response.output[-1].type == "function_call" and response.output[-1].name == "get_weather", response)


def refused(expected, code, **more):
    try:
        chat.create(**{"model": MODEL, "messages": CAPITAL, **more})
    except expected as error:
        check(f"refusal {code}", error.code == code and error.request_id, error)
    else:
        raise SystemExit(f"FAILED: {more} was taken")


refused(openai.NotFoundError, "model_not_found", model="gpt-9")
refused(openai.BadRequestError, "unsupported_parameter", n=2)
refused(openai.BadRequestError, "context_length_exceeded", messages=[{"role": "user", "content": "word " * 9000}])
