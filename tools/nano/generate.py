"""Writes the held-out evaluation sets and the tokenised training set.

    python generate.py split                -> sizes of the pools of phrasings
    python generate.py tokenizer            -> models/lily-nano/tokenizer.json
    python generate.py eval                 -> models/lily-nano/eval/*.jsonl
    python generate.py train --out FILE     -> tokens and lengths (npz)

Everything is seeded; the training set is drawn in shards of fixed seeds, so
the number of processes does not change it. Training uses no phrasing that the
evaluation uses (slots left open), and no training prompt equals an evaluation
prompt after normalisation: such draws are dropped, and `train` checks the
result once more.
"""
import argparse
import json
import multiprocessing
import random

import numpy as np

import calls
import followup
import phrases
import qa
import smalltalk
import template
import values
from facts import COUNTRIES, DEFINITIONS, SPELL_WORDS
from grammar import Ctx, noisy, normal, typo

EVAL_SEED, TRAIN_SEED, SHARD = 78, 20261130, 10_000
EVAL_DIR = template.MODEL_DIR / "eval"

QA_EVAL = {qa.capital: 90, qa.reverse_capital: 60, qa.continent: 50, qa.definition: 100, qa.opposite: 40, qa.spelling: 45,
           qa.letter_count: 35, qa.calendar: 60, qa.tables: 25, smalltalk.refusal: 45, qa.echo: 15}
ARITH_EVAL = {("+", False): 40, ("+", True): 30, ("-", False): 40, ("-", True): 25, ("x", None): 50}
TALK_EVAL = {"greeting": 8, "thanks": 6, "goodbye": 6, "identity": 10, "abilities": 6, "real_model": 8, "feelings": 5}
SYSTEM = ["You are a helpful assistant.", "You are lily-nano.", "Answer briefly.", "You are a friendly assistant. Keep answers short.", "Be polite.", "You are an assistant in a terminal.",
          "You are a helpful AI assistant.", "Help the user.", "Answer the user's questions truthfully.", "You are a voice assistant.", "Today is a nice day. Be helpful.", "Use the functions when they are needed."]


QA_MIX = [(qa.arithmetic, 25), (qa.tables, 2), (qa.capital, 10), (qa.reverse_capital, 10), (qa.continent, 7), (qa.definition, 14), (qa.opposite, 7),
          (qa.spelling, 8), (qa.letter_count, 8), (qa.calendar, 8), (smalltalk.talk, 9), (smalltalk.refusal, 7), (qa.echo, 7)]


def unknown(c):
    v = values.Values(c)
    while True:
        word, place = c.rng.choice([v.made_up(), smalltalk.topic(c), c.rng.choice(SPELL_WORDS)]), v.made_up()
        if " " not in word and word.lower() not in DEFINITIONS and all(place != name for row in COUNTRIES for name in row[0].lower().split() + row[1].lower().split()):
            return qa.unknown(c, word, place)


def one_qa(c):
    draw = c.rng.choices([f for f, _ in QA_MIX], [n for _, n in QA_MIX])[0]
    return unknown(c) if not c.held and c.rng.random() < 0.05 else draw(c)


def asked(it, noise, rng):
    """The user's text, with noise except where it is to be repeated."""
    return it["user"] if it["category"] == "echo" else noise(it["user"], rng)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def two_turn_messages(c, noise):
    first, second = followup.two_turn(c)
    messages = [user(noise(first["user"], c.rng)), assistant(first["answer"]), user(noise(second["user"], c.rng) if c.rng.random() < 0.5 else second["user"])]
    return messages, second


CALL_THINK = "The user wants something that {n} can do. I call it with {a}."


def call_item(c, noise, tool=None):
    """(messages, tool schemas, tool, call, slots)"""
    tool = tool or calls.build(c)
    text, arguments, shown = calls.request(c, tool)
    box = calls.toolbox(c, tool)
    return [user(text)], [t["schema"] for t in box], tool, (tool["name"], arguments), shown


def call_message(call):
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": call[0], "arguments": call[1]}}]}


def call_think(c, call):
    shown = ", ".join(f"{k} = {v if isinstance(v, str) else json.dumps(v)}" for k, v in call[1].items())
    return CALL_THINK.format(n=call[0], a=shown)


def without_sums(c):
    """A question that no tool of the box is needed for."""
    while True:
        it = one_qa(c)
        if it["category"] not in ("addition", "subtraction", "multiplication", "tables", "refusal", "unknown"):
            return it


