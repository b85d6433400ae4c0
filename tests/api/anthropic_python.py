"""anthropic-python: messages, streaming, tools, thinking, count_tokens, errors."""

import anthropic
from questions import ANTHROPIC, CAPITAL, MODEL, PARIS, SUM, WEATHER, Weather, check

client = anthropic.Anthropic(base_url=ANTHROPIC, api_key="any text")
# The newest client does not know `temperature` any more, the API does.
common = {"model": MODEL, "max_tokens": 300, "extra_body": {"temperature": 0}}

message = client.messages.create(messages=CAPITAL, **common)
check("messages", message.content[0].text == PARIS and message.stop_reason == "end_turn", message)

with client.messages.stream(messages=CAPITAL, **common) as stream:
    events = list(stream)
    final = stream.get_final_message()
text = "".join(event.text for event in events if event.type == "text")
check("stream", text == PARIS and final.stop_reason == "end_turn" and final.usage.output_tokens > 5, final)
last = next(event for event in events if event.type == "message_delta")
check("timings", last.timings["cache_n"] == final.usage.cache_read_input_tokens and message.timings["predicted_n"] > 5, last)

count = client.messages.count_tokens(model=MODEL, messages=CAPITAL, system="Be brief.")
used = client.messages.create(messages=CAPITAL, system="Be brief.", **common).usage
total = used.input_tokens + (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
check("count_tokens", count.input_tokens == total, (count, used))

tools = [{"name": "get_weather", "description": "The weather of a city", "input_schema": Weather.model_json_schema()}]
called = client.messages.create(messages=WEATHER, tools=tools, tool_choice={"type": "any"}, **common)
check("tools", called.content[-1].input == {"city": "Rome", "days": 3} and called.stop_reason == "tool_use", called)
with client.messages.stream(messages=WEATHER, tools=tools, tool_choice={"type": "any"}, **common) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_message()
check("streamed tools", final.content[-1].input == {"city": "Rome", "days": 3} and "input_json" in kinds, kinds)
result = {"type": "tool_result", "tool_use_id": called.content[-1].id, "content": "sunny, 21 degrees"}
messages = [*WEATHER, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
check("result of a tool", client.messages.create(messages=messages, tools=tools, **common).content)

with client.messages.stream(
    messages=SUM, thinking={"type": "enabled", "budget_tokens": 1024}, model=MODEL, max_tokens=2000, extra_body={"temperature": 0}
) as stream:
    kinds = {event.type for event in stream}
    final = stream.get_final_message()
check("thinking", [block.type for block in final.content] == ["thinking", "text"] and "thinking" in kinds, final)
messages = [*SUM, {"role": "assistant", "content": final.content}, {"role": "user", "content": "And 1 + 1?"}]
check("thinking comes back", client.messages.create(messages=messages, **common).content)

stopped = client.messages.create(messages=CAPITAL, stop_sequences=[" of"], **common)
check("stop sequence", stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == " of", stopped)

check("models", client.models.list().data[0].id == MODEL and client.models.retrieve(MODEL).display_name == MODEL)
try:
    client.messages.create(model="claude-9", max_tokens=5, messages=CAPITAL)
except anthropic.NotFoundError as error:
    check("refusal", error.request_id and error.body["error"]["type"] == "not_found_error", error.body)
else:
    raise SystemExit("FAILED: an unknown model was taken")
