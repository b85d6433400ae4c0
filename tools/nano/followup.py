"""Two-turn conversations: a second question that is only complete together
with the first one and its answer."""
import held
import qa
from facts import COUNTRIES, DAYS, DEFINITIONS, MONTHS, OPPOSITES, SPELL_WORDS, with_article
from qa import cap, item

AND_OF = ["I need {x} [too|as well].", "I would also like {x}.", "[Do|Give me] {x} [too|as well].", "[Also|Next] [the one|that] of {x}?",
    "Also [of |for |]{x}[.|?]", "{x} [too|as well][.|?]", "[One more|Another one|The next]: {x}[.|?]", "Then {x}?", "[Try|Take] {x}[ now|].", "Same question for {x}.", "And if it is {x}?", "Please also {x}.",
    "[And|and] of {x}?", "[And|What about|How about|And what about] {x}?", "[And|] {x}?", "And [the capital|that] of {x}?", "The same for {x}[.|?]", "[OK|Thanks|Good|Great], and {x}?", "And for {x}, please?",
          "[What|How] about the [one|capital] of {x}?", "And what is it for {x}?", "Now {x}."]
AND_OF += ["And for {x}?", "Next one: {x}?", "And how about that of {x}?", "I also need {x}.", "Do the same for {x}."]
WORD = ["I need {x} [too|as well].", "I would also like {x}.", "[Do|Give me] {x} [too|as well].", "[Now|Please] do {x}.",
    "Also {x}[.|?]", "{x} [too|as well][.|?]", "[One more|Another one|The next]: {x}[.|?]", "Then {x}?", "[Try|Take] {x}[ now|].", "Same question for {x}.", "Please also {x}.", "[What|How] is it [for|with] {x}?", "{x}?",
    "[And|What about|How about|And what about] {x}?", "[And|Now] {x}[?|.]", "[OK|Thanks|Good|Great], and {x}?", "The same for {x}[.|?]", "And the word {x}?"]
WORD += ["Next: {x}?", "I also need {x}.", "Do the same for {x}.", "And then {x}?"]


def _capital(c):
    a, b = c.rng.sample(COUNTRIES, 2)
    return qa.capital(c, a), qa.capital(c, b), c.say(AND_OF, held.AND_OF, x=b[0])


def _capital_to_continent(c):
    a = c.rng.choice(COUNTRIES)
    t = c.say(["[Which|What] continent is it [in|on]?", "[And|] on [which|what] continent is it?", "[And|] where is it?", "Which continent is that [in|on]?", "And the continent?", "To [which|what] continent does it belong?", "Where can it be found?", "[On|In] which continent can that be found?", "[And|] which continent is that country [part of|on]?", "In which continent is that country?", "What continent does it belong to?", "And which continent is that country in?", "On which continent can I find it?"], held.THAT_CONTINENT)
    first = qa.capital(c, a) if c.rng.random() < 0.6 else qa.reverse_capital(c, a)
    return first, qa.continent(c, a), t


def _continent_to_capital(c):
    a = c.rng.choice(COUNTRIES)
    t = c.say(["[And|] [what is|what's] its capital?", "[And|] the capital?", "What is the capital there?", "And its capital city?", "[Which|What] city is its capital?", "Tell me its capital.", "And what would its capital be?", "What is the capital of that country?", "Name its capital too."], held.THAT_CAPITAL)
    return qa.continent(c, a), qa.capital(c, a), t


def _reverse(c):
    a, b = c.rng.sample(COUNTRIES, 2)
    return qa.reverse_capital(c, a), qa.reverse_capital(c, b), c.say(WORD, held.WORD, x=b[1])


def _continent(c):
    a, b = c.rng.sample(COUNTRIES, 2)
    return qa.continent(c, a), qa.continent(c, b), c.say(WORD, held.WORD, x=b[0])


