//! Serde for values that are saved by their names: `#[serde(with = "by_name")]`.

use alloc::string::String;
use core::fmt::Display;
use core::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<V: Display, S: Serializer>(value: &V, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(super) fn deserialize<'de, V: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<V, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}
