//! Access: who may look, who may act, and whether a form comes from one of our own pages.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, Uri, header, uri::Authority};
use axum_extra::headers::{
    Authorization, HeaderMapExt,
    authorization::{Basic, Bearer},
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use tenure::internals::Serve;

/// The headers in which proxies name the user.
const NAMED_BY_PROXIES: [&str; 4] =
    ["x-forwarded-user", "x-auth-request-user", "remote-user", "x-webauth-user"];

/// Why the dashboard refuses to start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotServed {
    #[error(
        "the dashboard would be open to everybody who reaches {0}: set TENURE_SERVE_PASSWORD or TENURE_SERVE_TOKEN; \
         or TENURE_SERVE_AUTH=proxy, if a proxy in front of it authenticates users; or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
    #[error(
        "no user could use the dashboard's actions: TENURE_SERVE_TOKEN is for programs, which may only read; \
         set TENURE_SERVE_PASSWORD, too, or leave out --actions"
    )]
    NobodyMayAct,
}

/// The user or program that sent a request, as far as it is known.
#[derive(Debug, Clone)]
pub(super) struct Who {
    /// For the log.
    pub(super) name: String,
    /// False for a program that only reads, such as Prometheus.
    pub(super) may_act: bool,
}

impl Who {
    fn person(name: impl Into<String>) -> Self {
        Self { name: name.into(), may_act: true }
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The request has no valid credentials.
    Unknown,
    /// The request names another host.
    OtherHost,
}

/// The rules for who may use the dashboard.
#[derive(Debug)]
pub(super) struct Access {
    user: String,
    /// Hashes, so that a comparison takes the same time for every input.
    password: Option<[u8; 32]>,
    token: Option<[u8; 32]>,
    is_behind_proxy: bool,
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

fn is(text: &str, hashed: Option<&[u8; 32]>) -> bool {
    hashed.is_some_and(|hashed| bool::from(hash(text).ct_eq(hashed)))
}

impl Access {
    /// # Errors
    ///
    /// The dashboard would be open to other hosts without authentication, or no user could use its actions.
    pub(super) fn new(serve: &Serve, address: SocketAddr) -> Result<Self, NotServed> {
        let asks = serve.password.is_some() || serve.token.is_some();
        if !asks && !serve.is_behind_proxy && !address.ip().is_loopback() {
            return Err(NotServed::Open(address));
        }
        if serve.has_actions && serve.token.is_some() && serve.password.is_none() {
            return Err(NotServed::NobodyMayAct);
        }
        Ok(Self {
            user: serve.user.clone(),
            password: serve.password.as_deref().map(hash),
            token: serve.token.as_deref().map(hash),
            is_behind_proxy: serve.is_behind_proxy,
        })
    }

    /// The challenge for a browser or a program without credentials.
    pub(super) fn challenge(&self) -> &'static str {
        // If there is no password, a browser must not ask its user for one.
        if self.password.is_some() {
            "Basic realm=\"tenure\", charset=\"UTF-8\""
        } else {
            "Bearer realm=\"tenure\""
        }
    }

