"""Questions and answers of the domain. Every intent draws one item: user text,
answer, a short reasoning for thinking mode and what an answer must contain."""
from facts import (COUNTRIES, DAYS, DEFINITIONS, MONTH_DAYS, MONTHS, OPPOSITES, ORDINALS, SPELL_WORDS,
                   with_article)
import held
from calls import Values
from grammar import is_held


def item(category, user, answer, think, any_of):
    return {"category": category, "user": user, "answer": answer, "think": think, "any_of": any_of}


def cap(text):
    return text[0].upper() + text[1:]


# ---- countries -------------------------------------------------------------
CAPITAL = ["Do you know which city is the capital of {x}?", "[Let me hear|Let me have|I would like] the capital of {x}.", "[Remind me of|I can not remember] {x}'s capital.", "Which town is {x}'s capital?", "[Quiz|Test]: [what is |]{x}'s capital?",
    "[Do you remember|Can you recall|I forgot] the capital of {x}[.|?]", "The main city of {x}, the capital, is?", "[Say|Write] the name of the capital of {x}.", "{x} capital city", "[Is|Isn't] there a capital in {x}? Which?",
    "[What is|What's|Tell me|Name|Give me|State|Do you know] the capital of {x}?", "[What|Which] city is the capital of {x}?",
           "[Can|Could] you [tell me|name|give me] the capital [city |]of {x}?", "[What is|What's|Name] {x}'s capital [city|]?",
           "Capital of {x}?", "The capital of {x} is?", "{x}: capital?", "The capital [city |]of {x}, please.", "[What is|What's] the capital city of {x}?",
           "I [want|need] to know the capital of {x}.", "{x} has which capital?", "{x}'s capital?", "Which city serves as the capital of {x}?",
           "Where is the government of {x} based?", "What do you call the capital of {x}?", "capital {x}", "What is the main city of government in {x}?",
           "[Please |]name the capital city of {x}.", "If I fly to the capital of {x}, where do I land?", "Tell me {x}'s capital.", "My teacher asked for the capital of {x}."]
CAPITAL += ["Any idea what the capital of {x} is?", "Which town is capital of {x}?", "I would like to hear the capital of {x}.",
                "For a quiz: the capital of {x}?", "Could you remind me what {x}'s capital is called?", "Let me know the capital city of {x}.",
                "{x}, what is its capital?"]
REVERSE = ["Do you know [the|which] country {y} is in as capital?", "Whose capital is {y}?", "{y}: capital of [which country|what]?", "For which country is {y} the capital?",
    "[Guess|Say|Name] the country: its capital is {y}.", "{y} - [which|what] country is that the capital of?", "A country with the capital {y}?", "[I look|I am looking] for the country whose capital is {y}.",
    "[Which|What] country has the capital {y}?", "{y} is the capital of [which|what] country?", "[What|Which] country is {y} the capital of?",
           "{y} is the capital of?", "Of which country is {y} the capital?", "[What|Which] country's capital is {y}?", "{y} is the capital city of which [country|nation]?",
           "Name the country whose capital is {y}.", "Which [country|nation] has {y} as its capital?", "Tell me the country with the capital {y}.",
           "To which country does the capital {y} belong?"]
REVERSE += ["What nation has its capital in {y}?", "{y} serves as capital for which country?", "Do you know whose capital {y} is?",
                "Tell me which country {y} is the capital of."]
CONTINENT = ["[On|In] which continent would I find {x}?", "Where on the map do I find {x}?", "Where does {x} lie?", "[Do you know|I forgot] the continent of {x}.", "{x} is part of which continent?", "Which continent is home to {x}?",
    "[Say|Find] the continent [of|for] {x}.", "{x}: continent?", "Is {x} in Africa, Asia, Europe or somewhere else?", "[On|In] which part of the globe is {x}?", "Which continent has {x}?",
    "[Which|What] continent is {x} [in|on]?", "[On|In] [which|what] continent [is|lies] {x}?", "[Where is|Where's] {x}?", "{x} is [in|on] [which|what] continent?",
             "[Tell me|Name|What is] the continent of {x}.", "Where in the world is {x}?", "Continent of {x}?", "[To which|To what] continent does {x} belong?",
             "[In which|In what] part of the world is {x}?"]
