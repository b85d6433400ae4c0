"""Small helpers for generated text: alternatives in templates, surface noise,
and the split between training material and held-out material."""
import functools
import hashlib
import re

ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")


def expand(template, rng):
    """Replaces every [a|b|c] by one of its alternatives."""
    while True:
        m = ALTERNATIVES.search(template)
        if m is None:
            return re.sub(r"  +", " ", template).replace(" .", ".").strip()
        template = template[: m.start()] + rng.choice(m.group(1).split("|")) + template[m.end():]


def digest(*key):
    """A number from the key's text, the same in every run."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, ("second draw", *key))).encode()).digest()[:4], "little")


@functools.lru_cache(1 << 16)
def is_held(*key, one_in=20):
    """A fixed pseudo-random choice of one in `one_in` keys."""
    return digest(*key) % one_in == 0


def normal(text):
    """The form in which prompts are compared for leakage."""
    return " ".join(re.sub(r"[^a-z0-9+*/-]+", " ", text.lower()).split())


_SMALL = set("the is a an of you me please tell can could i to that does do there are give need want know for in what".split())
_FILLER = "well,just,really,exactly,maybe,actually,kindly,now,here,again,quickly,simply,then,also,please,perhaps".split(",")

# Words and turns that stand for each other; training swaps them within a phrasing.
_SYNONYMS = """country|nation|land|state
city|town|place
capital city|capital
continent|part of the world
tell me|let me know|inform me|show me
give me|get me|show me|hand me
want to know|would like to know|need to know|wish to know|have to know
i want|i need|i would like|i'd like|i wish for
looking for|searching for|in search of
find out|figure out|work out|check
look up|search for|find|check
begins|starts|sets in
ends|is over|finishes|stops|is finished
ended|was over|finished|stopped
directly|right|immediately|just
next|following
previous|last|preceding
opposite|contrary|reverse|antonym
meaning|sense|definition
means|stands for|signifies
explain|describe|make clear|define
somebody|someone|a person|a man|a woman
friend|neighbour|colleague|cousin
teacher|boss|sister|brother|son|daughter
called|named
letters|characters
how many|what number of
altogether|in total|in all|all together
remain|are left|stay|are still there
result|answer|outcome|solution
take away|subtract|remove
put together|combine|add up
each|every one
calculate|compute|work out|solve
can you|could you|would you|will you|are you able to
please|kindly
do you know|can you tell me|have you an idea|do you have any idea
repeat|say again|echo
words|text
spelled|written
spell|write out
is in|lies in|is found in|is located in
message|note|text
send|write|pass
switch|turn|flip
lamp|light
timer|countdown
reminder|note
buy|purchase
shopping list|list|shopping cart
parcel|package|delivery
arrive|come|get here
status|state
news|update
online|on the internet|on the web|in the web
internet|web|net
web page|page|site
file|document
content|text
listen to|hear
song|track|music
at home|in the house
name|state
quickly|fast
great|good|nice|wonderful|lovely
thanks|thank you|many thanks
help|assist
bigger|larger|better|stronger
use|run|load|start
hello|hi|hey
things|tasks|topics
talking to|speaking with|talking with|speaking to""".split("\n")
_MEANS = {word: [w for w in line.split("|") if w != word] for line in _SYNONYMS for word in line.split("|")}
_KNOWN = re.compile(r"(?<![\w{'])(" + "|".join(sorted(map(re.escape, _MEANS), key=len, reverse=True)) + r")(?![\w}'])", re.I)


def reword(template, rng):
    """Swaps one or two words for synonyms."""
    for _ in range(rng.choice([1, 1, 2])):
        found = list(_KNOWN.finditer(template))
        if not found:
            break
        m = rng.choice(found)
        word = rng.choice(_MEANS[m.group().lower()])
        template = template[: m.start()] + (word[0].upper() + word[1:] if m.group()[0].isupper() else word) + template[m.end():]
    return template


def loosen(template, rng):
    """Drops a small word, puts in a filler or moves "please", so that phrasings vary
    beyond the lists. Fillers never touch a slot: they would look like a part of it."""
    words = template.split(" ")
    small = [i for i, w in enumerate(words) if w.lower() in _SMALL]
    k = rng.random()
    if small and len(words) > 2 and k < 0.5:
        del words[rng.choice(small)]
    elif k < 0.6 and "{" not in words[-1]:
        words = [w for w in words if w.lower() not in ("please", "please.")] or words
        words = ["Please"] + words if rng.random() < 0.5 else [*words[:-1], words[-1].rstrip(".?!") + ",", "please"]
    else:
        free = [i for i in range(len(words)) if "{" not in words[i] and (i == 0 or "{" not in words[i - 1])]
        if free:
            words.insert(rng.choice(free), rng.choice(_FILLER))
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
    """Where an item is drawn for: `held` picks held-out phrasings, names and values.
    `banned` are the phrasings (as `normal` sees them) that training may not
    use; `used` collects those that were drawn."""

    def __init__(self, rng, held, pools, banned=frozenset()):
        self.rng, self.held, self.pools, self.banned, self.used = rng, held, pools, banned, set()

    def template(self, name):
        """One phrasing of a pool, its alternatives chosen; training also puts nouns
        and clauses into frames, swaps synonyms and loosens the words."""
        r, pool = self.rng, self.pools[name]
        frames = [] if self.held else [(f, kind, words) for f, kind, words in ((_NOUN_FRAMES, "{np}", pool.noun), (_CLAUSE_FRAMES, "{cl}", pool.clause)) if words]
        while True:
            if frames and r.random() < 0.3:
                frame, kind, words = r.choice(frames)
                text = expand(r.choice(frame).replace(kind, r.choice(words)), r)
            else:
                text = expand(r.choice(pool.held if self.held else pool.train), r)
            if not self.held:
                if r.random() < 0.35:
                    text = reword(text, r)
                if r.random() < 0.3:
                    text = loosen(text, r)
            key = normal(text)
            if self.held or key not in self.banned:
                self.used.add(key)
                return text

    def say(self, name, **slots):
        return self.template(name).format(**slots)


_BEFORE = ["Please tell me: ", "Hi! ", "Hello, ", "Hey, ", "Quick question: ", "Question: ", "Hi there. ", "OK, ", "So, ",
           "Good morning! ", "I need help. ", "Help me with this: ", "One question: ", "Hello! ", "Now, ", "Please: "]
_AFTER = [" Thanks!", " Please.", " Thank you.", " Answer briefly.", " I forgot.", " Please answer.", " Thanks in advance.",
          " I really want to know.", " I am curious."]
_STORY = """I am at home. ~I am at work. ~I sit in a train. ~My day was long. ~It is late. ~It is early in the morning. ~I am in a hurry. ~We are a small class. ~I am writing a text. ~My friends are here.
We play a game. ~I have a short question. ~I just came home. ~I am having breakfast. ~The children ask me things. ~I am a little tired. ~I like to learn. ~We are on holiday. ~I am in the kitchen. ~My phone is broken. """.replace("\n", "~").split("~")


def story(text, rng):
    """A sentence in front that has nothing to do with the question, or a greeting."""
    return rng.choice(_STORY if rng.random() < 0.4 else [b for b in _BEFORE if b[-2] in "!.:"]).strip() + " " + text


def noisy(text, rng, upper=0.03):
    """Surface variety: courtesy around the question, casing, punctuation."""
    if rng.random() < 0.05:
        text = rng.choice(_STORY).strip() + " " + text
    if rng.random() < 0.22:
        before = rng.choice(_BEFORE)
        keep = text.split()[0] in ("I", "I'm") or text[:1].isdigit() or rng.random() < 0.5
        text = before + (text if keep or before[-2] in "!." else text[0].lower() + text[1:])
    if rng.random() < 0.12:
        text += rng.choice(_AFTER)
    r = rng.random()
    if r < 0.22:
        text = text.lower()
    elif r < 0.22 + upper:
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
