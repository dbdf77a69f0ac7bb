"""Writes the model's folder: the stored weights and everything that stands beside them."""

import json
import shutil

import affine
import torch
from chat import ID, STOP_IDS
from images import MAX_SOFT_TOKENS, PATCH, POOL
from model import build, config
from project import MODEL, ROOT, WORK

NAMED_TOKENS = {
    "pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>", "mask_token": "<mask>",
    "stc_token": "<|tool_call>", "etc_token": "<tool_call|>", "std_token": "<|tool>", "etd_token": "<tool|>",
    "str_token": "<|tool_response>", "etr_token": "<tool_response|>", "escape_token": '<|"|>',
    "think_token": "<|think|>", "soc_token": "<|channel>", "eoc_token": "<channel|>", "sot_token": "<|turn>", "eot_token": "<turn|>",
    "boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>",
    "boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>",
}  # fmt: skip


def write_json(folder, name, value):
    (folder / name).write_text(json.dumps(value, indent=2) + "\n")


def write_licences(folder):
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)


def export():
    """`models/pocket` from the weights of `fit.train`."""
    model = build()
    missing, unexpected = model.load_state_dict(torch.load(WORK / "pocket.pt", weights_only=True), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"pocket.pt: missing {missing}, unexpected {unexpected}")
    plain = config().to_dict() | {"dtype": "float16"}
    # Written as Gemma 4's own files have it.
    text = plain["text_config"]
    text.pop("per_layer_config", None)
    text["global_head_dim"], text["num_global_key_value_heads"] = 128, None
    affine.save(model, MODEL, plain)
    write_json(MODEL, "generation_config.json", {
        "bos_token_id": ID["<bos>"], "eos_token_id": STOP_IDS, "pad_token_id": ID["<pad>"],
        "do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95,
    })  # fmt: skip
    special = {key: value for key, value in NAMED_TOKENS.items() if key.split("_")[0] not in ("pad", "eos", "bos", "unk", "mask")}
    write_json(MODEL, "tokenizer_config.json", NAMED_TOKENS | {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, "padding_side": "left",
        "clean_up_tokenization_spaces": False, "extra_special_tokens": special,
    })  # fmt: skip
    image = {
        "image_processor_type": "Gemma4ImageProcessor", "patch_size": PATCH, "pooling_kernel_size": POOL,
        "max_soft_tokens": MAX_SOFT_TOKENS, "do_resize": True, "resample": 3, "do_rescale": True,
        "rescale_factor": 1 / 255, "do_normalize": False, "image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0],
        "do_convert_rgb": True,
    }  # fmt: skip
    audio = {
        "feature_extractor_type": "Gemma4AudioFeatureExtractor", "feature_size": 128, "sampling_rate": 16000,
        "frame_length": 320, "hop_length": 160, "fft_length": 512, "min_frequency": 0.0, "max_frequency": 8000.0,
        "mel_floor": 0.001, "padding_value": 0.0, "return_attention_mask": True,
    }  # fmt: skip
    write_json(MODEL, "preprocessor_config.json", image | audio)
    write_json(MODEL, "processor_config.json", {
        "processor_class": "Gemma4Processor", "image_seq_length": MAX_SOFT_TOKENS, "audio_seq_length": 750, "audio_ms_per_token": 40,
        "image_processor": image, "feature_extractor": audio,
    })  # fmt: skip
    write_licences(MODEL)
    sizes = {file.name: file.stat().st_size for file in MODEL.iterdir()}
    print(f"{MODEL}: {sum(sizes.values()):,} bytes: {sizes}", flush=True)