CONTINENT += ["Where can I find {x}?", "{x} belongs to which continent?", "Do you know which continent {x} is part of?", "Which continent does {x} lie on?"]

# For the frames of grammar.py: noun phrases and clauses of each intent.
CAPITAL_PARTS = (["the capital of {x}", "{x}'s capital", "the capital city of {x}", "the name of {x}'s capital", "the city that is the capital of {x}", "which city is {x}'s capital"],
                 ["what the capital of {x} is", "which city is the capital of {x}", "what {x}'s capital is", "what the capital of {x} is called", "what city is {x}'s capital"])
REVERSE_PARTS = (["the country with the capital {y}", "the country whose capital is {y}", "the country that has {y} as its capital", "the country of the capital {y}", "the nation with the capital city {y}"],
                 ["which country has the capital {y}", "whose capital {y} is", "which country {y} is the capital of", "what country has {y} as its capital", "which country's capital is {y}"])
CONTINENT_PARTS = (["the continent of {x}", "the continent that {x} is on", "{x}'s continent", "the continent where {x} is", "the continent to which {x} belongs"],
                   ["which continent {x} is on", "where {x} is", "on which continent {x} lies", "what continent {x} belongs to", "where {x} is located", "where {x} can be found", "in which continent {x} is"])


def _drop_the(rng, x):
    return x[4:] if x.startswith("the ") and rng.random() < 0.35 else x


def capital(c, country=None):
    x, y, _ = country or c.rng.choice(COUNTRIES)
    user = cap(c.say(CAPITAL, held.CAPITAL, *CAPITAL_PARTS, x=_drop_the(c.rng, x)))
    return item("capital", user, f"The capital of {x} is {y}.", f"The question is about {x}. Its capital is {y}.", [y])


def reverse_capital(c, country=None):
    x, y, _ = country or c.rng.choice(COUNTRIES)
    user = cap(c.say(REVERSE, held.REVERSE, *REVERSE_PARTS, y=y))
    bare = x[4:] if x.startswith("the ") else x
    return item("reverse_capital", user, f"{y} is the capital of {x}.", f"The question is about the city {y}. It is the capital of {x}.", [bare])


def continent(c, country=None):
    x, _, z = country or c.rng.choice(COUNTRIES)
    user = cap(c.say(CONTINENT, held.CONTINENT, *CONTINENT_PARTS, x=_drop_the(c.rng, x)))
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
    t = c.say(ARITH, held.ARITH, *ARITH_PARTS, e=c.rng.choice(OP_WORDS["x"]).format(a=a, b=b))
    return item("tables", cap(t), answer, think, [f"= {a * b}"])


OP_WORDS = {"+": ["{a} + {b}", "{a}+{b}", "{a} plus {b}", "{a} and {b} added"], "-": ["{a} - {b}", "{a}-{b}", "{a} minus {b}", "{a} take away {b}"],
            "x": ["{a} x {b}", "{a} * {b}", "{a}*{b}", "{a} times {b}", "{a} multiplied by {b}"]}
ARITH = ["Tell me how much {e} is.", "[Do|Please do] this sum: {e}", "I need {e}.", "[I wonder|Can you say] what {e} comes to.", "What number is {e}?", "[Maths|Math] question: {e}",
    "[Say|Write|Show] the result of {e}.", "[I want|Please give me|Just tell me] {e}.", "How much [do we get|would be|will be] {e}?", "[Quick|Easy] sum: {e}", "My homework: {e}", "{e}, what is the result?", "[Check|Answer] this: {e}",
    "[What is|What's|Calculate|Compute|How much is|Tell me|Work out|Solve|Find] {e}?", "{e}", "{e} =", "{e} = ?", "{e} is [what|how much]?",
         "[Can|Could] you [compute|calculate|work out|solve] {e}?", "[Please |]calculate {e}.", "What do you get for {e}?", "What does {e} [equal|make|give]?",
         "What is the [result|value|answer] of {e}?", "How much does {e} make?", "[Give me|I need] the result of {e}.", "{e} equals?"]
