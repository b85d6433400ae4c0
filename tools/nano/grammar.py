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
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
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


class Ctx:
    """Where an item is drawn for: `held` picks held-out templates and values."""

    def __init__(self, rng, held):
        self.rng, self.held = rng, held

    def say(self, train, held, **slots):
        template = expand(self.rng.choice(held if self.held else train), self.rng)
        if not self.held and self.rng.random() < 0.16:
            template = loosen(template, self.rng)
        return template.format(**slots)


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
