//! JSON objects for programs and people: fields keep their order, and unknown values are left out.

use serde_json::{Map, Value};

use super::text::is_unsafe;

#[derive(Clone, Debug, Default)]
pub(crate) struct Object(Map<String, Value>);

impl Object {
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Leaves `None` out.
    pub(crate) fn with_known(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Leaves an empty text out.
    pub(crate) fn with_text(self, name: &str, text: &str) -> Self {
        self.with_known(name, (!text.is_empty()).then_some(text))
    }

    /// The fields of another object, after those of this one.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub(crate) fn text(self) -> String {
        json_text(&self.into())
    }
}

/// In ASCII where a terminal would obey a character, or not show it. JSON has those only in strings.
fn json_text(value: &Value) -> String {
    let mut out = String::new();
    for c in value.to_string().chars() {
        if is_unsafe(c) {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    out
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Self::Object(object.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn characters_that_a_terminal_obeys_or_hides_are_escaped() {
        let text = json_text(&Value::from("a\u{9b}31m\u{7f}\u{202e}\u{e0001}\u{fffe}\u{e9}\n"));
        assert_eq!(text, "\"a\\u009b31m\\u007f\\u202e\\udb40\\udc01\\ufffe\u{e9}\\n\"");
    }

    proptest! {
        #[test]
        fn any_text_reads_back(text: String) {
            let value = Value::from(text);
            let shown = json_text(&value);
            prop_assert!(!shown.chars().any(is_unsafe), "{shown}");
            prop_assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
        }
    }

    #[test]
    fn fields_keep_their_order_and_unknown_ones_are_absent() {
        let inner = Object::default().with("z", 1).with("a", "\"\n");
        let object = Object::default()
            .with("v", 1)
            .with_text("label", "")
            .with_known("pid", None::<u64>)
            .with_known("released", Some(Value::Null))
            .with("run", inner)
            .with("none", Vec::<Object>::new())
            .and(Object::default().with("b", true));
        assert_eq!(object.text(), r#"{"v":1,"released":null,"run":{"z":1,"a":"\"\n"},"none":[],"b":true}"#);
    }
}
