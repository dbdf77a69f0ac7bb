//! Token text ↔ id: one arena of UTF-8, a span per id, and a hash table of ids.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

use super::index_table::{IndexTable, Inserted, MAX_INDEX, hash_bytes};

/// Ids lie below this, which bounds the table of spans when a file names an id of a thousand millions.
pub(super) const MAX_ID: u32 = MAX_INDEX;

#[derive(Clone, Copy)]
struct Span {
    start: u32,
    len: u32,
}

/// Marks an id that no token has.
const ABSENT: Span = Span { start: u32::MAX, len: 0 };

/// The `vocab` of a BPE model.
pub(super) struct Vocab {
    arena: String,
    /// Indexed by id.
    spans: Vec<Span>,
    ids: IndexTable,
}

impl Vocab {
    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        self.ids.find(hash_bytes(token.as_bytes()), |id| self.token(id) == Some(token))
    }

    pub(super) fn token(&self, id: u32) -> Option<&str> {
        token(&self.arena, &self.spans, id)
    }

    /// One more than the largest id.
    pub(super) fn end(&self) -> u32 {
        self.spans.len() as u32
    }

    fn new(mut arena: String, mut spans: Vec<Span>, count: usize) -> Result<Self, String> {
        arena.shrink_to_fit();
        spans.shrink_to_fit();
        let mut ids = IndexTable::with_capacity(count);
        for id in 0..spans.len() as u32 {
            let Some(text) = token(&arena, &spans, id) else { continue };
            match ids
                .insert(hash_bytes(text.as_bytes()), id, |other| token(&arena, &spans, other) == Some(text))
            {
                Inserted::New => {}
                Inserted::Known(other) => {
                    return Err(format!("token {text:?} with two ids, {other} and {id}"));
                }
                Inserted::Crowded => return Err("tokens made to collide in a hash table".into()),
            }
        }
        Ok(Self { arena, spans, ids })
    }
}

fn token<'a>(arena: &'a str, spans: &[Span], id: u32) -> Option<&'a str> {
    let span = spans.get(id as usize).filter(|span| span.start != ABSENT.start)?;
    arena.get(span.start as usize..(span.start + span.len) as usize)
}

/// Reads the `vocab` object straight into the arena.
pub(super) struct VocabSeed;

impl<'de> DeserializeSeed<'de> for VocabSeed {
    type Value = Vocab;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vocab, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for VocabSeed {
    type Value = Vocab;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from token to id")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
        let mut arena = String::new();
        let mut spans: Vec<Span> = Vec::new();
        let mut count = 0;
        while let Some(len) = map.next_key_seed(Append(&mut arena))? {
            let id: u32 = map.next_value()?;
            if id >= MAX_ID {
                return Err(A::Error::custom(format!("expected ids below {MAX_ID}, got {id}")));
            }
            let end =
                u32::try_from(arena.len()).map_err(|_| A::Error::custom("more than 4 GiB of tokens"))?;
            if spans.len() <= id as usize {
                spans.resize(id as usize + 1, ABSENT);
            }
            let span = &mut spans[id as usize];
            if span.start != ABSENT.start {
                return Err(A::Error::custom(format!("two tokens have the id {id}")));
            }
            *span = Span { start: end - len as u32, len: len as u32 };
            count += 1;
        }
        Vocab::new(arena, spans, count).map_err(A::Error::custom)
    }
}

/// Appends a string to the arena and gives its length in bytes.
struct Append<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }

    fn visit_str<E>(self, token: &str) -> Result<usize, E> {
        self.0.push_str(token);
        Ok(token.len())
    }
}
