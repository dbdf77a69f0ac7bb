#!/usr/bin/env python3
"""Make the tiny seeded checkpoints of tests/fixtures/FAMILY/NAME and the golden values beside them.

    pip install torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6
    python tests/reference/make_tiny.py [FAMILY/NAME ...]

The reference is Hugging Face transformers on the CPU, in f32, with eager attention. A folder holds

config.json         in the form in which the family's published repositories have it
config.v5.json      the same configuration as transformers 5 writes it (`rope_parameters`, `layer_types`, `dtype`)
model.safetensors   weights that the stored dtype holds exactly, so that the f32 golden values are theirs; in gemma4/mlx
                    4- and 8-bit codes in MLX's layout, and the golden values are those of the dequantised weights
golden.safetensors  the golden values, F32, and token ids, I32 (below)
tokenizer.json, tokenizer_config.json   only in llama/tied: a byte-level BPE of 320 entries, with a chat template

golden.safetensors, for a prompt of 21 tokens ("long": longer than the sliding window of 8) and one of 1 token:

long.ids            [21]
long.hidden         [layers + 1, 21, hidden_size]  the residual stream: row 0 is the (scaled) embedding, row i the
                    output of layer i - 1. The last row is taken before the final norm, unlike transformers'
                    own `hidden_states[-1]`, which is taken after it.
long.final_norm     [21, hidden_size]  the last row of long.hidden after the final norm
long.logits         [21, vocab_size]
long.greedy_ids     [16, or 32 for Gemma 4]  greedy continuation of the prompt
long.greedy_logits  [16 or 32, vocab_size]  the logits from which each of them was chosen
single.ids          [1]
single.logits       [1, vocab_size]
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
VOCAB_SIZE = 320
LONG_PROMPT = 21
# Kernels sum in another order than torch, so a greedy choice closer than this would be no test.
LEAST_GREEDY_MARGIN = 0.005
# The same for the choice of experts, in probability.
LEAST_ROUTER_MARGIN = 1e-4



def layer_types(letters):
    """One type per letter: s for sliding, f for full."""
    return [{"s": "sliding_attention", "f": "full_attention"}[letter] for letter in letters if letter != " "]


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}

GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 32,
    "sliding_window": 8,
    "sliding_window_pattern": 6,
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}

GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": None,
    "head_dim": 8,
    "global_head_dim": 16,
    "vocab_size": VOCAB_SIZE,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "hidden_size_per_layer_input": 12,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": False,
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "num_experts": None,
    "top_k_experts": None,
    "moe_intermediate_size": None,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 8,
    "layer_types": None,
    "attention_bias": False,
    "final_logit_softcapping": 30.0,
    "use_bidirectional_attention": None,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}

# As E2B: in a multimodal checkpoint, two groups of shared layers that are not the last before them, a wide MLP in
# those, and a hidden size whose root bfloat16 does not hold.
GEMMA4_E2B = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "text_config": {
        **GEMMA4,
        "hidden_size": 56,
        "num_hidden_layers": 8,
        "num_kv_shared_layers": 4,
        "use_double_wide_mlp": True,
        "layer_types": layer_types("ssfs sfsf"),
    },
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "patch_size": 2,
        "position_embedding_size": 4,
        "use_clipped_linears": True,
    },
    "audio_config": None,
    "tie_word_embeddings": True,
}

# Each case: the configuration, the dtype that the weights are stored in, the seed, and the spread of the logits.
CASES = {
    "llama/tied": (LLAMA, torch.bfloat16, 1, 4.0),
    "llama/rope_llama3": (
        {
            **LLAMA,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "head_dim": 32,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "tie_word_embeddings": False,
        },
        torch.float16,
        2,
        4.0,
    ),
    "llama/mistral": (
        {
            **{k: v for k, v in LLAMA.items() if k not in ("attention_bias", "mlp_bias")},
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "sliding_window": 8,
            "tie_word_embeddings": False,
        },
        torch.float32,
        3,
        4.0,
    ),
    "gemma3/pattern": (GEMMA3, torch.bfloat16, 4, 4.0),
    "gemma3/scaled": (
        {
            **{k: v for k, v in GEMMA3.items() if k != "sliding_window_pattern"},
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 24,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            # Wide logits: the soft cap then bends most of them.
            "final_logit_softcapping": 30.0,
        },
        torch.bfloat16,
        5,
        16.0,
    ),
    "gemma4/e2b": (GEMMA4_E2B, torch.bfloat16, 6, 4.0),
    "gemma4/e4b": (
        {**GEMMA4, "num_key_value_heads": 2, "layer_types": layer_types("sfs fsf"), "tie_word_embeddings": False},
        torch.float16,
        17,
        2.5,
    ),
    "gemma4/dense": (
        {
            **GEMMA4,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_global_key_value_heads": 2,
            "num_hidden_layers": 4,
            "layer_types": layer_types("sfsf"),
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "use_bidirectional_attention": "vision",
        },
        torch.float32,
        8,
        4.0,
    ),
    "gemma4/moe": (
        {
            **GEMMA4,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "num_hidden_layers": 3,
            "layer_types": layer_types("ssf"),
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 9,
            "top_k_experts": 3,
            "moe_intermediate_size": 36,
            "use_bidirectional_attention": "vision",
        },
        torch.bfloat16,
        9,
        4.0,
    ),
    # Sizes that divide into groups of 32.
    "gemma4/mlx": (
        {
            **GEMMA4_E2B,
            "text_config": {
                **GEMMA4_E2B["text_config"],
                "hidden_size": 96,
                "intermediate_size": 64,
                "hidden_size_per_layer_input": 32,
                "num_hidden_layers": 6,
                "layer_types": layer_types("fss fsf"),
            },
            "quantization": {
                "group_size": 32,
                "bits": 4,
                "mode": "affine",
                "language_model.model.embed_tokens": {"group_size": 32, "bits": 8},
                "language_model.model.per_layer_model_projection": False,
            },
        },
        torch.bfloat16,
        10,
        4.0,
    ),
}


def fill(model, dtype, seed, logit_spread):
    """Give `model` lively weights that `dtype` holds exactly.

    Linears have unit gain and norms spread about 1. The embedding is small, and the final norm makes up for it:
    were it large, a tied head would answer with the token just read.
    """
    generator = torch.Generator().manual_seed(seed)
    gemma3 = model.config.model_type.startswith("gemma3")
    gemma4 = model.config.model_type.startswith("gemma4")
    hidden_size = text_config(model).hidden_size
    embedding_std = 1 / 32 if gemma3 or gemma4 else 1 / 8  # Gemma multiplies it by sqrt(hidden_size)
    final_gain = logit_spread / (embedding_std * hidden_size**0.5)
    for name, weight in model.named_parameters():
        draw = torch.randn(weight.shape, generator=generator)
        if "norm" in name:
            gain = final_gain if weight is text_model(model).norm.weight else 1.0
            if gemma4 and "q_norm" in name:
                gain = weight.shape[0] ** -0.5  # its scores are not divided by this root
            value = gain * (1 + 0.3 * draw) - (1.0 if gemma3 else 0.0)  # Gemma 3 applies 1 + w
        elif "embed_tokens_per_layer" in name:
            value = draw / text_config(model).hidden_size_per_layer_input ** 0.5  # it is multiplied by that root
        elif "embed_tokens" in name or "lm_head" in name:
            value = draw * embedding_std
        elif name.endswith("scale"):  # of the router and its experts
            value = 1 + 0.3 * draw
        elif "router.proj" in name:
            value = 2 * draw  # its input is divided by the root of hidden_size
        else:
            value = draw / weight.shape[-1] ** 0.5
        with torch.no_grad():
            weight.copy_(value.to(dtype))
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.copy_((0.3 + torch.rand(1, generator=generator)).to(dtype))
        elif name.endswith("embed_scale"):
            buffer.copy_(buffer.to(dtype))  # as in a model that computes in the stored dtype


def quantise(model, config_json):
    """Replace every matrix by what MLX's affine quantisation leaves of it; the stored tensors by name.

    Codes of `bits` bits lie in a little-endian bit stream per row, and w = scale · code + bias per group.
    """
    settings = config_json["quantization"]
    stored = {}
    for name, weight in stored_tensors(model, torch.bfloat16).items():
        name = mlx_name(name)
        module = name.removesuffix(".weight")
        override = settings.get(module, settings)
        stored[name] = weight
        if weight.ndim != 2 or override is False or not name.startswith("language_model."):
            continue
        bits, group_size = override["bits"], override["group_size"]
        groups = weight.float().unflatten(1, (-1, group_size))
        low, high = groups.min(-1).values, groups.max(-1).values
        scales = ((high - low) / (2**bits - 1)).bfloat16()
        biases = low.bfloat16()
        codes = ((groups - biases[..., None].float()) / scales[..., None].float()).round().clamp(0, 2**bits - 1)
        words = codes.flatten(1).long().unflatten(1, (-1, 32 // bits)) << torch.arange(0, 32, bits)
        stored[name] = words.sum(-1).to(torch.uint32)
        stored[f"{module}.scales"], stored[f"{module}.biases"] = scales, biases
        value = codes * scales[..., None].float() + biases[..., None].float()
        with torch.no_grad():
            parameters = {mlx_name(name): parameter for name, parameter in model.named_parameters()}
            parameters[name].copy_(value.flatten(1))
    return stored


def mlx_name(name):
    """A tensor's name in a checkpoint that MLX converted."""
    return name.removeprefix("model.").replace("language_model.", "language_model.model.")


