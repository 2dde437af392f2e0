//! Known: browsers that have signed in, by a cookie that proves it.
//!
//! The cookie's name and key come from the account's password: all dashboards with this password take the cookie, a
//! restart forgets no browser, other dashboards on the same host have a cookie of their own, and a new password ends
//! all cookies. The key is derived slowly, so that a stolen cookie does not let its thief try passwords fast.

use std::time::Duration;

use pbkdf2::{
    hmac::{Hmac, KeyInit, Mac},
    pbkdf2,
};
use sha2::Sha256;
use uuid::Uuid;

/// How often the password is hashed, once in the life of the program.
const ROUNDS: u32 = 50_000;
/// How long a browser keeps the cookie. After that, its next sign-in gets another one.
const KEPT_FOR: Duration = Duration::from_hours(90 * 24);
/// The length of a UUID without dashes.
const NUMBER: usize = 32;

type Seal = Hmac<Sha256>;

/// A cookie to set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remember {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) kept_for: Duration,
}

/// The cookies of one account.
pub(super) struct Cookies {
    name: String,
    seal: Seal,
}

impl std::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cookies").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Cookies {
    pub(super) fn of(user: &str, password: &str) -> Self {
        let mut key = [0; 64];
        let salt = format!("tenure dashboard {user}");
        // Both take keys of every length.
        pbkdf2::<Seal>(password.as_bytes(), salt.as_bytes(), ROUNDS, &mut key).unwrap_or_default();
        let seal = Seal::new(&key.into());
        let name = format!("tenure_known_{}", &sealed(&seal, "name")[..8]);
        Self { name, seal }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A cookie for a browser that has just signed in.
    pub(super) fn remember(&self) -> Remember {
        let number = Uuid::new_v4().simple().to_string();
        let value = format!("{number}{}", sealed(&self.seal, &number));
        Remember { name: self.name.clone(), value, kept_for: KEPT_FOR }
    }

    /// The number of the browser that holds this cookie; `None` if the cookie is not of this account.
    pub(super) fn browser(&self, cookie: &str) -> Option<Uuid> {
        let (number, sealed) = cookie.split_at_checked(NUMBER)?;
        let sealed = Uuid::try_parse(sealed).ok().filter(|_| sealed.len() == NUMBER)?;
        // In the same time for every seal.
        self.seal.clone().chain_update(number).verify_truncated_left(sealed.as_bytes()).ok()?;
        Uuid::try_parse(number).ok()
    }
}

/// The first half of the seal of a text, as hexadecimal digits.
fn sealed(seal: &Seal, text: &str) -> String {
    let whole = seal.clone().chain_update(text).finalize().into_bytes();
    Uuid::from_slice(&whole[..16]).unwrap_or_default().simple().to_string()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_account_in_every_dashboard_with_its_password() {
        let here = Cookies::of("ada", "correct horse");
        let cookie = here.remember().value;
        let browser = here.browser(&cookie).unwrap();
        let replica = Cookies::of("ada", "correct horse");
        assert_eq!((replica.browser(&cookie), replica.name()), (Some(browser), here.name()));
        assert_ne!(here.remember().value, cookie);
        for other in [Cookies::of("grace", "correct horse"), Cookies::of("ada", "correct horsf")] {
            assert!(other.browser(&cookie).is_none() && other.name() != here.name());
        }
        let (number, seal) = cookie.split_at(NUMBER);
        let last = if cookie.ends_with('0') { '1' } else { '0' };
        let forged = format!("{}{last}", &cookie[..63]);
        let another = format!("{}{seal}", Uuid::new_v4().simple());
        for wrong in
            ["", "é", number, &forged, &another, &format!("{cookie}0"), &format!("{number}{{{seal}}}")]
        {
            assert_eq!(here.browser(wrong), None, "{wrong}");
        }
    }
}
