"""A grammar that writes little stories, and short chats about them.

In: a number. Out: a document; the same number gives the same document, always. A document is a story, which ends with
<|endoftext|>, or a chat in ChatML. The plots stand in `plots.py`; here are the words that fill them, and the chats.
Run as a program, it prints a few documents.
"""

import random
import re
import sys

from plots import PLOTS

END = "<|endoftext|>"


def listed(text):
    """What stands between the bars."""
    return [item.strip() for item in text.split("|")]


GIRLS = "Anna Mira Rosa Ella Nora Lucy Clara Emma Stella Lily Ruby Pia".split()
BOYS = "Tom Ben Leo Max Paul Finn Oscar Jack Sam Hugo Otto Milo".split()

ANIMALS = """fox cat dog bear rabbit mouse duck frog hedgehog squirrel turtle goat hen dragon badger beaver pony lamb
goose mole raccoon penguin donkey kitten""".split()

TRAITS = """little brave kind clever quiet merry curious gentle young cheerful shy friendly lively small careful
playful""".split()

COLOURS = "red blue green yellow white black golden silver brown orange purple pink".split()

THINGS = """kite ball key bell boat scarf drum lantern book hat basket button coin shell mirror whistle umbrella ribbon
feather flute doll marble hoop""".split()

PLACES = listed(
    """
    pond|meadow|market|orchard|beach|old barn|lake|well|garden|harbour|waterfall|cave|great oak tree|field|
    windmill|old tower|playground|town square|stone wall|hill|river
    """
)

HOMES = listed(
    """
    in a village by the sea|in a small house at the edge of the forest|on a farm on a green hill|
    in a town by the river|in a valley between high mountains|in an old mill|in a little house near the lake|
    in a tree house|on a small island|in a cottage with a red roof|at the end of a long road|
    in a house full of books
    """
)

FAMILY = [("grandmother", 0), ("mother", 0), ("aunt", 0), ("grandfather", 1), ("father", 1), ("uncle", 1)]
VILLAGERS = "baker farmer teacher gardener miller shepherd carpenter tailor fisherman postman".split()
SKILLS = listed(
    "swim|whistle|dance|read|skate|ride a bicycle|climb trees|juggle|row a boat|play the flute|write|ski"
)
FOODS = listed("nuts|apples|bread and cheese|cookies|pears|plums|pancakes|strawberries|sandwiches|carrots")
SOUPS = listed("soup|potato soup|tomato soup|carrot soup|noodle soup|porridge|pumpkin soup|mushroom soup")

OPENINGS = [
    "Once upon a time, there was a {a} {k} (named|called) {n}. {n} lived {home}. [{likes}]",
    "Once upon a time, there was a {a} {k} (named|called) {n}, who lived {home}. [{likes}]",
    "Once upon a time, a {a} {k} (named|called) {n} lived {home} with {his} {g}. [{likes}]",
    "There once was a {a} {k} (named|called) {n}. {he} lived {home} with {his} {g}. [{likes}]",
    "Long ago, a {a} {k} (named|called) {n} lived {home}. [{likes}]",
    "Once upon a time there was a {a} {k} (named|called) {n}, who lived {home} with {his} {g}. [{likes}]",
    "{n} was a {a} {k} who lived {home}. {likes}",
    "The {a} {k} was called {n}. {he} lived {home}. [{likes}]",
    "This is the story of {n}, a {a} {k} who lived {home}. [{likes}]",
    "{n} the {k} lived {home}. {he} was {a2}, and {he} loved {love}.",
    "^{home_first} lived a {a} {k}. {his} name was {n}. [{likes}]",
]

LIKES = [
    "{n} loved {love}.",
    "{n} loved {love} and {love2}.",
    "Every {day}, {he} went to the {other_place} to {do}.",
    "{he} had a {a3} heart and a loud laugh.",
    "Everyone in the village liked {him}.",
    "{his} favourite colour was {colour}.",
    "When {he} was happy, {he} {hummed}.",
    "{he} was never bored.",
]

ENDINGS = ["The end."] * 3 + [""] * 7

LOVES = listed(
    """
    the smell of rain|warm bread|stories by the fire|long walks|the sound of the sea|music|old songs|riddles|
    the stars at night|sweet apples|funny hats|the first snow|picking flowers|puddles
    """
)