def text_config(model):
    """The configuration of the model's text part."""
    return model.config.get_text_config()


def text_model(model):
    """The layers, without the head."""
    return getattr(model.model, "language_model", model.model)


def forward(model, ids):
    """The residual stream at every layer, the final norm's output, and the logits, for one prompt."""
    before_final_norm = []
    hook = text_model(model).norm.register_forward_pre_hook(lambda _, args: before_final_norm.append(args[0][0]))
    output = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    hook.remove()
    states = [state[0] for state in output.hidden_states]
    return torch.stack([*states[:-1], before_final_norm[0]]), states[-1], output.logits[0]


def greedy(model, ids, new_tokens):
    """The greedy continuation, each token by a forward pass over everything before it, and the logits."""
    ids, chosen_from = list(ids), []
    for _ in range(new_tokens):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        chosen_from.append(logits)
        ids.append(int(logits.argmax()))
    best = torch.stack(chosen_from).topk(2).values
    margin = float((best[:, 0] - best[:, 1]).min())
    assert margin >= LEAST_GREEDY_MARGIN, f"greedy margin {margin}: take another seed"
    return ids[-new_tokens:], torch.stack(chosen_from)


def check_cached(model, prompt, continuation):
    """transformers' own cached decoding must agree, or the reference is not one."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=len(continuation),
        min_new_tokens=len(continuation),
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert output[0, len(prompt) :].tolist() == continuation, (output, continuation)


def check_routers(model, ids):
    """No expert of the prompt and its continuation may be chosen by a hair."""
    margins = []

    def note(router, _, output):
        best = output[0].topk(router.config.top_k_experts + 1).values
        margins.append(float((best[:, -2] - best[:, -1]).min()))

    hooks = [layer.router.register_forward_hook(note) for layer in text_model(model).layers if hasattr(layer, "router")]
    model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    assert min(margins, default=1.0) >= LEAST_ROUTER_MARGIN, f"router margin {min(margins)}: take another seed"


def golden(model, seed):
    """Every golden value of one checkpoint, by name."""
    generator = torch.Generator().manual_seed(1000 + seed)
    bos = text_config(model).bos_token_id
    prompt = torch.randint(3, VOCAB_SIZE, (LONG_PROMPT,), generator=generator).tolist()
    prompt[0] = bos
    hidden, final_norm, logits = forward(model, prompt)
    new_tokens = 32 if model.config.model_type.startswith("gemma4") else 16
    continuation, continuation_logits = greedy(model, prompt, new_tokens)
    check_cached(model, prompt, continuation)
    check_routers(model, prompt + continuation)
    single = [bos]
    return {
        "long.ids": torch.tensor(prompt, dtype=torch.int32),
        "long.hidden": hidden,
        "long.final_norm": final_norm,
        "long.logits": logits,
        "long.greedy_ids": torch.tensor(continuation, dtype=torch.int32),
        "long.greedy_logits": continuation_logits,
        "single.ids": torch.tensor(single, dtype=torch.int32),
        "single.logits": forward(model, single)[2],
    }


def stored_tensors(model, dtype):
    """The checkpoint's tensors by name; a tied head is the embedding and is not stored again."""
    tied = model.config.tie_word_embeddings
    return {
        name: value.to(dtype).contiguous()
        for name, value in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }


