"""A checkpoint in the shape of Gemma 4 E2B's text with random weights: for measuring time and memory, not for reading.

Matrices are 4-bit codes in groups of 64 with scale and bias in BF16, as MLX writes them; the names too are MLX's. The
numbers are of a size that keeps activations finite and logits apart. Needs numpy alone.
"""

import json

HIDDEN, LAYERS, SHARED, VOCAB = 1536, 35, 20, 262_144
HEADS, KV_HEADS, HEAD_DIM, GLOBAL_HEAD_DIM = 8, 1, 256, 512
INTERMEDIATE, PER_LAYER = 6144, 256
BITS, GROUP = 4, 64
# The spread of uniform 4-bit codes about their middle, 7.5.
CODE_SPREAD = 4.61
LOGIT_SPREAD = 4.0
BLOCK_WORDS = 8 << 20  # random words are made in blocks of 32 MB
SEED = 4
BODY = "language_model.model"


def is_full(layer):
    return layer % 5 == 4


def config():
    """config.json, with the field names of the published repository."""
    text = {
        "model_type": "gemma4_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_global_key_value_heads": None,
        "head_dim": HEAD_DIM,
        "global_head_dim": GLOBAL_HEAD_DIM,
        "vocab_size": VOCAB,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": PER_LAYER,
        "num_kv_shared_layers": SHARED,
        "use_double_wide_mlp": True,
        "attention_k_eq_v": False,
        "enable_moe_block": False,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 512,
        "layer_types": ["full_attention" if is_full(layer) else "sliding_attention" for layer in range(LAYERS)],
        "attention_bias": False,
        "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": None,
        "tie_word_embeddings": True,
    }
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": text,
        "vision_config": None,
        "audio_config": None,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": [1, 106],
        "pad_token_id": 0,
        "quantization": {"group_size": GROUP, "bits": BITS, "mode": "affine"},
    }


def matrices():
    """Name, rows, columns and the spread of the values of every matrix."""
    unit = HIDDEN**-0.5
    yield f"{BODY}.embed_tokens", VOCAB, HIDDEN, unit
    # The model multiplies a row by the root of PER_LAYER.
    yield f"{BODY}.embed_tokens_per_layer", VOCAB, LAYERS * PER_LAYER, PER_LAYER**-0.5
    yield f"{BODY}.per_layer_model_projection", LAYERS * PER_LAYER, HIDDEN, unit
    for layer in range(LAYERS):
        name = f"{BODY}.layers.{layer}"
        head_dim = GLOBAL_HEAD_DIM if is_full(layer) else HEAD_DIM
        is_shared = layer >= LAYERS - SHARED
        width = INTERMEDIATE * (2 if is_shared else 1)
        yield f"{name}.self_attn.q_proj", HEADS * head_dim, HIDDEN, unit
        if not is_shared:
            yield f"{name}.self_attn.k_proj", KV_HEADS * head_dim, HIDDEN, unit
            yield f"{name}.self_attn.v_proj", KV_HEADS * head_dim, HIDDEN, unit
        yield f"{name}.self_attn.o_proj", HIDDEN, HEADS * head_dim, (HEADS * head_dim) ** -0.5
        yield f"{name}.mlp.gate_proj", width, HIDDEN, unit
        yield f"{name}.mlp.up_proj", width, HIDDEN, unit
        yield f"{name}.mlp.down_proj", HIDDEN, width, width**-0.5
        yield f"{name}.per_layer_input_gate", PER_LAYER, HIDDEN, unit
        yield f"{name}.per_layer_projection", HIDDEN, PER_LAYER, PER_LAYER**-0.5


def vectors():
    """Name, size and the middle of the values of every vector."""
    # A tied head sees embeddings of unit norm.
    yield f"{BODY}.norm.weight", HIDDEN, LOGIT_SPREAD
    yield f"{BODY}.per_layer_projection_norm.weight", PER_LAYER, 1.0
    for layer in range(LAYERS):
        name = f"{BODY}.layers.{layer}"
        head_dim = GLOBAL_HEAD_DIM if is_full(layer) else HEAD_DIM
        # Scores are not scaled.
        yield f"{name}.self_attn.q_norm.weight", head_dim, head_dim**-0.5
        if layer < LAYERS - SHARED:
            yield f"{name}.self_attn.k_norm.weight", head_dim, 1.0
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{name}.{norm}_layernorm.weight", HIDDEN, 1.0
        yield f"{name}.post_per_layer_input_norm.weight", HIDDEN, 1.0
        yield f"{name}.layer_scalar", 1, 0.7


def tensors():
    """Name, dtype, shape and a function that yields the bytes of every tensor, in the order of the file."""
    for name, rows, columns, spread in matrices():
        words, groups = columns * BITS // 32, columns // GROUP
        scale = spread / CODE_SPREAD
        yield f"{name}.weight", "U32", [rows, words], lambda generator, n=rows * words: codes(generator, n)
        yield f"{name}.scales", "BF16", [rows, groups], lambda _, n=rows * groups, v=scale: constant(n, v)
        yield f"{name}.biases", "BF16", [rows, groups], lambda _, n=rows * groups, v=-7.5 * scale: constant(n, v)
    for name, size, middle in vectors():
        yield name, "BF16", [size], lambda generator, n=size, v=middle: about(generator, n, v)


def codes(generator, count):
    import numpy as np

    for start in range(0, count, BLOCK_WORDS):
        size = min(BLOCK_WORDS, count - start)
        yield generator.integers(0, 1 << 32, size, dtype=np.uint32).tobytes()


def constant(count, value):
    import numpy as np

    yield np.full(count, bf16(np.float32([value]))[0], "<u2").tobytes()


def about(generator, count, middle):
    import numpy as np

    yield bf16((middle * (1 + 0.1 * generator.standard_normal(count))).astype(np.float32)).tobytes()


def bf16(values):
    """The upper halves of f32 values, cut off: random numbers need no rounding."""
    return (values.view("<u4") >> 16).astype("<u2")


def write(folder):
    """Write config.json, generation_config.json and model.safetensors."""
    import numpy as np

    for name, value in (
        ("config.json", config()),
        ("generation_config.json", {"bos_token_id": 2, "eos_token_id": [1, 106], "pad_token_id": 0}),
    ):
        (folder / name).write_text(json.dumps(value, indent=1) + "\n")
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name, dtype, shape, _ in tensors():
        size = int(np.prod(shape)) * (4 if dtype == "U32" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    generator = np.random.Generator(np.random.SFC64(SEED))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for *_, blocks in tensors():
            for block in blocks(generator):
                file.write(block)
