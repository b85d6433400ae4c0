"""Questions and answers of the domain. Every intent draws one item: user text,
answer, a short reasoning for thinking mode and what an answer must contain."""
from facts import (COUNTRIES, DAYS, DEFINITIONS, MONTH_DAYS, MONTHS, OPPOSITES, ORDINALS, SPELL_WORDS,
                   with_article)
from grammar import is_held
from values import FIRST_NAMES, Values


def item(category, user, answer, think, any_of):
    return {"category": category, "user": user, "answer": answer, "think": think, "any_of": any_of}


def cap(text):
    return text[0].upper() + text[1:]


# ---- countries -------------------------------------------------------------


def _drop_the(rng, x):
    return x[4:] if x.startswith("the ") and rng.random() < 0.35 else x


def capital(c, country=None):
    x, y, _ = country or c.rng.choice(COUNTRIES)
    user = cap(c.say("capital", x=_drop_the(c.rng, x)))
    return item("capital", user, f"The capital of {x} is {y}.", f"The question is about {x}. Its capital is {y}.", [y])


def reverse_capital(c, country=None):
    x, y, _ = country or c.rng.choice(COUNTRIES)
    user = cap(c.say("reverse_capital", y=y))
    bare = x[4:] if x.startswith("the ") else x
    return item("reverse_capital", user, f"{y} is the capital of {x}.", f"The question is about the city {y}. It is the capital of {x}.", [bare])


def continent(c, country=None):
    x, _, z = country or c.rng.choice(COUNTRIES)
    user = cap(c.say("continent", x=_drop_the(c.rng, x)))
    return item("continent", user, f"{cap(x)} is in {z}.", f"The question is where {x} lies. It is in {z}.", [z])


# ---- arithmetic ------------------------------------------------------------
def held_pair(op, a, b):
    """Held-out operands. Pairs that worked answers show as a step (round tens,
    two single digits) are never held out; + and x are held in both orders."""
    if op == "x":
        # The tables up to 12 x 12 are learnt by heart, so only larger products are held out.
        lo, hi = min(a, b), max(a, b)
        return hi > 12 and is_held("x", lo, hi)
    if op == "+":
        a, b = min(a, b), max(a, b)
    return max(a, b) > 9 and a % 10 != 0 and b % 10 != 0 and is_held(op, a, b)


def draw_pair(c, op, three_digits=None):
    r = c.rng
    while True:
        if op == "x":
            k = r.random()
            a, b = ((r.randint(0, 12), r.randint(0, 12)) if k < (0.0 if c.held else 0.45)
                    else (r.randint(13, 99), r.randint(2, 9)))
            if r.random() < 0.4:
                a, b = b, a
        else:
            big = r.random() < 0.45 if three_digits is None else three_digits
            top = 999 if big else 99
            a, b = r.randint(0, top), r.randint(0, top)
            if not big and not c.held and r.random() < 0.25:
                a, b = r.randint(0, 20), r.randint(0, 20)
            if op == "-" and a < b and r.random() < 0.8:
                a, b = b, a
        if held_pair(op, a, b) == c.held:
            return a, b


def result(op, a, b):
    return {"+": a + b, "-": a - b, "x": a * b}[op]


PLACES = ["Ones", "Tens", "Hundreds"]


def _column_add(a, b):
    steps, carry, place = [], 0, 0
    while a or b or place == 0:
        x, y = a % 10, b % 10
        total = x + y + carry
        left = f"{x} + {y}" + (" + 1" if carry else "")
        steps.append(f"{PLACES[place]}: {left} = {total}" + (f", write {total % 10}, carry 1." if total > 9 else "."))
        carry, a, b, place = total // 10, a // 10, b // 10, place + 1
    if carry:
        steps.append("Then the carried 1.")
    return " ".join(steps)


def _column_sub(a, b):
    steps, borrow, place = [], 0, 0
    while a or b or place == 0:
        x, y = a % 10, b % 10
        left = f"{x} - {y}" + (" - 1" if borrow else "")
        d = x - y - borrow
        borrow = 1 if d < 0 else 0
        steps.append(f"{PLACES[place]}: {left} = {d}" + (f", borrow 10, write {d + 10}." if borrow else "."))
        a, b, place = a // 10, b // 10, place + 1
    return " ".join(steps)


