"""Drawn scenes: shapes of a colour and size on a background, with their caption and questions."""

import math

import numpy as np
from chat import Example
from grammar import NUMBERS
from PIL import Image, ImageDraw, ImageFilter

SHAPES = ["circle", "square", "triangle", "star", "heart", "cross", "ring"]
PAINTS = {
    "red": (220, 30, 35), "green": (30, 160, 60), "blue": (35, 70, 215), "yellow": (245, 220, 40),
    "orange": (250, 140, 20), "purple": (140, 45, 180), "black": (15, 15, 18), "white": (250, 250, 250),
}  # fmt: skip
GROUNDS = {
    "white": (245, 245, 245), "black": (20, 20, 22), "gray": (128, 128, 130), "brown": (125, 80, 45), "pink": (250, 175, 195),
}  # fmt: skip
# Radii in units of the picture's shorter side: far enough apart that nobody takes one size for the other.
SIZES = {"small": (0.09, 0.12), "big": (0.18, 0.22)}
ROWS, COLUMNS = ["top", "middle", "bottom"], ["left", "middle", "right"]
MAX_SOFT_TOKENS = 70
PATCH, POOL = 16, 3
CAPTION_ASKS = ["Describe the image.", "What is in the picture?", "Write a caption for this image.", "What do you see?"]


def zone(x, y):
    row, column = ROWS[min(2, int(y * 3))], COLUMNS[min(2, int(x * 3))]
    return "middle" if row == column == "middle" else f"{row} {column}"


def coordinate(rng, radius):
    """Of a centre, in a third at random: away from the lines between thirds, with the shape inside of the picture."""
    third = rng.randrange(3)
    return rng.uniform(max((third + 0.3) / 3, radius + 0.01), min((third + 0.7) / 3, 0.99 - radius))


def place(rng, radii):
    """Centres in the unit square, apart from each other."""
    while True:
        points = [(coordinate(rng, radius), coordinate(rng, radius)) for radius in radii]
        pairs = [(i, j) for i in range(len(radii)) for j in range(i)]
        if all(math.dist(points[i], points[j]) > (radii[i] + radii[j]) * 1.25 for i, j in pairs):
            return points


def place_two(rng, radii):
    """Two centres, the left one or the upper one first.

    One is beside or below the other by twice as much as it is off, so that a picture's aspect ratio changes nothing.
    """
    while True:
        points = place(rng, radii)
        steps = [points[1][axis] - points[0][axis] for axis in range(2)]
        more, less = sorted(steps, key=abs, reverse=True)
        if more > 2 * abs(less):
            return points


def scene(rng):
    """What is drawn: a background's name, and objects of shape, colour, size, centre and radius."""
    ground = rng.choice(list(GROUNDS))
    paints = [paint for paint in PAINTS if paint != ground]
    kind = rng.choice(["one", "pair", "pair", "group"])
    if kind == "group":
        looks = [(rng.choice(SHAPES), rng.choice(paints), "small")] * rng.randint(2, 5)
    else:
        shapes = rng.sample(SHAPES, 2 if kind == "pair" else 1)
        looks = [(shape, rng.choice(paints), rng.choice(list(SIZES))) for shape in shapes]
    radii = [rng.uniform(*SIZES[size]) for _, _, size in looks]
    points = place_two(rng, radii) if kind == "pair" else place(rng, radii)
    return ground, [(*look, *point, radius) for look, point, radius in zip(looks, points, radii)]


def across(objects):
    return abs(objects[1][3] - objects[0][3]) > abs(objects[1][4] - objects[0][4])


def caption(ground, objects):
    shape, colour, size = objects[0][:3]
    if len(objects) == 1:
        what = f"a {size} {colour} {shape} in the {zone(*objects[0][3:5])}"
    elif objects[0][0] == objects[1][0]:
        plural = shape + ("es" if shape == "cross" else "s")
        what = f"{NUMBERS[len(objects)]} {size} {colour} {plural}"
    else:
        other = objects[1]
        relation = "to the left of" if across(objects) else "above"
        what = f"a {size} {colour} {shape} {relation} a {other[2]} {other[1]} {other[0]}"
    return f"{what} on a {ground} background"


def questions(ground, objects, rng):
    """Questions about the scene, with answers in a sentence."""
    shape, colour, size = objects[0][:3]
    asks = [("What colour is the background?", f"The background is {ground}.")]
    group = len(objects) > 1 and objects[0][0] == objects[1][0]
    asks.append(("How many shapes are there?", f"There {'is' if len(objects) == 1 else 'are'} {NUMBERS[len(objects)]}."))
    if group:
        asks.append(("What shapes are these?", f"They are {colour} {shape}{'es' if shape == 'cross' else 's'}."))
    for item in [] if group else objects:
        asks.append((f"What colour is the {item[0]}?", f"The {item[0]} is {item[1]}."))
        asks.append((f"How big is the {item[0]}?", f"The {item[0]} is {item[2]}."))
        asks.append((f"Where is the {item[0]}?", f"The {item[0]} is in the {zone(*item[3:5])}."))
    if len(objects) == 2 and not group:
        first, second = ("left", "right") if across(objects) else ("top", "bottom")
        asks.append((f"Which shape is at the {first}?", f"The {shape}."))
        asks.append((f"Which shape is at the {second}?", f"The {objects[1][0]}."))
    rng.shuffle(asks)
    return asks