    pub(super) fn who(&self, headers: &HeaderMap) -> Result<Who, Refused> {
        if self.password.is_some() || self.token.is_some() {
            if let Some(Authorization(basic)) = headers.typed_get::<Authorization<Basic>>() {
                // Both are compared, even if the first is wrong, so that the time tells nothing.
                let (user, password) = (
                    is(basic.username(), Some(&hash(&self.user))),
                    is(basic.password(), self.password.as_ref()),
                );
                if user & password {
                    return Ok(Who::person(self.user.clone()));
                }
            }
            if let Some(Authorization(bearer)) = headers.typed_get::<Authorization<Bearer>>()
                && is(bearer.token(), self.token.as_ref())
            {
                return Ok(Who { name: "token".into(), may_act: false });
            }
            return Err(Refused::Unknown);
        }
        if self.is_behind_proxy {
            let named = NAMED_BY_PROXIES.iter().find_map(|name| headers.get(*name)?.to_str().ok());
            let name: String = named.unwrap_or("behind the proxy").chars().take(100).collect();
            return Ok(Who::person(name));
        }
        // Without a password, a DNS name that another site points at this host must not let that site's page in.
        if is_this_host(headers) { Ok(Who::person("this host")) } else { Err(Refused::OtherHost) }
    }
}

fn host(headers: &HeaderMap) -> Option<Authority> {
    headers.get(header::HOST)?.to_str().ok()?.parse().ok()
}

fn is_this_host(headers: &HeaderMap) -> bool {
    host(headers).is_some_and(|host| {
        let name = host.host().trim_matches(['[', ']']);
        name == "localhost"
            || name.ends_with(".localhost")
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

/// Whether one of our own pages sent a form; if not, why not.
///
/// Two proofs, each enough against another site: the site that the browser names (Sec-Fetch-Site, or else Origin), and
/// a token in the form and in a cookie, which only our page could read.
pub(super) fn is_own(
    headers: &HeaderMap,
    sent: Option<&str>,
    cookie: Option<&str>,
) -> Result<(), &'static str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match (text("sec-fetch-site"), text("origin")) {
        // Old browsers and other programs send neither.
        (Some("same-origin"), _) | (None, None) => {}
        (Some(_), _) => return Err("the form comes from another site"),
        (None, Some(origin)) => {
            let of = origin.parse::<Uri>().ok().and_then(|origin| origin.authority().cloned());
            if of.is_none() || of != host(headers) {
                return Err("the form comes from another site, or a proxy changes the Host header");
            }
        }
    }
    match (sent, cookie) {
        (Some(sent), Some(cookie)) if bool::from(sent.as_bytes().ct_eq(cookie.as_bytes())) => Ok(()),
        (_, None) => Err("the page's cookie is missing; allow cookies for this site, and reload the page"),
        _ => Err("the page is too old; reload it"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        of.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn access(serve: Serve) -> Access {
        Access::new(&serve, ([127, 0, 0, 1], 9090).into()).unwrap()
    }

    #[test]
    fn an_open_dashboard_is_served_on_this_host_only() {
        for address in ["0.0.0.0:1", "[::]:1", "10.1.2.3:1"] {
            let address: SocketAddr = address.parse().unwrap();
            let error = Access::new(&Serve::default(), address).unwrap_err().to_string();
            assert!(error.contains("TENURE_SERVE_PASSWORD"), "{error}");
            for serve in [
                Serve { password: Some("12345678".into()), ..Serve::default() },
                Serve { token: Some("12345678".into()), ..Serve::default() },
                Serve { is_behind_proxy: true, ..Serve::default() },
            ] {
                Access::new(&serve, address).unwrap();
            }
        }
        for address in ["127.0.0.1:1", "[::1]:1"] {
            Access::new(&Serve::default(), address.parse().unwrap()).unwrap();
        }
    }

    #[test]
    fn actions_without_a_user_are_refused_and_no_browser_is_asked_for_a_missing_password() {
        let token = Serve { token: Some("t0ken-of-mine".into()), ..Serve::default() };
        let both = Serve { password: Some("open sesame".into()), ..token.clone() };
        let with_actions = |serve: &Serve| {
            Access::new(&Serve { has_actions: true, ..serve.clone() }, "127.0.0.1:1".parse().unwrap())
        };
        let refused = with_actions(&token).unwrap_err();
        assert!(refused.to_string().contains("set TENURE_SERVE_PASSWORD, too, or leave out --actions"));
        assert!(with_actions(&both).unwrap().challenge().starts_with("Basic "));
        assert!(access(token).challenge().starts_with("Bearer "));
    }

    #[test]
    fn a_password_and_a_token_are_asked_for_and_neither_stands_for_the_other() {
        let serve = Serve {
            password: Some("open sesame".into()),
            token: Some("t0ken-of-mine".into()),
            ..Serve::default()
        };
        let access = access(serve);
        let basic = |text: &str| format!("Basic {}", data_encoding::BASE64.encode(text.as_bytes()));
        for (sent, is_right) in [
            (basic("tenure:open sesame"), true),
            (basic("tenure:open sesam"), false),
            (basic("tenure:"), false),
            (basic("root:open sesame"), false),
            (basic("tenure:t0ken-of-mine"), false),
            ("Bearer t0ken-of-mine".into(), true),
            ("Bearer open sesame".into(), false),
            ("Bearer ".into(), false),
            ("Digest x".into(), false),
        ] {
            let who = access.who(&headers(&[("host", "localhost"), ("authorization", &sent)]));
            assert_eq!(who.is_ok(), is_right, "{sent}");
        }
        assert_eq!(access.who(&HeaderMap::new()).unwrap_err(), Refused::Unknown);
    }

    #[test]
    fn without_a_password_only_this_hosts_own_names_are_answered() {
        let access = access(Serve::default());
        for (host, is_fine) in [
            ("localhost:9090", true),
            ("127.0.0.1:9090", true),
            ("[::1]:9090", true),
            ("tenure.localhost", true),
            ("evil.example", false),
            ("localhost.evil.example:9090", false),
            ("127.0.0.1.evil.example", false),
        ] {
            assert_eq!(access.who(&headers(&[("host", host)])).is_ok(), is_fine, "{host}");
        }
        assert_eq!(access.who(&HeaderMap::new()).unwrap_err(), Refused::OtherHost);
    }

    #[test]
    fn a_form_of_another_site_is_refused_even_with_the_token_and_so_is_one_without_it() {
        let own = [("host", "jobs.example:8443"), ("origin", "https://jobs.example:8443")];
        let ok = |of: &[(&'static str, &str)], sent, cookie| is_own(&headers(of), sent, cookie).is_ok();
        assert!(ok(&own, Some("a"), Some("a")));
        assert!(ok(&[("sec-fetch-site", "same-origin")], Some("a"), Some("a")));
        assert!(ok(&[], Some("a"), Some("a")));
        for (sent, cookie) in [(None, None), (Some("a"), None), (None, Some("a")), (Some("a"), Some("b"))] {
            assert!(!ok(&own, sent, cookie), "{sent:?} {cookie:?}");
        }
        for of in [
            [("host", "jobs.example"), ("origin", "https://evil.example")],
            [("host", "jobs.example"), ("origin", "null")],
            [("host", "jobs.example"), ("sec-fetch-site", "cross-site")],
            [("host", "jobs.example"), ("sec-fetch-site", "same-site")],
            [("host", "jobs.example"), ("sec-fetch-site", "none")],
        ] {
            assert!(!ok(&of, Some("a"), Some("a")), "{of:?}");
        }
    }
}
