//! JSON objects for programs and people: fields keep their order, and unknown values are left out.

use serde_json::{Map, Value};

#[derive(Clone, Debug, Default)]
pub(super) struct Object(Map<String, Value>);

impl Object {
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Leaves `None` out.
    pub(super) fn with_known(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Leaves an empty text out.
    pub(super) fn with_text(self, name: &str, text: &str) -> Self {
        self.with_known(name, (!text.is_empty()).then_some(text))
    }

    /// The fields of another object, after those of this one.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub(super) fn text(self) -> String {
        Value::from(self).to_string()
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Self::Object(object.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