def outline(shape, radius, turn):
    """Corners of a shape around the origin."""
    if shape == "square":
        points = [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]
    elif shape == "triangle":
        points = [(0, -1), (0.95, 0.75), (-0.95, 0.75)]
    elif shape == "star":
        points = [((1 if i % 2 == 0 else 0.42) * math.sin(math.pi * i / 5), -(1 if i % 2 == 0 else 0.42) * math.cos(math.pi * i / 5)) for i in range(10)]
    elif shape == "cross":
        points = [(-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3), (0.3, 1), (-0.3, 1), (-0.3, 0.3), (-1, 0.3), (-1, -0.3), (-0.3, -0.3)]
    elif shape == "heart":
        angles = [2 * math.pi * i / 48 for i in range(48)]
        points = [(math.sin(a) ** 3, -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)) / 16) for a in angles]
    else:
        reach = 0.8 if shape == "ring" else 1  # a ring's line is as wide as it needs to end at the radius
        points = [(reach * math.cos(2 * math.pi * i / 64), reach * math.sin(2 * math.pi * i / 64)) for i in range(64)]
    c, s = math.cos(turn), math.sin(turn)
    return [(radius * (x * c - y * s), radius * (x * s + y * c)) for x, y in points]


def draw(ground, objects, rng):
    """The picture: an RGB image of a size and aspect ratio of its own."""
    width = rng.randint(200, 440)
    height = int(width * math.exp(rng.uniform(-0.5, 0.5)))
    shade = [channel + rng.uniform(-8, 8) for channel in GROUNDS[ground]]
    slope = [rng.uniform(-12, 12) for _ in range(2)]
    x, y = np.linspace(-0.5, 0.5, width, dtype=np.float32), np.linspace(-0.5, 0.5, height, dtype=np.float32)
    base = x * slope[0] + y[:, None] * slope[1]
    picture = Image.fromarray(np.clip(base[..., None] + np.array(shade, np.float32), 0, 255).astype(np.uint8))
    scale = 2
    big = picture.resize((width * scale, height * scale), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(big)
    unit = min(width, height) * scale
    for shape, colour, _, cx, cy, radius in objects:
        centre = (cx * width * scale, cy * height * scale)
        tint = tuple(int(max(0, min(255, channel + rng.uniform(-14, 14)))) for channel in PAINTS[colour])
        turn = rng.uniform(-0.2, 0.2)
        corners = [(centre[0] + px, centre[1] + py) for px, py in outline(shape, radius * unit, turn)]
        if shape == "ring":
            pen.line([*corners, corners[0], corners[1]], fill=tint, width=int(radius * unit * 0.4), joint="curve")
        else:
            pen.polygon(corners, fill=tint)
    picture = big.resize((width, height), Image.Resampling.BOX)
    if rng.random() < 0.2:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.2)))
    noise = np.random.default_rng(rng.getrandbits(32)).standard_normal((height, width, 3), np.float32)
    return Image.fromarray(np.clip(np.asarray(picture) + noise * np.float32(rng.uniform(0, 9)), 0, 255).astype(np.uint8))


def patches(picture, processor):
    """Gemma 4's own preprocessing: bytes of the patches [n, 768], and the grid's rows and columns of patches."""
    out = processor(images=[picture], return_tensors="np")
    positions = out["image_position_ids"][0]
    valid = positions[:, 0] >= 0
    columns, rows = positions[valid].max(0) + 1
    return np.rint(out["pixel_values"][0][valid] * 255).astype(np.uint8), int(rows), int(columns)


LABELS = [len(SHAPES), len(PAINTS), len(SIZES), len(ROWS), len(COLUMNS), 1]
"""How many kinds there are of what `cells` tells of a soft token."""


def cells(objects, rows, columns, aspect):
    """For each soft token, the object that covers its middle: its shape, colour, size, row and column, and whether
    its centre is there too. Each is 0 for none.

    `aspect` is the picture's width over height: radii are in units of its shorter side.
    """
    rows, columns = rows // POOL, columns // POOL
    labels = np.zeros((rows, columns, len(LABELS)), np.uint8)
    sx, sy = max(1.0, aspect), max(1.0, 1 / aspect)
    for shape, colour, size, cx, cy, radius in objects:
        kinds = (SHAPES.index(shape), list(PAINTS).index(colour), list(SIZES).index(size), int(cy * 3), int(cx * 3))
        for row in range(rows):
            for column in range(columns):
                centre = (row, column) == (int(cy * rows), int(cx * columns))
                far = math.hypot(((column + 0.5) / columns - cx) * sx, ((row + 0.5) / rows - cy) * sy)
                if centre or far < radius:
                    labels[row, column] = [kind + 1 for kind in kinds] + [centre]
    return labels.reshape(-1, len(LABELS))


def mirrored(ground, objects):
    """The scene with left and right exchanged."""
    turned = [(shape, colour, size, 1 - cx, cy, radius) for shape, colour, size, cx, cy, radius in objects]
    if len(turned) == 2 and turned[0][0] != turned[1][0] and across(turned):
        turned.reverse()
    return ground, turned


def ask(turns):
    """An example of questions about one picture."""
    messages = []
    for i, (question, answer) in enumerate(turns):
        content = [{"type": "image"}, {"type": "text", "text": question}] if i == 0 else question
        messages.append({"role": "user", "content": content})
        if i + 1 < len(turns):
            messages.append({"role": "assistant", "content": answer})
    return Example(messages, turns[-1][1], kind="image")


def conversation(ground, objects, rng):
    """Up to three questions and, most of the time, a caption, in any order."""
    turns = questions(ground, objects, rng)[: rng.randint(0, 3)]
    if not turns or rng.random() < 0.75:
        turns.insert(rng.choice([0, rng.randint(0, len(turns))]), (rng.choice(CAPTION_ASKS), caption(ground, objects)))
    return ask(turns)
