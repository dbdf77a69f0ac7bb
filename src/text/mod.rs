//! Floor 0. Tokenizer, chat template, streaming decode, stop sequences.
