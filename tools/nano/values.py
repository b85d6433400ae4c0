"""Random values for tool arguments and names: what can only be copied. Held-out
ones are never drawn for training."""
import functools
import json
import re

import template
from facts import COUNTRIES, DEFINITIONS, SPELL_WORDS
from grammar import expand, is_held

FIRST_NAMES = "Anna Tom Maria John Peter Lisa Sam Kate Paul Nina Omar Lena Ivan Sara Ben Mia Leo Emma Max Ella Hugo Ruth Carl Zoe Adam Nora Finn Ida Otto Vera Luis Rosa Amir Yuki Chen Priya Raj Dana Eric Jane".split()
_NOUN = """apple book lamp chair house river garden cat dog window bottle letter train bicycle camera guitar castle forest engine mirror pencil rocket shirt table umbrella violin wagon yacht zebra bridge candle
dragon eagle flower glove hammer island jacket kettle lemon mountain needle orange piano queen rabbit ship tower village wheel planet stone cloud star bread coffee tea cake cheese""".split()
_NOUN = sorted(set(_NOUN) | set(DEFINITIONS))
_ADJ = "red blue green old new small big fast quiet bright dark golden silver cheap heavy light warm cold round happy lucky secret broken fresh sweet wild".split()
SYLLABLES = "ba be bo da de do fa fi ga go ka ki ko la le lo ma mi mo na ne no pa pe po ra re ri ro sa se so ta te to va vi za zo".split()


