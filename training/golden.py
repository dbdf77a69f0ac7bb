"""Golden values for tests/fixtures/pocket: what transformers makes of the stored weights, dequantised to f32."""

import itertools
import json
import random
import shutil
import wave

import chat
import embed
import evaluate
import grammar
import images
import speech
import torch
from affine import load_dequantised
from data import HELD_OUT, feature_extractor, image_processor, picture, recording
from project import FIXTURES, MODEL

PROMPTS = 20
PICTURES = 4
PICTURE_BYTES = 64 << 10  # at most, of each: pictures of much noise stay out of the repository
SOUNDS = 4
SENTENCES = 8
GOLDEN = HELD_OUT + (1 << 20)


def rounded(values, places=4):
    return [round(float(value), places) for value in values]


@torch.no_grad()
def greedy(model, asked, most=80):
    """Greedy ids, the stop token included, and at every step by how much the best logit leads the next."""
    inputs = evaluate.media_inputs([asked], model.device)
    ids, gaps, first = list(asked.ids), [], None
    while len(ids) < len(asked.ids) + most:
        logits = model(input_ids=torch.tensor([ids]), logits_to_keep=1, use_cache=False, **inputs).logits[0, -1]
        first = logits if first is None else first
        top = logits.topk(2)
        ids.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        if ids[-1] in chat.STOP_IDS:
            break
    top = first.topk(8)
    return {
        "prompt": asked.ids, "ids": ids[len(asked.ids) :], "gaps": rounded(gaps),
        "text": chat.tokenizer().decode(ids[len(asked.ids) :], skip_special_tokens=False),
        "first_logits": {"ids": top.indices.tolist(), "values": rounded(top.values)},
    }  # fmt: skip


def conversations():
    """Held-out conversations of every kind."""
    rng = random.Random(GOLDEN)
    makers = [make for make, _ in grammar.KINDS]
    return [makers[i % len(makers)](rng) for i in range(PROMPTS)]


def write_json(name, value):
    (FIXTURES / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def write_prompts(model):
    out = []
    for example in conversations():
        asked = evaluate.ask_text(example)
        out.append({
            "kind": example.kind, "messages": example.messages, "tools": example.tools, "thinking": example.thinking,
            "rendered": chat.prompt_text(example), "expected": example.answer, **greedy(model, asked),
        })  # fmt: skip
    write_json("prompts.json", out)


def write_pictures(model):
    processor, out, seeds = image_processor(), [], itertools.count(GOLDEN)
    for at in range(PICTURES):
        file = FIXTURES / f"picture-{at}.png"
        while not file.exists() or file.stat().st_size > PICTURE_BYTES:
            ground, objects, drawn, patches, rows, columns = picture(next(seeds), processor)
            drawn.save(file, optimize=True)
        caption = images.caption(ground, objects)
        asks = [(images.CAPTION_ASKS[0], caption), images.questions(ground, objects, random.Random(at))[0]]
        for question, answer in asks:
            asked = evaluate.ask_picture(patches, rows, columns, images.ask([(question, answer)]))
            out.append({
                "file": file.name, "question": question, "expected": answer, "soft_tokens": len(patches) // images.POOL**2,
                **greedy(model, asked),
            })  # fmt: skip
    write_json("pictures.json", out)


def write_sounds(model):
    extractor, out = feature_extractor(), []
    for at in range(SOUNDS):
        text, samples, features = recording(GOLDEN + at, extractor, unseen=True)
        with wave.open(str(FIXTURES / f"speech-{at}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(speech.RATE)
            file.writeframes(samples.tobytes())
        asked = evaluate.ask_sound(features, speech.ask(speech.ASKS[0], text))
        out.append({"file": f"speech-{at}.wav", "question": speech.ASKS[0], "expected": text, "frames": len(features), **greedy(model, asked)})
    write_json("speech.json", out)


@torch.no_grad()
def write_embeddings():
    model, tok, rng, out = embed.load_dequantised(), chat.tokenizer(), random.Random(GOLDEN), []
    for at in range(SENTENCES):
        prompt = list(embed.PROMPTS)[at % len(embed.PROMPTS)]
        text = grammar.wording(grammar.meaning(rng), at % grammar.WORDINGS, rng)
        ids = embed.token_ids(tok, [embed.PROMPTS[prompt] + text])
        out.append({"prompt_name": prompt, "text": text, "ids": ids[ids != 0].tolist(), "embedding": rounded(model(ids)[0], 5)})
    write_json("embeddings.json", out)


def write():
    shutil.rmtree(FIXTURES, ignore_errors=True)
    FIXTURES.mkdir(parents=True)
    model = load_dequantised(MODEL)
    write_prompts(model)
    write_pictures(model)
    write_sounds(model)
    write_embeddings()
    print(f"{FIXTURES}: {sum(file.stat().st_size for file in FIXTURES.iterdir()):,} bytes", flush=True)