def pronouns(is_male):
    return ("he", "him", "his") if is_male else ("she", "her", "her")


class Words(dict):
    """What fills the templates of one story."""

    def __init__(self, rng, hero=None, thing=None, place=None, plot=None):
        pick = rng.choice
        super().__init__()
        self.plot = plot or pick(PLOTS)
        is_male, f_male = rng.random() < 0.5, rng.random() < 0.5
        kind, name = hero or (None, None)
        if name in GIRLS + BOYS:
            is_male = name in BOYS
        if kind in ("girl", "boy"):
            is_male = kind == "boy"
        person = "boy" if is_male else "girl"
        kind = kind or (person if rng.random() < 0.4 else pick(ANIMALS))
        name = name or pick(BOYS if is_male else GIRLS)
        f_name = pick([x for x in (BOYS if f_male else GIRLS) if x != name])
        f_kind = ("boy" if f_male else "girl") if rng.random() < 0.25 else pick(ANIMALS)
        if f_kind == kind:
            f_kind = pick([x for x in ANIMALS if x != kind])
        g, g_male = pick(FAMILY)
        v_male = rng.random() < 0.5
        thing, colour = thing or (pick(THINGS), pick(COLOURS))
        place = place or pick(PLACES)
        loves = rng.sample(LOVES, 2)
        traits = rng.sample(TRAITS, 4)
        home = pick(HOMES)
        self.update(
            n=name, k=kind, a=traits[0], a2=pick(["kind", "brave", "clever", "curious", "cheerful", "shy"]),
            a3=pick(["big", "warm", "good", "brave"]), f=f_name, fk=f_kind, fa=traits[1], g=g,
            v="the " + pick(VILLAGERS), place=place, home=home, home_first=home[0].upper() + home[1:],
            on=thing, o=f"a {colour} {thing}", o2=f"a {colour} {thing}", colour=pick(COLOURS), colour2=colour,
            love=loves[0], love2=loves[1], other_place=pick([x for x in PLACES if x != place]),
            do=pick(["look at the clouds", "play", "watch the birds", "run about", "read"]),
            day=pick(["day", "morning", "afternoon", "Sunday", "Saturday"]),
            hummed=pick(["sang a little song", "danced", "hummed a tune", "jumped up and down"]),
            time=pick(["morning", "afternoon", "day", "evening"]), time2=pick(["morning", "afternoon", "evening"]),
            time3="morning", weather=pick(listed("a sunny|a warm|a cold|a grey|a bright|a foggy|a quiet")),
            room=pick(["kitchen", "garden shed", "attic", "cellar"]),
            under=pick(listed("under a bush|in the tall grass|between two stones|behind a log|under some leaves")),
            food=pick(FOODS), food2=pick(SOUPS), skill=pick(SKILLS), woman=pick(["woman", "man"]),
            sadly=pick(["very sad", "sad", "so sad"]), lonely=pick(["lonely", "very lonely", "sad and lonely"]),
            afraid=pick(["afraid", "very afraid", "frightened"]), cross=pick(["cross", "angry", "disappointed"]),
            played=pick(["played hide and seek", "played with a ball", "built a castle of sand", "flew kites",
                         "threw stones into the water", "climbed trees", "danced and sang"]),
            once_more=pick(["Try once more.", "Once more!", "You can do it.", "Do not give up."]),
            ingredient=pick(["eggs", "milk", "salt", "nuts"]), cup=pick(["cup", "vase", "bowl", "plate"]),
            use_it=pick(["hold it tight", "hold it up high", "rub it three times", "shake it twice"]),
            sang=pick(["sang songs", "told each other jokes", "rested in the shade"]), peep=pick(["Peep!", "Mama!"]),
            wise=pick(["old owl", "wise owl", "old toad", "old raven"]), water=pick(["pond", "lake", "river", "sea"]),
            o_made=pick(["a little wooden bird", "a necklace", "a small wooden horse", "a picture frame"]),
        )
        for prefix, male in (("", is_male), ("f", f_male)):
            self.update(zip((prefix + "he", prefix + "him", prefix + "his"), pronouns(male)))
        self.update(zip(("ghe", "gher", "gher2"), pronouns(g_male)), vhe=pronouns(v_male)[0])
        self["likes"] = pick(LIKES)