# ---- training --------------------------------------------------------------
def training_case(c):
    """(messages, tools, thinking, completion, leak key)"""
    r = c.rng
    noise = lambda text, rng: typo(noisy(text, rng, 0.05), rng) if rng.random() < 0.02 else noisy(text, rng, 0.05)
    k, thinking, tools = r.random(), r.random() < 0.25, None
    if k < 0.39:
        it = one_qa(c)
        messages = [user(asked(it, noise, r))]
        if r.random() < 0.10:
            other = one_qa(c)
            messages = [user(asked(other, noise, r)), assistant(other["answer"])] + messages
    elif k < 0.52:
        messages, it = two_turn_messages(c, noise)
        if r.random() < 0.15:
            other = one_qa(c)
            messages = [user(asked(other, noise, r)), assistant(other["answer"])] + messages
    elif k < 0.59:
        it = without_sums(c)
        messages, tools = [user(asked(it, noise, r))], [t["schema"] for t in calls.toolbox(c, calls.build(c))]
    else:
        messages, tools, tool, call, shown = call_item(c, noise)
        if k < 0.92:
            if r.random() < 0.08:
                other = without_sums(c)
                messages = [user(asked(other, noise, r)), assistant(other["answer"])] + messages
            it = dict(answer=template.call_text([call]), think=call_think(c, call))
        else:
            text, answer, _ = calls.outcome(c, tool, shown)
            messages = messages + [call_message(call), {"role": "tool", "content": text}]
            if thinking:
                messages[-2]["reasoning_content"] = call_think(c, call)
            it = dict(answer=answer, think="The tool has answered. I report it.")
    if r.random() < 0.12:
        messages = [{"role": "system", "content": r.choice(SYSTEM)}] + messages
    completion = (f"{it['think']}\n</think>\n\n" if thinking else "") + it["answer"] + "<|im_end|>"
    return messages, tools, thinking, completion, leak_key(messages)


def leak_key(messages):
    tail = messages[-1]["content"] if messages[-1]["role"] == "tool" else ""
    last = [m["content"] for m in messages if m["role"] == "user"][-1]
    return normal(last + " " + tail)


def training_shard(index):
    c = Ctx(random.Random(TRAIN_SEED + index), False, phrases.pools(), phrases.held_phrasings())
    prompts, completions, keys = [], [], []
    while len(keys) < SHARD:
        messages, tools, thinking, completion, key = training_case(c)
        if key in _EVAL_KEYS:  # two templates can meet in the same words
            continue
        prompts.append(template.prompt(messages, tools, thinking))
        completions.append(completion)
        keys.append(key)
    shared = c.used & phrases.held_phrasings()
    if shared:
        raise ValueError(f"phrasings of the evaluation in training: {sorted(shared)[:5]}")
    return prompts, completions, keys


def _tokenised_shard(index):
    from tokenizers import Tokenizer
    prompts, completions, keys = training_shard(index)
    leaked = _EVAL_KEYS & set(keys)
    if leaked:
        raise ValueError(f"training prompts that are also evaluation prompts: {sorted(leaked)[:5]}")
    tok = Tokenizer.from_file(str(template.MODEL_DIR / "tokenizer.json"))
    p, q = tok.encode_batch(prompts), tok.encode_batch(completions)
    flat = np.concatenate([np.array(a.ids + b.ids, np.uint16) for a, b in zip(p, q)])
    lengths = np.array([(len(a.ids), len(a.ids) + len(b.ids)) for a, b in zip(p, q)], np.uint16)
    return flat, lengths


_EVAL_KEYS = set()