def unused_tensors(model, dtype, seed):
    """Keys and values of layers that share another's: published checkpoints have them, and nobody reads them."""
    generator = torch.Generator().manual_seed(2000 + seed)
    tensors = {}
    for index, layer in enumerate(text_model(model).layers):
        attention = layer.self_attn
        if not attention.is_kv_shared_layer:
            continue
        name = f"model.language_model.layers.{index}.self_attn"
        rows = attention.head_dim * text_config(model).num_key_value_heads
        shape = (rows, text_config(model).hidden_size)
        tensors[f"{name}.k_proj.weight"] = torch.randn(shape, generator=generator).to(dtype)
        tensors[f"{name}.v_proj.weight"] = torch.randn(shape, generator=generator).to(dtype)
        tensors[f"{name}.k_norm.weight"] = torch.randn(attention.head_dim, generator=generator).to(dtype)
    return tensors


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def make(case):
    config_json, dtype, seed, logit_spread = CASES[case]
    folder = FIXTURES / case
    folder.mkdir(parents=True, exist_ok=True)
    config_json = {**config_json, "torch_dtype": str(dtype).removeprefix("torch.")}
    write_json(folder / "config.json", config_json)

    # Read back from the file: what it says is then what the golden values come from.
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        fill(model, dtype, seed, logit_spread)
        stored = quantise(model, config_json) if "quantization" in config_json else stored_tensors(model, dtype)
        values = golden(model, seed)
    if case == "gemma4/e2b":
        stored.update(unused_tensors(model, dtype, seed))
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({name: value.contiguous() for name, value in values.items()}, folder / "golden.safetensors")

    config.dtype = dtype
    written = json.loads(config.to_json_string())
    written.pop("_name_or_path", None)
    write_json(folder / "config.v5.json", written)
    spread = values["long.logits"].std().item()
    print(f"{case}: logits spread {spread:.2f}, {len(set(values['long.greedy_ids'].tolist()))} distinct greedy ids")


def make_tokenizer(folder):
    """A byte-level BPE of exactly VOCAB_SIZE entries: 4 special tokens, 256 bytes, and 60 merges."""
    specials = ["<unk>", "<s>", "</s>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in specials],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((FIXTURES / "text-ppl.txt").read_text().splitlines(keepends=True), trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{{ bos_token }}{% for message in messages %}{{ message['role'] + '\n' + message['content'] }}"
        "<|im_end|>{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
    )
    write_json(
        folder / "tokenizer_config.json",
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template},
    )


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    for case in sys.argv[1:] or CASES:
        if case not in CASES:
            sys.exit(f"no such case {case!r}; the cases are {', '.join(CASES)}")
        make(case)
        if case == "llama/tied":
            make_tokenizer(FIXTURES / case)