def fill(template, words, rng):
    """One sentence or more from a template: choices, words, capitals, articles."""
    text = re.sub(r"\s+", " ", template)
    text = re.sub(r"\[([^\[\]]*)\]", lambda m: m[1] if rng.random() < 0.5 else "", text)
    for _ in range(2):
        text = re.sub(r"\{(\w+)\}", lambda m: words[m[1]], text)
        while re.search(r"\([^()]*\)", text):
            text = re.sub(r"\(([^()]*)\)", lambda m: rng.choice(m[1].split("|")), text, count=1)
    text = re.sub(r" +", " ", text).strip()
    text = re.sub(r"\^(\w)", lambda m: m[1].upper(), text)
    text = re.sub(r"(^|[.!?] |[.]\" )([a-z])", lambda m: m[1] + m[2].upper(), text)
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def story(words, rng):
    """The paragraphs of a story, with an empty line between them."""
    parts = [fill(rng.choice(OPENINGS), words, rng)]
    parts += [fill(paragraph, words, rng) for paragraph in words.plot.paragraphs]
    end = rng.choice(ENDINGS)
    return "\n\n".join(parts) + (" " + end if end else "")


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def chat(*texts):
    """A chat in which the user and the assistant speak in turn."""
    return "".join(turn(role, text) for role, text in zip(("user", "assistant") * len(texts), texts))


def request(rng):
    """What a user asks for, and the words of a story that fits."""
    kind = rng.choice(ANIMALS + ["girl", "boy"] * 3)
    name = rng.choice(BOYS if kind == "boy" else GIRLS if kind == "girl" else GIRLS + BOYS)
    trait, thing, colour = rng.choice(TRAITS), rng.choice(THINGS), rng.choice(COLOURS)
    plot = rng.choice(PLOTS)
    please = rng.choice(["Tell me a story", "Please tell me a story", "Write a story", "Tell me a little story",
                         "Can you tell me a story", "Write a short story", "Please write a little story",
                         "I want to hear a story"])
    way = rng.randrange(8)
    if way == 0:
        words, about = Words(rng), ""
    elif way == 1:
        words, about = Words(rng, hero=(kind, None)), f" about a {kind}"
    elif way == 2:
        words, about = Words(rng, hero=(kind, None)), f" about a {trait} {kind}"
        words["a"] = words["a2"] = trait
    elif way == 3:
        words, about = Words(rng, hero=(kind, name)), f" about a {kind} named {name}"
    elif way == 4:
        words, about = Words(rng, hero=(None, name)), f" about {name}"
    elif way == 5:
        with_things = [x for x in PLOTS if "{on}" in " ".join(x.paragraphs)]
        plot = rng.choice(with_things)
        words = Words(rng, thing=(thing, colour), plot=plot)
        about = f" about a {colour} {thing}" if rng.random() < 0.5 else f" about a {thing}"
    elif way == 6:
        words = Words(rng, plot=plot)
        about = " about " + plot.about.format_map(words)
    else:
        words = Words(rng, hero=(kind, None), plot=plot)
        about = f" about a {kind} and " + plot.about.format_map(words)
    about = re.sub(r"\ba (?=[aeiou])", "an ", about)
    text = please + about + ("?" if please.startswith("Can") else ".")
    # Some users write neither capitals nor full stops.
    return (text[0].lower() + text[1:-1] if rng.random() < 0.15 else text), words


def questions(words, rng):
    """Questions about a story, with their answers."""
    ask = [
        ("What was the name of the {k}?", "The {k} was called {n}."),
        ("Who was {n}?", "{n} was a {k}."),
        ("Where did {n} live?", "{n} lived {home}."),
        ("How did {n} feel in the end?", "In the end, {n} felt {feeling}."),
        ("What can we learn from the story?", words.plot.lesson),
        ("What is the lesson of the story?", words.plot.lesson),
        ("What was the story about?", "It was a story about {about}."),
    ]
    words["feeling"], words["about"] = words.plot.feeling, words.plot.about.format_map(words)
    pairs = rng.sample(ask + words.plot.questions * 2, rng.choice([1, 1, 2]))
    return [fill(text, words, rng) for text in sum(map(list, dict(pairs).items()), [])]