ARITH += ["What comes out of {e}?", "Do the maths: {e}", "Could you tell me how much {e} is?", "I need to know what {e} is.", "Evaluate {e}."]
OP_LONG = {"+": ["I had {a} eggs and bought {b}. How many eggs now?", "[Find|Give me] the total of {a} and {b}.", "{a} birds and {b} more birds: how many birds?", "Put {a} and {b} together.", "Add {a} and {b}.", "[What is|What's] the sum of {a} and {b}?", "Add {b} to {a}.", "I have {a} apples and get {b} more. How many do I have?",
                 "Sum of {a} and {b}?"],
           "-": ["{b} taken from {a} leaves how much?", "How much is left of {a} without {b}?", "Begin with {a}, then subtract {b}.", "{a} cakes, {b} are eaten. How many remain?", "Remove {b} from {a}.", "By how much is {a} more than {b}?", "Subtract {b} from {a}.", "[What is|What's] the difference between {a} and {b}?", "Take {b} away from {a}.",
                 "I have {a} coins and spend {b}. How many are left?"],
           "x": ["{a} groups of {b}: how many?", "[Give me|Find] {a} and {b} multiplied.", "{a} rows of {b} chairs: how many chairs?", "What is {a} taken {b} times?", "Multiply {a} by {b}.", "[What is|What's] the product of {a} and {b}?", "Multiply {a} and {b}.", "There are {a} boxes with {b} pens each. How many pens?"]}
for _op, _more in {"+": ["Find the sum of {a} and {b}.", "If I have {a} eggs and buy {b} more, how many eggs do I have?"],
                "-": ["How much is left when {b} is taken from {a}?", "From {a} subtract {b}."],
                "x": ["How many is {a} groups of {b}?", "Find the product of {a} and {b}."]}.items():
    OP_LONG[_op] += _more

ARITH_PARTS = (["the result of {e}", "the value of {e}", "the answer to {e}", "{e}", "the outcome for {e}", "the sum {e}"],
               ["what {e} is", "how much {e} is", "what {e} makes", "what {e} comes to", "how much {e} makes", "what I get for {e}", "what {e} equals"])


def arithmetic(c, op=None, three_digits=None):
    r = c.rng
    op = op or r.choice("+-x")
    a, b = draw_pair(c, op, three_digits)
    if r.random() < 0.25:
        t = c.say(OP_LONG[op], held.ARITH_LONG[op], a=a, b=b)
    else:
        t = c.say(ARITH, held.ARITH, *ARITH_PARTS, e=r.choice(OP_WORDS[op]).format(a=a, b=b))
    answer, think = worked(op, a, b)
    name = {"+": "addition", "-": "subtraction", "x": "multiplication"}[op]
    return item(name, cap(t), answer, think, [f"= {result(op, a, b)}"])


# ---- words -----------------------------------------------------------------
DEFINE = ["[Tell me|I wonder] what is meant with {w}.", "What did he mean [by|with] {w}?", "Have you [ever |]heard of {aw}?", "[Say|Write] the meaning of {w}.", "People talk about {w}. What [is it|is that]?", "[How do you|How can I|Please] define {aw}?", "What is [this word|the word] {w}?", "I read the word {w}. What does it mean?", "Do you know {aw}?",
    "[What|So what] would you call {aw}[, in a few words|]?", "In [a few|simple|other] words, what is {aw}?", "What do people mean [by|with|when they say] {w}?", "[I wonder|I do not know|I am not sure] what {aw} is.", "[Give|Write] a short [explanation|description] of {aw}.", "The word {w} means what?", "[Which|What] thing is called {w}?", "{aw} is what?", "Can you describe {aw}?", "[Help me understand|I want to understand] the word {w}.", "What is {aw} [used for|good for|exactly|really]?",
    "[What is|What's|Define|Explain|Describe] {aw}?", "[What does|What does the word] \"{w}\" mean?", "[What is|What's] the [meaning|definition] of {w}?", "Define {w}.",
          "Define the word [{w}|\"{w}\"].", "[Can|Could] you [explain|define|tell me] what {aw} is?", "Tell me what {aw} is.", "Explain the word {w}.", "{w}: meaning?",
          "Meaning of {w}?", "What do you mean by {w}?", "I don't know the word {w}.", "Definition of {w}?", "What does {w} mean?", "[What exactly is|So what is] {aw}?",
          "Explain {w} [to a child|in simple words|in one sentence].", "Give me [a|the] definition [of|for] {w}.", "What kind of thing is {aw}?"]
