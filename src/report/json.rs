//! JSON objects for machines that people read as well: the fields stay in the order in which they are added, and what is
//! not known is left out.

use serde_json::Value;

#[derive(Clone, Debug, Default)]
pub(super) struct Object(String);

impl Object {
    pub(super) fn with(self, name: &str, value: impl Into<Value>) -> Self {
        self.raw(name, &value.into().to_string())
    }

    /// Nothing for `None`.
    pub(super) fn with_known(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Nothing for an empty text.
    pub(super) fn with_text(self, name: &str, text: &str) -> Self {
        self.with_known(name, (!text.is_empty()).then_some(text))
    }

    pub(super) fn with_object(self, name: &str, object: &Self) -> Self {
        self.raw(name, &object.text())
    }

    pub(super) fn with_objects(self, name: &str, objects: &[Self]) -> Self {
        let objects: Vec<String> = objects.iter().map(Self::text).collect();
        self.raw(name, &format!("[{}]", objects.join(",")))
    }

    /// The fields of another object, after those of this one.
    pub(super) fn and(self, other: &Self) -> Self {
        match (self.0.is_empty(), other.0.is_empty()) {
            (_, true) => self,
            (true, false) => other.clone(),
            (false, false) => Self(format!("{},{}", self.0, other.0)),
        }
    }

    pub(super) fn text(&self) -> String {
        format!("{{{}}}", self.0)
    }

    /// `name` and `value` must be valid; all names are ours.
    fn raw(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(&format!("\"{name}\":{value}"));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order_and_the_unknown_is_absent() {
        let inner = Object::default().with("z", 1).with("a", "\"\n");
        let object = Object::default()
            .with("v", 1)
            .with_text("label", "")
            .with_known("pid", None::<u64>)
            .with_object("run", &inner)
            .with_objects("none", &[])
            .and(&Object::default().with("b", true));
        assert_eq!(object.text(), r#"{"v":1,"run":{"z":1,"a":"\"\n"},"none":[],"b":true}"#);
        assert!(serde_json::from_str::<Value>(&object.text()).is_ok());
    }
}
