"""Two-turn conversations: a second question that is only complete together
with the first one and its answer."""
import qa
from facts import COUNTRIES, DAYS, DEFINITIONS, MONTHS, OPPOSITES, SPELL_WORDS, with_article
from qa import cap, item



def _capital(c):
    a, b = c.rng.sample(COUNTRIES, 2)
    return qa.capital(c, a), qa.capital(c, b), c.say("and_of", x=b[0])


def _capital_to_continent(c):
    a = c.rng.choice(COUNTRIES)
    t = c.say("that_continent")
    first = qa.capital(c, a) if c.rng.random() < 0.6 else qa.reverse_capital(c, a)
    return first, qa.continent(c, a), t


def _continent_to_capital(c):
    a = c.rng.choice(COUNTRIES)
    t = c.say("that_capital")
    return qa.continent(c, a), qa.capital(c, a), t


def _reverse(c):
    a, b = c.rng.sample(COUNTRIES, 2)
    return qa.reverse_capital(c, a), qa.reverse_capital(c, b), c.say("word", x=b[1])


def _continent(c):
    a, b = c.rng.sample(COUNTRIES, 2)
    return qa.continent(c, a), qa.continent(c, b), c.say("word", x=b[0])


def _arith(c):
    op = c.rng.choice("+-x")
    first = qa.arithmetic(c, op, False)
    second = c.rng.choice("+-x")
    a, b = qa.draw_pair(c, second, False)
    e = c.rng.choice(qa.OP_WORDS[second]).format(a=a, b=b)
    answer, think = qa.worked(second, a, b)
    t = c.say("next_sum", e=e)
    return first, item("addition", "", answer, think, [f"= {qa.result(second, a, b)}"]), t


def _arith_chain(c):
    """The second question works on the first answer."""
    while True:
        op = c.rng.choice("+-")
        a, b = qa.draw_pair(c, op, False)
        x, op2, y = qa.result(op, a, b), c.rng.choice("+-"), c.rng.randint(1, 60)
        if 0 <= x <= 150 and qa.held_pair(op2, x, y) == c.held and (op2 == "+" or y <= x):
            break
    answer, think = qa.worked(op, a, b)
    first = item("addition", c.rng.choice(["What is {e}?", "{e}", "Calculate {e}."]).format(e=c.rng.choice(qa.OP_WORDS[op]).format(a=a, b=b)), answer, think, [])
    answer, think = qa.worked(op2, x, y)
    if op2 == "+":
        t = c.say("more", y=y)
    else:
        t = c.say("less", y=y)
    return first, item("chain", "", answer, f"The last result is {x}. {think}", [f"= {qa.result(op2, x, y)}"]), t


def _definition(c):
    a, b = c.rng.sample(list(DEFINITIONS), 2)
    x = with_article(b) if c.rng.random() < 0.7 else b
    return qa.definition(c, a), qa.definition(c, b), c.say("word", x=x)


def _opposite(c):
    a, b = c.rng.sample(list(OPPOSITES), 2)
    return qa.opposite(c, a), qa.opposite(c, b), c.say("word", x=b)


def _spelling(c):
    a, b = c.rng.sample(SPELL_WORDS, 2)
    return qa.spelling(c, a), qa.spelling(c, b), c.say("word", x=b)


def _count(c):
    a, b = c.rng.sample(SPELL_WORDS, 2)
    return qa.letter_count(c, a), qa.letter_count(c, b), c.say("word", x=b)


def _spell_to_count(c):
    a = c.rng.choice(SPELL_WORDS)
    t = c.say("that_length")
    return qa.spelling(c, a), qa.letter_count(c, a), t


def _neighbour(c):
    seq = c.rng.choice([DAYS, MONTHS])
    a, b = c.rng.sample(seq, 2)
    step = c.rng.choice([1, -1])
    side = "after" if step == 1 else "before"
    if c.rng.random() < 0.5:
        t = c.say("near_word", s=side, x=b)
        return qa.neighbour(c, a), qa.neighbour(c, b, step), t
    first = qa.neighbour(c, a)
    got = first["any_of"][0]
    t = c.say("near_that", s=side, x=got)
    return first, qa.neighbour(c, got, step), t


KINDS = {"capital": _capital, "capital_continent": _capital_to_continent, "continent_capital": _continent_to_capital, "reverse": _reverse, "continent": _continent, "arithmetic": _arith,
         "chain": _arith_chain, "definition": _definition, "opposite": _opposite, "spelling": _spelling, "letter_count": _count, "spell_count": _spell_to_count, "calendar": _neighbour}
WEIGHTS = {"capital": 5, "arithmetic": 3, "chain": 6, "continent_capital": 2, "capital_continent": 2}


def two_turn(c):
    """(first item, second item); the second one's user text is the follow-up."""
    kind = c.rng.choices(list(KINDS), [WEIGHTS.get(k, 1) for k in KINDS])[0]
    first, second, text = KINDS[kind](c)
    second = dict(second, user=cap(text), category="two_turn_" + kind)
    return first, second
