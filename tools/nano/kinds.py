"""The kinds of tools: names, descriptions, parameters and results. The requests
are in phrases/requests_*.txt, under "tool_KIND".

Of the names of functions and parameters a fixed hash sets one in four aside
for the evaluation (`split_names`)."""
from grammar import is_held
from values import LANGS, ROOMS, Values

STRING, INT, NUM, BOOL = "string", "integer", "number", "boolean"


def split_names(names, held):
    """Those of the names that training (or the evaluation) uses; all where the hash leaves none."""
    return [n for n in names if is_held("name", n, one_in=4) == held] or list(names)


# names; description; parameters; result (key -> value), answer, what the answer must contain.
def _kind(names, text, params, outcome):
    return dict(names=names.split(), text=text, params=params, outcome=outcome)


# slot in the request; names; type; description; value.
def _p(slot, names, kind, text, make, **more):
    return dict(slot=slot, names=names.split(), kind=kind, text=text, make=make, **more)


def _int(lo, hi):
    return lambda v: v.r.randint(lo, hi)


def _operand(v):
    return v.r.randint(2, 9999)


def _formula(v):
    return v.r.choice(["{} * {}", "{} + {}", "{} - {}", "{} / {}", "({} + {}) * 2", "{}*{}", "{}+{}"]).format(v.r.randint(2, 9999), v.r.randint(2, 999))


def _number(lo, hi):
    return lambda v, a: {"result": v.r.randint(lo, hi)}


def _status(word):
    return lambda v, a: {"status": word}


_CITY = _p("c", "city location place town where city_name spot municipality settlement locality area_name destination at_place town_name", STRING,
           "[Name of the city|The city|City name|Place to look up|Which city|The town or city]", Values.city)
_OPS = ["add", "subtract", "multiply", "divide"]

