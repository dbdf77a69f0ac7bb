"""pocket-embed: a bidirectional Gemma 3 encoder in EmbeddingGemma's layout, trained on paraphrases."""

import json
import math
import random
import time

import affine
import chat
import export
import grammar
import torch
from data import HELD_OUT
from project import EMBEDDER, SEED, WORK
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers import Gemma3TextConfig, Gemma3TextModel

PROMPTS = {
    "query": "task: search result | query: ", "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}  # fmt: skip
LENGTH = 64
WIDE = 512


def config():
    return Gemma3TextConfig(
        vocab_size=chat.VOCAB_SIZE, hidden_size=256, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=1, head_dim=64, query_pre_attn_scalar=64, sliding_window=64, max_position_embeddings=512,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
        use_bidirectional_attention=True, pad_token_id=0, eos_token_id=1, bos_token_id=2,
        architectures=["Gemma3TextModel"],
    )  # fmt: skip


class Embedder(nn.Module):
    """Text to a unit vector: encoder, mean over all tokens, two dense layers."""

    def __init__(self):
        super().__init__()
        # Eager: rows past the window of every word see nothing, of which the fused attention's gradient is not a number.
        self.encoder = Gemma3TextModel._from_config(config(), attn_implementation="eager")
        # Starts near the mean of its words' vectors, which tells sentences apart.
        with torch.no_grad():
            for name, weight in self.encoder.named_parameters():
                if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
                    weight.fill_(-0.7)
                elif weight.ndim == 2:
                    weight.normal_(0, weight.shape[1] ** -0.5)
        width = self.encoder.config.hidden_size
        self.widen, self.narrow = nn.Linear(width, WIDE, bias=False), nn.Linear(WIDE, width, bias=False)

    def mean(self, ids):
        valid = ids != 0
        hidden = self.encoder(input_ids=ids, attention_mask=valid, use_cache=False).last_hidden_state.float()
        return (hidden * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)

    def forward(self, ids):
        return F.normalize(self.narrow(self.widen(self.mean(ids))), dim=-1)

    @torch.no_grad()
    def look_past_the_common(self, ids, directions=12):
        """Makes the dense layers blind to what all texts share, by their prompt or wording, and which hides the rest."""
        common = torch.linalg.svd(self.mean(ids).cpu(), full_matrices=False).Vh[:directions].to(ids.device)
        self.widen.weight -= self.widen.weight @ common.T @ common


def token_ids(tok, texts):
    """Rows of ids between <bos> and <eos>, padded behind."""
    rows = [each.ids[: LENGTH - 1] + [1] for each in tok.encode_batch(texts)]
    return torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])


def trimmed(ids):
    """Rows without the places behind the longest of them."""
    return ids[:, : int((ids != 0).sum(1).max())]


def near(meaning, rng):
    """Another meaning that differs in one part."""
    other = grammar.meaning(rng)
    at = rng.randrange(len(meaning))
    return meaning[:at] + (other[at],) + meaning[at + 1 :]


def make_pairs(count):
    """Rows of ids of a wording, another wording of the same meaning, and one of a meaning close by."""
    rng, tok = random.Random(SEED), chat.tokenizer()
    texts = []
    for _ in range(count):
        meaning = grammar.meaning(rng)
        first, second, third = (*rng.sample(range(grammar.WORDINGS), 2), rng.randrange(grammar.WORDINGS))
        ask, tell = rng.choice([("query", "document"), ("STS", "STS")])
        for prompt, what, form in ((ask, meaning, first), (tell, meaning, second), (tell, near(meaning, rng), third)):
            texts.append(PROMPTS[prompt] + grammar.wording(what, form, rng))
    return token_ids(tok, texts).view(count, 3, LENGTH).to(torch.int16)


