//! Many small reads at once: how they fall into blocks, and which requests bring them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::fetcher::reserve;
use crate::error::Result;

/// Two pieces that lie nearer to each other than this are fetched by one request: a request costs about as
/// much as these bytes.
const GAP_BYTES: u64 = 16 << 10;

/// Unless the request grew beyond this.
const SPAN_BYTES: u64 = 1 << 20;

/// A part of one of the ranges that lies in one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which of the ranges.
    pub(super) index: usize,
    /// Where in the file.
    pub(super) bytes: Range<u64>,
}

/// A request for several pieces.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) bytes: Range<u64>,
    pub(super) pieces: Vec<Piece>,
}

/// The bytes of several ranges, filled in piece by piece.
pub(super) struct Parts<'a> {
    ranges: &'a [Range<u64>],
    bytes: Vec<Vec<u8>>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(ranges: &'a [Range<u64>]) -> Result<Self> {
        let empty = |range: &Range<u64>| {
            let mut bytes = Vec::new();
            reserve(&mut bytes, range.end - range.start)?;
            bytes.resize((range.end - range.start) as usize, 0);
            Ok(bytes)
        };
        Ok(Self { ranges, bytes: ranges.iter().map(empty).collect::<Result<_>>()? })
    }

    pub(super) fn ranges(&self) -> &'a [Range<u64>] {
        self.ranges
    }

    /// Fills in a piece, whose bytes these must be.
    pub(super) fn place(&mut self, piece: &Piece, bytes: &[u8]) {
        let start = (piece.bytes.start - self.ranges[piece.index].start) as usize;
        self.bytes[piece.index][start..start + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn into_bytes(self) -> Vec<Vec<u8>> {
        self.bytes
    }
}

/// The pieces of `ranges` by block. The pieces of one range come in its order.
pub(super) fn pieces_by_block(ranges: &[Range<u64>], block_size: u64) -> BTreeMap<u64, Vec<Piece>> {
    let mut blocks: BTreeMap<u64, Vec<Piece>> = BTreeMap::new();
    for (index, range) in ranges.iter().enumerate() {
        let mut start = range.start;
        while start < range.end {
            let block = start / block_size;
            let end = range.end.min((block + 1).saturating_mul(block_size));
            blocks.entry(block).or_default().push(Piece { index, bytes: start..end });
            start = end;
        }
    }
    blocks
}

/// The requests that bring `pieces`.
pub(super) fn spans(mut pieces: Vec<Piece>) -> Vec<Span> {
    pieces.sort_by_key(|piece| (piece.bytes.start, piece.index));
    let mut spans: Vec<Span> = Vec::new();
    for piece in pieces {
        match spans.last_mut() {
            Some(span)
                if piece.bytes.start <= span.bytes.end.saturating_add(GAP_BYTES)
                    && piece.bytes.end <= span.bytes.start.saturating_add(SPAN_BYTES).max(span.bytes.end) =>
            {
                span.bytes.end = span.bytes.end.max(piece.bytes.end);
                span.pieces.push(piece);
            }
            _ => spans.push(Span { bytes: piece.bytes.clone(), pieces: vec![piece] }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(index: usize, bytes: Range<u64>) -> Piece {
        Piece { index, bytes }
    }

    #[test]
    fn ranges_are_cut_at_blocks() {
        let blocks = pieces_by_block(&[8..12, 0..3, 5..5, 9..31], 10);
        assert_eq!(blocks[&0], [piece(0, 8..10), piece(1, 0..3), piece(3, 9..10)]);
        assert_eq!(blocks[&1], [piece(0, 10..12), piece(3, 10..20)]);
        assert_eq!(blocks[&2], [piece(3, 20..30)]);
        assert_eq!(blocks[&3], [piece(3, 30..31)]);
        assert_eq!(blocks.len(), 4);
    }

    #[test]
    fn neighbours_share_a_request_and_far_pieces_do_not() {
        let near =
            [piece(0, 100_000..101_000), piece(1, 0..1000), piece(2, 10_000..11_000), piece(3, 500..700)];
        let spans_of_near = spans(near.to_vec());
        assert_eq!(spans_of_near.len(), 2);
        assert_eq!(spans_of_near[0].bytes, 0..11_000);
        assert_eq!(spans_of_near[0].pieces, [near[1].clone(), near[3].clone(), near[2].clone()]);
        assert_eq!(spans_of_near[1].bytes, 100_000..101_000);

        let row = 64 << 10;
        let many: Vec<_> = (0..64).map(|i| piece(i as usize, i * row..(i + 1) * row)).collect();
        let spans_of_many = spans(many);
        assert_eq!(spans_of_many.len(), 4, "each is of a megabyte");
        assert!(spans_of_many.iter().all(|span| span.bytes.end - span.bytes.start <= SPAN_BYTES));
        assert_eq!(spans(vec![piece(0, 0..5 * SPAN_BYTES), piece(1, 7..9)]).len(), 1);
        assert!(spans(Vec::new()).is_empty());
    }
}
