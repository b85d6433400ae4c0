"""Small helpers for generated text: alternatives in templates, surface noise,
and the split between training material and held-out material."""
import hashlib
import re

_ALT = re.compile(r"\[([^\[\]]*)\]")


def expand(template, rng):
    """Replaces every [a|b|c] by one of its alternatives."""
    while True:
        m = _ALT.search(template)
        if m is None:
            return re.sub(r"  +", " ", template).replace(" .", ".").strip()
        template = template[: m.start()] + rng.choice(m.group(1).split("|")) + template[m.end():]


def is_held(*key, one_in=20):
    """A fixed pseudo-random choice of one in `one_in` keys, the same in every run."""
    digest = hashlib.sha256("/".join(map(str, ("second draw", *key))).encode()).digest()
    return int.from_bytes(digest[:4], "little") % one_in == 0


def normal(text):
    """The form in which prompts are compared for leakage."""
    return " ".join(re.sub(r"[^a-z0-9+*/-]+", " ", text.lower()).split())


_SMALL = set("the is a an of you me please tell can could i to that does do there are give need want know for in what".split())
_FILLER = "well,just,really,exactly,maybe,actually,kindly,now,here,again,quickly,simply,then,also,right".split(",")


def loosen(template, rng):
    """Drops a small word or puts in a filler, so that phrasings vary beyond the lists."""
    words = template.split(" ")
    small = [i for i, w in enumerate(words) if w.lower() in _SMALL]
    if small and len(words) > 2 and rng.random() < 0.6:
        del words[rng.choice(small)]
    else:
        words.insert(rng.randint(0, len(words) - 1), rng.choice(_FILLER))
    return " ".join(words)


# Frames around "the capital of {x}" and around "what the capital of {x} is": they multiply the phrasings of every intent.
_NOUN_FRAMES = """[Tell me|Give me|Say|Name|State|Write|Show me|Find|Write down|Return|Print|Look up] {np}.
[What is|What's] {np}?
I [want|need|would like|wish|have] to [know|hear|learn|find|see] {np}.
[I want|I need|I would like|I'd like|I ask for|I am looking for|I look for|I forgot|I can not recall|I lost] {np}.
{np}?
{np}, please.
{np} please
[Can|Could|Would|Will] you [tell|give|show|name|find] me {np}?
[Do|Don't] you know {np}?
[And|So|Now|OK|Well|Hey], {np}?
[My question|Question|Quiz|Query|Task|Quick one|Test]: {np}[?|.|]
[Let me know|Let me hear|Let us hear|Let me have|Let me see] {np}.
[Any clue about|What about|How about|Do you have] {np}?
[Help me with|Remind me of|Inform me about|Teach me|Answer me] {np}.
[I wonder about|I am curious about|I ask about|It is about|This is about|I am thinking of] {np}.
[What would|What should|What will|What might|What could] {np} be?
{np} is [what|which]?
{np} =
My [friend|boss|sister|brother|son|daughter|mother] [wants|needs|asks for] {np}.
[You surely know|You should know|You must know] {np}.
[Is there|Have you got|Have you] an answer for {np}?
[For school|For work|For my notes|For a game|In short], {np}?""".split("\n")
_CLAUSE_FRAMES = """[Tell me|Say|Let me know|Explain|Find out|Answer|Show me|Teach me] {cl}.
[I wonder|I want to know|I need to know|I'd like to know|I would like to know|I have to know|I must know] {cl}.
[Can|Could|Would|Will] you [tell me|say|explain|find out|show me] {cl}?
[Do you know|Do you remember|Do you happen to know|Have you heard|Do you have an idea] {cl}?
[I forgot|I am not sure|I have no idea|I do not know|I don't know|I can not say|I never know|I can't remember] {cl}.
My [friend|boss|sister|brother|son|daughter|mother] [asks|wants to know|wonders] {cl}.
[Any idea|Any clue|No idea|Guess] {cl}?
I [ask myself|was asked|keep asking|try to find out|want to learn|want to hear] {cl}.
[Question|Quiz|Query|Quick one]: {cl}?
[Is it known|Is it clear|Who knows|Can anyone say] {cl}?""".split("\n")


class Ctx:
    """Where an item is drawn for: `held` picks held-out templates and values.
    `banned` are the templates (as `normal` sees them) that training may not
    use; `used` collects those that were drawn."""

    def __init__(self, rng, held, banned=frozenset()):
        self.rng, self.held, self.banned, self.used = rng, held, banned, set()

    def template(self, train, held, noun=(), clause=(), loose=0.16):
        """One template, its alternatives chosen; `noun` and `clause` are put into frames."""
        r = self.rng
        while True:
            frames = [] if self.held else [(f, kind, words) for f, kind, words in ((_NOUN_FRAMES, "{np}", noun), (_CLAUSE_FRAMES, "{cl}", clause)) if words]
            if frames and r.random() < 0.45:
                frame, kind, words = r.choice(frames)
                text = expand(r.choice(frame).replace(kind, r.choice(words)), r)
            else:
                text = expand(r.choice(held if self.held else train), r)
            if not self.held and r.random() < loose:
                text = loosen(text, r)
            key = normal(text)
            if self.held or key not in self.banned:
                self.used.add(key)
                return text

    def say(self, train, held, noun=(), clause=(), **slots):
        return self.template(train, held, noun, clause).format(**slots)


_BEFORE = ["Please tell me: ", "Hi! ", "Hello, ", "Hey, ", "Quick question: ", "Question: ", "Hi there. ", "OK, ", "So, ",
           "Good morning! ", "I need help. ", "Help me with this: ", "One question: ", "Hello! ", "Now, ", "Please: "]
_AFTER = [" Thanks!", " Please.", " Thank you.", " Answer briefly.", " I forgot.", " Please answer.", " Thanks in advance.",
          " I really want to know.", " I am curious."]


def noisy(text, rng):
    """Surface variety: courtesy around the question, casing, punctuation, a rare typo."""
    if rng.random() < 0.22:
        before = rng.choice(_BEFORE)
        keep = text.split()[0] in ("I", "I'm") or text[:1].isdigit() or rng.random() < 0.5
        text = before + (text if keep or before[-2] in "!." else text[0].lower() + text[1:])
    if rng.random() < 0.12:
        text += rng.choice(_AFTER)
    r = rng.random()
    if r < 0.22:
        text = text.lower()
    elif r < 0.25:
        text = text.upper()
    r = rng.random()
    if r < 0.15:
        text = text.rstrip("?.!")
    elif r < 0.17:
        text = text + "?"
    elif r < 0.18:
        text = text.rstrip("?.!") + " ?"
    return text


def typo(text, rng):
    """One slip in one word of at least five letters; digits are never touched."""
    words = [m for m in re.finditer(r"[A-Za-z]{5,}", text)]
    if not words:
        return text
    m = rng.choice(words)
    i = rng.randrange(m.start() + 1, m.end() - 1)
    return text[:i] + (text[i + 1:] if rng.random() < 0.5 else text[i + 1] + text[i] + text[i + 2:])
