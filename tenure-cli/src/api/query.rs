//! Query: the parameters of an address. An unknown one is refused: a mistyped filter must not select everything.

use super::Failure;

/// Names and values, each name at most once.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the parameters, of which `known` are all that there may be.
    pub(super) fn read(text: Option<&str>, known: &[&str]) -> Result<Self, Failure> {
        let all: Vec<(String, String)> =
            form_urlencoded::parse(text.unwrap_or_default().as_bytes()).into_owned().collect();
        for (at, (name, value)) in all.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let shown: String = name.chars().take(80).collect();
                let expected = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(Failure::invalid(format!("unknown parameter {shown:?}; expected: {expected}")));
            }
            if all[..at].iter().any(|(other, _)| other == name) {
                return Err(Failure::invalid(format!("the parameter {name} is there twice")));
            }
            // Postgres takes no NUL in a text.
            if value.contains('\0') {
                return Err(Failure::invalid(format!("the parameter {name} has a NUL character")));
            }
        }
        Ok(Self(all))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The value of this name, parsed; `expected` says what it must be.
    pub(super) fn parsed<T>(
        &self,
        name: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let wrong = || {
            let shown: String = text.chars().take(80).collect();
            Failure::invalid(format!("the parameter {name} is {shown:?}, but must be {expected}"))
        };
        parse(text).map(Some).ok_or_else(wrong)
    }

    /// The same address with this parameter instead.
    pub(super) fn with(&self, name: &str, value: &str) -> String {
        let mut text = form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(self.0.iter().filter(|(own, _)| own != name));
        text.append_pair(name, value);
        text.finish()
    }
}
