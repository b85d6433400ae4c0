"""The scoring rules of models/lily-nano/eval/README.md."""
import json
import re

import template

MAX_TOKENS = 256
SETS = ["qa", "two_turn", "think", "tool", "tool_result", "no_tool"]


def load(name):
    rows = [json.loads(line) for line in (template.MODEL_DIR / "eval" / f"{name}.jsonl").read_text().splitlines()]
    return [(template.prompt(r["messages"], r.get("tools"), r["enable_thinking"]), r) for r in rows]


def contains(text, phrase):
    """Whole-word containment after lower-casing and collapsing whitespace."""
    squash = lambda s: " ".join(s.lower().split())
    text, phrase = squash(text), squash(phrase)
    at = text.find(phrase)
    while at >= 0:
        before, after = text[at - 1: at], text[at + len(phrase): at + len(phrase) + 1]
        if not before.isalnum() and not after.isalnum():
            return True
        at = text.find(phrase, at + 1)
    return False


_CALL = re.compile(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", re.S)
_PARAM = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.S)


def parse_call(text, tools):
    """The only call in `text` as (name, arguments), or None."""
    calls = _CALL.findall(text)
    if len(calls) != 1 or text.count("<tool_call>") != 1:
        return None
    name, body = calls[0]
    props = next((t["function"]["parameters"]["properties"] for t in tools if t["function"]["name"] == name), None)
    if props is None or _PARAM.sub("", body):
        return None
    arguments = {}
    for key, raw in _PARAM.findall(body):
        if props.get(key, {}).get("type") == "string":
            arguments[key] = raw
        else:
            try:
                arguments[key] = json.loads(raw)
            except ValueError:
                return None
    return name, arguments


def right(row, text, stopped):
    """Whether the generated text (without the stop token) is a right answer."""
    if not stopped:
        return False
    if row["enable_thinking"]:
        thought, closer, text = text.partition("\n</think>\n\n")
        if not closer or not thought.strip():
            return False
    if "<think>" in text or "</think>" in text:
        return False
    expect = row["expect"]
    if "tool" in expect:
        return parse_call(text, row["tools"]) == (expect["tool"]["name"], expect["tool"]["arguments"])
    return "<tool_call>" not in text and any(contains(text, p) for p in expect["any_of"])


def report(results):
    """results: [(set, row, text, stopped)] -> printed table, {set: score}."""
    scores = {}
    for name in dict.fromkeys(r[0] for r in results):
        mine = [(row, right(row, text, stopped), text, stopped) for s, row, text, stopped in results if s == name]
        scores[name] = sum(ok for _, ok, _, _ in mine) / len(mine)
        print(f"{name}: {sum(ok for _, ok, _, _ in mine)}/{len(mine)} = {100 * scores[name]:.1f} %, stopped by itself {100 * sum(m[3] for m in mine) / len(mine):.1f} %")
        categories = dict.fromkeys(m[0]["category"] for m in mine)
        if len(categories) > 1:
            print("  " + ", ".join(f"{k} {sum(m[1] for m in mine if m[0]['category'] == k)}/{sum(m[0]['category'] == k for m in mine)}" for k in categories))
    return scores