DEFINE += ["How would you define {w}?", "Please explain to me what {aw} is.", "What is meant by {w}?", "I have never heard of {aw}. What is it?",
               "Say what {aw} is.", "Do you know what {w} means?"]

DEFINE_PARTS = (["the meaning of {w}", "the definition of {w}", "the meaning of the word {w}", "a definition of {w}", "an explanation of {w}", "a short definition for {w}"],
                ["what {aw} is", "what {w} means", "what the word {w} means", "what is meant by {w}", "what people mean by {w}", "what {w} is", "what the meaning of {w} is", "what one calls {aw}"])


UNKNOWN = "I am only a tiny model and do not know that. For a real answer, start lily with --model and a bigger model."


def unknown(c, word, place):
    """A question of a known form about a word or a place that is not known."""
    p, w = place.capitalize(), word
    aw = ("an " if w[0] in "aeiou" else "a ") + w
    k = c.rng.random()
    t = (c.say(DEFINE, held.DEFINE, *DEFINE_PARTS, w=w, aw=aw) if k < 0.6 else c.say(CAPITAL, held.CAPITAL, *CAPITAL_PARTS, x=p) if k < 0.75
         else c.say(REVERSE, held.REVERSE, *REVERSE_PARTS, y=p) if k < 0.85 else c.say(CONTINENT, held.CONTINENT, *CONTINENT_PARTS, x=p))
    return item("unknown", cap(t), UNKNOWN, f"I do not know {w if k < 0.6 else p}. I say so.", ["tiny model"])


def definition(c, word=None):
    w = word or c.rng.choice(list(DEFINITIONS))
    d, aw = DEFINITIONS[w], with_article(w)
    verb = "are" if w in ("scissors", "stairs") else "is"
    bare = d.split(" ", 1)[1] if d.split(" ", 1)[0] in ("a", "an", "the") else d
    user = cap(c.say(DEFINE, held.DEFINE, *DEFINE_PARTS, w=w, aw=aw))
    if verb == "are":
        user = user.replace(" is " + aw, " are " + aw).replace(aw + " is", aw + " are")
    return item("definition", user, f"{cap(aw)} {verb} {d}.", f"The word is {w}. It means {d}.", [bare])


OPPOSITE = ["The opposite meaning of {w}?", "[What|Which] word has a meaning opposite to {w}?", "[Say|Find] [an antonym|a word] that means the opposite of {w}.", "Do you know the opposite of {w}?",
    "[If something|When something] is not {w}, what is it?", "{w} and its opposite?", "I need [the opposite|an antonym] of {w}.", "Write the opposite of {w}.", "Not {w} but?", "What is the reverse of {w}?",
    "[What is|What's|Tell me|Name|Give me] the opposite of {w}?", "Opposite of {w}?", "The opposite of {w} is?", "[Which|What] word is the opposite of {w}?",
            "[What is|What's] the antonym of {w}?", "What word means the opposite of {w}?", "Give me an antonym [of|for] {w}.", "{w}: opposite?"]
OPPOSITE += ["Which word has the opposite meaning of {w}?", "Say the opposite of {w}.", "Do you know an antonym for {w}?"]

OPPOSITE_PARTS = (["the opposite of {w}", "an antonym of {w}", "the antonym of {w}", "the word opposite to {w}", "the opposite word for {w}", "the opposite of the word {w}"],
                  ["what the opposite of {w} is", "which word is the opposite of {w}", "which word means the opposite of {w}", "what is the opposite of {w}"])


def opposite(c, word=None):
    w = word or c.rng.choice(list(OPPOSITES))
    o = OPPOSITES[w]
    return item("opposite", cap(c.say(OPPOSITE, held.OPPOSITE, *OPPOSITE_PARTS, w=w)), f"The opposite of {w} is {o}.", f"The word is {w}. Its opposite is {o}.", [o])


