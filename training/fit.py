"""Trains the model: one batch holds text, pictures and speech, all resident on the device."""

import json
import math
import pathlib
import time

import affine
import images
import numpy as np
import torch
from chat import tokenizer
from data import LETTERS, MAX_PATCHES, ROW
from model import build
from project import SEED, WORK
from torch import nn
from torch.nn import functional as F

CLIPS_FROM = 0.55  # part of the training after which the clipped linears clip
STORED_FROM = 0.65  # part after which 4-bit weights are seen as stored
WARM_UP = 200


class Data:
    """The arrays of `data.make`, on the device."""

    def __init__(self, device):
        self.device = device
        for name in ("texts", "patches", "grids", "cells", "talks", "sounds", "frames", "letters", "heard"):
            values = np.load(WORK / f"{name}.npy", mmap_mode="c")
            setattr(self, name, torch.from_numpy(values).to(device))
        self.generator = torch.Generator(device).manual_seed(SEED)

    def pick(self, array, count):
        return torch.randint(len(array), (count,), device=self.device, generator=self.generator)

    def batch(self, texts, pictures, sounds):
        """A batch of so many rows of each kind, as the model takes it, and its labels."""
        rows = [self.texts[self.pick(self.texts, texts)]]
        out = {}
        if pictures:
            which = self.pick(self.talks, pictures)
            talk = torch.randint(self.talks.shape[1], (pictures,), device=self.device, generator=self.generator)
            rows.append(self.talks[which, talk])
            out |= self.seen(which)
        if sounds:
            which = self.pick(self.heard, sounds)
            rows.append(self.heard[which])
            out |= self.listened(which)
        return out | lines(torch.cat(rows))

    def seen(self, which):
        patches = self.patches[which].float()
        # Another exposure, contrast and grain every time.
        def draw(scale, *shape):
            return torch.randn(len(which), *shape, device=self.device, generator=self.generator) * scale

        patches = patches * (1 + draw(0.05, 1, 1)) + draw(6, 1, 1) + draw(4, *patches.shape[1:])
        positions, valid = grid_positions(self.grids[which])
        patches = patches.clamp(0, 255).round() / 255 * valid[..., None]
        counts = self.grids[which].long().prod(1) // images.POOL**2
        tokens = torch.arange(images.MAX_SOFT_TOKENS, device=self.device) < counts[:, None]
        return {"pixel_values": patches, "image_position_ids": positions, "cells": self.cells[which][tokens].long()}

    def listened(self, which):
        sounds, frames = self.sounds[which].float(), self.frames[which]
        count, length = len(which), int(frames.max())
        length = (length + 3) // 4 * 4
        sounds, steps = sounds[:, :length], torch.arange(length, device=self.device)

        def draw(scale, *shape):
            return torch.rand(count, *shape, device=self.device, generator=self.generator) * scale

        # Another loudness, and bands of time and frequency left out.
        sounds = sounds + draw(1.0, 1, 1) - 0.5
        hidden = torch.zeros_like(sounds, dtype=torch.bool)
        bands = torch.arange(sounds.shape[2], device=self.device)
        for size, axis in ((20, bands[None, None]), (12, steps[None, :, None]), (12, steps[None, :, None])):
            start = draw(axis.numel(), 1, 1)
            hidden |= (axis >= start) & (axis < start + draw(size, 1, 1))
        valid = steps < frames[:, None]
        sounds = sounds.masked_fill(hidden, -5.0) * valid[..., None]
        return {"input_features": sounds, "input_features_mask": valid, "letters": self.letters[which].long()}