KINDS = {
    "weather": _kind(
        """get_weather weather current_weather fetch_weather weather_now getWeather check_weather weather_lookup get_forecast read_weather weather_report show_weather
        outdoor_report sky_conditions tell_weather weather_in forecast_for climate_now temperature_report city_weather ask_weather weather_info""",
        "[Get|Look up|Return|Fetch|Tell|Report] the [current |]weather [in a city|for a place|at a location|of a town].", [_CITY],
        (lambda v, a: {"temperature": v.r.randint(-9, 38), "condition": v.r.choice(["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear"])},
         "It is {temperature} degrees and {condition} in {c}.", ["{temperature} degrees"])),
    "timer": _kind(
        """set_timer start_timer timer create_timer new_timer countdown setTimer begin_timer timer_start ring_after alarm_minutes run_timer kitchen_timer
        timer_minutes start_countdown alarm_in wake_after count_minutes set_countdown timer_set""",
        "[Start|Set|Create|Run] a [timer|countdown] [for some minutes|with a number of minutes|that rings after some minutes|].",
        [_p("n", "minutes duration_minutes mins duration length time_minutes total_minutes amount_wanted how_long period for_minutes wait_minutes run_time", INT,
            "[Number of minutes|Minutes|How many minutes|Duration in minutes|Length in minutes]", _int(1, 180))],
        (_status("started"), "The timer for {n} minutes is started.", ["{n} minutes"])),
    "calc_op": _kind(
        """calculator calculate compute arithmetic math_op do_math number_tool reckon two_number_math apply_operation calc basic_math math_with_two
        run_arithmetic combine_numbers calc_two work_numbers operate""",
        "[Do|Perform|Run] [a calculation|arithmetic|an operation] with two numbers.",
        [_p("a", "a x left first number1 operand1 first_number num1 left_value value1", NUM, "[First number|Left operand|The first of the numbers]", _operand),
         _p("op", "operation op operator action kind_of_math calculation_type method math_operation what_to_do", STRING, "[What to do|The operation|Which operation]", lambda v: v.r.choice(_OPS), enum=_OPS),
         _p("b", "b y right second number2 operand2 second_number num2 right_value value2", NUM, "[Second number|Right operand|The second of the numbers]", _operand)],
        (_number(2, 99999), "The result is {result}.", ["{result}"])),
    "calc_text": _kind(
        """calculator calculate eval_expression compute evaluate solve work_out expression_tool formula_result math_answer calc_string solve_expression
        evaluate_formula run_formula math_text expression_value eval_math""",
        "[Evaluate|Compute|Work out|Calculate] [an expression|an arithmetic expression|a formula].",
        [_p("e", "expression expr formula input calculation math_string term problem math_text sum_text equation", STRING, "[The expression|Expression to evaluate|The formula|What to calculate]", _formula)],
        (_number(2, 99999), "The result is {result}.", ["{result}"])),
    "search": _kind(
        """search web_search google search_web find_online lookup query_web internet_search online_search seek_web browse_for net_query web_lookup
        search_internet find_pages web_find browse_web look_online ask_web page_search""",
        "[Search|Look through|Browse] [the web|the internet|online pages] [for a query|for some words|].",
        [_p("q", "query q text search_terms keywords phrase terms needle wanted search_text what_to_find topic search_for subject", STRING, "[What to search for|Search query|The words to look for|What to look up]", Values.query)],
        (lambda v, a: {"title": v.title(), "url": "https://" + v.made_up() + ".example"}, "I found {title} at {url}.", ["{title}"])),
    "message": _kind(
        """send_message message text send_text send_sms notify write_message sendMessage post_message deliver_message drop_note contact_person text_person
        send_note write_to message_person sms pass_message tell_person chat_send""",
        "[Send|Write|Deliver] a [text |short |]message to [a person|someone|a contact].",
        [_p("p", "to recipient person contact name receiver addressee who reach send_to for_person friend to_person", STRING, "[Who gets the message|Name of the person|Recipient|The person to write to]", Values.person),
         _p("t", "text message body content words msg sentence note_text message_text what_to_say letter_text say", STRING, "[Text of the message|What to say|Message text|The words to send]", Values.sentence)],
        (_status("sent"), "The message to {p} is sent.", ["{p}"])),
    "convert": _kind(
        """convert convert_units unit_converter convert_unit units change_units transform_units unit_swap express_in to_unit_value unit_change measure_convert
        convert_measure unit_calc convert_amount switch_units value_in_unit""",
        "[Convert|Change|Turn] [a value|a number|an amount] from one unit [to|into] another.",
        [_p("n", "value amount number quantity magnitude how_much count figure size_value", NUM, "[The value|Amount to convert|The number]", Values.number),
         _p("f", "from_unit from source_unit unit_from start_unit begin_with given_unit old_unit unit_of_value in_unit", STRING, "[Unit of the value|Unit to convert from|The given unit]", lambda v: v.unit_pair()[0]),
         _p("g", "to_unit to target_unit unit_to goal_unit end_with wanted_unit new_unit result_unit out_unit", STRING, "[Wanted unit|Unit to convert to|The unit of the result]", lambda v: v.unit_pair()[1])],
        (_number(1, 9999), "{n} {f} is {result} {g}.", ["{result} {g}"])),
    "music": _kind(
        """play_music play play_song music_player start_music put_on_song run_music jukebox listen_to play_track start_song song_player music_start
        hear_song play_title audio_play""",
        "[Play|Start] [a song|music|a track].",
        [_p("s", "song title track name song_name track_wanted song_title piece tune track_name what_to_play", STRING, "[Title of the song|Song title|The song to play|Which song]", Values.title)],
        (_status("playing"), "Now playing {s}.", ["{s}"])),
    "remind": _kind(
        """create_reminder remind_me add_reminder reminder set_reminder make_reminder reminder_add memo_at nudge_me new_reminder save_reminder remember_at
        remind_at task_reminder plan_reminder remind""",
        "[Create|Set|Add|Save] a reminder [for a time|with a task and a time|].",
        [_p("w", "text task what title todo duty reminder_text job to_do thing_to_do memo", STRING, "[What to remember|Text of the reminder|The task]", Values.duty),
         _p("h", "time at when moment clock_time due remind_time hour at_time due_time", STRING, "[Time of the reminder|When to remind|At what time]", Values.clock)],
        (_status("saved"), "I will remind you to {w} at {h}.", ["{w}"])),
    "translate": _kind(
        """translate translate_text translator turn_into_language render_text language_switch word_exchange translation translate_to say_in_language
        language_tool text_translation interpret change_language translate_words""",
        "[Translate|Turn|Render] [text|a text|words] into [another|a] language.",
        [_p("t", "text phrase input source_text original wording sentence words to_translate text_in", STRING, "[Text to translate|The text|The words to translate]", Values.sentence),
         _p("l", "target_language language to into_language tongue lang target into speech output_language", STRING, "[Language to translate into|Target language|The wanted language]", lambda v: v.r.choice(LANGS))],
        (lambda v, a: {"translation": v.made_up() + " " + v.made_up()}, "In {l} it is: {translation}", ["{translation}"])),
    "light": _kind(
        """set_light light switch_light control_light toggle_light lamp_switch change_light brightness_switch illuminate room_light light_switch
        turn_light lights lamp_control set_lamp""",
        "[Switch|Turn] the [light|lamp] of a room on or off.",
        [_p("o", "room place area room_name indoor_place which_room where in_room zone chamber", STRING, "[Name of the room|Which room|The room]", lambda v: v.r.choice(ROOMS)),
         _p("b", "on state is_on power_on lit switched_on turn_on enabled active light_on", BOOL, "[true for on, false for off|Whether the light is on|On or off]", lambda v: v.r.random() < 0.5)],
        (_status("ok"), "The light in the {o} is {onoff}.", ["{onoff}"])),
    "shopping": _kind(
        """add_to_list add_item shopping_list add_to_cart put_on_list list_add basket_add buy_later shopping_add cart_add note_item add_shopping
        list_item put_in_cart to_buy""",
        "[Add|Put|Note] [an item|something] [to|on] the shopping list.",
        [_p("i", "item product name goods ware article thing what_to_buy item_name object", STRING, "[What to buy|The item|Name of the item]", Values.thing),
         _p("n", "quantity count amount how_many item_count pieces_wanted pieces number units_wanted total", INT, "[How many|Number of items|The number of pieces]", _int(1, 30))],
        (_status("added"), "I added {n} {i} to the list.", ["{n} {i}"])),
    "clock": _kind(
        """get_time current_time time_in world_clock local_time read_clock show_time hour_in tell_time time_now city_time clock time_of_city check_time
        getTime clock_in what_time""",
        "[Get|Return|Tell|Show] the [current |local |]time [in a city|of a place|in a town].", [_CITY],
        (lambda v, a: {"time": f"{v.r.randint(0, 23)}:{v.r.randint(10, 59)}"}, "It is {time} in {c}.", ["{time}"])),
    "file": _kind(
        """read_file open_file load_file cat_file view_file show_file get_file print_document inspect_path read_text file_content open_path display_file
        load_text file_reader see_file readFile""",
        "[Read|Open|Show|Print] a [text |]file.",
        [_p("f", "path file filename file_path file_name document source location_of_file which_file doc text_file", STRING, "[Path of the file|The file to open|Which file|Name of the file]", Values.path)],
        (lambda v, a: {"content": v.sentence()}, "The file {f} says: {content}", ["{content}"])),
    "order": _kind(
        """get_order order_status track_order lookup_order find_order check_order where_is_order parcel_state shipment_info order_info track_parcel
        order_lookup delivery_status follow_order shipment_status trackOrder""",
        "[Get|Look up|Return|Check] the [status|state] of an order.",
        [_p("k", "order_id id order number order_code parcel_id order_number reference tracking_code shipment", STRING, "[Id of the order|Order number|Code of the order]", Values.code)],
        (lambda v, a: {"status": v.r.choice(["shipped", "delivered", "delayed", "packed", "cancelled"])}, "Order {k} is {status}.", ["{status}"])),
}

