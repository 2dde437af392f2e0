//! Actor: who acts on jobs, for the audit.

/// The longest name that the audit keeps, in characters.
const NAME_MAX: usize = 200;

/// Who acts, and by what: see [`Tenure::acting_as`](crate::Tenure::acting_as).
///
/// ```
/// use tenure::audit::Actor;
///
/// let actor = Actor::new("alice@example.com").via("back office");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "give it to `Tenure::acting_as`"]
pub struct Actor {
    name: Option<String>,
    via: String,
    /// Whether a person acts: a signal of a program is the course of its jobs.
    is_person: bool,
}

impl Default for Actor {
    /// A program that names no user.
    fn default() -> Self {
        Self { name: None, via: "library".into(), is_person: false }
    }
}

impl Actor {
    /// A user, as the program knows them. The audit keeps the first 200 characters, without control characters.
    pub fn new(name: &str) -> Self {
        Self { name: Some(kept(name)), is_person: true, ..Self::default() }
    }

    /// The program itself, by the name that its settings give it.
    pub(crate) fn program(name: &str) -> Self {
        Self { is_person: false, ..Self::new(name) }
    }

    /// Whether it is a user, and no program.
    pub(crate) fn is_person(&self) -> bool {
        self.is_person
    }

    /// By what the user acts, such as a part of the program. Without it, `library`. Kept as the name is.
    pub fn via(mut self, via: &str) -> Self {
        self.via = kept(via);
        self
    }

    /// The user, if one is named.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// As the statements take it: by what, and the name.
    pub(crate) fn bound(&self) -> [Option<String>; 2] {
        [Some(self.via.clone()), self.name.clone()]
    }
}

fn kept(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(NAME_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_within_bounds_and_without_control_characters() {
        let long = "é".repeat(300);
        let [via, name] = Actor::new("a\0l\nice").via(&long).bound();
        assert_eq!(name.as_deref(), Some("alice"));
        assert_eq!(via, Some("é".repeat(200)));
        assert_eq!(Actor::default().bound(), [Some("library".into()), None]);
    }
}