def _load_eval():
    """The prompts that training must not contain."""
    for path in sorted(EVAL_DIR.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            _EVAL_KEYS.add(leak_key(json.loads(line)["messages"]))


def write_training(out, shards, processes):
    _load_eval()
    with multiprocessing.Pool(processes) as pool:
        parts = pool.map(_tokenised_shard, range(shards), chunksize=1)
    flat = np.concatenate([p[0] for p in parts])
    lengths = np.concatenate([p[1] for p in parts])
    np.savez(out, tokens=flat, lengths=lengths)
    print(f"{len(lengths)} samples, {len(flat)} tokens, longest {lengths[:, 1].max()}, "
          f"mean {lengths[:, 1].mean():.1f}; none of {len(_EVAL_KEYS)} evaluation prompts and {len(phrases.held_phrasings())} phrasings in training")


# ---- evaluation ------------------------------------------------------------
class EvalSet:
    def __init__(self, name, kind):
        self.name, self.kind, self.rows, self.seen = name, kind, [], set()

    def add(self, messages, category, expect, tools=None, thinking=False):
        key = leak_key(messages) + json.dumps(messages[:-1])
        if key in self.seen:
            return False
        self.seen.add(key)
        row = {"kind": self.kind, "category": category, "messages": messages}
        if tools:
            row["tools"] = tools
        row |= {"enable_thinking": thinking, "expect": expect}
        self.rows.append(row)
        return True

    def write(self):
        (EVAL_DIR / f"{self.name}.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in self.rows))
        print(f"{self.name}: {len(self.rows)}")


def fill(target, wanted, draw):
    """Draws until `wanted` new rows are in, or the phrasings are exhausted."""
    have, tries = 0, 0
    while have < wanted and tries < 50 * wanted:
        tries += 1
        have += target.add(**draw())


def write_eval():
    c = Ctx(random.Random(EVAL_SEED), True, phrases.pools())
    noise = lambda text, rng: noisy(text, rng)

    def simple(it, thinking=False):
        return dict(messages=[user(asked(it, noise, c.rng))], category=it["category"], expect={"any_of": it["any_of"]}, thinking=thinking)

    q = EvalSet("qa", "qa")
    for f, n in QA_EVAL.items():
        fill(q, n, lambda: simple(f(c)))
    for (op, big), n in ARITH_EVAL.items():
        fill(q, n, lambda: simple(qa.arithmetic(c, op, big)))
    fill(q, 25, lambda: simple(unknown(c)))
    for name, n in TALK_EVAL.items():
        fill(q, n, lambda: simple(smalltalk.talk(c, name)))
    t = EvalSet("think", "think")
    fill(t, 90, lambda: simple(one_qa(c), True))

    def turn():
        messages, it = two_turn_messages(c, noise)
        return dict(messages=messages, category=it["category"], expect={"any_of": it["any_of"]})

    two = EvalSet("two_turn", "two_turn")
    fill(two, 110, turn)

    def call(thinking=False):
        messages, tools, _, (name, arguments), _ = call_item(c, noise)
        return dict(messages=messages, tools=tools, category="tool_call", expect={"tool": {"name": name, "arguments": arguments}}, thinking=thinking)

    def answered():
        messages, tools, tool, got, shown = call_item(c, noise)
        text, _, needs = calls.outcome(c, tool, shown)
        return dict(messages=messages + [call_message(got), {"role": "tool", "content": text}], tools=tools, category="tool_result", expect={"any_of": needs})

    def unneeded():
        it = without_sums(c)
        return dict(simple(it), tools=[s["schema"] for s in calls.toolbox(c, calls.build(c))], category="no_call")

    tool, result, none = EvalSet("tool", "tool"), EvalSet("tool_result", "tool_result"), EvalSet("no_tool", "qa")
    fill(tool, 200, call)
    fill(t, 20, lambda: call(True))
    fill(result, 50, answered)
    fill(none, 40, unneeded)
    stray = c.used - phrases.held_phrasings()
    if stray:
        raise ValueError(f"phrasings of the evaluation that training may use: {sorted(stray)[:5]}")
    EVAL_DIR.mkdir(exist_ok=True)
    for drawn in (q, t, two, tool, result, none):
        drawn.write()


def write_tokenizer():
    import tokenizer
    values.pieces = lambda: values.SYLLABLES  # there are no entries to draw words from yet
    texts = []
    for index in range(6):
        prompts, completions, _ = training_shard(1_000_000 + index)
        texts += [a + b for a, b in zip(prompts, completions)]
    tokenizer.train(texts, template.MODEL_DIR)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["split", "eval", "tokenizer", "train"])
    ap.add_argument("--out", default="train.npz")
    ap.add_argument("--shards", type=int, default=100, help="of 10,000 samples each")
    ap.add_argument("--processes", type=int, default=2)
    a = ap.parse_args()
    if a.what == "split":
        phrases.statistics()
    elif a.what == "eval":
        write_eval()
    elif a.what == "tokenizer":
        write_tokenizer()
    else:
        write_training(a.out, a.shards, a.processes)


if __name__ == "__main__":
    main()