def _times(a, b):
    """How a product is worked out: (middle part of the answer, reasoning)."""
    big, small = max(a, b), min(a, b)
    if big <= 12 or small < 2:
        return "", f"From the tables, {a} x {b} = {a * b}."
    tens, ones = big // 10 * 10, big % 10
    if ones == 0:
        return "", f"{big // 10} x {small} = {big // 10 * small}, then a zero: {a * b}."
    mid = f" = {tens * small} + {ones * small}"
    return mid, f"{tens} x {small} = {tens * small}. {ones} x {small} = {ones * small}. {tens * small} + {ones * small} = {a * b}."


def worked(op, a, b):
    """(answer, reasoning) for one small calculation."""
    res = result(op, a, b)
    if op == "+":
        return f"{a} + {b} = {res}.", f"{_column_add(a, b)} So {a} + {b} = {res}."
    if op == "-":
        if a < b:
            return f"{a} - {b} = {res}.", f"{a} is smaller than {b}, so the result is negative. {_column_sub(b, a)} So {a} - {b} = {res}."
        return f"{a} - {b} = {res}.", f"{_column_sub(a, b)} So {a} - {b} = {res}."
    mid, think = _times(a, b)
    return f"{a} x {b}{mid} = {res}.", think


def tables(c):
    """A product from the multiplication table; only the phrasing can be held out."""
    a, b = c.rng.randint(0, 12), c.rng.randint(0, 12)
    answer, think = worked("x", a, b)
    t = c.say("sum", e=c.rng.choice(OP_WORDS["x"]).format(a=a, b=b))
    return item("tables", cap(t), answer, think, [f"= {a * b}"])


OBJECTS = "apples pears books pens coins cards stamps balls hats eggs nuts cakes shells marbles stones toys cups plates boxes tickets flowers cookies oranges shirts keys".split()
OP_WORDS = {"+": ["{a} + {b}", "{a}+{b}", "{a} plus {b}", "{a} and {b} added"], "-": ["{a} - {b}", "{a}-{b}", "{a} minus {b}", "{a} take away {b}"],
            "x": ["{a} x {b}", "{a} * {b}", "{a}*{b}", "{a} times {b}", "{a} multiplied by {b}"]}


def arithmetic(c, op=None, three_digits=None):
    r = c.rng
    op = op or r.choice("+-x")
    a, b = draw_pair(c, op, three_digits)
    if r.random() < 0.25:
        t = c.say("long " + op, a=a, b=b, o=r.choice(OBJECTS), p=r.choice(FIRST_NAMES))
    else:
        t = c.say("sum", e=r.choice(OP_WORDS[op]).format(a=a, b=b))
    answer, think = worked(op, a, b)
    name = {"+": "addition", "-": "subtraction", "x": "multiplication"}[op]
    return item(name, cap(t), answer, think, [f"= {result(op, a, b)}"])


# ---- words -----------------------------------------------------------------


UNKNOWN = "I am only a tiny model and do not know that. For a real answer, start lily with --model and a bigger model."


def unknown(c, word, place):
    """A question of a known form about a word or a place that is not known."""
    p, w = place.capitalize(), word
    aw = ("an " if w[0] in "aeiou" else "a ") + w
    pool, slots = c.rng.choice([("definition", dict(w=w, aw=aw)), ("definition", dict(w=w, aw=aw)), ("capital", dict(x=p)), ("reverse_capital", dict(y=p)), ("continent", dict(x=p))])
    return item("unknown", cap(c.say(pool, **slots)), UNKNOWN, f"I do not know {w if pool == 'definition' else p}. I say so.", ["tiny model"])


def definition(c, word=None):
    w = word or c.rng.choice(list(DEFINITIONS))
    d, aw = DEFINITIONS[w], with_article(w)
    verb = "are" if w in ("scissors", "stairs") else "is"
    bare = d.split(" ", 1)[1] if d.split(" ", 1)[0] in ("a", "an", "the") else d
    user = cap(c.say("definition", w=w, aw=aw))
    if verb == "are":
        user = user.replace(" is " + aw, " are " + aw).replace(aw + " is", aw + " are")
    return item("definition", user, f"{cap(aw)} {verb} {d}.", f"The word is {w}. It means {d}.", [bare])


def opposite(c, word=None):
    w = word or c.rng.choice(list(OPPOSITES))
    o = OPPOSITES[w]
    return item("opposite", cap(c.say("opposite", w=w)), f"The opposite of {w} is {o}.", f"The word is {w}. Its opposite is {o}.", [o])