SPELL = ["Write [the word |]{w} with dashes.", "How do I write {w}, letter by letter?", "[Please |]spell {w}[ out| now|].", "Which letters [are in|has] {w}, in order?", "How do people write {w}?", "Make {w} into [a row of |]letters.", "[Show|Write down] every letter of {w}.",
    "[Say|Tell me|Show me|Give me] {w} as single letters.", "[I need|I want] the spelling of {w}.", "{w} [with|in] single letters, please.", "Split {w} into [its |]letters.", "[What is|What's] the [correct |]spelling of {w}?", "[How is|How do people write] [the word |]{w} spelled?", "Put dashes between the letters of {w}.", "The letters of {w}?",
    "[How do you|How do I|How to|How would you|How should I] spell [{w}|\"{w}\"|the word {w}]?", "Spell [{w}|\"{w}\"|the word {w}|the word \"{w}\"].",
         "[Can|Could] you spell {w}?", "Spell {w} [letter by letter|for me|with dashes].", "[What are|Name|List|Give me|Tell me] the letters [of|in] [the word |]{w}.",
         "How is {w} spelled?", "Spelling of {w}?", "{w}, letter by letter.", "Break {w} into letters."]
SPELL += ["Spell out {w}.", "Which letters make up the word {w}?", "Write {w} letter by letter.", "How is the word {w} written?"]
COUNT = ["[Length|Size] of {w} in letters?", "What length has [the word |]{w}?", "[Tell me|Give me|I need] the [word |]length of {w}.", "Can you count how many letters are in {w}?", "The length of {w}, please.", "[Say|Find] how long the word {w} is.",
    "[Tell me|Do you know|Say] how many letters {w} has.", "[I need|I want|Give me] the letter count of {w}.", "Letter count of {w}?", "How many characters [has|does] {w} [have|contain]?", "{w} is how long?", "[How big|How long] is {w} in letters?", "Is {w} a long word? How many letters?",
    "How many letters [are in|are there in|does the word|are in the word] {w}?", "How long is the word {w}?", "Count the letters in {w}.",
         "How many letters does {w} have?", "How many letters has [the word |]{w}?", "[What is|Tell me] the number of letters in {w}.", "Letters in {w}: how many?"]
COUNT += ["Can you count the letters of {w}?", "The word {w} has how many letters?", "What is the length of the word {w}?"]

SPELL_PARTS = (["the spelling of {w}", "the letters of {w}", "the letters of the word {w}", "the single letters of {w}", "the word {w} letter by letter", "the correct spelling of {w}"],
               ["how {w} is spelled", "how to spell {w}", "how you spell {w}", "how one spells {w}", "how the word {w} is spelled", "with which letters {w} is written", "how people spell {w}"])
COUNT_PARTS = (["the number of letters in {w}", "the letter count of {w}", "the length of the word {w}", "the length of {w}", "the count of letters in {w}", "the number of letters of the word {w}"],
               ["how many letters {w} has", "how many letters are in {w}", "how long the word {w} is", "how many letters the word {w} has", "of how many letters {w} consists", "how many letters there are in {w}"])


def _word_to_spell(c):
    """A word of the list; in training often any word, so that letters are learnt token by token."""
    return Values(c).made_up() if not c.held and c.rng.random() < 0.45 else c.rng.choice(SPELL_WORDS)


def spelling(c, word=None):
    w = word or _word_to_spell(c)
    s = "-".join(w)
    return item("spelling", cap(c.say(SPELL, held.SPELL, *SPELL_PARTS, w=w)), f"{w} is spelled {s}.", f"The letters of {w} in order: {s}.", [s])


def letter_count(c, word=None):
    w = word or _word_to_spell(c)
    steps = " ".join(f"{ch} {i + 1}" + ("," if i + 1 < len(w) else ".") for i, ch in enumerate(w))
    return item("letter_count", cap(c.say(COUNT, held.COUNT, *COUNT_PARTS, w=w)), f"{w} is spelled {'-'.join(w)} and has {len(w)} letters.", f"I count the letters: {steps}", [f"{len(w)} letters"])


ECHO = ["[Repeat|Repeat after me|Echo|Say|Copy|Write]: {t}", "[Repeat|Echo|Say|Copy|Write] this[ text| please|]: {t}", "Say \"{t}\".", "[Can|Could] you [repeat|say|write] \"{t}\"?", "Repeat {t}", "Please repeat what I write: {t}"]