def _arith(c):
    op = c.rng.choice("+-x")
    first = qa.arithmetic(c, op, False)
    second = c.rng.choice("+-x")
    a, b = qa.draw_pair(c, second, False)
    e = c.rng.choice(qa.OP_WORDS[second]).format(a=a, b=b)
    answer, think = qa.worked(second, a, b)
    t = c.say(["[And|What about|How about|And what about|Now] {e}?", "[OK|Thanks|Good|Great], and {e}?", "And {e}", "Next: {e}?", "And then {e}?", "I also need {e}."], held.NEXT_SUM, e=e)
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
        t = c.say(["What is that increased by {y}?", "What if it is {y} more?", "{y} more than that?", "And if I put {y} more?", "Raise it by {y}.", "Make it {y} larger.", "[Take|Make it|And] {y} on top[.|?]", "[Add|And] another {y}[.|?]", "What is that plus {y}?", "With {y} added?", "What do I get with {y} added?", "[And|Now|Then] plus {y}[?|.]", "[Now|Then] add {y}[ to it| to that|].", "And [that|the result|it] plus {y}?", "Plus {y}?", "Add {y}.", "What if I add {y}?", "Increase it by {y}.", "And {y} more?"], held.MORE, y=y)
    else:
        t = c.say(["What is that reduced by {y}?", "What if it is {y} less?", "{y} less than that?", "And if I take {y} less?", "Lower it by {y}.", "Make it {y} smaller.", "Take [away |off ]{y}[.|?]", "[Remove|Drop] {y}[.|?]", "What is that minus {y}?", "With {y} taken away?", "What do I get without {y}?", "[And|Now|Then] minus {y}[?|.]", "[Now|Then] subtract {y}[ from it| from that|].", "And [that|the result|it] minus {y}?", "Minus {y}?", "Subtract {y}.", "What if I subtract {y}?", "Reduce it by {y}.", "And {y} less?"], held.LESS, y=y)
    return first, item("chain", "", answer, f"The last result is {x}. {think}", [f"= {qa.result(op2, x, y)}"]), t


def _definition(c):
    a, b = c.rng.sample(list(DEFINITIONS), 2)
    x = with_article(b) if c.rng.random() < 0.7 else b
    return qa.definition(c, a), qa.definition(c, b), c.say(WORD, held.WORD, x=x)


def _opposite(c):
    a, b = c.rng.sample(list(OPPOSITES), 2)
    return qa.opposite(c, a), qa.opposite(c, b), c.say(WORD + ["And of {x}?"], held.WORD, x=b)


def _spelling(c):
    a, b = c.rng.sample(SPELL_WORDS, 2)
    return qa.spelling(c, a), qa.spelling(c, b), c.say(WORD + ["Now spell {x}."], held.WORD, x=b)


def _count(c):
    a, b = c.rng.sample(SPELL_WORDS, 2)
    return qa.letter_count(c, a), qa.letter_count(c, b), c.say(WORD, held.WORD, x=b)


def _spell_to_count(c):
    a = c.rng.choice(SPELL_WORDS)
    t = c.say(["[And|] how many letters [is that|are that|does it have]?", "How many letters?", "Count them.", "And how long is it?", "How many letters are there?", "And the number of letters?", "How many letters does that make?"], held.THAT_LENGTH)
    return qa.spelling(c, a), qa.letter_count(c, a), t


def _neighbour(c):
    seq = c.rng.choice([DAYS, MONTHS])
    a, b = c.rng.sample(seq, 2)
    step = c.rng.choice([1, -1])
    side = "after" if step == 1 else "before"
    if c.rng.random() < 0.5:
        t = c.say(["[And|What about|How about|And what about] {s} {x}?", "[OK|Thanks|Good], and {s} {x}?", "And the one {s} {x}?", "Next: {s} {x}?", "And then {s} {x}?"], held.NEAR_WORD, s=side, x=b)
        return qa.neighbour(c, a), qa.neighbour(c, b, step), t
    first = qa.neighbour(c, a)
    got = first["any_of"][0]
    t = c.say(["[And|] the one {s} that?", "[And|] {s} that?", "And what comes {s} that?", "[Then|Now] the one {s} it.", "What is the one {s} {x}?", "{s} this one?", "And {s} {x}?", "Which one is {s} that one?", "And what is {s} it?"], held.NEAR_THAT, s=side, x=got)
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