def _word_to_spell(c):
    """A word of the list; in training often any word, so that letters are learnt token by token."""
    return Values(c).made_up() if not c.held and c.rng.random() < 0.45 else c.rng.choice(SPELL_WORDS)


def spelling(c, word=None):
    w = word or _word_to_spell(c)
    s = "-".join(w)
    return item("spelling", cap(c.say("spelling", w=w)), f"{w} is spelled {s}.", f"The letters of {w} in order: {s}.", [s])


def letter_count(c, word=None):
    w = word or _word_to_spell(c)
    steps = " ".join(f"{ch} {i + 1}" + ("," if i + 1 < len(w) else ".") for i, ch in enumerate(w))
    return item("letter_count", cap(c.say("letter_count", w=w)), f"{w} is spelled {'-'.join(w)} and has {len(w)} letters.", f"I count the letters: {steps}", [f"{len(w)} letters"])


def echo(c):
    """The answer is the text that was given: pure copying."""
    v = Values(c)
    k, r = c.rng.random(), c.rng
    t = (" ".join(v.made_up() for _ in range(r.randint(1, 5))) if k < 0.4 else v.sentence() if k < 0.55 else " ".join(r.choice([v.person(), v.noun(), v.code(), v.made_up()]) for _ in range(r.randint(1, 4))) if k < 0.85
         else r.choice([v.path(), v.title(), v.query()]))
    return item("echo", c.say("echo", t="{t}").replace("{t}", t), t, "I repeat the text.", [t])


# ---- calendar --------------------------------------------------------------


def neighbour(c, x=None, step=None):
    r = c.rng
    seq, kind = r.choice([(DAYS, "day"), (MONTHS, "month")]) if x is None else ((DAYS, "day") if x in DAYS else (MONTHS, "month"))
    x = x or r.choice(seq)
    step = step or r.choice([1, -1])
    i = seq.index(x)
    y = seq[(i + step) % len(seq)]
    side = "after" if step == 1 else "before"
    t = c.say("after", k=kind, x=x) if step == 1 else c.say("before", k=kind, x=x)
    order = f"{x}, {y}" if step == 1 else f"{y}, {x}"
    return item("calendar", cap(t), f"The {kind} {side} {x} is {y}.", f"The {kind}s in order: {order}. So the {kind} {side} {x} is {y}.", [y])


def _month_length(c):
    i = c.rng.randrange(12)
    m, n = MONTHS[i], MONTH_DAYS[i]
    text = "28 days, or 29 in a leap year" if i == 1 else f"{n} days"
    return c.say("month_length", m=m), f"{m} has {text}.", f"The month is {m}. It has {text}.", [f"{n} days"]


def _ordinal(c):
    seq, kind, whole = c.rng.choice([(DAYS, "day", "week"), (MONTHS, "month", "year")])
    i = c.rng.randrange(len(seq))
    if c.rng.random() < 0.5:
        return c.say("ordinal", o=ORDINALS[i], k=kind, w=whole), f"The {ORDINALS[i]} {kind} of the {whole} is {seq[i]}.", f"Counting from {seq[0]}, number {i + 1} is {seq[i]}.", [seq[i]]
    return c.say("position", x=seq[i], k=kind, w=whole), f"{seq[i]} is the {ORDINALS[i]} {kind} of the {whole}.", f"Counting from {seq[0]}, {seq[i]} is number {i + 1}.", [ORDINALS[i]]


LISTS = {
    "week_days": ("A week has 7 days.", ["7 days"]),
    "year_months": ("A year has 12 months.", ["12 months"]),
    "days": ("The days of the week are " + ", ".join(DAYS[:-1]) + " and Sunday.", ["Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday"]),
    "months": ("The months of the year are " + ", ".join(MONTHS[:-1]) + " and December.", [", ".join(MONTHS[:-1]) + " and December"]),
    "year_days": ("A year has 365 days, or 366 in a leap year.", ["365 days"]),
    "weekend": ("The weekend is Saturday and Sunday.", ["Saturday and Sunday"]),
}


def _lists(c):
    name = c.rng.choice(list(LISTS))
    answer, any_of = LISTS[name]
    return c.say("list " + name), answer, "This is about the calendar. " + answer, any_of


def calendar(c):
    k = c.rng.random()
    if k < 0.55:
        return neighbour(c)
    t, answer, think, any_of = (_month_length if k < 0.7 else _ordinal if k < 0.85 else _lists)(c)
    return item("calendar", cap(t), answer, think, any_of)
