"""LangChain's ChatOpenAI and LiteLLM."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch prices otherwise

import litellm  # noqa: E402
from langchain_core.messages import ToolMessage  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from questions import ANTHROPIC, CAPITAL, MODEL, OPENAI, PARIS, WEATHER, Weather, check  # noqa: E402

chat = ChatOpenAI(model=MODEL, base_url=OPENAI, api_key="any text", temperature=0, stream_usage=True)
answer = chat.invoke(CAPITAL)
check("LangChain", answer.content == PARIS and answer.usage_metadata["output_tokens"] > 5, answer)
chunks = list(chat.stream(CAPITAL))
check("LangChain stream", "".join(c.content for c in chunks) == PARIS and any(c.usage_metadata for c in chunks))
check("LangChain schema", isinstance(chat.with_structured_output(Weather).invoke(CAPITAL), Weather))
bound = chat.bind_tools([Weather], tool_choice="any")
called = bound.invoke(WEATHER)
check("LangChain tools", called.tool_calls[0]["args"] == {"city": "Rome", "days": 3}, called)
result = ToolMessage("sunny", tool_call_id=called.tool_calls[0]["id"])
check("LangChain result", chat.bind_tools([Weather]).invoke([*WEATHER, called, result]).content)

answer = litellm.completion(model=f"openai/{MODEL}", api_base=OPENAI, api_key="any text", messages=CAPITAL, temperature=0)
check("LiteLLM", answer.choices[0].message.content == PARIS, answer)
answer = litellm.completion(model=f"hosted_vllm/{MODEL}", api_base=OPENAI, messages=CAPITAL, temperature=0, stream=True)
check("LiteLLM stream", "".join(c.choices[0].delta.content or "" for c in answer) == PARIS)
answer = litellm.completion(
    model=f"anthropic/{MODEL}", api_base=ANTHROPIC, api_key="any text", messages=CAPITAL, temperature=0, max_tokens=50
)
check("LiteLLM Messages", answer.choices[0].message.content == PARIS, answer)