@functools.cache
def pieces():
    """The tokenizer's entries made of letters: words put together from them make
    the model copy every entry, not only those of everyday words."""
    vocab = json.loads((template.MODEL_DIR / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(t for t in vocab if re.fullmatch(r"[A-Za-z]{1,12}", t))


LENGTHS, WEIGHTS = "km miles metres feet inches cm yards".split(), "kg pounds grams ounces tons".split()
VOLUMES, TIMES, HEAT = "litres gallons pints cups".split(), "hours minutes seconds days weeks".split(), "celsius fahrenheit".split()
UNIT_PAIRS = [(a, b) for kind in (LENGTHS, WEIGHTS, VOLUMES, TIMES, HEAT) for a in kind for b in kind if a != b]
LANGS = "French German Spanish Italian Polish Japanese Chinese Arabic Dutch Greek Turkish Russian Swedish Korean".split()
ROOMS = "kitchen,bedroom,bathroom,hall,garage,office,garden,attic,cellar,living room,dining room,study,library,corridor,nursery".split(",")


class Values:
    """Random argument values. Held-out words are never drawn for training."""

    def __init__(self, c):
        self.r, self.held, self._pair = c.rng, c.held, None

    def unit_pair(self):
        """Two different units of one kind, the same pair for one request."""
        if self._pair is None:
            self._pair = self.r.choice(UNIT_PAIRS)
        return self._pair

    def _from(self, values, tag):
        while True:
            v = self.r.choice(values)
            if is_held(tag, v, one_in=8) == self.held:
                return v

    def made_up(self):
        r = self.r
        while True:
            k = r.random()
            if k < 0.2:
                w = "".join(r.choice(SYLLABLES) for _ in range(r.randint(2, 4)))
            elif k < 0.75:
                w = "".join(r.choice(pieces()) for _ in range(r.choice([1, 1, 1, 2, 2, 3])))[:16]
                w = w if r.random() < 0.4 else w.lower()
            elif k < 0.88:
                w = "".join(r.choice("bcdfghjklmnpqrstvwxyz") + r.choice("aeiouy") + r.choice(["", "", r.choice("nrstlmd")]) for _ in range(r.randint(1, 4)))
            else:
                w = r.choice(SPELL_WORDS)
            if len(w) < 2:
                continue
            if is_held("made", w, one_in=8) == self.held:
                return w

    def city(self):
        if self.r.random() < (0.3 if self.held else 0.55):
            return self.made_up().capitalize()
        return self._from([x[1] for x in COUNTRIES], "city")

    def person(self):
        return self.made_up().capitalize() if self.r.random() < (0.3 if self.held else 0.65) else self._from(FIRST_NAMES, "person")

    def noun(self):
        return self._from(_NOUN, "noun")

    def thing(self):
        k = self.r.random()
        return self.made_up() if k < (0.2 if self.held else 0.4) else self.noun() if k < 0.5 else f"{self.r.choice(_ADJ)} {self.noun()}"

    def title(self):
        return " ".join(w.capitalize() for w in self.thing().split()) + self.r.choice(["", "", " " + self.noun().capitalize()])

    def sentence(self):
        if self.r.random() < 0.25:
            return " ".join(self.r.choice([self.made_up, self.noun, self.noun, lambda: self.r.choice(SPELL_WORDS)])() for _ in range(self.r.randint(2, 6)))
        t = self.r.choice(["where are you", "good luck with the {x}", "my {x} is broken", "come to the {y} at {n}", "I will bring {n} {x}s", "the {x} is on the {y}", "we meet {n} people in the {y}", "please call {p}", "{p} has the {x}", "I lost my {x}", "you can keep the {x}",
                           "I am in the {y} with {p}", "good night", "what a nice {x}", "the {y} opens at {n}", "the {x} is for {p}", "happy new year", "I like your {x}", "no {x} today", "wait for me at the {y}", "I am late", "I will be there at {n}", "the {x} is ready", "please bring the {x}", "see you at {n}", "we need a {x}", "happy birthday", "call me back", "the {x} is in the {y}",
                           "dinner is at {n}", "I found the {x}", "can you buy {n} {x}s", "thank you for the {x}", "the meeting starts at {n}", "do not forget the {x}", "the {x} costs {n} euros"])
        return t.format(x=self.thing(), y=self.noun(), p=self.person(), n=self.r.randint(1, 12))

    def query(self):
        return expand(self.r.choice(["{x}", "{x} for [children|beginners|sale]", "how to [fix|clean|make|draw] a {x}", "best {x} in {z}", "{x} and {y}", "cheap {x}", "history of the {x}", "{x} pictures", "who invented the {x}", "{x} near {z}", "price of a {x}", "where to buy a {x}", "{x} {y} {z}", "old {x} from {z}", "{z} {y}"]), self.r).format(
            x=self.thing(), y=self.noun(), z=self.city())

    def code(self):
        r = self.r
        return r.choice("ABCDEFGHKLMNPRSTUVWXYZ") + r.choice(["", "-", r.choice("ABXYZ")]) + str(r.randint(10, 99999))

    def clock(self):
        r = self.r
        return r.choice([f"{r.randint(1, 12)} {r.choice(['am', 'pm'])}", f"{r.randint(0, 23)}:{r.choice(['00', '15', '30', '45'])}", "noon", "midnight"])

    def number(self):
        r = self.r
        return r.choice([r.randint(2, 99), r.randint(100, 5000), r.randint(1, 9), round(r.uniform(0.5, 99.5), 1)])

    def duty(self):
        t = self.r.choice(["buy a {x}", "call {p}", "water the {x}", "clean the {x}", "pay for the {x}", "fix the {x}", "call the {y}", "bring the {x} to {p}", "write to {p}", "meet {p} at the {y}", "feed the {x}", "go to the {y}", "open the {y}", "look for the {x}", "take the {x} home", "sell the {x}"])
        return t.format(x=self.thing(), y=self.noun(), p=self.person())

    def path(self):
        return self.r.choice(["", "docs/", "src/", "notes/", "/tmp/", "data/"]) + self.r.choice([self.noun(), self.made_up()]) + self.r.choice([".txt", ".md", ".csv", ".py", ".json"])


def made_up_name(v):
    """A function or parameter name that means nothing: it can only be copied."""
    r = v.r
    a, b = v.made_up(), r.choice([v.made_up(), v.noun(), v.made_up()])
    verb = r.choice("get do run call make find use start fetch open ask tell new".split() + SPELL_WORDS)
    return r.choice([a, f"{verb}_{a}", f"{a}_{b}", f"{a}_{r.choice(['of', 'to', 'on', 'in', 'for', 'by', 'at'])}_{b}", f"{a}_{b}_{v.made_up()}", f"{a}_{b}", f"{v.noun()}_{b}", a + b.capitalize(), verb + a.capitalize(), f"{a}{r.randint(1, 99)}", f"{verb}_{v.noun()}_{b}"])
