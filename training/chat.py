"""Gemma 4's tokens and chat format: the tokenizer, the template, and which tokens are learned."""

import collections
import functools
import json

import jinja2.sandbox
import tokenizers
from project import MODEL

SPECIAL_TOKENS = [
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>",
    "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
    "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>",
    "<|image>", "<image|>", "<|image|>", "<|audio>", "<audio|>", "<|audio|>", "<|video|>",
]  # fmt: skip
ID = {token: id for id, token in enumerate(SPECIAL_TOKENS)}
STOP_IDS = [ID["<eos>"], ID["<turn|>"], ID["<|tool_response>"]]
VOCAB_SIZE = 4096


def train_tokenizer(texts, eos=False):
    """A byte-pair tokenizer in the shape of Gemma's: spaces as "▁", bytes for what the vocabulary lacks.

    Merges never cross a word, a digit or a mark, so the file needs no split of its own at run time.
    """
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    pre = tokenizers.pre_tokenizers
    trained.pre_tokenizer = pre.Sequence([pre.Split("▁", "merged_with_next"), pre.Digits(True), pre.Split(
        tokenizers.Regex(r"[^\p{L}\p{N}▁]"), "isolated")])  # fmt: skip
    fixed = SPECIAL_TOKENS + [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = [chr(code) for code in range(33, 127)] + ["▁", "\n"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(fixed), initial_alphabet=alphabet, limit_alphabet=len(alphabet) + 8, show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    unused = [f"<unused{i}>" for i in range(VOCAB_SIZE - len(fixed) - len(learned))]
    model |= {
        "vocab": {token: id for id, token in enumerate(fixed + learned + unused)},
        "unk_token": "<unk>",
        "byte_fallback": True,
        "fuse_unk": True,
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    ends = [{"SpecialToken": {"id": "<eos>", "type_id": 0}}] if eos else []
    used = ["<bos>", "<eos>"] if eos else ["<bos>"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": token} | flags for token, id in ID.items()],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, *ends],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [ID[token]], "tokens": [token]} for token in used},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": model,
    }  # fmt: skip


def tokenizer(folder=MODEL):
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@functools.cache
def template():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((MODEL / "chat_template.jinja").read_text())


def render(messages, tools=None, thinking=False, generate=True):
    """The prompt text of a conversation, up to the model's next turn if `generate`."""
    return template().render(
        bos_token="<bos>", messages=messages, tools=tools, enable_thinking=thinking, add_generation_prompt=generate
    )


Example = collections.namedtuple("Example", "messages answer tools thinking kind", defaults=(None, False, "text"))
"""A conversation whose last turn, `answer`, is the model's: raw text, with its thought and calls, without its end."""


def prompt_text(example, media=""):
    """The prompt of an example; its one media place is replaced by `media`."""
    text = render(example.messages, example.tools, example.thinking)
    for place in ("<|image|>", "<|audio|>"):
        text = text.replace(place, media)
    return text


def image_place(tokens):
    return "<|image>" + "<|image|>" * tokens + "<image|>"


def audio_place(tokens):
    return "<|audio>" + "<|audio|>" * tokens + "<audio|>"


def encode(tok, example, media=""):
    """Token ids, and for each whether the model learns to write it."""
    end = "" if example.answer.endswith("<|tool_response>") else "<turn|>"
    text = prompt_text(example, media) + example.answer + end
    ids = tok.encode(text, add_special_tokens=False).ids
    return ids, learned(ids, tok.encode("model\n", add_special_tokens=False).ids)


def learned(ids, model_header):
    """True at the tokens of the model's turns, their end included, but not at tools' responses."""
    flags = [False] * len(ids)
    writing = False
    for at, id in enumerate(ids):
        flags[at] = writing
        if id == ID["<|turn>"]:
            writing = False
        elif ids[max(0, at - len(model_header)) : at + 1] == [ID["<|turn>"], *model_header]:
            writing = True
        elif id in (ID["<turn|>"], ID["<|tool_response>"]):
            writing = False
        elif id == ID["<tool_response|>"]:
            writing = True
    return flags