def echo(c):
    """The answer is the text that was given: pure copying."""
    v = Values(c)
    k, r = c.rng.random(), c.rng
    t = (" ".join(v.made_up() for _ in range(r.randint(1, 5))) if k < 0.4 else v.sentence() if k < 0.55 else " ".join(r.choice([v.person(), v.noun(), v.code(), v.made_up()]) for _ in range(r.randint(1, 4))) if k < 0.85
         else r.choice([v.path(), v.title(), v.query()]))
    return item("echo", c.say(ECHO, held.ECHO, t="{t}").replace("{t}", t), t, "I repeat the text.", [t])


# ---- calendar --------------------------------------------------------------
AFTER = ["[Say|Name] what {k} comes after {x}.", "Next {k} after {x}?", "{x}, then [which|what] {k}?", "Today {x}, [what|which] {k} comes then?",
    "[What|Which] {k} [comes|is|follows] [right |]after {x}?", "[What is|What's|Name|Tell me] the {k} after {x}?", "The {k} after {x}?", "[What|Which] {k} follows {x}?",
         "After {x} comes [what|which {k}]?", "[What|Which] is the next {k} after {x}?", "{x} is followed by which {k}?"]
AFTER += ["Tell me which {k} comes after {x}.", "Say the {k} that follows {x}.", "If it is {x} now, what {k} is next?"]
BEFORE = ["[Say|Name] what {k} comes before {x}.", "Previous {k} before {x}?", "[Which|What] {k} is just before {x}?", "Today {x}, [what|which] {k} was just before?",
    "[What|Which] {k} [comes|is] [right |]before {x}?", "[What is|What's|Name|Tell me] the {k} before {x}?", "The {k} before {x}?", "Before {x} comes [what|which {k}]?",
          "[What|Which] {k} precedes {x}?", "{x} comes after which {k}?"]
BEFORE += ["Tell me which {k} comes before {x}.", "Say the {k} that precedes {x}.", "If it is {x} now, what {k} was it before?"]

AFTER_PARTS = (["the {k} after {x}", "the {k} that follows {x}", "the next {k} after {x}", "the {k} right after {x}", "the {k} that comes after {x}"],
               ["which {k} comes after {x}", "what {k} follows {x}", "which {k} follows after {x}", "what the {k} after {x} is"])
BEFORE_PARTS = (["the {k} before {x}", "the {k} that precedes {x}", "the previous {k} before {x}", "the {k} right before {x}", "the {k} that comes before {x}"],
                ["which {k} comes before {x}", "what {k} precedes {x}", "which {k} is before {x}", "what the {k} before {x} is"])


def neighbour(c, x=None, step=None):
    r = c.rng
    seq, kind = r.choice([(DAYS, "day"), (MONTHS, "month")]) if x is None else ((DAYS, "day") if x in DAYS else (MONTHS, "month"))
    x = x or r.choice(seq)
    step = step or r.choice([1, -1])
    i = seq.index(x)
    y = seq[(i + step) % len(seq)]
    side = "after" if step == 1 else "before"
    t = c.say(AFTER, held.AFTER, *AFTER_PARTS, k=kind, x=x) if step == 1 else c.say(BEFORE, held.BEFORE, *BEFORE_PARTS, k=kind, x=x)
    order = f"{x}, {y}" if step == 1 else f"{y}, {x}"
    return item("calendar", cap(t), f"The {kind} {side} {x} is {y}.", f"The {kind}s in order: {order}. So the {kind} {side} {x} is {y}.", [y])

MONTH_PARTS = (["the number of days in {m}", "the length of {m}", "the count of days in {m}"], ["how many days {m} has", "how many days are in {m}", "how long {m} is", "how many days there are in {m}"])
ORDINAL_PARTS = (["the {o} {k} of the {w}", "the {o} {k} in the {w}"], ["which {k} is the {o} of the {w}", "what the {o} {k} of the {w} is", "which is the {o} {k} of the {w}"])
POSITION_PARTS = (["the position of {x} in the {w}", "the number of {x} in the {w}"], ["which {k} of the {w} {x} is", "which position {x} has in the {w}", "which number {x} is in the {w}"])