def grid_positions(grids):
    """Positions (x, y) of the patches of grids of (rows, columns), -1 past the end, and which are valid."""
    rows, columns = grids[:, :1].long(), grids[:, 1:].long()
    at = torch.arange(MAX_PATCHES, device=grids.device)
    valid = at < rows * columns
    positions = torch.stack([at % columns, at // columns], -1)
    return positions.masked_fill(~valid[..., None], -1), valid


def lines(rows, window=128):
    """The model's inputs for rows of tokens [n, 4, ROW]: a segment sees itself alone."""
    ids, segment, position, learned = rows.long().unbind(1)
    at = torch.arange(ROW, device=rows.device)
    back = at[:, None] - at[None]
    full = (segment[:, None, :, None] == segment[:, None, None, :]) & (back >= 0)
    masks = {"full_attention": full, "sliding_attention": full & (back < window)}
    labels = F.pad(ids, (0, 1))[:, 1:].masked_fill(F.pad(learned, (0, 1))[:, 1:] == 0, -100)
    return {"input_ids": ids, "position_ids": position, "attention_mask": masks, "labels": labels}


class Lesson(nn.Module):
    """The model with two heads that only training uses: what a soft token of a picture shows, letters of a sound."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.cells = nn.Linear(model.config.vision_config.hidden_size, sum(self.kinds))
        self.spell = nn.Linear(model.config.audio_config.output_proj_dims, len(LETTERS) + 1)
        towers = model.model
        towers.vision_tower.register_forward_hook(lambda _, __, out: setattr(self, "seen", out.last_hidden_state))
        towers.audio_tower.register_forward_hook(lambda _, __, out: setattr(self, "listened", (out.last_hidden_state, out.attention_mask)))

    kinds = [len(images.SHAPES) + 1, len(images.PAINTS) + 1, len(images.SIZES) + 1]

    def forward(self, labels, cells=None, letters=None, **inputs):
        """Losses by name: of the written tokens of each kind of row, and of the heads."""
        hidden = self.model.model(**inputs, use_cache=False).last_hidden_state
        at = (labels != -100).nonzero(as_tuple=True)
        logits = self.model.lm_head(hidden[at]).float()
        cap = self.model.config.text_config.final_logit_softcapping
        each = F.cross_entropy(cap * torch.tanh(logits / cap), labels[at], reduction="none")
        pictures = len(inputs["pixel_values"]) if cells is not None else 0
        sounds = len(inputs["input_features"]) if letters is not None else 0
        texts = len(labels) - pictures - sounds
        # Each kind counts alike, however many tokens it has in the batch.
        ends = {"text": texts, "picture": texts + pictures, "speech": texts + pictures + sounds}
        losses, start = {}, 0
        for name, end in ends.items():
            of_kind = (at[0] >= start) & (at[0] < end)
            if end > start:
                losses[name] = (each * of_kind).sum() / of_kind.sum()
            start = end
        if cells is not None:
            heads = self.cells(self.seen.float()).split(self.kinds, -1)
            # Few cells show an object, and those are the ones to learn from.
            weights = torch.where(cells[:, 0] > 0, 1.0, 0.1)
            each = [F.cross_entropy(head, cells[:, i], reduction="none") for i, head in enumerate(heads)]
            losses["cells"] = 0.2 * (sum(each) * weights).sum() / weights.sum()
        if letters is not None:
            listened, valid = self.listened
            spoken = self.spell(listened.float()).log_softmax(-1).transpose(0, 1)
            losses["letters"] = 0.3 * F.ctc_loss(
                spoken, letters, valid.sum(1), (letters > 0).sum(1), reduction="none", zero_infinity=True
            ).div((letters > 0).sum(1)).mean()  # fmt: skip
        return losses


@torch.no_grad()
def set_clips(lesson, data, sizes, autocast):
    """Bounds of the clipped linears: what all but a ten-thousandth of the values keep to."""
    bounds, hooks = {}, []
    for module in lesson.modules():
        if type(module).__name__ == "Gemma4ClippableLinear":
            def note(module, inputs, output):
                for name, values in (("input", inputs[0]), ("output", output)):
                    values = values.detach().float().abs().flatten()[:4_000_000]
                    top = torch.quantile(values[torch.randint(len(values), (1_000_000,), device=values.device)], 0.9999)
                    bounds.setdefault((module, name), []).append(top)
            hooks.append(module.register_forward_hook(note))  # fmt: skip
    for _ in range(4):
        with autocast:
            lesson(**data.batch(*sizes))
    for hook in hooks:
        hook.remove()
    for (module, name), tops in bounds.items():
        bound = torch.stack(tops).max().half().float()
        getattr(module, name + "_min").fill_(-bound)
        getattr(module, name + "_max").fill_(bound)


def moved(state, old, new):
    """Weights learned with the tokenizer `old`, for the tokenizer `new`: each token keeps its rows of the tables.

    A token that `old` lacks starts from the mean of the tokens that `old` spells it with.
    """
    rows, known = new.get_vocab(), old.get_vocab()
    for name in [name for name in state if "embed_tokens" in name]:
        table, out = state[name], state[name].clone()
        for token, row in rows.items():
            spelled = [known[token]] if token in known else old.encode(token.replace("▁", " "), add_special_tokens=False).ids
            out[row] = table[spelled].mean(0)
        state[name] = out
    return state


def optimizer_of(lesson, rate, fused):
    decayed = [weight for weight in lesson.parameters() if weight.ndim >= 2]
    others = [weight for weight in lesson.parameters() if weight.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=fused)


def train(steps, seconds, sizes, rate, device, start=None):
    """Trains and writes `pocket.pt`. With `seconds`, the number of steps is set by the speed of the first ones.

    `start` is a folder with `pocket.pt`, `tokenizer.json` and `trained.json` of the run to go on from; its clipped
    linears clip already.
    """
    torch.manual_seed(SEED + bool(start))
    data = Data(device)
    model = build()
    if start:
        weights = torch.load(pathlib.Path(start) / "pocket.pt", weights_only=True)
        model.load_state_dict(moved(weights, tokenizer(pathlib.Path(start)), tokenizer()), strict=False)
    lesson = Lesson(model).to(device).train()
    optimizer = optimizer_of(lesson, rate, device == "cuda")
    autocast = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
    say = lambda text: print(text, flush=True)  # noqa: E731
    counts = {name: sum(w.numel() for w in part.parameters()) for name, part in lesson.model.model.named_children()}
    say(f"parameters {sum(counts.values()):,}: {counts}; rows of text {len(data.texts):,}")
    clipped, stored = bool(start), False
    sums, began, step = {}, time.time(), 0
    while step < steps:
        done = step / steps
        if not clipped and done >= CLIPS_FROM:
            set_clips(lesson, data, sizes, autocast)
            clipped = True
        if not stored and done >= STORED_FROM:
            affine.train_as_stored(lesson.model)
            stored = True
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / WARM_UP) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        with autocast:
            losses = lesson(**data.batch(*sizes))
        sum(losses.values()).backward()
        nn.utils.clip_grad_norm_(lesson.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for name, value in losses.items():
            sums[name] = sums.get(name, 0) + value.detach()
        step += 1
        if seconds and step == 60:
            warm = time.time()
        if seconds and step == 160:
            # Fake quantisation makes the last part slower by about a tenth.
            steps = max(400, int((seconds - (time.time() - began)) / ((time.time() - warm) / 100 * 1.08)))
            memory = torch.cuda.max_memory_allocated() >> 20 if device == "cuda" else 0
            say(f"{(time.time() - warm) * 10:.1f} ms a step: {steps} steps; {memory:,} MiB at most")
        if step % max(1, min(250, steps // 8)) == 0 or step == steps:
            every = max(1, min(250, steps // 8))
            text = "  ".join(f"{name} {float(value) / every:.4f}" for name, value in sums.items())
            say(f"step {step}/{steps} {time.time() - began:.0f} s  {text}")
            sums = {}
            if seconds and time.time() - began > seconds * 1.25:
                say("out of time")
                break
    torch.save(affine.plain_state(lesson.model), WORK / "pocket.pt")
    runs = json.loads((pathlib.Path(start) / "trained.json").read_text()) if start else []
    runs.append({
        "steps": step, "sizes": sizes, "rate": rate, "seconds": round(time.time() - began),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    })  # fmt: skip
    (WORK / "trained.json").write_text(json.dumps(runs) + "\n")
    return lesson.model
