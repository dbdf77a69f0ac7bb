"""The model cards: what each model is for, how it was made, and what was measured."""

import json

import embed
import images
import speech
from project import EMBEDDER, MODEL, WORK

FRONT = """---
license: other
license_name: mit-or-apache-2.0
language: en
base_model: none
{tags}
---
"""

POCKET = """# pocket

A Gemma 4 in small, of {millions:.1f} million parameters, trained from nothing for jird's tests and its demo. It has every
part of Gemma 4 E2B: sliding and full layers of different head sizes, layers that share keys and values and have a wider
MLP, per-layer embeddings, a soft-cap, the vision tower and the audio tower. No weights of Google's are in it.

It is not of use beyond that. It knows a few hundred words of English: small questions and short stories, sums up to
20, calls of six tools, sentences that espeak-ng speaks, and drawn pictures of
{shapes}.
Outside of these it answers nonsense, fluently.

## How it was made

By `training/` of this repository: conversations and sentences from a grammar, drawn pictures, synthetic speech of
{voices} voices, and the King James bible as prose.
{training}

The weights are stored in MLX's affine layout, groups of 64: the matrices of the text layers at 4 bits, other matrices
at 8, the rest as 16-bit floats. `layer_scalar`s were set, not learned.

## What was measured

With transformers, from the stored weights, greedily and word for word, on data from seeds that were not trained on; in
brackets how many. Conversations of the grammar are short, so some of these occur in the training all the same, and those
that don't are counted apart. Voices are called unseen if none of their variants was trained on.

| | |
|---|---|
{rows}
"""

ENCODER = """# pocket-embed

A bidirectional Gemma 3 encoder in EmbeddingGemma's layout, of {millions:.1f} million parameters, trained from nothing for
jird's tests: mean over all tokens, two dense layers, a vector of {width} numbers. It tells apart sentences of the grammar
in `training/grammar.py` and is not of use beyond that. No weights of Google's are in it.

Made by `training/embed.py` from pairs of paraphrases; stored in MLX's affine layout at 8 and 4 bits, groups of 64.
With transformers, from the stored weights, among {count:,} sentences that were not trained on the paraphrase of a
sentence was the nearest {figure:.1%} of the time.
"""


def parameters(folder):
    """Weights in millions, read off the stored tensors."""
    from affine import load_tensors

    return sum(tensor.numel() for file in folder.rglob("model.safetensors") for tensor in load_tensors(file).values()) / 1e6


def training():
    """How the training went, from what `fit.train` wrote of it."""
    run = json.loads((WORK / "trained.json").read_text())
    text, pictures, sounds = run["sizes"]
    return (
        f"Training: {run['steps']:,} steps of {text} rows of text, {pictures} of pictures and {sounds} of speech took "
        f"{run['seconds']} s on one {run['device']}."
    )


def write():
    measured = json.loads((WORK / "measured.json").read_text())
    rows = "\n".join(f"| {name} | {figure:.1%} |" for name, figure in measured.items())
    card = POCKET.format(
        millions=parameters(MODEL), shapes=", ".join(f"{shape}s" for shape in images.SHAPES).replace("crosss", "crosses"),
        voices=len(speech.BASES) * len(speech.VARIANTS), training=training(), rows=rows,
    )  # fmt: skip
    (MODEL / "README.md").write_text(FRONT.format(tags="pipeline_tag: any-to-any") + card)
    found = json.loads((WORK / "measured-embed.json").read_text())
    card = ENCODER.format(millions=parameters(EMBEDDER), width=embed.config().hidden_size, **found)
    (EMBEDDER / "README.md").write_text(FRONT.format(tags="pipeline_tag: sentence-similarity") + card)
