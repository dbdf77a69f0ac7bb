//! The budget of the largest vocabulary: Gemma's 262,144 tokens and 514,906 merges.
//!
//! Needs `JIRD_GEMMA_TOKENIZER`, the path of Gemma's `tokenizer.json`. One test alone in its file, since it
//! counts what the whole process allocates.

use std::time::{Duration, Instant};

use jird::text::{EncodeOptions, Tokenizer};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;

#[test]
fn gemmas_tokenizer_keeps_within_its_budget() {
    let Some(path) = std::env::var_os("JIRD_GEMMA_TOKENIZER") else {
        println!("skipped: JIRD_GEMMA_TOKENIZER does not name Gemma's tokenizer.json");
        return;
    };
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let json = std::fs::read(path).unwrap();
    let begin = Instant::now();
    let tokenizer = Tokenizer::from_json(&json).unwrap();
    let took = begin.elapsed();
    // The file counts: a page holds it while it is read.
    let peak = ALLOCATOR.peak_usage() - before;
    drop(json);
    let kept = ALLOCATOR.current_usage() - before;
    println!("kept {kept} bytes, peak {peak} bytes (the file included), read in {took:?}");
    assert_eq!(tokenizer.vocab_size(), 262_145);
    assert!(kept <= 40 * MIB, "kept {kept} bytes");
    assert!(peak <= 90 * MIB, "peak {peak} bytes");
    assert!(cfg!(debug_assertions) || took <= Duration::from_secs(1), "read in {took:?}");

    let text = "The jird is a small rodent; 1,234 of them live in the dry country by 沙漠.\n".repeat(10_000);
    let options = EncodeOptions { add_special_tokens: true, parse_special: false };
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let begin = Instant::now();
    let ids = tokenizer.encode(&text, options).unwrap();
    let took = begin.elapsed();
    let peak = ALLOCATOR.peak_usage() - before;
    let speed = text.len() as f64 / 1e6 / took.as_secs_f64();
    println!("encoded {} bytes to {} tokens: {speed:.1} MB/s, peak {peak} bytes", text.len(), ids.len());
    assert!(peak <= 80 * text.len(), "peak {peak} bytes for {} bytes of text", text.len());
}