def train(steps, seconds, size, count, rate, device):
    torch.manual_seed(SEED)
    pairs = make_pairs(count).to(device)
    model = Embedder().to(device)
    model.look_past_the_common(trimmed(pairs[:500].flatten(0, 1).long()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=device == "cuda")
    began = time.time()
    for step in range(steps):
        done = max(step / steps, (time.time() - began) / seconds if seconds else 0)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 100) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        rows = pairs[torch.randint(count, (size,), device=device)].long()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            vectors = model(trimmed(rows.flatten(0, 1))).float().view(size, 3, -1)
        logits = vectors[:, 0] @ vectors[:, 1:].flatten(0, 1).T * 20
        loss = F.cross_entropy(logits, torch.arange(size, device=device) * 2)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
            optimizer.step()
        if step % min(200, max(1, steps // 10)) == 0:
            print(f"embed step {step}/{steps} {time.time() - began:.0f} s loss {loss.item():.4f}", flush=True)
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, WORK / "embed.pt")


def export_embedder():
    """`models/pocket-embed` in the layout of sentence-transformers."""
    model = Embedder()
    model.load_state_dict(torch.load(WORK / "embed.pt", weights_only=True))
    affine.save(model.encoder, EMBEDDER, config().to_dict() | {"dtype": "float16"})
    made = json.loads((chat.MODEL / "tokenizer.json").read_text())
    end = {"SpecialToken": {"id": "<eos>", "type_id": 0}}
    made["post_processor"]["single"].append(end)
    made["post_processor"]["special_tokens"]["<eos>"] = {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]}
    (EMBEDDER / "tokenizer.json").write_text(json.dumps(made, ensure_ascii=False, indent=0) + "\n")
    names = ("pad_token", "eos_token", "bos_token", "unk_token", "mask_token")
    export.write_json(EMBEDDER, "tokenizer_config.json", {name: export.NAMED_TOKENS[name] for name in names} | {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "clean_up_tokenization_spaces": False,
    })  # fmt: skip
    kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    export.write_json(EMBEDDER, "modules.json", [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ])  # fmt: skip
    export.write_json(EMBEDDER, "config_sentence_transformers.json", {
        "model_type": "SentenceTransformer", "prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine",
    })  # fmt: skip
    export.write_json(EMBEDDER, "sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False})
    width = model.encoder.config.hidden_size
    parts = {
        "1_Pooling": {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True, "include_prompt": True},
        "2_Dense": {"in_features": width, "out_features": WIDE}, "3_Dense": {"in_features": WIDE, "out_features": width},
    }  # fmt: skip
    for name, values in parts.items():
        (EMBEDDER / name).mkdir(exist_ok=True)
        dense = {} if name == "1_Pooling" else {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
        export.write_json(EMBEDDER / name, "config.json", values | dense)
    for name, layer in (("2_Dense", model.widen), ("3_Dense", model.narrow)):
        save_file({"linear.weight": layer.weight.detach().half().contiguous()}, EMBEDDER / name / "model.safetensors")
    export.write_licences(EMBEDDER)
    print(f"{EMBEDDER}: {sum(file.stat().st_size for file in EMBEDDER.rglob('*') if file.is_file()):,} bytes", flush=True)


def load_dequantised():
    """The embedder in f32 with the weights that its folder stores."""
    model = Embedder()
    missing, unexpected = model.encoder.load_state_dict(affine.load_tensors(EMBEDDER / "model.safetensors"), strict=False)
    if missing or unexpected:
        raise ValueError(f"{EMBEDDER}: missing {missing}, unexpected {unexpected}")
    for name, layer in (("2_Dense", model.widen), ("3_Dense", model.narrow)):
        layer.load_state_dict({"weight": load_file(EMBEDDER / name / "model.safetensors")["linear.weight"].float()})
    return model.eval()


@torch.no_grad()
def evaluate(count, device):
    """How often, among `count` sentences, the nearest is the paraphrase."""
    model, tok, rng = load_dequantised().to(device), chat.tokenizer(), random.Random(HELD_OUT)
    meanings = []
    while len(meanings) < count:
        meaning = grammar.meaning(rng)
        if meaning not in meanings:
            meanings.append(meaning)
    forms = [rng.sample(range(grammar.WORDINGS), 2) for _ in meanings]
    sides = []
    for side, prompt in enumerate(("query", "document")):
        texts = [PROMPTS[prompt] + grammar.wording(meaning, form[side], rng) for meaning, form in zip(meanings, forms)]
        ids = token_ids(tok, texts)
        sides.append(torch.cat([model(ids[at : at + 250].to(device)) for at in range(0, count, 250)]))
    right = (sides[0] @ sides[1].T).argmax(1) == torch.arange(count, device=device)
    figure = float(right.float().mean())
    (WORK / "measured-embed.json").write_text(json.dumps({"count": count, "figure": figure}) + "\n")
    print(f"paraphrase top-1 of {count}: {figure:.2%}", flush=True)
    return figure
