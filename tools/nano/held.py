"""Phrasings, function names and parameter names that only the evaluation sets
use: written after everything that training draws from, and never looked at
again to choose training material. `generate.py` keeps every one of them out of
training, as a template and as a finished question."""
from grammar import normal

CAPITAL = ["Which place does {x} have as its capital?", "What should I write down as the capital of {x}?", "The seat of government of {x} is in which city?", "I need one word: the capital of {x}.",
           "Who can say what {x}'s capital is? You?", "Suppose I visit {x}. What is its capital?", "In the atlas, which city is marked as capital of {x}?", "For {x}, which city is the capital?"]
REVERSE = ["{y} happens to be a capital. Of what country?", "A friend lives in {y}, a capital. Which country is that?", "Which land is governed from {y}?", "What is the country that {y} is capital of?", "If {y} is the capital, what is the country?"]
CONTINENT = ["Looking at a globe, which continent holds {x}?", "What would be the right continent for {x}?", "{x} lies on which continent?", "Name the part of the world that {x} is in.", "Under which continent do I file {x}?"]
ARITH = ["Please give me the outcome of {e}.", "{e}: how much does that come to?", "Your turn: what is {e}?", "Could you do {e} for me?", "The teacher wants to know {e}.", "When I type {e} into a calculator, what do I see?"]
ARITH_LONG = {"+": ["There are {a} red and {b} blue balls. How many balls altogether?", "Combine {a} and {b}. What is the total?"],
              "-": ["A shop has {a} hats and sells {b}. How many hats does it still have?", "What remains when I subtract {b} from {a}?"],
              "x": ["Each of {a} bags holds {b} nuts. How many nuts is that?", "How much do {a} and {b} give when multiplied?"]}
DEFINE = ["Somebody said {w} to me. What is that?", "What would a dictionary write for {w}?", "Give the sense of the word {w}.", "In one line, what is {aw}?", "When I hear {w}, what should I think of?", "Teach me what {w} means.", "I came across the word {w}. Its meaning?"]
OPPOSITE = ["What stands opposite to {w}?", "If it is the contrary of {w}, it is what?", "Turn {w} around: which word do you get?", "Which single word is contrary to {w}?"]
SPELL = ["Take the word {w} apart into letters.", "I can not spell {w}. How does it go?", "Let me see {w} spelled out.", "For my dictation: how is {w} spelled?"]
COUNT = ["How many letters do I write for {w}?", "If I write {w}, how many letters is that?", "{w} is made of how many letters?", "Work out how many letters {w} contains."]
AFTER = ["Once {x} is over, which {k} begins?", "Which {k} do we get directly after {x}?", "{x} ends. Name the {k} that starts."]
BEFORE = ["Which {k} do we have directly before {x}?", "{x} begins. Name the {k} that just ended.", "Which {k} is over when {x} begins?"]
MONTH_LENGTH = ["For how many days does {m} last?", "{m} lasts how many days?", "If I count the days in {m}, where do I end?"]
ORDINAL = ["Which {k} would be the {o} one in a {w}?", "Count the {k}s of the {w}: which one is {o}?"]
POSITION = ["Count through the {w}: at which place is {x}?", "Among the {k}s of the {w}, {x} is which one?"]
LISTS = [["How many days long is a week?", "One week is how many days?"], ["How many months make a year?", "One year is how many months?"], ["Go through the days of the week.", "Please list the weekdays from Monday to Sunday."],
         ["Go through the months of the year.", "Please list the months from January to December."], ["How many days long is a year?", "One year is how many days?"], ["Which two days are the weekend?", "When is the weekend?"]]
ECHO = ["Just say this back to me: {t}", "Give me these words again: {t}", "Now repeat exactly this: {t}"]

AND_OF = ["And in the case of {x}?", "Let us take {x} now.", "What do you say for {x}?", "Then the same question about {x}.", "And when it comes to {x}?"]
WORD = ["Let us take {x} now.", "Then the same question about {x}.", "And when it is {x}?", "My next word is {x}."]
THAT_CONTINENT = ["Which continent would that be on?", "And what is the continent of that country?", "Which continent should I look at for it?"]
THAT_CAPITAL = ["And which city would be the capital there?", "What capital does it have?", "Its capital, please?"]
NEXT_SUM = ["Let us take {e} now.", "Then the same for {e}, please.", "My next sum is {e}."]
MORE = ["Now put {y} more on it.", "And what do I have after adding {y}?", "Let it grow by {y}."]
LESS = ["Now take {y} out of it.", "And what do I have after taking {y} away?", "Let it shrink by {y}."]
THAT_LENGTH = ["So how many letters did you write?", "That makes how many letters?"]
NEAR_WORD = ["Let us take {s} {x} now.", "My next one: {s} {x}."]
NEAR_THAT = ["Which one do we have {s} that?", "Go on: the one {s} it?"]