SMALL_TALK = [
    ("(Hello|Hi|Hey|Hello there|Good morning|Good evening)(!|.)",
     "Hello! (Would you like to hear a story?|What story would you like to hear?)"),
    ("How are you?", "I am very well, thank you. Would you like to hear a story?"),
    ("(Who|What) are you?", "I am a little storyteller. I can tell you stories about friends, animals and adventures."),
    ("What is your name?", "I have no name. I am just a little storyteller."),
    ("(What can you do?|Can you help me?|Help!)",
     "I can tell little stories. Ask me for a story about a fox, a storm or a lost key."),
    ("(Thank you|Thanks|Thank you very much)(!|.)", "You are welcome!"),
    ("(Goodbye|Bye|Good night|See you soon)(!|.)", "Goodbye! Come back soon for another story."),
    ("(That was|What) a (nice|good|lovely|beautiful) story(!|.)", "Thank you! I am glad that you liked it."),
    ("Do you like {animal}s?", "Yes, I like stories about {animal}s very much."),
    ("I am (sad|tired|bored|lonely).",
     "I am sorry to hear that. Maybe a little story can help. What should it be about?"),
    ("I am (happy|glad) today.", "That is good to hear! Would you like to hear a story?"),
    ("Are you a (person|human|robot|computer)?", "I am a small language model that tells little stories."),
]

SOUNDS = dict(cow="moo", dog="woof", cat="meow", duck="quack", sheep="baa", owl="hoo", frog="ribbit", hen="cluck",
              pig="oink", lion="roar", mouse="squeak", bee="buzz")
COLOURS_OF = dict(grass="green", snow="white", the_sky="blue", a_lemon="yellow", a_carrot="orange", a_strawberry="red",
                  coal="black", milk="white", chocolate="brown", a_frog="green", a_flamingo="pink", a_plum="purple")
