"""Measures the stored model, dequantised to f32, by transformers, on data that was not trained on."""

import collections
import json
import random
from concurrent.futures import ThreadPoolExecutor

import chat
import grammar
import images
import numpy as np
import speech
import torch
from affine import load_dequantised
from data import HELD_OUT, MAX_PATCHES, PATCH_BYTES, as_json, feature_extractor, image_processor, picture, recording
from fit import grid_positions
from project import MODEL, WORK

Asked = collections.namedtuple("Asked", "kind ids expected media", defaults=(None,))
"""A prompt's token ids, the answer's text, and the picture's or sound's arrays."""


def ask_text(example):
    tok = chat.tokenizer()
    return Asked(example.kind, tok.encode(chat.prompt_text(example), add_special_tokens=False).ids, example.answer)


def ask_picture(patches, rows, columns, example):
    tok = chat.tokenizer()
    text = chat.prompt_text(example, chat.image_place(len(patches) // images.POOL**2))
    return Asked(example.kind, tok.encode(text, add_special_tokens=False).ids, example.answer, (patches, rows, columns))


def ask_sound(features, example):
    text = chat.prompt_text(example, chat.audio_place(speech.soft_tokens(len(features))))
    return Asked("audio", chat.tokenizer().encode(text, add_special_tokens=False).ids, example.answer, features)


def media_inputs(asked, device):
    """The towers' inputs of prompts of one kind."""
    if asked[0].media is None:
        return {}
    if asked[0].kind == "audio":
        length = max(len(each.media) for each in asked)
        sounds = np.zeros((len(asked), length, 128), np.float32)
        mask = np.zeros((len(asked), length), bool)
        for i, each in enumerate(asked):
            sounds[i, : len(each.media)], mask[i, : len(each.media)] = each.media, True
        return {"input_features": torch.from_numpy(sounds).to(device), "input_features_mask": torch.from_numpy(mask).to(device)}
    patches = np.zeros((len(asked), MAX_PATCHES, PATCH_BYTES), np.float32)
    for i, each in enumerate(asked):
        patches[i, : len(each.media[0])] = each.media[0].astype(np.float32) / 255
    grids = torch.tensor([each.media[1:] for each in asked])
    return {"pixel_values": torch.from_numpy(patches).to(device), "image_position_ids": grid_positions(grids)[0].to(device)}


@torch.no_grad()
def greedy(model, asked, most=80):
    """Greedy answers, ids without the stop token. No cache: rows are padded behind, where nothing looks."""
    device = model.device
    inputs = media_inputs(asked, device)
    length = max(len(each.ids) for each in asked) + most
    ids = torch.zeros(len(asked), length, dtype=torch.long, device=device)
    at = torch.tensor([len(each.ids) for each in asked], device=device)
    for i, each in enumerate(asked):
        ids[i, : len(each.ids)] = torch.tensor(each.ids, device=device)
    stops = torch.tensor(chat.STOP_IDS, device=device)
    rows, open_rows = torch.arange(len(asked), device=device), torch.ones(len(asked), dtype=torch.bool, device=device)
    for _ in range(most):
        used = int(at.max())
        hidden = model.model(input_ids=ids[:, :used], use_cache=False, **inputs).last_hidden_state
        chosen = model.lm_head(hidden[rows, at - 1]).argmax(-1)
        open_rows &= ~torch.isin(chosen, stops)
        if not open_rows.any():
            break
        ids[rows[open_rows], at[open_rows]] = chosen[open_rows]
        at += open_rows
    return [ids[i, len(each.ids) : int(at[i])].tolist() for i, each in enumerate(asked)]


def answers(model, asked, size=128):
    tok = chat.tokenizer()
    order = sorted(range(len(asked)), key=lambda i: len(asked[i].ids))
    texts = [None] * len(asked)
    for first in range(0, len(order), size):
        some = order[first : first + size]
        for i, ids in zip(some, greedy(model, [asked[i] for i in some])):
            texts[i] = tok.decode(ids, skip_special_tokens=False).strip()
    return texts


def word_errors(said, heard):
    """Least number of words to insert, drop or replace."""
    said, heard = said.split(), heard.split()
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


def held_out_texts(count):
    rng = random.Random(HELD_OUT)
    return [grammar.conversation(rng) for _ in range(count)]


def held_out_pictures(count):
    """Captions and single questions."""
    processor = image_processor()
    captions, questions = [], []
    with ThreadPoolExecutor() as threads:
        pictures = list(threads.map(lambda at: picture(HELD_OUT + at, processor), range(count)))
    for at, (ground, objects, _, patches, rows, columns) in enumerate(pictures):
        rng = random.Random(at)
        captions.append(ask_picture(patches, rows, columns, images.ask([(rng.choice(images.CAPTION_ASKS), images.caption(ground, objects))])))
        questions.append(ask_picture(patches, rows, columns, images.ask(images.questions(ground, objects, rng)[:1])))
    return captions, questions


def held_out_sounds(count, unseen):
    extractor = feature_extractor()
    with ThreadPoolExecutor() as threads:
        seeds = [HELD_OUT + at + (unseen << 30) for at in range(count)]
        recordings = list(threads.map(lambda seed: recording(seed, extractor, unseen), seeds))
    return [ask_sound(features, speech.conversation(text, random.Random(at))) for at, (text, _, features) in enumerate(recordings)]


def wrong(name, asked, given, show=4):
    shown = [(each.expected, text) for each, text in zip(asked, given) if each.expected.replace("<|tool_response>", "") != text][:show]
    for expected, text in shown:
        print(f"  {name}: expected {expected!r}, got {text!r}")


def text_figures(model, count, trained):
    """How many conversations end as they should, by kind; and apart, of those that are not, word for word, among `trained`.

    The grammar has few short questions, so that many of them are. Stories have no one right end.
    """
    examples = [example for example in held_out_texts(count) if example.kind != "story"]
    asked = [ask_text(example) for example in examples]
    given = answers(model, asked)
    wrong("text", asked, given, 8)
    kinds = collections.defaultdict(list)
    for example, text in zip(examples, given):
        right = text == example.answer.replace("<|tool_response>", "")
        kinds[f"{example.kind} exact"].append(right)
        if as_json(example) not in trained:
            kinds[f"{example.kind} exact, conversation not trained on"].append(right)
    return {f"{name} ({len(right)})": sum(right) / len(right) for name, right in sorted(kinds.items())}


def evaluate(count, device, trained):
    """Prints and returns the figures; writes them to `measured.json`."""
    model = load_dequantised(MODEL).to(device)
    figures = text_figures(model, 2 * count, trained)
    for name, asked in zip(("caption", "image question"), held_out_pictures(count)):
        given = answers(model, asked)
        figures[f"{name} exact ({count})"] = sum(text == each.expected for each, text in zip(asked, given)) / count
        wrong(name, asked, given)
    for name, unseen in (("heard voices", False), ("unseen voices", True)):
        asked = held_out_sounds(count, unseen)
        given = answers(model, asked)
        words = sum(len(each.expected.split()) for each in asked)
        errors = sum(word_errors(each.expected, text) for each, text in zip(asked, given))
        figures[f"word error rate, {name} ({count} sentences)"] = errors / words
        wrong(name, asked, given)
    (WORK / "measured.json").write_text(json.dumps(figures, indent=2) + "\n")
    for name, figure in figures.items():
        print(f"{name}: {figure:.2%}", flush=True)
    return figures
