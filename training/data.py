"""The training data as arrays: rows of tokens, patches of pictures, features of sound."""

import json
import multiprocessing
import os
import random
import re

import grammar
import images
import numpy as np
import speech
from chat import MODEL, SPECIAL_TOKENS, audio_place, encode, image_place, prompt_text, tokenizer, train_tokenizer
from project import SEED, WORK
from transformers import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

ROW = 240  # tokens of a row
MAX_PATCHES = images.MAX_SOFT_TOKENS * images.POOL**2
PATCH_BYTES = 3 * images.PATCH**2
LETTERS = " abcdefghijklmnopqrstuvwxyz'"
TALKS = 2  # conversations about each picture, and as many about its mirror image
SLICE = 64  # pictures or recordings that are made, and taken up, together
HELD_OUT = 1 << 40  # seeds from here on are never trained on


def image_processor():
    return Gemma4ImageProcessorPil(max_soft_tokens=images.MAX_SOFT_TOKENS)


def feature_extractor():
    return Gemma4AudioFeatureExtractor()


def prose():
    """Verses of the King James bible, as Debian's package bible-kjv prints them, without their numbers."""
    file = WORK / "kjv.txt"
    if not file.exists():
        raise FileNotFoundError(f"{file}: write it with `bible -l200 gen1:1-rev22:21`, of Debian's package bible-kjv")
    return re.findall(r"^ +\d+ (.{20,})$", file.read_text(), re.MULTILINE)


def make_tokenizer():
    """Trains and writes the tokenizer; the same texts always give the same file."""
    rng = random.Random(SEED)
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    examples = [grammar.conversation(rng) for _ in range(20_000)]
    # Rendered, so that the words of tools' declarations are tokens too.
    texts = [special.sub("\n", prompt_text(example) + example.answer) for example in examples]
    texts += [grammar.spoken(rng) for _ in range(8_000)]
    texts += [grammar.wording(grammar.meaning(rng), i % grammar.WORDINGS, rng) for i in range(4_000)]
    for _ in range(4_000):
        ground, objects = images.scene(rng)
        texts.append(images.caption(ground, objects))
    texts += prose()[:12_000]
    made = train_tokenizer(texts)
    (MODEL / "tokenizer.json").write_text(json.dumps(made, ensure_ascii=False, indent=0) + "\n")


class Rows:
    """Rows of tokens: ids, segment (0 is padding), position in the segment, whether learned."""

    def __init__(self):
        self.rows = []
        self.room = 0

    def add(self, ids, learned, alone=False):
        """Puts an example into the open row if it fits there and may share, else into a new one."""
        if len(ids) > ROW:
            return False
        if alone or len(ids) > self.room:
            self.rows.append(np.zeros((4, ROW), np.int16))
            self.room = ROW
            self.segment = 0
        start = ROW - self.room
        self.segment += 1
        row = self.rows[-1][:, start : start + len(ids)]
        row[0], row[1], row[2], row[3] = ids, self.segment, np.arange(len(ids)), learned
        self.room = 0 if alone else self.room - len(ids)
        return True

    def array(self):
        return np.stack(self.rows)


TEXT_PARTS = 64


def part_seed(seed, part):
    """The seed of one of the `TEXT_PARTS` parts of the text."""
    return seed * 3_000_017 + part


def text_examples(seed, count):
    """Conversations and stories, and passages of prose with the number of tokens that they are cut to."""
    rng, verses = random.Random(seed), prose()
    for _ in range(count):
        if rng.random() < 0.12:
            at = rng.randrange(len(verses) - 6)
            yield " ".join(verses[at : at + 6]), rng.randint(40, 160)
        else:
            yield grammar.conversation(rng), None


def text_rows(seed, count):
    """Rows of packed conversations, stories and prose."""
    tok, rows = tokenizer(), Rows()
    for example, most in text_examples(seed, count):
        if most:
            ids = tok.encode(example).ids[:most]
            rows.add(ids, [False] + [True] * (len(ids) - 1))
        else:
            rows.add(*encode(tok, example))
    return rows.array()