def _month_length(c):
    i = c.rng.randrange(12)
    m, n = MONTHS[i], MONTH_DAYS[i]
    t = c.say(["How many days [does {m} have|are in {m}|are there in {m}|has {m}]?", "[What is|Tell me] the number of days in {m}.", "How long is {m}?", "Days in {m}?",
               "The month of {m} has how many days?", "Can you tell me how many days there are in {m}?"], held.MONTH_LENGTH, *MONTH_PARTS, m=m)
    text = "28 days, or 29 in a leap year" if i == 1 else f"{n} days"
    return t, f"{m} has {text}.", f"The month is {m}. It has {text}.", [f"{n} days"]


def _ordinal(c):
    seq, kind, whole = c.rng.choice([(DAYS, "day", "week"), (MONTHS, "month", "year")])
    i = c.rng.randrange(len(seq))
    if c.rng.random() < 0.5:
        t = c.say(["[What|Which] is the {o} {k} of the {w}?", "[Name|Tell me|What's] the {o} {k} of the {w}.", "The {o} {k} of the {w}?", "What {k} is {o} in the {w}?",
                   "Which {k} comes {o} in the {w}?", "Say the {o} {k} of the {w}."], held.ORDINAL, *ORDINAL_PARTS, o=ORDINALS[i], k=kind, w=whole)
        return t, f"The {ORDINALS[i]} {kind} of the {whole} is {seq[i]}.", f"Counting from {seq[0]}, number {i + 1} is {seq[i]}.", [seq[i]]
    t = c.say(["[Which|What] number is {x} in the {w}?", "[What|Which] position does {x} have in the {w}?", "Is {x} the first {k} of the {w}, or which one?",
               "[Which|What] {k} of the {w} is {x}?", "{x} is which {k} of the {w}?", "Where in the {w} does {x} come?"], held.POSITION, *POSITION_PARTS, x=seq[i], k=kind, w=whole)
    return t, f"{seq[i]} is the {ORDINALS[i]} {kind} of the {whole}.", f"Counting from {seq[0]}, {seq[i]} is number {i + 1}.", [ORDINALS[i]]


def _lists(c):
    k = c.rng.randrange(6)
    both = [
        (["How many days [are in|are there in|does] a week [have|]?", "Days in a week?", "How many days has a week?"], ["A week has how many days?", "Tell me how many days a week has."],
         "A week has 7 days.", ["7 days"]),
        (["How many months [are in|are there in] a year?", "How many months does a year have?", "Months in a year?"], ["A year has how many months?", "Tell me how many months a year has."],
         "A year has 12 months.", ["12 months"]),
        (["[Name|List|Tell me|What are|Give me] the days of the week.", "What are the seven days?", "Which days are in a week?"], ["List all days of the week.", "Recite the days of the week."],
         "The days of the week are " + ", ".join(DAYS[:-1]) + " and Sunday.", ["Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday"]),
        (["[Name|List|Tell me|What are|Give me] the months of the year.", "What are the twelve months?", "Which months are in a year?"], ["List all months of the year.", "Recite the months."],
         "The months of the year are " + ", ".join(MONTHS[:-1]) + " and December.", [", ".join(MONTHS[:-1]) + " and December"]),
        (["How many days [are in|are there in|does] a year [have|]?", "How many days has a year?", "Days in a year?"], ["A year has how many days?", "Tell me how many days a year has."],
         "A year has 365 days, or 366 in a leap year.", ["365 days"]),
        (["Which days [are|make up|form] the weekend?", "What is the weekend?", "[Name|Tell me] the days of the weekend."], ["The weekend is which days?", "What days are on the weekend?"],
         "The weekend is Saturday and Sunday.", ["Saturday and Sunday"]),
    ][k]
    return c.say(both[0] + both[1], held.LISTS[k]), both[2], "This is about the calendar. " + both[2], both[3]


def calendar(c):
    k = c.rng.random()
    if k < 0.55:
        return neighbour(c)
    t, answer, think, any_of = (_month_length if k < 0.7 else _ordinal if k < 0.85 else _lists)(c)
    return item("calendar", cap(t), answer, think, any_of)
