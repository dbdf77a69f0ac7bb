"""MLX's affine quantisation: which weights are stored at how many bits, fake quantisation, writing and reading."""

import json

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrize

GROUP_SIZE = 64
TEXT_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "per_layer_input_gate", "per_layer_projection")  # fmt: skip


def bits_of(name, module):
    """Bits that a module's weight is stored with: 4 for the text layers' matrices, else 8; None for 16-bit floats."""
    if not isinstance(module, (nn.Linear, nn.Embedding)) or module.weight.shape[1] % GROUP_SIZE:
        return None
    return 4 if "language_model.layers" in name and name.endswith(TEXT_LINEARS) else 8


def parts(weight, bits):
    """Codes, scales and biases of a matrix [rows, columns]; scales and biases as they are stored, in f16."""
    groups = weight.float().unflatten(1, (-1, GROUP_SIZE))
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / (2**bits - 1)).clamp(min=6.2e-5).half()
    bias = low.half()
    codes = (groups - bias.float()[..., None]).div(scale.float()[..., None]).round().clamp(0, 2**bits - 1)
    return codes, scale, bias


def value(codes, scale, bias):
    return (codes * scale.float()[..., None] + bias.float()[..., None]).flatten(1)


class Stored(nn.Module):
    """A weight as it will be read back; gradients pass through unchanged."""

    def __init__(self, bits):
        super().__init__()
        self.bits = bits

    def forward(self, weight):
        with torch.no_grad():
            change = value(*parts(weight, self.bits)).to(weight.dtype) - weight
        return weight + change


def train_as_stored(model):
    """From here on the forward pass sees the 4-bit weights as they will be stored."""
    for name, module in model.named_modules():
        if bits_of(name, module) == 4 and not parametrize.is_parametrized(module):
            parametrize.register_parametrization(module, "weight", Stored(4))


def plain_state(model):
    """The state dict with the weights themselves, parametrised or not, and no tied copy."""
    state = {}
    for name, tensor in model.state_dict().items():
        name = name.replace(".parametrizations.weight.original", ".weight")
        if name != "lm_head.weight":
            state[name] = tensor.detach().cpu()
    return state


def save(model, folder, config, aliases=lambda name: name):
    """Writes `model.safetensors` and `config.json`; the quantised modules are named in the config."""
    modules = {aliases(name): bits_of(name, module) for name, module in model.named_modules() if name != "lm_head"}
    tensors = {}
    overrides = {}
    for name, tensor in plain_state(model).items():
        name = aliases(name)
        module = name.removesuffix(".weight")
        bits = modules.get(module) if name.endswith(".weight") else None
        if bits is None:
            tensors[name] = tensor.half().contiguous()
            continue
        codes, scale, bias = parts(tensor, bits)
        tensors[name] = pack(codes.flatten(1), bits)
        tensors[module + ".scales"], tensors[module + ".biases"] = scale, bias
        if bits != 8:
            overrides[module] = {"group_size": GROUP_SIZE, "bits": bits}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    quantization = {"group_size": GROUP_SIZE, "bits": 8, "mode": "affine", **overrides}
    (folder / "config.json").write_text(json.dumps(config | {"quantization": quantization}, indent=2) + "\n")


def pack(codes, bits):
    """Codes [rows, columns] as little-endian words, the first code in the lowest bits."""
    codes = codes.numpy().astype(np.uint32).reshape(codes.shape[0], -1, 32 // bits)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return torch.from_numpy(np.bitwise_or.reduce(codes << shifts, axis=2).astype(np.uint32))


def unpack(words, bits):
    words = words.numpy().astype(np.uint32)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words[..., None] >> shifts) & np.uint32(2**bits - 1)
    return torch.from_numpy(codes.reshape(words.shape[0], -1).astype(np.float32))


def load_tensors(file):
    """The stored tensors as f32, dequantised."""
    stored = load_file(file)
    tensors = {}
    for name, tensor in stored.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if module + ".scales" in stored:
            scale, bias = stored[module + ".scales"], stored[module + ".biases"]
            bits = tensor.shape[1] * 32 // (scale.shape[1] * GROUP_SIZE)
            tensor = value(unpack(tensor, bits).unflatten(1, (-1, GROUP_SIZE)), scale, bias)
        tensors[name] = tensor.float()
    return tensors


def load_dequantised(folder):
    """A transformers model in f32 with the weights that `folder` stores."""
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization")
    model = Gemma4ForConditionalGeneration(Gemma4Config.from_dict(config | {"dtype": "float32"}))
    missing, unexpected = model.load_state_dict(load_tensors(folder / "model.safetensors"), strict=False)
    model.tie_weights()
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{folder}: missing {missing}, unexpected {unexpected}")
    return model.eval()
