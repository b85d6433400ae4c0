"""Greetings, thanks, who the model is, and the honest answer to everything
outside the domain."""
from grammar import is_held
from qa import UNKNOWN, cap, item

WHO = "I am lily-nano, a tiny language model that ships inside lily."
CAN = ("I can tell you capitals and continents, do small sums, explain common words, spell them, "
       "name opposites, days and months, and call simple tools.")
REAL = "Start lily with --model and the path or name of a real model."
REFUSAL = UNKNOWN

_TALK = {
    "greeting": ("Hello! How can I help you?", "The user says hello. I greet back.", ["help you"]),
    "thanks": ("You are welcome!", "The user thanks me.", ["you are welcome"]),
    "goodbye": ("Goodbye! Have a nice day.", "The user says goodbye.", ["goodbye"]),
    "identity": (WHO + " " + CAN, "The user asks about me. I say who I am and what I can do.", ["lily-nano"]),
    "abilities": ("I am only a tiny model. " + CAN, "The user asks what I can do. I list it honestly.", ["capitals", "small sums"]),
    "real_model": ("I am the tiny model inside lily. " + REAL, "The user wants a bigger model. The option is --model.", ["--model"]),
    "feelings": ("I am only a tiny program and have no feelings or body. I like to answer small questions.", "The user asks about feelings. I am a program.", ["tiny program"]),
}


def talk(c, name=None):
    name = name or c.rng.choice(list(_TALK))
    answer, think, any_of = _TALK[name]
    return item(name, c.say(name), answer, think, any_of)


_TOPICS = """quantum physics|the French Revolution|black holes|photosynthesis|machine learning|the stock market|climate change|the Roman Empire|football|jazz|the human genome|blockchain
|the theory of relativity|inflation|vaccines|the Second World War|chess openings|philosophy|the history of Japan|cooking pasta|gardening|electric cars|DNA|the Moon landing|Shakespeare|Mozart|Rembrandt|the pyramids
|democracy|the internet|Python programming|Rust lifetimes|databases|neural networks|operating systems|tax law|yoga|sleep|nutrition|marathon training|dinosaurs|volcanoes on Mars|gravity|electricity|antibiotics|economics
|global trade|the Silk Road|Buddhism|poetry|opera|surfing|astronomy|chemistry|prime numbers|calculus|statistics|psychology|robotics|the Olympic Games|basketball|fashion|coffee farming|wine|whales in the Arctic|coral reefs""".replace("\n", "").split("|")
_TOPICS += ["string theory", "the Cold War", "tennis", "impressionism", "the water cycle", "compilers", "ballet", "beekeeping", "geology", "the Vikings", "rowing", "insurance"]
_PEOPLE = "Einstein|Napoleon|Cleopatra|Marie Curie|Isaac Newton|Leonardo da Vinci|Julius Caesar|Picasso|Beethoven|Gandhi|Darwin|Galileo|Plato|Aristotle|Columbus|Churchill|Tolstoy|Bach|Lincoln|Mandela".split("|")
_PEOPLE += "Socrates|Chopin|Magellan|Ada Lovelace|Homer".split("|")
_PLACES = "France|Italy|Tokyo|Paris|Berlin|India|Brazil|Canada|London|Egypt|Spain|China|Kenya|Peru|Norway|New York|Mexico|Rome|Poland|Chile".split("|")
_PLACES += "Sweden|Lisbon|Morocco|Vienna|Fiji".split("|")
_TOPICS += ["thermodynamics", "the Cuban crisis", "badminton", "cubism", "plate tectonics", "encryption", "tango", "pottery", "meteorology", "the Aztecs", "sailing", "pensions"]
_PEOPLE += "Descartes|Vivaldi|Vasco da Gama|Alan Turing|Virgil".split("|")
_PLACES += "Finland|Prague|Tunisia|Athens|Samoa".split("|")


def _drawn(c, tag, values):
    while True:
        v = c.rng.choice(values)
        if is_held(tag, v, one_in=6) == c.held:
            return v


def topic(c):
    return _drawn(c, "topic", _TOPICS)


def refusal(c):
    t = c.say("out", t=topic(c), p=_drawn(c, "famous", _PEOPLE), l=_drawn(c, "country", _PLACES), n=c.rng.randint(13, 999), m=c.rng.randint(2, 60))
    return item("refusal", cap(t), REFUSAL, "This is outside of what I know. I say so.", ["tiny model"])
