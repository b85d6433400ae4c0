"""Tool use: schemas with varied names, requests, the right call, tool results
and the answer drawn from them. Held-out items use function names, parameter
names, values and phrasings (held.py) that training never shows."""
import functools
import json
import re

import held
import template
from facts import COUNTRIES, DEFINITIONS, SPELL_WORDS
from grammar import expand, is_held

_FIRST = "Anna Tom Maria John Peter Lisa Sam Kate Paul Nina Omar Lena Ivan Sara Ben Mia Leo Emma Max Ella Hugo Ruth Carl Zoe Adam Nora Finn Ida Otto Vera Luis Rosa Amir Yuki Chen Priya Raj Dana Eric Jane".split()
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
        return self.made_up().capitalize() if self.r.random() < (0.3 if self.held else 0.65) else self._from(_FIRST, "person")

    def noun(self):
        return self._from(_NOUN, "noun")

    def thing(self):
        k = self.r.random()
        return self.made_up() if k < (0.2 if self.held else 0.4) else self.noun() if k < 0.5 else f"{self.r.choice(_ADJ)} {self.noun()}"

    def title(self):
        return " ".join(w.capitalize() for w in self.thing().split()) + self.r.choice(["", "", " " + self.noun().capitalize()])

    def sentence(self):
        t = self.r.choice(["I am late", "I will be there at {n}", "the {x} is ready", "please bring the {x}", "see you at {n}", "we need a {x}", "happy birthday", "call me back", "the {x} is in the {y}",
                           "dinner is at {n}", "I found the {x}", "can you buy {n} {x}s", "thank you for the {x}", "the meeting starts at {n}", "do not forget the {x}", "the {x} costs {n} euros"])
        return t.format(x=self.thing(), y=self.noun(), n=self.r.randint(1, 12))

    def query(self):
        return expand(self.r.choice(["{x}", "{x} for [children|beginners|sale]", "how to [fix|clean|make|draw] a {x}", "best {x} in {z}", "{x} and {y}", "cheap {x}", "history of the {x}", "{x} pictures"]), self.r).format(
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

    def path(self):
        return self.r.choice(["", "docs/", "src/", "notes/", "/tmp/", "data/"]) + self.r.choice([self.noun(), self.made_up()]) + self.r.choice([".txt", ".md", ".csv", ".py", ".json"])


def made_up_name(v):
    """A function or parameter name that means nothing: it can only be copied."""
    r = v.r
    a, b = v.made_up(), r.choice([v.made_up(), v.noun(), v.made_up()])
    verb = r.choice("get do run call make find use start fetch open ask tell new".split() + SPELL_WORDS)
    return r.choice([a, f"{verb}_{a}", f"{a}_{b}", f"{a}_{r.choice(['of', 'to', 'on', 'in', 'for', 'by', 'at'])}_{b}", f"{a}_{b}_{v.made_up()}", f"{a}_{b}", f"{v.noun()}_{b}", a + b.capitalize(), verb + a.capitalize(), f"{a}{r.randint(1, 99)}", f"{verb}_{v.noun()}_{b}"])


STRING, INT, NUM, BOOL = "string", "integer", "number", "boolean"
LENGTHS, WEIGHTS = "km miles metres feet inches cm".split(), "kg pounds grams ounces".split()
VOLUMES, TIMES, HEAT = "litres gallons".split(), "hours minutes seconds days".split(), "celsius fahrenheit".split()
UNIT_PAIRS = [(a, b) for kind in (LENGTHS, WEIGHTS, VOLUMES, TIMES, HEAT) for a in kind for b in kind if a != b]
LANGS = "French German Spanish Italian Polish Japanese Chinese Arabic Dutch Greek".split()


def _int(lo, hi):
    return lambda v: v.r.randint(lo, hi)


# names, more names; description; parameters: (slot, names, more names, type, description, value); requests, more requests;
# result (keys -> value maker) and answer. Names and requests of the evaluation are in held.py.
def _kind(names, more_names, text, params, requests, more_requests, outcome):
    return dict(names=names.split() + more_names.split(), text=text, params=params, requests=requests + more_requests, outcome=outcome)


def _p(slot, names, more_names, kind, text, make, **more):
    return dict(slot=slot, names=names.split() + more_names.split(), kind=kind, text=text, make=make, **more)


_CITY = _p("c", "city location place town", "where city_name", STRING, "[Name of the city|The city|City name|Place to look up]", Values.city)
KINDS = {
    "weather": _kind("get_weather weather current_weather fetch_weather weather_now getWeather check_weather weather_lookup get_forecast", "read_weather weather_report show_weather", "[Get|Look up|Return|Fetch] the [current |]weather [in a city|for a place|at a location].",
                     [_CITY], ["[What is|What's|How is] the weather [like |]in {c}[ today| now| right now|]?", "Weather in {c}[?|.|, please.]", "Is it [raining|sunny|cold|warm] in {c}?", "[Tell me|Show me|Check|Get] the weather [in|for] {c}.", "Do I need an umbrella in {c}?", "How warm is it in {c}?"],
                     ["Could you look up the weather in {c}?", "I am going to {c}. How is the weather there?", "Will I need a coat in {c}?"],
                     (lambda v, a: {"temperature": v.r.randint(-9, 38), "condition": v.r.choice(["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear"])}, "It is {temperature} degrees and {condition} in {c}.", ["{temperature} degrees"])),
    "timer": _kind("set_timer start_timer timer create_timer new_timer countdown setTimer", "begin_timer timer_start", "[Start|Set|Create] a timer [for some minutes|with a number of minutes|].",
                   [_p("n", "minutes duration_minutes mins duration length", "time_minutes total_minutes", INT, "[Number of minutes|Minutes|How many minutes|Duration in minutes]", _int(1, 180))],
                   ["[Set|Start|Create] a timer for {n} minutes.", "[Set|Start] a {n} minute timer.", "Timer {n} minutes[.|, please.]", "Wake me in {n} minutes.", "Can you [set|start] a timer for {n} minutes?", "Count down {n} minutes.", "I need a timer for {n} minutes."],
                   ["Please let me know when {n} minutes are over.", "Run a timer of {n} minutes.", "Give me a {n} minutes timer."],
                   (lambda v, a: {"status": "started"}, "The timer for {n} minutes is started.", ["{n} minutes"])),
    "calc_op": _kind("calculator calculate compute arithmetic math_op do_math", "number_tool reckon", "[Do|Perform] [a calculation|arithmetic] with two numbers.",
                     [_p("a", "a x left first", "number1", NUM, "[First number|Left operand]", lambda v: v.r.randint(2, 9999)), _p("op", "operation op operator", "action", STRING, "[What to do|The operation]", lambda v: v.r.choice(["add", "subtract", "multiply", "divide"]), enum=["add", "subtract", "multiply", "divide"]),
                      _p("b", "b y right second", "number2", NUM, "[Second number|Right operand]", lambda v: v.r.randint(2, 9999))],
                     ["[What is|Calculate|Compute|How much is|Work out] {a} {sym} {b}[?|.|]", "{a} {sym} {b}", "[Can|Could] you [compute|calculate] {a} {sym} {b}?", "Use the calculator: {a} {sym} {b}"], ["What comes out of {a} {sym} {b}?", "Evaluate {a} {sym} {b}."],
                     (lambda v, a: {"result": v.r.randint(2, 99999)}, "The result is {result}.", ["{result}"])),
    "calc_text": _kind("calculator calculate eval_expression compute evaluate solve", "work_out expression_tool", "[Evaluate|Compute|Work out] [an expression|an arithmetic expression].",
                       [_p("e", "expression expr formula input", "calculation", STRING, "[The expression|Expression to evaluate]", lambda v: v.r.choice(["{} * {}", "{} + {}", "{} - {}", "{} / {}", "({} + {}) * 2", "{}*{}", "{}+{}"]).format(v.r.randint(2, 9999), v.r.randint(2, 999)))],
                       ["[What is|Calculate|Compute|How much is|Work out] {e}[?|]", "{e}", "[Can|Could] you [compute|calculate] {e}?", "Use the calculator: {e}"], ["What comes out of {e}?", "Evaluate {e}"],
                       (lambda v, a: {"result": v.r.randint(2, 99999)}, "The result is {result}.", ["{result}"])),
    "search": _kind("search web_search google search_web find_online lookup query_web internet_search", "online_search seek_web", "Search [the web|the internet|online] [for a query|].",
                    [_p("q", "query q text search_terms keywords", "phrase terms", STRING, "[What to search for|Search query|The words to look for]", Values.query)],
                    ["[Search|Look] [the web |the internet |online |]for {q}[.|]", "[Find|Google] {q}[.|]", "Can you search for {q}?", "Search: {q}", "Please search the web for {q}[.|]", "I want to find {q} online."],
                    ["Do a web search for {q}", "Could you look online for {q}?", "What does the web say about {q}?"],
                    (lambda v, a: {"title": v.title(), "url": "https://" + v.made_up() + ".example"}, "I found {title} at {url}.", ["{title}"])),
    "message": _kind("send_message message text send_text send_sms notify write_message sendMessage", "post_message deliver_message", "Send a [text |short |]message to [a person|someone|a contact].",
                     [_p("p", "to recipient person contact name", "receiver addressee", STRING, "[Who gets the message|Name of the person|Recipient]", Values.person), _p("t", "text message body content", "words msg", STRING, "[Text of the message|What to say|Message text]", Values.sentence)],
                     ["[Send|Text|Write] {p} the message \"{t}\".", "[Send|Write] a message to {p}: {t}", "[Tell|Text|Message] {p}: {t}", "Send \"{t}\" to {p}.", "Message {p} saying {t}", "[Can|Could] you [text|tell] {p} \"{t}\"?"], ["Let {p} know: {t}", "Please write to {p} \"{t}\"."],
                     (lambda v, a: {"status": "sent"}, "The message to {p} is sent.", ["{p}"])),
    "convert": _kind("convert convert_units unit_converter convert_unit units", "change_units transform_units", "Convert [a value|a number] from one unit to another.",
                     [_p("n", "value amount number quantity", "magnitude", NUM, "[The value|Amount to convert]", Values.number), _p("f", "from_unit from source_unit unit_from", "start_unit", STRING, "[Unit of the value|Unit to convert from]", lambda v: v.unit_pair()[0]),
                      _p("g", "to_unit to target_unit unit_to", "goal_unit", STRING, "[Wanted unit|Unit to convert to]", lambda v: v.unit_pair()[1])],
                     ["[Convert|Change] {n} {f} [to|into] {g}.", "How many {g} [are|is] {n} {f}?", "[What is|What's] {n} {f} in {g}?", "{n} {f} [in|to] {g}", "{n} {f} is how many {g}?"], ["Express {n} {f} in {g}.", "Tell me {n} {f} as {g}."],
                     (lambda v, a: {"result": v.r.randint(1, 9999)}, "{n} {f} is {result} {g}.", ["{result} {g}"])),
    "music": _kind("play_music play play_song music_player start_music", "put_on_song run_music", "Play [a song|music|a track].",
                   [_p("s", "song title track name", "song_name", STRING, "[Title of the song|Song title]", Values.title)],
                   ["Play {s}.", "[Can|Could] you play {s}?", "Play the song {s}.", "I want to hear {s}.", "Put on {s}."], ["Let me listen to {s}.", "Start the track {s}."],
                   (lambda v, a: {"status": "playing"}, "Now playing {s}.", ["{s}"])),
    "remind": _kind("create_reminder remind_me add_reminder reminder set_reminder", "make_reminder reminder_add", "[Create|Set|Add] a reminder.",
                    [_p("w", "text task what title", "todo", STRING, "[What to remember|Text of the reminder]", lambda v: v.r.choice(["buy a {}", "call {}", "water the {}", "clean the {}", "pay for the {}", "fix the {}"]).format(v.thing())), _p("h", "time at when", "moment", STRING, "[Time of the reminder|When to remind]", Values.clock)],
                    ["Remind me to {w} at {h}.", "[Set|Create|Add] a reminder to {w} at {h}.", "At {h} remind me to {w}.", "Can you remind me at {h} to {w}?"], ["I must {w} at {h}, please remind me.", "Make a reminder for {h}: {w}"],
                    (lambda v, a: {"status": "saved"}, "I will remind you to {w} at {h}.", ["{w}"])),
    "translate": _kind("translate translate_text translator", "turn_into_language render_text", "Translate [text|a text] into [another|a] language.",
                       [_p("t", "text phrase input", "source_text", STRING, "[Text to translate|The text]", Values.sentence), _p("l", "target_language language to", "into_language", STRING, "[Language to translate into|Target language]", lambda v: v.r.choice(LANGS))],
                       ["Translate \"{t}\" [to|into] {l}.", "How do you say \"{t}\" in {l}?", "What is \"{t}\" in {l}?", "[Can|Could] you translate \"{t}\" into {l}?", "Translate to {l}: {t}"], ["Say \"{t}\" in {l}.", "Put \"{t}\" into {l}, please."],
                       (lambda v, a: {"translation": v.made_up() + " " + v.made_up()}, "In {l} it is: {translation}", ["{translation}"])),
    "light": _kind("set_light light switch_light control_light toggle_light", "lamp_switch change_light", "[Switch|Turn] the light of a room on or off.",
                   [_p("o", "room place area", "room_name", STRING, "[Name of the room|Which room]", lambda v: v.r.choice("kitchen,bedroom,bathroom,hall,garage,office,garden,attic,cellar,living room".split(","))), _p("b", "on state is_on", "power_on", BOOL, "[true for on, false for off|Whether the light is on]", lambda v: v.r.random() < 0.5)],
                   ["[Turn|Switch] {onoff} the light in the {o}.", "[Turn|Switch] the {o} light {onoff}.", "Light {onoff} in the {o}.", "[Can|Could] you [turn|switch] {onoff} the {o} light?"], ["Please put the light in the {o} {onoff}.", "The light in the {o} should be {onoff}."],
                   (lambda v, a: {"status": "ok"}, "The light in the {o} is {onoff}.", ["{onoff}"])),
    "shopping": _kind("add_to_list add_item shopping_list add_to_cart", "put_on_list list_add", "Add [an item|something] to the shopping list.",
                      [_p("i", "item product name", "goods", STRING, "[What to buy|The item]", Values.thing), _p("n", "quantity count amount", "how_many", INT, "[How many|Number of items]", _int(1, 30))],
                      ["Add {n} {i} to [my|the] [shopping list|list|cart].", "Put {n} {i} on the list.", "I need to buy {n} {i}.", "[Can|Could] you add {n} {i} to my list?", "{n} {i} for the shopping list."], ["Please note {n} {i} for shopping.", "My list needs {n} {i}."],
                      (lambda v, a: {"status": "added"}, "I added {n} {i} to the list.", ["{n} {i}"])),
    "clock": _kind("get_time current_time time_in world_clock local_time", "read_clock show_time", "[Get|Return] the [current |local |]time in a city.", [_CITY],
                   ["What time is it in {c}?", "[What is|What's] the time in {c}?", "Time in {c}?", "[Tell me|Get|Show] the [local |]time in {c}.", "How late is it in {c}?"], ["Could you check the clock in {c}?", "I want to know the time in {c}."],
                   (lambda v, a: {"time": f"{v.r.randint(0, 23)}:{v.r.randint(10, 59)}"}, "It is {time} in {c}.", ["{time}"])),
    "file": _kind("read_file open_file load_file cat_file view_file", "show_file get_file", "[Read|Open|Show] a file.",
                  [_p("f", "path file filename file_path", "file_name", STRING, "[Path of the file|The file to open]", Values.path)],
                  ["[Read|Open|Show|Show me|Print] [the file |]{f}", "What is in {f}?", "[Can|Could] you [open|read] {f}?", "What does [the file |]{f} [say|contain]?"], ["Let me see {f}", "Display the file {f}"],
                  (lambda v, a: {"content": v.sentence()}, "The file {f} says: {content}", ["{content}"])),
    "order": _kind("get_order order_status track_order lookup_order find_order", "check_order where_is_order", "[Get|Look up|Return] the status of an order.",
                   [_p("k", "order_id id order number", "order_code", STRING, "[Id of the order|Order number]", Values.code)],
                   ["Where is [my |]order {k}?", "[What is|What's] the status of order {k}?", "Track [the |]order {k}.", "[Check|Find|Look up] order {k}.", "Status of {k}?", "Has order {k} [arrived|shipped]?"], ["When will {k} arrive?", "I am waiting for order {k}."],
                   (lambda v, a: {"status": v.r.choice(["shipped", "delivered", "delayed", "packed", "cancelled"])}, "Order {k} is {status}.", ["{status}"])),
}
ATTRIBUTES = "price height age colour rating owner status weight size address phone email score date length speed title author level salary balance version location country".split()
_TYPE = "book product employee city user student car team movie hotel ticket planet animal server project invoice song company game package".split()


def _generic(c):
    """A lookup tool with a name put together at random: the schema must be read."""
    r = c.rng
    while True:
        attr, kind = r.choice(ATTRIBUTES), r.choice(_TYPE)
        if is_held("lookup", attr, kind, one_in=8) == c.held:
            break
    param = r.choice([kind, "name", f"{kind}_name", "id", f"{kind}_id", r.choice(["key", "item", "target"])])
    make = r.choice([Values.title, Values.code, Values.person, Values.made_up])
    return _kind(r.choice([f"get_{attr}", f"fetch_{kind}_{attr}", f"{kind}_{attr}", f"find_{attr}", f"lookup_{attr}", f"get_{kind}_{attr}"]), r.choice([f"read_{kind}_{attr}", f"obtain_{attr}", f"{attr}_of_{kind}"]),
                 f"[Get|Find|Look up|Return] the {attr} of a {kind}.", [_p("x", param, param, STRING, f"[Name of the {kind}|The {kind}|Id of the {kind}]", make)],
                 [f"[What is|What's|Tell me|Get|Find|Look up|Show me] the {attr} of [the {kind} |]{{x}}[?|.|]", f"[Give me|I need|Show] {{x}}'s {attr}[.|]", f"{attr} of {{x}}[?|]", f"What {attr} does {{x}} have?"],
                 [f"Which {attr} has the {kind} {{x}}?", f"Could you look up the {attr} for {{x}}?"],
                 (lambda v, a: {attr: v.r.choice([v.r.randint(1, 9999), v.made_up(), v.thing()])}, f"The {attr} of {{x}} is {{{attr}}}.", [f"{{{attr}}}"])) | dict(attr=attr, of=kind)


SYMBOL = {"add": ["+", "plus"], "subtract": ["-", "minus"], "multiply": ["*", "x", "times"], "divide": ["/", "divided by"]}


_COMMON = sorted({n for k in KINDS.values() for p in k["params"] for n in p["names"]} | set(ATTRIBUTES) | set(_TYPE))


def _held_names(kind, k):
    if kind == "generic":
        return [n.format(kind=k["of"], attr=k["attr"]) for n in held.LOOKUP_NAMES]
    return held.TOOL_NAMES[kind].split()


def build(c, kind=None):
    """One concrete tool: schema, and what is needed for a request and its call. In
    training most names mean nothing or belong elsewhere: the schema must be read."""
    r, v = c.rng, Values(c)
    name = kind or (r.choice(list(KINDS)) if r.random() < 0.72 else "generic")
    k = _generic(c) if name == "generic" else KINDS[name]
    new = c.held and r.random() < 0.7
    strange = not c.held and r.random() < 0.65
    fname = made_up_name(v) if strange and r.random() < 0.85 else r.choice(_held_names(name, k) if new else k["names"])
    params, props, required = [], {}, []
    for p in k["params"]:
        strangers = held.PARAM_NAMES.get(f"{name}.{p['slot']}", held.PARAM_NAMES.get(p["slot"], "")).split()
        names = strangers if new and strangers and r.random() < 0.6 else p["names"]
        pool = [n for n in names if n not in props] or [p["slot"] + "_value"]
        k2 = r.random()
        pname = made_up_name(v) if strange and k2 < 0.5 else r.choice(_COMMON) if strange and k2 < 0.8 else r.choice(pool)
        if pname in props:
            pname += "2"
        schema = {"type": p["kind"]}
        if strange or r.random() < 0.85:
            schema["description"] = expand(p["text"], r) + r.choice(["", "."])
        if "enum" in p:
            schema["enum"] = p["enum"]
        props[pname] = schema
        required.append(pname)
        params.append((p, pname))
    function = {"name": fname}
    if strange or r.random() < 0.93:
        function["description"] = expand(k["text"], r)
    function["parameters"] = {"type": "object", "properties": props, "required": required}
    return dict(kind=name, spec=k, params=params, schema={"type": "function", "function": function}, name=fname)


def _held_requests(tool):
    k = tool["spec"]
    return [t.replace("{attr}", k["attr"]) for t in held.REQUESTS["generic"]] if tool["kind"] == "generic" else held.REQUESTS[tool["kind"]]


def request(c, tool):
    """(user text, arguments, slot values) for a tool."""
    v = Values(c)
    slots = {p["slot"]: p["make"](v) for p, _ in tool["params"]}
    arguments = {pname: slots[p["slot"]] for p, pname in tool["params"]}
    shown = dict(slots)
    if "op" in slots:
        shown["sym"] = c.rng.choice(SYMBOL[slots["op"]])
    if tool["kind"] == "light":
        shown["onoff"] = "on" if slots["b"] else "off"
    template = c.template(tool["spec"]["requests"], _held_requests(tool) if c.held else (), loose=0.1)
    text = template.format(**shown)
    return text[0].upper() + text[1:] if template[0] != "{" else text, arguments, shown


def toolbox(c, tool, extra=None):
    """The tool among up to three others of other kinds, in random order."""
    r = c.rng
    n = r.choice([0, 0, 1, 1, 2, 3]) if extra is None else extra
    clash = {"calc_op": "calc", "calc_text": "calc"}
    box, seen, names = [tool], {clash.get(tool["kind"], tool["kind"])}, {tool["name"]}
    while len(box) <= n:
        other = build(c)
        k = clash.get(other["kind"], other["kind"])
        if k in seen or other["name"] in names:
            continue
        seen.add(k), names.add(other["name"])
        box.append(other)
    r.shuffle(box)
    return box


def outcome(c, tool, shown):
    """(tool message text, answer, what the answer must contain)."""
    v = Values(c)
    if c.rng.random() < 0.08:
        error = c.rng.choice(["not found", "no connection", "access denied", "timeout", "service is down"])
        return json.dumps({"error": error}), f"The tool reported an error: {error}.", [error]
    make, answer, needs = tool["spec"]["outcome"]
    got = make(v, shown)
    values = {**shown, **got}
    text = json.dumps(got) if c.rng.random() < 0.8 else ", ".join(f"{k}: {x}" for k, x in got.items())
    answer = answer.format(**values)
    answer += "" if answer[-1] in ".?!" else "." if tool["kind"] not in ("file", "translate") else ""
    return text, answer[0].upper() + answer[1:], [n.format(**values) for n in needs]
