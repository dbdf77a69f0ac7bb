"""Conversations, stories, spoken sentences and paraphrases from a small grammar. Everything follows from the seed."""

import random

from chat import Example

NAMES = "Mia Leo Anna Ben Clara David Emma Felix Grace Hugo Ivy Jack Kate Liam Nora Oscar Paul Rosa Sam Tom".split()
SHE = set("Mia Anna Clara Emma Grace Ivy Kate Nora Rosa".split())
CITIES = "Paris London Rome Berlin Madrid Oslo Vienna Cairo Tokyo Delhi Athens Lisbon Dublin Prague Lima".split()
PLACES = "garden kitchen market school park library harbour forest station museum bakery farm".split()
COLOURS = "red green blue yellow orange purple black white brown pink".split()
THINGS = "ball book key hat cup lamp box coat bag kite drum boat clock ring basket umbrella".split()
ANIMALS = "dog cat horse bird rabbit fox cow duck goat mouse".split()
FOODS = "apple pear plum lemon bread cheese cake soup egg carrot".split()
SIZES = "small big old new little heavy".split()
WEATHER = "sunny cloudy rainy windy snowy foggy".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()
JOBS = "baker doctor teacher farmer sailor painter singer cook driver gardener".split()

FACTS = [
    (["What is the capital of {0}?", "Name the capital of {0}."], "The capital of {0} is {1}.", [
        ("France", "Paris"), ("Italy", "Rome"), ("Germany", "Berlin"), ("Spain", "Madrid"), ("Norway", "Oslo"),
        ("Austria", "Vienna"), ("Egypt", "Cairo"), ("Japan", "Tokyo"), ("India", "Delhi"), ("Greece", "Athens"),
        ("Portugal", "Lisbon"), ("Ireland", "Dublin"), ("Peru", "Lima"), ("England", "London")]),
    (["What colour is {0}?", "Which colour does {0} have?"], "{0} is {1}.", [
        ("grass", "green"), ("snow", "white"), ("the sky", "blue"), ("coal", "black"), ("a lemon", "yellow"),
        ("blood", "red"), ("chocolate", "brown"), ("a carrot", "orange"), ("a banana", "yellow"), ("milk", "white")]),
    (["What does {0} say?", "Which sound does {0} make?"], "{0} says {1}.", [
        ("a dog", "woof"), ("a cat", "meow"), ("a cow", "moo"), ("a duck", "quack"), ("a sheep", "baa"),
        ("a lion", "roar"), ("a bee", "buzz"), ("a pig", "oink"), ("an owl", "hoot"), ("a mouse", "squeak")]),
    (["What is the opposite of {0}?", "Tell me the opposite of {0}."], "The opposite of {0} is {1}.", [
        ("hot", "cold"), ("big", "small"), ("up", "down"), ("day", "night"), ("old", "new"), ("fast", "slow"),
        ("open", "closed"), ("light", "dark"), ("happy", "sad"), ("full", "empty"), ("left", "right"), ("wet", "dry")]),
    (["What do {0} make when mixed?", "Which colour comes from mixing {0}?"], "{0} make {1}.", [
        ("red and blue", "purple"), ("red and yellow", "orange"), ("blue and yellow", "green"),
        ("black and white", "grey"), ("red and white", "pink")]),
    (["How many legs does {0} have?"], "{0} has {1} legs.", [
        ("a dog", "four"), ("a bird", "two"), ("a spider", "eight"), ("a cow", "four"), ("a bee", "six"),
        ("a person", "two"), ("a horse", "four"), ("a duck", "two")]),
    (["What day comes after {0}?", "Which day follows {0}?"], "{1} comes after {0}.",
        [(day, DAYS[(i + 1) % 7]) for i, day in enumerate(DAYS)]),
    (["Which month comes after {0}?", "What month follows {0}?"], "{1} comes after {0}.",
        [(month, MONTHS[(i + 1) % 12]) for i, month in enumerate(MONTHS)]),
    (["Who {0}?"], "{1} {0}.", [
        ("bakes bread", "A baker"), ("heals the sick", "A doctor"), ("works in a school", "A teacher"),
        ("grows food on a farm", "A farmer"), ("sails a ship", "A sailor"), ("paints pictures", "A painter"),
        ("sings songs", "A singer"), ("drives a bus", "A driver"), ("looks after a garden", "A gardener")]),
]  # fmt: skip

