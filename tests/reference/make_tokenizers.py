# /// script
# requires-python = ">=3.11"
# dependencies = ["tokenizers==0.23.3"]
# ///
"""Makes tests/fixtures/text/*.tokenizer.json: small tokenizers, one for each kind of pre-tokenizer in use.

Each has the normalizer, pre-tokenizer, post-processor and decoder of its namesake; the vocabularies are
trained here on the corpus below, which was written for this purpose.

    python tests/reference/make_tokenizers.py
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

OUT = Path(__file__).parent.parent / "fixtures" / "text"

CORPUS = [
    "The jird is a small rodent that lives in dry country; it's quick, it digs, and it'll bite if you're slow.",
    "In 2024 there were 1,234,567 of them, or 3.14159 for each of us, they'd say. We've counted: 42, 007, 1990.",
    "def render(self, items):\n    for item in items:\n        print(f\"{item!r}: {self.price[item]:>10.2f}\")\n\n",
    "<html>\n  <body class=\"main\">\n\t<p>Hello, <b>world</b>!</p>\n\t<br/>\n  </body>\n</html>\n",
    "Die Wüste ist groß, und die Mäuse sind müde. Où est la souris ? Près de l'école, là-bas. ¿Dónde está el ratón?",
    "Мышь живёт в пустыне и копает норы. Ποντίκι της ερήμου. 砂漠のネズミは穴を掘る。 沙漠里的老鼠挖洞。 사막의 쥐는 굴을 판다.",
    "مرحبا بالعالم، الفأر يعيش في الصحراء. שלום עולם. नमस्ते दुनिया, चूहा रेगिस्तान में रहता है। สวัสดีชาวโลก",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 😀😀😀 ❤️‍🔥 e\u0301 a\u0308 n\u0303 \u00e9 \u00e4 \u00f1 ﬁ Ⅷ ½ ①",
    "www.example.org/path?query=1&other=two#anchor -- user.name+tag@example.com; ~/.config/jird.toml, C:\\Temp\\x",
    "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"n\": [1, 2, 3], \"ok\": true}",
    "        indented by eight\n    by four\n\tby a tab\n\n\n\nafter blank lines   and   three   spaces",
] * 3

GPT2 = ["<|endoftext|>"]
LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")


def special(content: str, **flags) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


def train(tokenizer: Tokenizer, specials: list, size: int, alphabet: list[str], limit: int = 1000) -> None:
    trainer = BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, limit_alphabet=limit, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)


def byte_level(pre_tokenizer, specials: list, normalizer=None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    train(tokenizer, specials, 700, sorted(pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def gpt2() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), [special(t) for t in GPT2])


def prefix_space() -> Tokenizer:
    """ByteLevel with a space before every stretch, and added tokens with every flag there is."""
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), [special("<s>"), special("</s>")])
    tokenizer.add_tokens([
        AddedToken("jird", single_word=True, normalized=False),
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False, special=True),
        AddedToken("mask>", normalized=False),
        AddedToken("  ", normalized=False),
    ])
    return tokenizer


def llama3() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(LLAMA3_REGEX), behavior="isolated")
    mapping = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = byte_level(pre_tokenizers.Sequence([split, mapping]), [])
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens([special(name) for name in names])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A",
            pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
            special_tokens=[("<|begin_of_text|>", bos)],
        ),
    ])
    tokenizer.model.ignore_merges = True
    return tokenizer


def without_some_merges(tokenizer: Tokenizer) -> Tokenizer:
    """Drops merges but not their tokens: now `ignore_merges` shows."""
    file = json.loads(tokenizer.to_str())
    merges = file["model"]["merges"]
    file["model"]["merges"] = [merge for index, merge in enumerate(merges) if index % 5 or index < 100]
    return Tokenizer.from_str(json.dumps(file))


def qwen2() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(QWEN2_REGEX), behavior="isolated")
    mapping = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = byte_level(pre_tokenizers.Sequence([split, mapping]), [], normalizers.NFC())
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([special(name) for name in names])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ["<tool_call>", "</tool_call>", "<think>"]])
    return tokenizer


def smollm() -> Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    mapping = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
    return byte_level(pre_tokenizers.Sequence([digits, mapping]), [special(name) for name in names])


def sentencepiece(normalizer, pre_tokenizer, decoder, specials: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    # A small alphabet, so that many characters of the tests must fall back to bytes.
    train(tokenizer, [special(name) for name in specials] + bytes_, 900, [], limit=120)
    # The trainer made special tokens of the byte tokens; in the models they are none.
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [token for token in file["added_tokens"] if token["content"] in specials]
    return Tokenizer.from_str(json.dumps(file))


def framed(tokenizer: Tokenizer, single: str, names: list[str]) -> Tokenizer:
    ids = [(name, tokenizer.token_to_id(name)) for name in names]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=f"{single} $B:1", special_tokens=ids)
    return tokenizer


def llama_decoder():
    return decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
    ])


def llama2() -> Tokenizer:
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = sentencepiece(normalizer, None, llama_decoder(), ["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<|user|>", normalized=True)])
    tokenizer.add_tokens([AddedToken("[INST]", normalized=True, special=True)])
    return framed(tokenizer, "<s> $A", ["<s>"])


def mistral() -> Tokenizer:
    """Metaspace, prepended to the first piece only, as later conversions of Llama 2 and Mistral have it."""
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer = sentencepiece(None, metaspace, llama_decoder(), ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    return framed(tokenizer, "<s> $A </s>", ["<s>", "</s>"])


def metaspace() -> Tokenizer:
    tokenizer = sentencepiece(
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]),
        pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True),
        decoders.Metaspace(replacement="▁", prepend_scheme="always"),
        ["<unk>"],
    )
    # Without byte fallback unknown characters become <unk>; not fused, each its own.
    file = json.loads(tokenizer.to_str())
    file["model"].update(byte_fallback=False, fuse_unk=False)
    return Tokenizer.from_str(json.dumps(file))


def gemma() -> Tokenizer:
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    split = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = sentencepiece(normalizers.Replace(" ", "▁"), split, decoder, specials)
    runs = ["\n" * n for n in range(2, 6)] + ["▁" * n for n in range(2, 6)] + ["<table>", "<unused0>"]
    tokenizer.add_tokens([AddedToken(run, normalized=False) for run in runs])
    return framed(tokenizer, "<bos> $A", ["<bos>"])


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    makers = [gpt2, prefix_space, llama3, qwen2, smollm, llama2, mistral, metaspace, gemma]
    for make in makers:
        tokenizer = make()
        if make is llama3:
            tokenizer = without_some_merges(tokenizer)
        path = OUT / f"{make.__name__}.tokenizer.json"
        path.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        print(f"{path.name}: {tokenizer.get_vocab_size()} tokens, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
