//! Users: those of a file, with the hashes of their passwords, as `htpasswd -B` writes them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

use bcrypt::HashParts;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::{hash, known::Cookies};

/// The users of a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoUsers {
    #[error("TENURE_SERVE_USERS: {} cannot be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error(
        "TENURE_SERVE_USERS: line {line} of {} {what}; each line is a user, a colon and a hash of bcrypt: \
         `htpasswd -B -c FILE USER` writes it",
        path.display()
    )]
    Line { path: PathBuf, line: usize, what: &'static str },
    #[error("TENURE_SERVE_USERS: {} has no users; `htpasswd -B {} USER` adds one", path.display(), path.display())]
    Empty { path: PathBuf },
}

/// The users of a file.
#[derive(Debug)]
pub(super) struct Users {
    by_name: BTreeMap<String, User>,
    /// Makes what is remembered of a password useless outside of this process.
    salt: Uuid,
    /// A comparison with bcrypt holds one of them, so that one core at most makes those of strangers, and one those of
    /// browsers that have signed in before. A user whose password is remembered waits for neither.
    turns: [Mutex<()>; 2],
}

#[derive(Debug)]
struct User {
    hash: String,
    /// The hash of the password that was right: bcrypt takes long by design, and a browser sends it with each request.
    right: Mutex<Option<[u8; 32]>>,
    cookies: OnceLock<Cookies>,
}

impl Users {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`NoUsers`] names the line.
    pub(super) fn read(path: &Path) -> Result<Self, NoUsers> {
        let path_of = || path.to_owned();
        let text =
            std::fs::read_to_string(path).map_err(|error| NoUsers::Unreadable { path: path_of(), error })?;
        let mut users = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what| NoUsers::Line { path: path_of(), line: at + 1, what };
            let (name, hash) = line.split_once(':').ok_or_else(|| wrong("has no colon"))?;
            if name.is_empty() || name.chars().any(char::is_control) {
                return Err(wrong("names no user"));
            }
            hash.parse::<HashParts>().map_err(|_| wrong("has no hash of bcrypt"))?;
            let user = User { hash: hash.to_owned(), right: Mutex::default(), cookies: OnceLock::new() };
            if users.insert(name.to_owned(), user).is_some() {
                return Err(wrong("names a user for the second time"));
            }
        }
        if users.is_empty() {
            return Err(NoUsers::Empty { path: path_of() });
        }
        Ok(Self { by_name: users, salt: Uuid::new_v4(), turns: Default::default() })
    }

    /// Whether this is the user's password. `is_known`: it comes from a browser that has signed in before.
    pub(super) fn is(&self, name: &str, password: &str, is_known: bool) -> bool {
        let user = self.by_name.get(name);
        let sent = hash(&format!("{}{name}:{password}", self.salt));
        let right = |user: &User| *user.right.lock().unwrap_or_else(PoisonError::into_inner);
        if user.and_then(right).is_some_and(|right| bool::from(right.ct_eq(&sent))) {
            return true;
        }
        let _turn = self.turns[usize::from(is_known)].lock().unwrap_or_else(PoisonError::into_inner);
        // An unknown user takes as long as a known one.
        let Some(compared) = user.or_else(|| self.by_name.values().next()) else { return false };
        let is_right = bcrypt::verify(password, &compared.hash).unwrap_or_default();
        let Some(user) = user.filter(|_| is_right) else { return false };
        *user.right.lock().unwrap_or_else(PoisonError::into_inner) = Some(sent);
        true
    }

    /// The cookies of the browsers of this user. A new password ends them.
    pub(super) fn cookies(&self, name: &str) -> Option<&Cookies> {
        let user = self.by_name.get(name)?;
        Some(user.cookies.get_or_init(|| Cookies::of(name, &user.hash)))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn hashed(password: &str) -> String {
        bcrypt::hash(password, 4).unwrap()
    }

    #[test]
    fn a_user_of_the_file_is_let_in_by_the_own_password_alone() {
        let (ada, grace) = (hashed("one"), hashed("two").replace("$2b$", "$2y$"));
        let (_folder, path) = file(&format!("# people\n\nada:{ada}\ngrace:{grace}\n"));
        let users = Users::read(&path).unwrap();
        for _ in 0..2 {
            for (name, password, is) in [
                ("ada", "one", true),
                ("grace", "two", true),
                ("ada", "two", false),
                ("ada", "", false),
                ("eve", "one", false),
                ("", "", false),
            ] {
                assert_eq!(users.is(name, password, false), is, "{name} {password}");
            }
        }
        assert!(users.cookies("eve").is_none());
        assert_ne!(users.cookies("ada").unwrap().name(), users.cookies("grace").unwrap().name());
    }

    /// After a restart no password is remembered.
    #[test]
    fn a_browser_that_has_signed_in_before_does_not_wait_for_strangers() {
        let (_folder, path) = file(&format!("ada:{}\n", hashed("one")));
        let users = std::sync::Arc::new(Users::read(&path).unwrap());
        let _guess = users.turns[0].lock().unwrap();
        let (known, answer) = std::sync::mpsc::channel();
        let of = users.clone();
        std::thread::spawn(move || known.send(of.is("ada", "one", true)));
        assert_eq!(answer.recv_timeout(std::time::Duration::from_secs(30)), Ok(true));
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let right = hashed("one");
        for (text, expected) in [
            ("ada".to_owned(), "line 1 of"),
            (format!("ada:{right}\n:{right}"), "line 2 of"),
            ("ada:{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=".into(), "has no hash of bcrypt"),
            ("ada:$apr1$abc$def".into(), "`htpasswd -B -c FILE USER` writes it"),
            (format!("ada:{right}\nada:{right}"), "names a user for the second time"),
            ("# only a comment\n".into(), "has no users"),
        ] {
            let (_folder, path) = file(&text);
            let error = Users::read(&path).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("$2b$"), "{text}: {error}");
        }
        let error = Users::read(Path::new("/nowhere/users")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/users cannot be read"), "{error}");
    }
}