# Tools that are easily taken for each other; half of the distractors come from here.
NEAR = [{"weather", "clock", "generic"}, {"timer", "remind", "clock"}, {"search", "file", "order", "generic"}, {"message", "translate", "remind"},
        {"calc_op", "convert", "timer"}, {"calc_text", "convert", "search"}, {"music", "light", "search"}, {"shopping", "remind", "order", "message"}]

# Look-up tools: "the ATTRIBUTE of a TYPE".
ATTRIBUTES = """price height age colour rating owner status weight size address phone email score date length speed title author level salary balance version location country
width capacity language brand model type name rank deadline budget duration manager""".split()
TYPES = """book product employee city user student car team movie hotel ticket planet animal server project invoice song company game package machine teacher device lake
contract building school account plant article""".split()
LOOKUP_NAMES = """get_{attr} fetch_{of}_{attr} {of}_{attr} find_{attr} lookup_{attr} get_{of}_{attr} read_{of}_{attr} obtain_{attr} {attr}_of_{of} {of}_info_{attr} show_{attr}_for
{attr}_finder query_{attr} {attr}_by_{of} ask_{of}_{attr} load_{of}_{attr} {attr}_service which_{attr} check_{of}_{attr} {attr}_lookup tell_{of}_{attr} return_{attr} {of}_{attr}_query find_{of}_{attr}""".split()
LOOKUP_PARAMS = "{of} name {of}_name id {of}_id key item target which {of}_code label entry reference wanted_{of} record {of}_key".split()


def lookup(c):
    """A look-up tool put together at random: the schema must be read."""
    r = c.rng
    while True:
        attr, of = r.choice(ATTRIBUTES), r.choice(TYPES)
        if is_held("lookup", attr, of, one_in=8) == c.held:
            break
    fill = lambda patterns: " ".join(split_names(patterns, c.held)).format(of=of, attr=attr)
    make = r.choice([Values.title, Values.code, Values.person, Values.made_up])
    param = _p("x", fill(LOOKUP_PARAMS), STRING, f"[Name of the {of}|The {of}|Id of the {of}|Which {of}]", make)
    spec = _kind(fill(LOOKUP_NAMES), f"[Get|Find|Look up|Return|Show] the {attr} of a {of}.", [param],
                 (lambda v, a: {attr: v.r.choice([v.r.randint(1, 9999), v.made_up(), v.thing()])}, f"The {attr} of {{x}} is {{{attr}}}.", [f"{{{attr}}}"]))
    return spec | dict(attr=attr, of=of)


COMMON = sorted({n for k in KINDS.values() for p in k["params"] for n in split_names(p["names"], False)} | set(split_names(ATTRIBUTES, False)) | set(split_names(TYPES, False)))
HELD_NAMES = frozenset(n for k in KINDS.values() for names in (k["names"], *(p["names"] for p in k["params"])) for n in names if is_held("name", n, one_in=4))