CHAT = [
    (["Hello!", "Hi.", "Good morning.", "Hello there."], "Hello! What can I do for you?"),
    (["Who are you?", "What are you?", "What is your name?"], "I am Pocket, a very small model that came with jird."),
    (["What can you do?", "How can you help me?"], "I can answer small questions, describe simple pictures, write down short speech and tell short stories."),
    (["Thank you!", "Thanks.", "Thanks a lot."], "You are welcome!"),
    (["Goodbye.", "Bye!", "See you later."], "Goodbye! Come back soon."),
    (["How are you?", "How are you today?"], "I am well, thank you. How are you?"),
]  # fmt: skip


def capital(text):
    return text[0].upper() + text[1:]


def pronoun(name):
    return "She" if name in SHE else "He"


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def user(text):
    return {"role": "user", "content": text}


def model(text):
    return {"role": "assistant", "content": text}


def dialogue(turns, rng, system=None):
    """An example from `(question, answer)` pairs, now and then with a system message."""
    messages = [{"role": "system", "content": system}] if system else []
    for question, answer in turns[:-1]:
        messages += [user(question), model(answer)]
    return Example([*messages, user(turns[-1][0])], turns[-1][1], kind="qa")


def fact_turn(rng):
    questions, answer, pairs = rng.choice(FACTS)
    pair = rng.choice(pairs)
    return rng.choice(questions).format(*pair), capital(answer.format(*pair))


def facts(rng):
    return dialogue([fact_turn(rng) for _ in range(rng.choice([1, 1, 2]))], rng)


def chat(rng):
    turns = [(rng.choice(asks), answer) for asks, answer in rng.sample(CHAT, rng.choice([1, 2]))]
    return dialogue(turns, rng)


OPERATIONS = {"plus": lambda a, b: a + b, "minus": lambda a, b: a - b, "times": lambda a, b: a * b}


def operands(rng, word, a=None):
    """Operands of the tables: sums and differences up to 20, products of factors up to 10."""
    if word == "times":
        return (a if a is not None else rng.randint(0, 10)), rng.randint(0, 10)
    if word == "plus":
        a = rng.randint(0, 20) if a is None else a
        return a, rng.randint(0, 20 - a)
    a = rng.randint(0, 20) if a is None else a
    return a, rng.randint(0, a)