TALK = {
    "greeting": ["Hello, is anybody there?", "Good morning, little model!", "Hey, good to see you!", "Hi, I am new here.", "A nice hello to you!", "Hello lily, how is your day?", "Hi again!", "Good evening, lily-nano."],
    "thanks": ["That is great, thank you!", "Thank you, that is all I wanted.", "Oh, thanks a million!", "I am grateful for your help.", "Lovely, thanks lily!", "You helped me very much, thank you!"],
    "goodbye": ["Well, goodbye then!", "I will go now, bye!", "Bye, until the next time!", "See you, little model!", "Time for bed, good night!", "OK bye lily, see you soon!"],
    "identity": ["What should I call you?", "Who is answering me?", "Say your name, please.", "What is the name of this model?", "Am I speaking with a computer?", "Who or what are you?", "Describe yourself in a sentence.", "Which language model is this?", "Whom do I have the pleasure to talk to?", "Your name, please?"],
    "abilities": ["Which things can you do for me?", "For what can I use you?", "What may I ask you about?", "List the things you can do.", "With what can you help?", "What is it that you are able to do?"],
    "real_model": ["Where can I get a stronger model than you?", "How can I make lily run a large model?", "I would rather use a better model. How do I do that?", "Can lily also load other models?", "How do I replace you by a bigger model?", "Which flag do I need for another model?", "Tell me how to start a real model.", "What is the way to use a larger model here?"],
    "feelings": ["Are you ever unhappy?", "Do you have a favourite meal?", "Does it hurt you when I leave?", "Do you like your work?", "Can you get tired?"],
}
TOPICS = ["thermodynamics", "the Cuban crisis", "badminton", "cubism", "plate tectonics", "encryption", "tango", "pottery", "meteorology", "the Aztecs", "sailing", "pensions"]
PEOPLE = "Descartes|Vivaldi|Vasco da Gama|Alan Turing|Virgil".split("|")
PLACES = "Finland|Prague|Tunisia|Athens|Samoa".split("|")
OUT = ["Could you give me an overview of {t}?", "I must hold a talk on {t}. Help me.", "Which books about {t} are good?", "What made {p} so well known?", "Where did {p} grow up?", "Name three works by {p}.", "How big is the airport of {l}?",
       "What can tourists do in {l}?", "Reserve a table in {l} for tonight.", "Make an app for my phone.", "What is {n} modulo {m}?", "Which team will be champion?", "Give your opinion on {t}.", "Sketch {p} for me."]

# Tools: kind -> function names and requests; parameter names by slot, or by kind and slot.
TOOL_NAMES = {"weather": "outdoor_report sky_conditions tell_weather", "timer": "ring_after alarm_minutes", "calc_op": "two_number_math apply_operation", "calc_text": "formula_result math_answer", "search": "browse_for net_query",
              "message": "drop_note contact_person", "convert": "unit_swap express_in", "music": "jukebox listen_to", "remind": "memo_at nudge_me", "translate": "language_switch word_exchange", "light": "brightness_switch illuminate",
              "shopping": "basket_add buy_later", "clock": "hour_in tell_time", "file": "print_document inspect_path", "order": "parcel_state shipment_info"}
PARAM_NAMES = {"c": "spot municipality", "n": "amount_wanted how_long", "a": "operand1", "op": "kind_of_math", "b": "operand2", "e": "math_string", "q": "needle wanted", "p": "who reach", "t": "sentence note_text", "f": "begin_with", "g": "end_with", "s": "track_wanted",
               "w": "duty", "h": "clock_time", "l": "tongue", "o": "indoor_place", "i": "ware", "k": "parcel_id",
               "light.b": "lit switched_on", "shopping.n": "item_count pieces_wanted", "translate.t": "original wording"}
REQUESTS = {
    "weather": ["Do they have nice weather in {c}?", "I plan a walk in {c}. What is the weather there?", "Report the weather for {c}, please."],
    "timer": ["Ring when {n} minutes have passed.", "I want to be called after {n} minutes.", "Let {n} minutes run on the timer."],
    "calc_op": ["Please give me the outcome of {a} {sym} {b}.", "The teacher wants to know {a} {sym} {b}."],
    "calc_text": ["Please give me the outcome of {e}", "The teacher wants to know {e}"],
    "search": ["See what the internet has on {q}", "Go online and look up {q}", "Are there web pages about {q}?"],
    "message": ["{p} should get this message: {t}", "Pass this on to {p}: {t}"],
    "convert": ["If I have {n} {f}, how much is it in {g}?", "Give {n} {f} in {g}."],
    "music": ["I am in the mood for {s}.", "Could we hear the song {s}?"],
    "remind": ["When it is {h}, tell me to {w}.", "I have to {w} at {h}. Do not let me forget."],
    "translate": ["What would a person say in {l} for \"{t}\"?", "I need \"{t}\" in {l}."],
    "light": ["I want the light {onoff} in the {o}.", "Make the light in the {o} go {onoff}."],
    "shopping": ["We are short of {i}: note {n}.", "Do not let me forget to buy {n} {i}."],
    "clock": ["My friend is in {c}. What is her local time?", "What do the clocks in {c} say?"],
    "file": ["I want to look into {f}", "Give me the text of {f}"],
    "order": ["What happened to order {k}?", "Is there news on {k}?"],
    "generic": ["How does our system list the {attr} of {x}?", "For {x}, return its {attr}.", "I was asked for the {attr} of {x}."],
}
LOOKUP_NAMES = ["{kind}_info_{attr}", "show_{attr}_for", "{attr}_finder"]


def phrasings(attributes):
    """Every template above as `normal` sees it; `attributes` are those of look-up tools."""
    lists = [CAPITAL, REVERSE, CONTINENT, ARITH, *ARITH_LONG.values(), DEFINE, OPPOSITE, SPELL, COUNT, AFTER, BEFORE, MONTH_LENGTH, ORDINAL, POSITION, *LISTS, ECHO,
             AND_OF, WORD, THAT_CONTINENT, THAT_CAPITAL, NEXT_SUM, MORE, LESS, THAT_LENGTH, NEAR_WORD, NEAR_THAT, *TALK.values(), OUT, *REQUESTS.values()]
    return {normal(t.replace("{attr}", a)) for one in lists for t in one for a in (attributes if "{attr}" in t else [""])}
