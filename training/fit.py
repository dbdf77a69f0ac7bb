"""Trains the model: one batch holds text, pictures and speech, all resident on the device."""

import json
import math
import time

import affine
import images
import numpy as np
import torch
from data import LETTERS, MAX_PATCHES, ROW
from model import build
from project import SEED, WORK
from torch import nn
from torch.nn import functional as F
from transformers.models.gemma4 import modeling_gemma4

CLIPS_FROM = 0.55  # part of the training after which the clipped linears clip
STORED_FROM = 0.65  # part after which 4-bit weights are seen as stored
WARM_UP = 200
PATIENCE = 240  # seconds to wait for data that are being made


def wait(there):
    until = time.time() + PATIENCE
    while not there():
        if time.time() > until:
            raise TimeoutError("the data are not there: is `train.py data` at work?")
        time.sleep(0.2)


class Data:
    """The arrays of `data.make`, on the device: all of them, or those slices that are made by now."""

    kinds = {"pictures": ("patches", "grids", "cells", "talks"), "recordings": ("sounds", "frames", "letters", "heard")}

    def __init__(self, device):
        self.device = device
        self.files, self.made = {}, {kind: np.zeros(0, np.int64) for kind in self.kinds}
        self.noted = 0
        wait((WORK / "made.txt").exists)
        self.texts = torch.from_numpy(np.load(WORK / "texts.npy")).to(device)
        for name in sum(self.kinds.values(), ()):
            self.files[name] = np.load(WORK / f"{name}.npy", mmap_mode="r+")
            kind = torch.from_numpy(self.files[name][:0]).dtype
            setattr(self, name, torch.zeros(self.files[name].shape, dtype=kind, device=device))
        wait(self.begun)
        self.generator = torch.Generator(device).manual_seed(SEED)

    def take_up(self):
        """Copies the slices that have been made since the last time."""
        noted = (WORK / "made.txt").read_text().split("\n")[:-1]
        for line in noted[self.noted :]:
            kind, first, last = line.split()
            some = slice(int(first), int(last))
            for name in self.kinds[kind]:
                getattr(self, name)[some] = torch.from_numpy(self.files[name][some])
            self.made[kind] = np.append(self.made[kind], np.arange(some.start, some.stop))
        if len(noted) > self.noted:
            self.ready = {kind: torch.from_numpy(made).to(self.device) for kind, made in self.made.items()}
        self.noted = len(noted)

    def begun(self):
        """Takes up what is there, and says whether it is a twentieth of each kind."""
        self.take_up()
        return all(len(self.made[kind]) >= len(self.files[names[0]]) / 20 for kind, names in self.kinds.items())

    def below(self, bound, count):
        return torch.randint(bound, (count,), device=self.device, generator=self.generator)

    def batch(self, texts, pictures, sounds):
        """A batch of so many rows of each kind, as the model takes it, and its labels."""
        rows = [self.texts[self.below(len(self.texts), texts)]]
        out = {}
        if pictures:
            which = self.ready["pictures"][self.below(len(self.ready["pictures"]), pictures)]
            side, talk = self.below(2, pictures), self.below(self.talks.shape[2], pictures)
            rows.append(self.talks[which, side, talk])
            out |= self.seen(which, side)
        if sounds:
            which = self.ready["recordings"][self.below(len(self.ready["recordings"]), sounds)]
            rows.append(self.heard[which])
            out |= self.listened(which)
        return out | lines(torch.cat(rows))

    def seen(self, which, side):
        grids = self.grids[which].long()
        patches = mirror(self.patches[which], grids, side).float()
        # Another exposure, contrast and grain every time.
        def draw(scale, *shape):
            return torch.randn(len(which), *shape, device=self.device, generator=self.generator) * scale

        patches = patches * (1 + draw(0.05, 1, 1)) + draw(6, 1, 1) + draw(4, *patches.shape[1:])
        positions, valid = grid_positions(grids)
        patches = patches.clamp(0, 255).round() / 255 * valid[..., None]
        counts = grids.prod(1) // images.POOL**2
        tokens = torch.arange(images.MAX_SOFT_TOKENS, device=self.device) < counts[:, None]
        return {"pixel_values": patches, "image_position_ids": positions, "cells": self.cells[which, side][tokens].long()}

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


def mirror(patches, grids, side):
    """Exchanges left and right in those pictures, of grids of (rows, columns), whose `side` is 1."""
    columns, at = grids[:, 1:], torch.arange(patches.shape[1], device=patches.device)
    across = (at // columns * columns + columns - 1 - at % columns).clamp(max=len(at) - 1)
    turned = patches.gather(1, across[..., None].expand_as(patches))
    turned = turned.unflatten(2, (images.PATCH, images.PATCH, 3)).flip(3).flatten(2)
    return torch.where(side[:, None, None] == 1, turned, patches)


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

    kinds = [count + 1 for count in images.LABELS]

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
            losses["cells"] = 0.15 * (sum(each) * weights).sum() / weights.sum()
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
                    top = torch.quantile(values[torch.randint(len(values), (200_000,), device=values.device)], 0.9999)
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


def optimizer_of(lesson, rate, fused):
    decayed = [weight for weight in lesson.parameters() if weight.ndim >= 2]
    others = [weight for weight in lesson.parameters() if weight.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=fused)


class Progress:
    """How far the training is: by steps or, with `seconds`, by the clock, over all pieces."""

    def __init__(self, steps, seconds):
        self.steps, self.seconds = steps, seconds
        self.step, self.spent, self.began, self.fresh = 0, 0.0, time.time(), 0

    def lasted(self):
        return self.spent + time.time() - self.began

    def done(self):
        return min(1, self.lasted() / self.seconds if self.seconds else self.step / self.steps)

    def rate(self):
        """Of the greatest rate: rises while the optimizer's moments are young, falls with a cosine."""
        return min(1, (self.step - self.fresh + 1) / WARM_UP) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * self.done())))


