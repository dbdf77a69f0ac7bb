//! JSON objects whose keys must not repeat.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// A JSON object in which a repeated key is an error; serde's maps would keep the last one silently.
/// Errors name the key.
pub(super) struct UniqueMap<T>(pub(super) BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for UniqueMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueMapVisitor(PhantomData))
    }
}

struct UniqueMapVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for UniqueMapVisitor<T> {
    type Value = UniqueMap<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(key) = access.next_key::<String>()? {
            let value =
                access.next_value().map_err(|error| A::Error::custom(format_args!("{key:?}: {error}")))?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("{key:?} appears twice")));
            }
            map.insert(key, value);
        }
        Ok(UniqueMap(map))
    }
}