OPPOSITES = listed(
    """
    big small|hot cold|day night|happy sad|fast slow|old young|up down|open closed|wet dry|loud quiet|
    high low|full empty|hard soft|thick thin|long short|good bad|early late|heavy light
    """
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
NUMBERS = "one two three four five six seven eight nine ten eleven twelve".split()
HOMES_OF = dict(fish="in the water", bird="in a nest", bee="in a hive", bear="in a cave", rabbit="in a burrow",
                spider="in a web", dog="in a kennel", horse="in a stable", fox="in a den")
UNKNOWN = listed(
    """
    What is the capital of {x}?|Who wrote {x}?|How far away is {x}?|How does {x} work?|Can you explain {x}?|
    Write a program for {x}.|What do you think about {x}?|When was {x} invented?|What is {x}?|
    Translate {x} into French.|How much does {x} cost?|Who is the president of {x}?
    """
)
STRANGE = listed(
    """
    France|Germany|America|the internet|a computer|history|mathematics|physics|the moon|Mars|electricity|
    chess|a sentence|the weather|money|music|Python|love|China|science|London|a telephone|an engine|
    the universe
    """
)


def fact(rng):
    """A question of a small child, with its answer."""
    way = rng.randrange(7)
    if way == 0:
        animal, sound = rng.choice(list(SOUNDS.items()))
        return f"What does a {animal} say?", f"A {animal} says {sound}."
    if way == 1:
        thing, colour = rng.choice(list(COLOURS_OF.items()))
        thing = thing.replace("_", " ")
        return f"What colour is {thing}?", f"^{thing} is {colour}."
    if way == 2:
        pair = rng.choice(OPPOSITES).split()
        rng.shuffle(pair)
        return f"What is the opposite of {pair[0]}?", f"The opposite of {pair[0]} is {pair[1]}."
    if way == 3:
        at, after = rng.randrange(7), rng.random() < 0.5
        word, other = ("after", DAYS[(at + 1) % 7]) if after else ("before", DAYS[at - 1])
        return f"Which day comes {word} {DAYS[at]}?", f"{other} comes {word} {DAYS[at]}."
    if way == 4:
        at = rng.randrange(11)
        if rng.random() < 0.5:
            return f"Which number comes after {NUMBERS[at]}?", f"After {NUMBERS[at]} comes {NUMBERS[at + 1]}."
        a, b = rng.randint(1, 6), rng.randint(1, 6)
        told = f"{NUMBERS[a - 1]} plus {NUMBERS[b - 1]}"
        return f"What is {told}?", f"^{told} is {NUMBERS[a + b - 1]}."
    if way == 5:
        animal, home = rng.choice(list(HOMES_OF.items()))
        return f"Where does a {animal} live?", f"A {animal} lives {home}."
    question = rng.choice(UNKNOWN).replace("{x}", rng.choice(STRANGE))
    return question, "I do not know that. I only know little stories. Would you like to hear one?"


def who_had_what(rng):
    """A few sentences, and questions that only they can answer."""
    n = rng.randint(2, 5)
    names = rng.sample(GIRLS + BOYS, n)
    things = [f"a {colour} {thing}" for colour, thing in zip(rng.sample(COLOURS, n), rng.sample(THINGS, n))]
    texts = []
    for at in rng.sample(range(n), rng.randint(1, n)):
        asked = f"What did {names[at]} have?" if rng.random() < 0.5 else f"Who had {things[at]}?"
        texts += [asked, f"{names[at]} had {things[at]}."]
    texts[0] = "".join(f"{name} had {thing}. " for name, thing in zip(names, things)) + texts[0]
    return [fill(text, {}, rng) for text in texts]


def who_did_what(rng):
    """Sentences about what several people had, and then what each of them did with it."""
    n = rng.randint(2, 4)
    names = rng.sample(GIRLS + BOYS, n)
    girls = [name in GIRLS for name in names]
    things = [f"{colour} {thing}" for colour, thing in zip(rng.sample(COLOURS, n), rng.sample(THINGS, n))]
    text = " ".join(f"{name} had a {thing}." for name, thing in zip(names, things))
    for at in [at for _ in range(3) for at in rng.sample(range(n), n)]:
        his = "her" if girls[at] else "his"
        did = rng.choice(["played with", "looked at", "loved", "lost", "found", "went home with"])
        owner = rng.choice(["the", his])
        text += f" {names[at]} {did} {owner} {things[at]}."
        if rng.random() < 0.3:
            text += f" {'she' if girls[at] else 'he'} was {rng.choice(['happy', 'sad', 'proud', 'tired'])}."
    return fill(text, {}, rng)


def short_exchange(rng):
    way = rng.random()
    if way < 0.5:
        question, answer = rng.choice(SMALL_TALK)
        words = dict(animal=rng.choice([a for a in ANIMALS if a not in ("mouse", "fox", "goose", "pony")]))
        return fill(question, words, rng), fill(answer, words, rng)
    question, answer = fact(rng)
    return fill(question, {}, rng), fill(answer, {}, rng)


def document(number, is_drill=False):
    """The document with this number; it ends with <|endoftext|>. A drill is most often about who did what."""
    rng = random.Random(number)
    if is_drill and rng.random() < 0.7:
        return (who_did_what(rng) if rng.random() < 0.7 else chat(*who_had_what(rng))) + END
    way = rng.random()
    system = turn("system", "You are a little storyteller.") if rng.random() < 0.1 else ""
    if way < 0.58:
        text = story(Words(rng), rng)
    elif way < 0.82:
        question, words = request(rng)
        texts = [question, story(words, rng)]
        if rng.random() < 0.6:
            texts += questions(words, rng)
        if rng.random() < 0.1:
            texts += ["Thank you!", "You are welcome!"]
        before = rng.random()
        if before < 0.1:
            texts = list(short_exchange(rng)) + texts
        elif before < 0.16:
            other, other_words = request(rng)
            texts = [other, story(other_words, rng)] + texts
        text = system + chat(*texts)
    elif way < 0.85:
        words = Words(rng)
        texts = questions(words, rng)
        text = system + chat(story(words, rng) + "\n\n" + texts[0], texts[1])
    elif way < 0.92:
        text = system + chat(*who_had_what(rng))
    elif way < 0.94:
        text = who_did_what(rng)
    else:
        texts = [text for _ in range(rng.choice([1, 1, 2, 3])) for text in short_exchange(rng)]
        text = system + chat(*texts)
    return text + END


if __name__ == "__main__":
    start = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    print("\n\n".join(document(start + n) for n in range(8)))