def save(lesson, optimizer, progress, clipped):
    """Writes what another piece goes on from. Sixteen bits are enough for the moments."""
    moments = {
        at: {name: value.bfloat16() if name.startswith("exp_avg") else value for name, value in state.items()}
        for at, state in optimizer.state_dict()["state"].items()
    }  # fmt: skip
    state = {
        "model": affine.plain_state(lesson.model), "cells": lesson.cells.state_dict(), "spell": lesson.spell.state_dict(),
        "moments": moments, "step": progress.step, "spent": progress.lasted(), "clipped": clipped,
    }  # fmt: skip
    torch.save(state, WORK / "state.tmp")
    (WORK / "state.tmp").replace(WORK / "state.pt")


def resume(lesson, optimizer, progress, device):
    """Takes up the state of the piece before; its moments may be missing. Returns whether it clipped."""
    state = torch.load(WORK / "state.pt", map_location=device, weights_only=True)
    lesson.model.load_state_dict(state["model"], strict=False)
    lesson.cells.load_state_dict(state["cells"])
    lesson.spell.load_state_dict(state["spell"])
    progress.step, progress.spent = state["step"], state["spent"]
    if state["moments"]:
        optimizer.load_state_dict({"state": state["moments"], "param_groups": optimizer.state_dict()["param_groups"]})
    else:
        progress.fresh = progress.step
    return state["clipped"]


def fuse_norms():
    """The same norm by one kernel, where transformers takes eight."""

    def forward(self, hidden):
        weight = self.weight.float() if self.with_scale else None
        return F.rms_norm(hidden.float(), hidden.shape[-1:], weight, self.eps).type_as(hidden)

    modeling_gemma4.Gemma4RMSNorm.forward = forward


def train(steps, seconds, piece, resumed, last, sizes, rate, device):
    """Trains and writes `pocket.pt` and `state.pt`.

    With `seconds` the schedule lasts that long instead of `steps`; with `piece` this call ends after so many seconds,
    loading included, and one that has `resumed` goes on from there. The schedule ends with the `last` piece.
    """
    entered = time.time()
    torch.manual_seed(SEED)
    fuse_norms()
    lesson = Lesson(build()).to(device).train()
    optimizer = optimizer_of(lesson, rate, device == "cuda")
    progress, clipped, stored = Progress(steps, seconds), False, False
    if resumed:
        clipped = resume(lesson, optimizer, progress, device)
    data = Data(device)
    data.generator.manual_seed(SEED + progress.step)
    autocast = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
    say = lambda text: print(text, flush=True)  # noqa: E731
    counts = {name: sum(w.numel() for w in part.parameters()) for name, part in lesson.model.model.named_children()}
    say(f"parameters {sum(counts.values()):,}: {counts}; rows of text {len(data.texts):,}; from step {progress.step}")
    sums, since, skipped = {}, 0, 0
    progress.began = saved = noted = time.time()
    if last:
        progress.seconds = progress.spent + piece - (progress.began - entered)
    while progress.done() < 1 and not (piece and time.time() - entered > piece):
        if not clipped and progress.done() >= CLIPS_FROM:
            set_clips(lesson, data, sizes, autocast)
            clipped = True
        if not stored and progress.done() >= STORED_FROM:
            affine.train_as_stored(lesson.model)
            stored = True
        for group in optimizer.param_groups:
            group["lr"] = rate * progress.rate()
        with autocast:
            losses = lesson(**data.batch(*sizes))
        sum(losses.values()).backward()
        if torch.isfinite(nn.utils.clip_grad_norm_(lesson.parameters(), 1.0, foreach=True)):
            optimizer.step()
        else:
            skipped += 1
        optimizer.zero_grad(set_to_none=True)
        for name, value in losses.items():
            sums[name] = sums.get(name, 0) + value.detach()
        progress.step += 1
        since += 1
        if time.time() - noted > 10:
            data.take_up()
            text = "  ".join(f"{name} {float(value) / since:.4f}" for name, value in sums.items())
            memory = torch.cuda.max_memory_allocated() >> 20 if device == "cuda" else 0
            say(
                f"step {progress.step} {progress.lasted():.0f} s {progress.done():.1%}  {text}  {(time.time() - noted) / since * 1e3:.0f} ms a step"
                f"  of {len(data.made['pictures']):,} pictures; {memory:,} MiB; {skipped} skipped"
            )
            sums, since, noted = {}, 0, time.time()
        if time.time() - saved > 100:
            save(lesson, optimizer, progress, clipped)
            saved = time.time()
    save(lesson, optimizer, progress, clipped)
    torch.save(affine.plain_state(lesson.model), WORK / "pocket.pt")
    run = {
        "steps": progress.step, "sizes": sizes, "rate": rate, "seconds": round(progress.lasted()), "done": progress.done(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }  # fmt: skip
    (WORK / "trained.json").write_text(json.dumps(run) + "\n")
    say(f"at step {progress.step}, {progress.done():.1%}")
