"""Tool use: schemas with varied names, requests, the right call, tool results
and the answer drawn from them. Held-out items use function names, parameter
names, values and phrasings that training never shows."""
import json

from facts import SPELL_WORDS
from grammar import expand, story
from kinds import COMMON, HELD_NAMES, KINDS, NEAR, lookup, split_names
from values import Values

SYMBOL = {"add": ["+", "plus"], "subtract": ["-", "minus"], "multiply": ["*", "x", "times"], "divide": ["/", "divided by"]}
_VERBS = "get do run call make find use start fetch open ask tell new".split() + SPELL_WORDS


def made_up_name(v):
    """A function or parameter name that means nothing: it can only be copied."""
    r = v.r
    a, b = v.made_up(), r.choice([v.made_up(), v.noun(), v.made_up()])
    verb = r.choice(_VERBS)
    return r.choice([a, f"{verb}_{a}", f"{a}_{b}", f"{a}_{r.choice(['of', 'to', 'on', 'in', 'for', 'by', 'at'])}_{b}", f"{a}_{b}_{v.made_up()}", f"{a}_{b}", f"{v.noun()}_{b}", a + b.capitalize(), verb + a.capitalize(), f"{a}{r.randint(1, 99)}", f"{verb}_{v.noun()}_{b}"])


def build(c, kind=None):
    """One concrete tool: schema, and what is needed for a request and its call. In
    training most names mean nothing or belong elsewhere: the schema must be read."""
    r, v = c.rng, Values(c)
    kind = kind or (r.choice(list(KINDS)) if r.random() < 0.75 else "generic")
    spec = lookup(c) if kind == "generic" else KINDS[kind]
    strange = not c.held and r.random() < 0.6
    own = spec["names"] if kind == "generic" else split_names(spec["names"], c.held)
    name = made_up_name(v) if strange and r.random() < 0.85 else r.choice(own)
    params, props, required = [], {}, []
    order = list(spec["params"])
    if r.random() < 0.4:
        r.shuffle(order)
    for p in order:
        # Half of the evaluation's parameters have unseen names, the others those of training.
        names = p["names"] if kind == "generic" else split_names(p["names"], c.held and r.random() < 0.5)
        k = r.random()
        pname = made_up_name(v) if strange and k < 0.5 else r.choice(COMMON) if strange and k < 0.75 else r.choice([n for n in names if n not in props] or [p["slot"] + "_value"])
        if not c.held and kind != "generic" and (pname in HELD_NAMES or name in HELD_NAMES):
            return build(c, kind)
        if pname in props:
            pname += "2"
        schema = {"type": p["kind"]}
        # A name that may mean anything needs its description.
        if strange or c.held or r.random() < 0.85:
            schema["description"] = expand(p["text"], r) + r.choice(["", "."])
        if "enum" in p:
            schema["enum"] = p["enum"]
        props[pname] = schema
        required.append(pname)
        params.append((p, pname))
    function = {"name": name}
    if strange or c.held or r.random() < 0.9:
        function["description"] = expand(spec["text"], r)
    function["parameters"] = {"type": "object", "properties": props, "required": required}
    return dict(kind=kind, spec=spec, params=params, schema={"type": "function", "function": function}, name=name)


def request(c, tool):
    """(user text, arguments, slot values) for a tool."""
    v = Values(c)
    slots = {p["slot"]: p["make"](v) for p, _ in tool["params"]}
    arguments = {pname: slots[p["slot"]] for p, pname in tool["params"]}
    shown = dict(slots)
    if "op" in slots:
        shown["sym"] = c.rng.choice(SYMBOL[slots["op"]])
    if tool["kind"] == "light":
        shown["onoff"] = "on" if slots["b"] else "off"
    if tool["kind"] == "generic":
        shown |= {k: tool["spec"][k] for k in ("attr", "of")}
    template = c.template("tool_" + tool["kind"])
    text = template.format(**shown)
    text = text[0].upper() + text[1:] if template[0] != "{" else text
    return story(text, c.rng) if c.rng.random() < 0.12 else text, arguments, shown


def _sort(tool):
    """Tools of one sort do the same: no box has two of them."""
    return "generic " + tool["spec"]["attr"] if tool["kind"] == "generic" else "calc" if tool["kind"].startswith("calc") else tool["kind"]


def toolbox(c, tool):
    """The tool among up to three others, in random order; half of them are of nearby kinds."""
    r = c.rng
    n = r.choice([0, 0, 1, 1, 2, 3])
    near = sorted(set().union(*(g for g in NEAR if tool["kind"] in g)))
    box, sorts, names = [tool], {_sort(tool)}, {tool["name"]}
    while len(box) <= n:
        other = build(c, r.choice(near) if r.random() < 0.5 else None)
        if _sort(other) not in sorts and other["name"] not in names:
            sorts.add(_sort(other)), names.add(other["name"])
            box.append(other)
    r.shuffle(box)
    return box


def outcome(c, tool, shown):
    """(tool message text, answer, what the answer must contain)."""
    v = Values(c)
    if c.rng.random() < 0.08:
        error = c.rng.choice(["not found", "no connection", "access denied", "timeout", "service is down"])
        return json.dumps({"error": error}), f"The tool reported an error: {error}.", [error]
    make, answer, needs = tool["spec"]["outcome"]
    got = make(v, shown)
    values = {**shown, **got}
    text = json.dumps(got) if c.rng.random() < 0.8 else ", ".join(f"{k}: {x}" for k, x in got.items())
    answer = answer.format(**values)
    answer += "" if answer[-1] in ".?!" else "." if tool["kind"] not in ("file", "translate") else ""
    return text, answer[0].upper() + answer[1:], [n.format(**values) for n in needs]
