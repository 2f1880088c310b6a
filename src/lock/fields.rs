//! Names and values: the one form in which holders, waiters and finished runs are stored and sent, as a
//! list (arguments and replies of scripts, log entries, messages), as JSON (records on servers), or with
//! zero bytes between them (lock files).

use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};

/// A name that is not known to this version is passed over; a value that is not known is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<(Vec<u8>, Vec<u8>)>);

impl Fields {
    pub(crate) fn with(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }

    /// Only if the value is known.
    pub(crate) fn with_number(self, name: &str, number: Option<impl ToString>) -> Self {
        match number {
            Some(number) => self.with(name, number.to_string()),
            None => self,
        }
    }

    /// Without the fields that say nothing.
    pub(crate) fn without_empty(mut self) -> Self {
        self.0.retain(|(_, value)| !value.is_empty());
        self
    }

    pub(crate) fn joined_with(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Empty if there is none.
    pub(crate) fn get(&self, name: &str) -> &[u8] {
        let field = self.0.iter().find(|(known, _)| known == name.as_bytes());
        field.map_or(&[], |(_, value)| value.as_slice())
    }

    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(self.get(name)).into_owned()
    }

    pub(crate) fn parsed<T: FromStr>(&self, name: &str) -> Option<T> {
        str::from_utf8(self.get(name)).ok()?.parse().ok()
    }

    pub(crate) fn millis(&self, name: &str) -> Option<Duration> {
        self.parsed(name).map(Duration::from_millis)
    }

    /// From names and values in turn.
    pub(crate) fn from_list(list: &[Vec<u8>]) -> Self {
        Self(list.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
    }

    pub(crate) fn into_list(self) -> Vec<Vec<u8>> {
        self.0.into_iter().flat_map(|(name, value)| [name, value]).collect()
    }

    /// `None` if this is no JSON object.
    pub(crate) fn from_json(text: &[u8]) -> Option<Self> {
        let object: Map<String, Value> = serde_json::from_slice(text).ok()?;
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Some(Self(object.into_iter().map(|(name, value)| (name.into(), text(value).into())).collect()))
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let object: Map<String, Value> =
            self.0.iter().map(|(name, value)| (text(name), text(value).into())).collect();
        Value::Object(object).to_string().into()
    }

    /// From names and values with a zero byte behind each.
    pub(crate) fn from_zero_terminated(bytes: &[u8]) -> Self {
        Self::from_list(&bytes.split(|&b| b == 0).map(<[u8]>::to_vec).collect::<Vec<_>>())
    }

    /// Zero bytes in a value are left out.
    pub(crate) fn into_zero_terminated(self) -> impl Iterator<Item = u8> {
        let parts = self.into_list().into_iter();
        parts.flat_map(|part| part.into_iter().filter(|&b| b != 0).chain([0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_reads_back() {
        let fields = Fields::default().with("host", "web1").with("label", "").with_number("pid", Some(42));
        assert_eq!(Fields::from_list(&fields.clone().into_list()), fields);
        assert_eq!(Fields::from_json(&fields.to_json()), Some(fields.clone()));
        let bytes: Vec<u8> = fields.clone().into_zero_terminated().collect();
        assert_eq!(Fields::from_zero_terminated(&bytes), fields);
        assert_eq!((fields.get("host"), fields.parsed("pid")), (&b"web1"[..], Some(42)));
        assert_eq!((fields.get("newer"), fields.parsed::<u32>("label")), (&[][..], None));
    }

    #[test]
    fn only_an_object_is_a_record() {
        for text in ["", "1", "[]", "{"] {
            assert_eq!(Fields::from_json(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Fields::from_json(br#"{"n":7}"#).unwrap().parsed("n"), Some(7));
    }
}