def arithmetic(rng):
    word = rng.choice(list(OPERATIONS))
    a, b = operands(rng, word)
    result = OPERATIONS[word](a, b)
    symbol = {"plus": "+", "minus": "-", "times": "*"}[word]
    ask = rng.choice([f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?", f"Compute {a} {symbol} {b}."])
    turns = [(ask, f"{a} {word} {b} is {result}.")]
    if 0 <= result <= 20 and rng.random() < 0.5:
        word = rng.choice(["plus", "minus"])
        _, b = operands(rng, word, result)
        turns.append((rng.choice([f"And {word} {b}?", f"Now {word} {b}."]), f"{result} {word} {b} is {OPERATIONS[word](result, b)}."))
    return dialogue(turns, rng)


def thinking(rng):
    """A sum of two steps, thought through before it is answered."""
    first, second = rng.choice(["plus", "minus"]), rng.choice(["plus", "minus"])
    a, b = operands(rng, first)
    middle = OPERATIONS[first](a, b)
    _, c = operands(rng, second, middle)
    result = OPERATIONS[second](middle, c)
    thought = f"{a} {first} {b} is {middle}. {middle} {second} {c} is {result}."
    answer = f"<|channel>thought\n{thought}\n<channel|>The answer is {result}."
    return Example([user(rng.choice(["What is {0}?", "How much is {0}?"]).format(f"{a} {first} {b} {second} {c}"))], answer, None, True, "thinking")


def counting(rng):
    words = rng.choice([FOODS, ANIMALS, COLOURS, THINGS, NAMES])
    chosen = rng.sample(words, rng.randint(2, 6))
    ask = rng.choice(["How many words are in this list: {0}?", "Count these: {0}.", "How many are there: {0}?"])
    turns = [(ask.format(", ".join(chosen)), f"There are {NUMBERS[len(chosen)]}.")]
    if rng.random() < 0.6:
        place = rng.choice(["first", "last"])
        turns.append((f"Which is the {place} one?", f"The {place} one is {chosen[0 if place == 'first' else -1]}."))
    return dialogue(turns, rng)


def scene(rng):
    """A short story of two people, and what may be asked of it."""
    (name, other) = rng.sample(NAMES, 2)
    thing, colour, size = rng.choice(THINGS), rng.choice(COLOURS), rng.choice(SIZES)
    place, city = rng.choice(PLACES), rng.choice(CITIES)
    animal, job = rng.choice(ANIMALS), rng.choice(JOBS)
    food, day = rng.choice(FOODS), rng.choice(DAYS)
    count = rng.randint(2, 9)
    facts = [
        (f"{name} lives in {city}.", [(f"Where does {name} live?", f"{name} lives in {city}."), (f"Who lives in {city}?", f"{name} lives in {city}.")]),
        (f"{name} has {article(size)} {colour} {thing}.", [(f"What colour is the {thing}?", f"The {thing} is {colour}."), (f"Who has the {thing}?", f"{name} has the {thing}."), (f"What does {name} have?", f"{name} has {article(size)} {colour} {thing}.")]),
        (f"{other} is {article(job)}.", [(f"What is the job of {other}?", f"{other} is {article(job)}."), (f"Who is {article(job)}?", f"{other} is {article(job)}.")]),
        (f"On {day} {other} went to the {place}.", [(f"Where did {other} go?", f"{other} went to the {place}."), (f"Who went to the {place}?", f"{other} went to the {place}."), (f"When did {other} go to the {place}?", f"{other} went to the {place} on {day}.")]),
        (f"There {other} saw {NUMBERS[count]} {food}s.", [(f"How many {food}s did {other} see?", f"{other} saw {NUMBERS[count]} {food}s."), (f"What did {other} see?", f"{other} saw {NUMBERS[count]} {food}s.")]),
        (f"{name} loves the {animal}.", [(f"Which animal does {name} love?", f"{name} loves the {animal}."), (f"Who loves the {animal}?", f"{name} loves the {animal}.")]),
    ]  # fmt: skip
    chosen = sorted(rng.sample(range(len(facts)), rng.randint(2, 4)))
    return name, other, [facts[i] for i in chosen]


def reading(rng):
    _, _, facts = scene(rng)
    asks = [rng.choice(pairs) for _, pairs in rng.sample(facts, min(len(facts), rng.choice([1, 2, 2, 3])))]
    story = " ".join(sentence for sentence, _ in facts)
    turns = [(f"{story} {asks[0][0]}", asks[0][1]), *asks[1:]]
    return dialogue(turns, rng)


def remembering(rng):
    """The user says something of themselves, and asks for it a turn later."""
    name, city, colour, animal, food = (rng.choice(words) for words in (NAMES, CITIES, COLOURS, ANIMALS, FOODS))
    said = [
        (f"My name is {name}.", f"Nice to meet you, {name}!", "What is my name?", f"Your name is {name}."),
        (f"I live in {city}.", f"{city} is a nice place.", "Where do I live?", f"You live in {city}."),
        (f"My favourite colour is {colour}.", f"{capital(colour)} is a fine colour.", "What is my favourite colour?", f"Your favourite colour is {colour}."),
        (f"I have {article(animal)}.", f"{capital(article(animal))} is good company.", "Which animal do I have?", f"You have {article(animal)}."),
        (f"I would like {article(food) if food not in ('bread', 'cheese', 'soup') else food}.", "That sounds good.", "What would I like?", f"You would like {article(food) if food not in ('bread', 'cheese', 'soup') else food}."),
    ]  # fmt: skip
    chosen = rng.sample(said, rng.randint(1, 3))
    turns = [(tell, reply) for tell, reply, _, _ in chosen]
    asked = rng.sample(chosen, rng.randint(1, len(chosen)))
    return dialogue(turns + [(ask, answer) for _, _, ask, answer in asked], rng)


def one_word(rng):
    """The system message asks for one word."""
    questions, _, pairs = rng.choice(FACTS[:6])
    pair = rng.choice(pairs)
    system = rng.choice(["Answer in one word.", "You answer with one word."])
    return dialogue([(rng.choice(questions).format(*pair), capital(pair[1]) + ".")], rng, system)


def story_text(rng, name=None, thing=None):
    name = name or rng.choice(NAMES)
    thing = thing or rng.choice(THINGS)
    other = rng.choice([n for n in NAMES if n != name])
    colour, size, place, animal = rng.choice(COLOURS), rng.choice(SIZES), rng.choice(PLACES), rng.choice(ANIMALS)
    he = pronoun(name)
    his = "her" if he == "She" else "his"
    middle = rng.choice([
        f"{he} looked for it in the {place}, but it was not there.",
        f"{he} asked {other} for help, and they looked in the {place}.",
        f"In the {place} {he.lower()} met {article(animal)}.",
    ])
    end = rng.choice([
        f"At last {other} found the {thing} under a tree.",
        f"The {animal} had taken the {thing} and gave it back.",
        f"Then {he.lower()} found the {thing} in {his} own bag and laughed.",
    ])
    last = rng.choice([f"{name} was very happy.", f"{name} and {other} went home together.", f"That evening {name} slept well."])
    return f"Once upon a time {name} had {article(size)} {colour} {thing}. One day the {thing} was gone. {middle} {end} {last}"


def story(rng):
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    ask = rng.choice([f"Tell me a story about {name} and {article(thing)}.", f"Write a short story about {name} and {article(thing)}."])
    return Example([user(ask)], story_text(rng, name, thing), kind="story")


def function(name, description, **parameters):
    properties = {key: {"type": type, "description": text} for key, (type, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = {
    "get_weather": function("get_weather", "Tells the weather in a city.", city=("string", "The city.")),
    "get_time": function("get_time", "Tells the time in a city.", city=("string", "The city.")),
    "set_timer": function("set_timer", "Starts a timer.", minutes=("integer", "How long, in minutes.")),
    "call_person": function("call_person", "Calls a person.", person=("string", "Whom to call.")),
    "buy_food": function("buy_food", "Buys food.", food=("string", "What to buy."), count=("integer", "How many.")),
    "turn_light": function("turn_light", "Turns a light on or off.", room=("string", "The room."), on=("boolean", "On or off.")),
}  # fmt: skip


def tools(rng):
    """A question that needs a tool: its call, or, once the tool has answered, the answer."""
    name = rng.choice(list(TOOLS))
    city, minutes, room, on = rng.choice(CITIES), rng.randint(1, 60), rng.choice(PLACES), rng.random() < 0.5
    weather, degrees, hour = rng.choice(WEATHER), rng.randint(0, 35), rng.randint(1, 12)
    person, food, count = rng.choice(NAMES), rng.choice(FOODS), rng.randint(2, 20)
    asks, arguments, response, answer = {
        "get_weather": ([f"What is the weather in {city}?", f"How is the weather in {city} today?"], {"city": city},
            {"weather": weather, "degrees": degrees}, f"It is {weather} in {city}, {degrees} degrees."),
        "get_time": ([f"What time is it in {city}?", f"Tell me the time in {city}."], {"city": city},
            {"hour": hour}, f"It is {hour} o'clock in {city}."),
        "set_timer": ([f"Set a timer for {minutes} minutes.", f"Start a timer of {minutes} minutes."], {"minutes": minutes},
            {"done": True}, f"The timer is set for {minutes} minutes."),
        "call_person": ([f"Call {person}.", f"Please call {person} for me."], {"person": person}, {"done": True}, f"I have called {person}."),
        "buy_food": ([f"Buy {count} of the {food}s.", f"Please buy me {count} {food}s."], {"food": food, "count": count},
            {"done": True}, f"I have bought {count} {food}s."),
        "turn_light": ([f"Turn {'on' if on else 'off'} the light in the {room}.", f"Please turn the {room} light {'on' if on else 'off'}."],
            {"room": room, "on": on}, {"done": True}, f"The light in the {room} is {'on' if on else 'off'}."),
    }[name]  # fmt: skip
    others = rng.sample([tool for tool in TOOLS if tool != name], rng.randint(0, 1))
    declared = [TOOLS[tool] for tool in rng.sample([name, *others], 1 + len(others))]
    ask = rng.choice(asks)
    if rng.random() < 0.5:
        called = ",".join(f"{key}:{literal(value)}" for key, value in sorted(arguments.items()))
        return Example([user(ask)], f"<|tool_call>call:{name}{{{called}}}<tool_call|><|tool_response>", declared, False, "tool")
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]}
    return Example([user(ask), call, {"role": "tool", "name": name, "content": response}], answer, declared, False, "tool")


def literal(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else str(value)


KINDS = [(facts, 3), (arithmetic, 5), (counting, 3), (reading, 6), (remembering, 3), (one_word, 1), (chat, 1), (story, 1.5), (tools, 6), (thinking, 2)]  # fmt: skip


def conversation(rng):
    make = rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
    return make(rng)


# Speech: sentences over a few hundred words, written as they are transcribed.

SPEECH_VERBS = "found lost took brought saw bought sold painted dropped carried opened cleaned".split()
SPEECH_ORDERS = "open close bring find clean move carry take watch hide".split()
SPEECH_TIMES = ["today", "now", "this morning", "after lunch", "before dinner", "tomorrow", "on monday", "on sunday", "at night", "this evening"]  # fmt: skip
SPEECH_DEVICES = "light radio heater fan music alarm door window".split()
SPEECH_ROOMS = "kitchen bedroom garden hall bathroom office cellar garage".split()
PREPOSITIONS = ["in", "near", "behind", "in front of", "next to", "under", "on", "beside"]


def spoken(rng):
    """A sentence to be spoken: lower-case words without marks."""
    name, thing, place = rng.choice(NAMES), rng.choice(THINGS + FOODS + ANIMALS), rng.choice(PLACES)
    adjective = rng.choice(SIZES + COLOURS)
    a, b = rng.choice(NUMBERS), rng.choice(NUMBERS)
    where = f"{rng.choice(PREPOSITIONS)} the {rng.choice(PLACES + THINGS)}"
    text = rng.choice([
        f"{name} {rng.choice(SPEECH_VERBS)} the {adjective} {thing} {where}",
        f"{name} {rng.choice(SPEECH_VERBS)} {a} {thing}s {rng.choice(SPEECH_TIMES)}",
        f"please {rng.choice(SPEECH_ORDERS)} the {adjective} {thing} {rng.choice(SPEECH_TIMES)}",
        f"turn {rng.choice(['on', 'off'])} the {rng.choice(SPEECH_DEVICES)} in the {rng.choice(SPEECH_ROOMS)}",
        f"what is {a} {rng.choice(['plus', 'minus', 'times'])} {b}",
        f"how is the weather in {rng.choice(CITIES)} {rng.choice(SPEECH_TIMES)}",
        f"it is {rng.choice(WEATHER)} in {rng.choice(CITIES)} {rng.choice(SPEECH_TIMES)}",
        f"there are {a} {adjective} {thing}s {where}",
        f"the {adjective} {thing} is {where}",
        f"where is the {adjective} {thing}",
        f"{name} went to the {place} with {rng.choice(NAMES)} {rng.choice(SPEECH_TIMES)}",
        f"my {rng.choice(ANIMALS)} likes the {adjective} {thing}",
        f"set a timer for {a} minutes",
        f"the {rng.choice(JOBS)} from {rng.choice(CITIES)} has a {adjective} {thing}",
    ])  # fmt: skip
    return text.lower()


# Paraphrases: one meaning, said in several ways.

DEEDS = [
    ("bought", "was bought by"), ("found", "was found by"), ("lost", "was lost by"), ("sold", "was sold by"),
    ("painted", "was painted by"), ("hid", "was hidden by"), ("broke", "was broken by"), ("cleaned", "was cleaned by"),
]  # fmt: skip
SYNONYMS = {
    "small": ["little", "tiny"], "big": ["large", "great"], "old": ["ancient", "aged"], "new": ["brand new", "fresh"],
    "heavy": ["weighty"], "kitchen": ["room for cooking"], "market": ["street market"], "forest": ["woods"],
    "garden": ["yard"], "harbour": ["port"], "station": ["train station"], "bakery": ["bread shop"],
    "bought": ["purchased"], "found": ["discovered"], "sold": ["gave away for money"], "broke": ["smashed"],
    "cleaned": ["washed"], "bag": ["sack"], "cup": ["mug"], "hat": ["cap"], "coat": ["jacket"], "boat": ["small ship"],
}  # fmt: skip


def meaning(rng):
    """Who did what to which thing, where and when."""
    return (
        rng.choice(NAMES), rng.choice(DEEDS), rng.choice(SIZES[:4]), rng.choice(COLOURS), rng.choice(THINGS),
        rng.choice(PLACES), rng.choice(DAYS),
    )  # fmt: skip


def said(word, rng):
    return rng.choice([word, *SYNONYMS.get(word, [])])


def wording(meaning, form, rng):
    """One of `WORDINGS` ways to say it, words replaced by synonyms now and then."""
    name, (active, passive), size, colour, thing, place, day = meaning
    size, place, active, thing = (said(word, rng) for word in (size, place, active, thing))
    return [
        f"{name} {active} a {size} {colour} {thing} in the {place} on {day}.",
        f"On {day} a {size} {colour} {thing} {passive} {name} in the {place}.",
        f"In the {place}, {name} {active} a {thing} that was {size} and {colour}. It was {day}.",
        f"It was {name} who {active} the {size} {colour} {thing} on {day}, at the {place}.",
        f"What {name} {active} in the {place} on {day} was a {size} {thing}, {colour} in colour.",
    ][form]


WORDINGS = 5


def stream(seed):
    return random.Random(seed)
