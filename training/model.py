"""The model's shape: everything of Gemma 4 E2B, small. Widths are multiples of 64, the group of the stored weights.

`hidden_size` and `hidden_size_per_layer_input` are squares, so that the factors √256 and √64 are exact in any type.
"""

import torch
from chat import ID, STOP_IDS, VOCAB_SIZE
from images import MAX_SOFT_TOKENS, PATCH, POOL
from transformers import (
    Gemma4AudioConfig,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Gemma4VisionConfig,
)

LAYER_SCALARS = [1.0, 0.75, 0.5, 1.25, 0.875, 0.625]


def config():
    text = Gemma4TextConfig(
        vocab_size=VOCAB_SIZE, vocab_size_per_layer_input=VOCAB_SIZE, hidden_size=256, hidden_size_per_layer_input=64,
        intermediate_size=256, use_double_wide_mlp=True, num_hidden_layers=6, num_kv_shared_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2, sliding_window=128,
        num_attention_heads=4, num_key_value_heads=1, head_dim=64, global_head_dim=128,
        final_logit_softcapping=30.0, max_position_embeddings=4096, attention_bias=False,
        pad_token_id=ID["<pad>"], eos_token_id=ID["<eos>"], bos_token_id=ID["<bos>"],
    )  # fmt: skip
    vision = Gemma4VisionConfig(
        hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
        head_dim=32, patch_size=PATCH, pooling_kernel_size=POOL, position_embedding_size=256, use_clipped_linears=True,
    )  # fmt: skip
    audio = Gemma4AudioConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, subsampling_conv_channels=[128, 32],
        output_proj_dims=256, use_clipped_linears=True,
    )  # fmt: skip
    return Gemma4Config(
        text_config=text, vision_config=vision, audio_config=audio, boi_token_id=ID["<|image>"], eoi_token_id=ID["<image|>"], image_token_id=ID["<|image|>"],
        boa_token_id=ID["<|audio>"], eoa_token_index=ID["<audio|>"], audio_token_id=ID["<|audio|>"],
        video_token_id=ID["<|video|>"], eos_token_id=STOP_IDS[:2], architectures=["Gemma4ForConditionalGeneration"],
    )  # fmt: skip


def build():
    """An untrained model. The attention has no scale of its own, so the norms of q and k start with it."""
    model = Gemma4ForConditionalGeneration(config())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.fill_(weight.numel() ** -0.25)
            elif name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight", "input_norm.weight")):
                weight.fill_(0.3)
            elif "position_embedding_table" in name:
                weight.normal_(0, 0.3)
            elif "embed_tokens" in name:
                weight.normal_(0, 1 / 16)
                weight[0].zero_()
            elif weight.ndim >= 2 and "conv" not in name:
                weight.normal_(0, weight.shape[1] ** -0.5)
        for layer, scalar in zip(model.model.language_model.layers, LAYER_SCALARS):
            layer.layer_scalar.fill_(scalar)
    return model