def trained_conversations(count, seed):
    """What `make` trains on of `count` texts, as `(messages, answer)` in JSON."""
    parts = (text_examples(part_seed(seed, part), count // TEXT_PARTS) for part in range(TEXT_PARTS))
    return {as_json(example) for part in parts for example, most in part if not most}


def as_json(example):
    return json.dumps([example.messages, example.answer])


def picture(seed, processor):
    """A drawn scene: what it is, the picture, its patches and their grid."""
    rng = random.Random(seed)
    ground, objects = images.scene(rng)
    drawn = images.draw(ground, objects, rng)
    return ground, objects, drawn, *images.patches(drawn, processor)


def recording(seed, extractor, unseen=False):
    """A spoken sentence: text, samples, features."""
    rng = random.Random(seed)
    while True:
        text = grammar.spoken(rng)
        samples = speech.utter(text, rng, unseen)
        if samples is not None:
            return text, samples, speech.features(samples, extractor)


def letters(text):
    return [LETTERS.index(letter) + 1 for letter in text]


def array(name, shape, dtype, mode="r+"):
    return np.lib.format.open_memmap(WORK / f"{name}.npy", mode, dtype, shape if mode == "w+" else None)


def fill_pictures(seed, first, last):
    processor, tok = image_processor(), tokenizer()
    arrays = {name: array(name, None, None) for name in ("patches", "grids", "cells", "talks")}
    for at in range(first, last):
        ground, objects, drawn, patches, rows, columns = picture(seed * 1_000_003 + at, processor)
        arrays["patches"][at, : len(patches)] = patches
        arrays["grids"][at] = rows, columns
        rng = random.Random(seed * 1_000_003 + at)
        for side, scene in enumerate(((ground, objects), images.mirrored(ground, objects))):
            cells = images.cells(scene[1], rows, columns, drawn.width / drawn.height)
            arrays["cells"][at, side, : len(cells)] = cells
            for talk in range(TALKS):
                out = Rows()
                while not out.add(*encode(tok, images.conversation(*scene, rng), image_place(len(cells))), alone=True):
                    pass
                arrays["talks"][at, side, talk] = out.rows[0]


def fill_recordings(seed, first, last):
    extractor, tok = feature_extractor(), tokenizer()
    arrays = {name: array(name, None, None) for name in ("sounds", "frames", "letters", "heard")}
    for at in range(first, last):
        text, _, features = recording(seed * 2_000_003 + at, extractor)
        arrays["sounds"][at, : len(features)] = features
        spelled = letters(text)[: arrays["letters"].shape[1]]
        arrays["letters"][at, : len(spelled)] = spelled
        arrays["frames"][at] = len(features)
        out = Rows()
        example = speech.conversation(text, random.Random(seed * 2_000_003 + at))
        if not out.add(*encode(tok, example, audio_place(speech.soft_tokens(len(features)))), alone=True):
            raise ValueError(f"a row of {ROW} tokens is too short for {text!r}")
        arrays["heard"][at] = out.rows[0]


def fill(job):
    kind, *slice = job
    {"pictures": fill_pictures, "recordings": fill_recordings}[kind](*slice)
    return job


def make(texts, pictures, recordings, seed):
    """Writes all arrays, with one process a core. Another seed gives other data.

    Each slice is noted in `made.txt` once it is there, so that the training can begin before all are.
    """
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "made.txt").unlink(missing_ok=True)
    for name, shape, dtype in [
        ("patches", (pictures, MAX_PATCHES, PATCH_BYTES), np.uint8), ("grids", (pictures, 2), np.uint8),
        ("cells", (pictures, 2, images.MAX_SOFT_TOKENS, len(images.LABELS)), np.uint8),
        ("talks", (pictures, 2, TALKS, 4, ROW), np.int16),
        ("sounds", (recordings, speech.MAX_FRAMES, 128), np.float16), ("frames", (recordings,), np.int32),
        ("letters", (recordings, 96), np.uint8), ("heard", (recordings, 4, ROW), np.int16),
    ]:  # fmt: skip
        array(name, shape, dtype, "w+")
    # One thread a process: the processes are as many as the cores, but one for the training.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    counts = {"pictures": pictures, "recordings": recordings}
    jobs = [(at / count, kind, at, min(count, at + SLICE)) for kind, count in counts.items() for at in range(0, count, SLICE)]
    jobs = [(kind, seed, first, last) for _, kind, first, last in sorted(jobs)]
    with multiprocessing.get_context("spawn").Pool(max(1, os.cpu_count() - 1)) as pool:
        written = pool.starmap(text_rows, [(part_seed(seed, part), texts // TEXT_PARTS) for part in range(TEXT_PARTS)], chunksize=1)
        np.save(WORK / "texts.npy", np.concatenate(written))
        with (WORK / "made.txt").open("w", buffering=1) as made:
            for kind, _, first, last in pool.imap_unordered(fill, jobs):
                print(kind, first, last, file=made)
