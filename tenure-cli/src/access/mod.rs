//! Access: who may look, who may act, and whether a request comes from one of our own pages. The dashboard and the HTTP
//! API share it, with its limits on guesses.

mod gate;
mod guesses;
mod known;
mod places;
mod scope;
mod users;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::http::{HeaderMap, Uri, header, uri::Authority};
use axum_extra::headers::{
    Authorization, HeaderMapExt,
    authorization::{Basic, Bearer},
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

pub(crate) use gate::Gate;
use guesses::{Guesser, Guesses, Met, NotSignedIn};
use known::Cookies;
pub(crate) use known::Remember;
pub(crate) use places::{Full, Place, Places};
pub(crate) use scope::Scope;
use scope::{ACTORS, VIEWERS};
use tenure::internals::{Serve, duration::written};
use users::{NoUsers, Users};

/// The headers in which proxies name the user.
const NAMED_BY_PROXIES: [&str; 4] =
    ["x-forwarded-user", "x-auth-request-user", "remote-user", "x-webauth-user"];

/// The header to which each proxy adds the address of its own client.
const FORWARDED_FOR: &str = "x-forwarded-for";
/// The user who signs in with `TENURE_SERVE_VIEWER_PASSWORD`.
const VIEWER: &str = "viewer";
/// The characters of a token that cannot be guessed: a right one needs no limit.
const LONG_TOKEN: usize = 32;

/// Why the dashboard refuses to start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotServed {
    #[error(
        "the dashboard would be open to everybody who reaches {0}: set TENURE_SERVE_PASSWORD or TENURE_SERVE_TOKEN; \
         or TENURE_SERVE_AUTH=proxy, if a proxy in front of it authenticates users; or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
    #[error(
        "no user could use the dashboard's actions: TENURE_SERVE_TOKEN and TENURE_SERVE_VIEWER_PASSWORD only allow \
         reading; set TENURE_SERVE_PASSWORD, too, or leave out --actions"
    )]
    NobodyMayAct,
    #[error(
        "TENURE_SERVE_TOKEN and TENURE_SERVE_API_TOKEN are the same, so every reader could act; change one"
    )]
    SameToken,
    #[error(
        "TENURE_SERVE_PASSWORD and TENURE_SERVE_VIEWER_PASSWORD are the same, so every viewer could act; change one"
    )]
    SamePassword,
    #[error(
        "TENURE_SERVE_ACTORS lists users by the names that a proxy sends or that TENURE_SERVE_USERS holds, but neither \
         is set: set TENURE_SERVE_USERS, or TENURE_SERVE_AUTH=proxy and no password or token of the dashboard's own, \
         or remove TENURE_SERVE_ACTORS"
    )]
    ActorsWithoutUsers,
    #[error(
        "TENURE_SERVE_VIEWERS lists users by the names that a proxy sends or that TENURE_SERVE_USERS holds, but \
         neither is set: set TENURE_SERVE_USERS, or TENURE_SERVE_AUTH=proxy and no password or token of the \
         dashboard's own, or remove TENURE_SERVE_VIEWERS"
    )]
    ViewersWithoutUsers,
    #[error(
        "TENURE_SERVE_USERS is set beside TENURE_SERVE_PASSWORD, TENURE_SERVE_VIEWER_PASSWORD or TENURE_SERVE_AUTH: \
         users sign in by one of these; remove the others"
    )]
    UsersTwice,
    #[error(transparent)]
    Users(#[from] NoUsers),
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// The dashboard, or the metrics.
    Pages,
    Api,
}

/// The user or program that sent a request, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Who {
    /// For the log.
    pub(crate) name: String,
    /// Why this user or program may only look; `None`: it may act.
    pub(crate) only_looks: Option<String>,
    /// The queues that it may act on: it may look at these, too.
    pub(crate) scope: Scope,
    /// The queues that it may look at.
    pub(crate) looks: Scope,
    /// The cookie that the browser shall hold from now on.
    pub(crate) remember: Option<Remember>,
    /// The name and the address: what one client may take at once is counted by it.
    pub(crate) client: String,
}

impl Who {
    fn person(name: impl Into<String>) -> Self {
        let (scope, looks) = (Scope::default(), Scope::default());
        Self { name: name.into(), only_looks: None, scope, looks, remember: None, client: String::new() }
    }

    fn viewer(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { only_looks: Some(why.into()), ..Self::person(name) }
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The request has no credentials.
    Unknown,
    /// Its credentials are wrong.
    Wrong,
    /// Its client, or all clients, were wrong too often. Its credentials were not compared; it may try again after this
    /// time.
    TooMany(Duration, Met),
    /// The request names another host.
    OtherHost,
    /// The user is known, and may look at nothing.
    NotListed { who: String, why: &'static str },
}

impl Refused {
    /// What to tell the client.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Unknown | Self::Wrong => {
                "Sign in with the user and password of this dashboard, or send a bearer token.".into()
            }
            Self::TooMany(_, met) => {
                let whose = if *met == Met::OfAll { " of other clients" } else { "" };
                let again_in = written(Duration::from_secs(self.wait_s().unwrap_or_default()));
                format!("Too many wrong passwords or tokens{whose}; try again in {again_in}.")
            }
            Self::OtherHost => {
                "This dashboard has no password, so it answers only to this host's own names, such as localhost."
                    .into()
            }
            Self::NotListed { who, why } => format!(
                "{who} may not look: {why}. Ask those who run this dashboard to list you, with the queues that you \
                 need."
            ),
        }
    }

    /// After how many seconds the client may try again.
    pub(crate) fn wait_s(&self) -> Option<u64> {
        if let Self::TooMany(wait, _) = self { Some(wait.as_secs() + 1) } else { None }
    }
}

impl From<NotSignedIn> for Refused {
    fn from(why: NotSignedIn) -> Self {
        match why {
            NotSignedIn::Wrong => Self::Wrong,
            NotSignedIn::TooMany(wait, met) => Self::TooMany(wait, met),
        }
    }
}

/// The rules for who may use the dashboard.
#[derive(Debug)]
pub(crate) struct Access {
    user: String,
    /// Hashes, so that a comparison takes the same time for every input.
    password: Option<[u8; 32]>,
    viewer_password: Option<[u8; 32]>,
    users: Option<Users>,
    token: Option<Token>,
    /// Of programs that may act by the HTTP API.
    api_token: Option<Token>,
    /// The cookies of the browsers of the user, and of the viewer.
    cookies: Option<Cookies>,
    viewer_cookies: Option<Cookies>,
    is_behind_proxy: bool,
    /// The users behind the proxy, or of the file, who may act; `None`: all of them.
    actors: Option<BTreeMap<String, Scope>>,
    /// Those who may look; `None`: all of them.
    viewers: Option<BTreeMap<String, Scope>>,
    guesses: Guesses,
}

/// A bearer token.
#[derive(Debug)]
struct Token {
    hash: [u8; 32],
    is_long: bool,
}

impl Token {
    fn of(text: &str) -> Self {
        Self { hash: hash(text), is_long: text.chars().count() >= LONG_TOKEN }
    }
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// The first half of a text's hash, as hexadecimal digits.
pub(crate) fn digest(text: &str) -> String {
    Uuid::from_slice(&hash(text)[..16]).unwrap_or_default().simple().to_string()
}

fn is(text: &str, hashed: Option<&[u8; 32]>) -> bool {
    hashed.is_some_and(|hashed| bool::from(hash(text).ct_eq(hashed)))
}

impl Access {
    /// # Errors
    ///
    /// The dashboard would be open to other hosts without authentication, or no user could use its actions.
    pub(crate) fn new(serve: &Serve, address: SocketAddr) -> Result<Self, NotServed> {
        let api_token = serve.api_token.as_ref().filter(|_| serve.has_api);
        let only_read = serve.token.is_some() || serve.viewer_password.is_some();
        let has_users = serve.users.is_some();
        let asks = serve.password.is_some() || api_token.is_some() || only_read || has_users;
        if !asks && !serve.is_behind_proxy && !address.ip().is_loopback() {
            return Err(NotServed::Open(address));
        }
        let may_act = serve.password.is_some() || api_token.is_some() || has_users;
        if serve.has_actions && only_read && !may_act {
            return Err(NotServed::NobodyMayAct);
        }
        if api_token.is_some() && api_token == serve.token.as_ref() {
            return Err(NotServed::SameToken);
        }
        if serve.password.is_some() && serve.password == serve.viewer_password {
            return Err(NotServed::SamePassword);
        }
        let has_names = has_users || serve.is_behind_proxy && !asks;
        if serve.actors.is_some() && !has_names {
            return Err(NotServed::ActorsWithoutUsers);
        }
        if serve.viewers.is_some() && !has_names {
            return Err(NotServed::ViewersWithoutUsers);
        }
        let has_password = serve.password.is_some() || serve.viewer_password.is_some();
        if has_users && (has_password || serve.is_behind_proxy) {
            return Err(NotServed::UsersTwice);
        }
        let listed = |entries: &Option<Vec<String>>, by| {
            let entries = entries.as_ref()?;
            Some(entries.iter().map(|entry| Scope::of(entry, by)).collect())
        };
        Ok(Self {
            user: serve.user.clone(),
            password: serve.password.as_deref().map(hash),
            viewer_password: serve.viewer_password.as_deref().map(hash),
            users: serve.users.as_deref().map(Users::read).transpose()?,
            token: serve.token.as_deref().map(Token::of),
            api_token: api_token.map(|token| Token::of(token)),
            cookies: serve.password.as_deref().map(|password| Cookies::of(&serve.user, password)),
            viewer_cookies: serve.viewer_password.as_deref().map(|password| Cookies::of(VIEWER, password)),
            is_behind_proxy: serve.is_behind_proxy,
            actors: listed(&serve.actors, ACTORS),
            viewers: listed(&serve.viewers, VIEWERS),
            guesses: Guesses::new(has_users),
        })
    }

    /// Whether a comparison takes as long as bcrypt does.
    pub(crate) fn takes_long(&self) -> bool {
        self.users.is_some()
    }

    fn has_passwords(&self) -> bool {
        self.password.is_some() || self.viewer_password.is_some() || self.users.is_some()
    }

    /// The challenge for a browser or a program without credentials.
    pub(crate) fn challenge(&self) -> &'static str {
        // If there is no password, a browser must not ask its user for one.
        if self.has_passwords() {
            "Basic realm=\"tenure\", charset=\"UTF-8\""
        } else {
            "Bearer realm=\"tenure\""
        }
    }

    /// Returns the address of the client: that of its connection, or the one that a trusted proxy names.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        // The client may have sent the header itself; the proxy adds the last address.
        let named = || {
            let last =
                headers.get_all(FORWARDED_FOR).iter().next_back()?.to_str().ok()?.rsplit(',').next()?.trim();
            last.parse().ok().or_else(|| last.parse::<SocketAddr>().ok().map(|address| address.ip()))
        };
        let client: IpAddr = self.is_behind_proxy.then(named).flatten().unwrap_or(peer);
        client.to_canonical()
    }

    /// `cookie`: the client's cookie of this name.
    pub(crate) fn who(
        &self,
        client: IpAddr,
        headers: &HeaderMap,
        what: For,
        cookie: impl Fn(&str) -> Option<String>,
    ) -> Result<Who, Refused> {
        let has_token = self.token.is_some() || self.api_token.is_some();
        if self.has_passwords() || has_token {
            // A browser's first request has none, because the browser has not been asked yet.
            if !headers.contains_key(header::AUTHORIZATION) {
                return Err(Refused::Unknown);
            }
            if let Some(Authorization(basic)) = headers.typed_get::<Authorization<Basic>>() {
                let cookies = self.cookies_of(basic.username());
                let browser = cookies.and_then(|cookies| cookies.browser(&cookie(cookies.name())?));
                let by = browser.map_or(Guesser::of(client), Guesser::Known);
                // The password of a user who may not look is no guess.
                let mut who = self.guesses.limited(by, || self.user(&basic, browser.is_some()))??;
                if browser.is_some() {
                    who.remember = None;
                }
                return Ok(who);
            }
            return Ok(self.bearer(client, headers, what)?);
        }
        if self.is_behind_proxy {
            return self.named_by_proxy(headers);
        }
        // Without a password, a DNS name that another site points at this host must not let that site's page in.
        if is_this_host(headers) { Ok(Who::person("this host")) } else { Err(Refused::OtherHost) }
    }

    /// The cookies of the browsers of this user. A user of both names has those of the first account.
    fn cookies_of(&self, user: &str) -> Option<&Cookies> {
        if let Some(users) = &self.users {
            return users.cookies(user);
        }
        let is_user = self.cookies.as_ref().filter(|_| user == self.user);
        is_user.or_else(|| self.viewer_cookies.as_ref().filter(|_| user == VIEWER))
    }

    /// The program that holds a token.
    fn bearer(&self, client: IpAddr, headers: &HeaderMap, what: For) -> Result<Who, NotSignedIn> {
        let by = Guesser::of(client);
        let bearer = headers.typed_get::<Authorization<Bearer>>();
        let is_of = |token: &Option<Token>| {
            let hash = token.as_ref().map(|token| &token.hash);
            bearer.as_ref().is_some_and(|bearer| is(bearer.token(), hash))
        };
        // Both are compared, so that the time tells nothing.
        let (reads, acts) = (is_of(&self.token), is_of(&self.api_token));
        let right = self.token.as_ref().filter(|_| reads).or(self.api_token.as_ref().filter(|_| acts));
        let who = || match what {
            For::Api if acts => Who::person("API token"),
            For::Api => Who::viewer(
                "token",
                "TENURE_SERVE_TOKEN only allows reading. To act, send TENURE_SERVE_API_TOKEN, or sign in with the user \
                 and the password.",
            ),
            For::Pages => {
                Who::viewer("token", "a bearer token may only read. Sign in with the user and the password.")
            }
        };
        if right.is_some_and(|token| token.is_long) {
            self.guesses.was_right(by);
            return Ok(who());
        }
        self.guesses.limited(by, || right.map(|_| who()))
    }

    /// The user with this name and password; `Some(Err(_))`: it may look at nothing.
    fn user(&self, basic: &Basic, is_known: bool) -> Option<Result<Who, Refused>> {
        let name = basic.username();
        if let Some(users) = &self.users {
            let is_right = users.is(name, basic.password(), is_known);
            let remember = users.cookies(name).filter(|_| is_right)?.remember();
            return Some(self.listed(name).map(|who| Who { remember: Some(remember), ..who }));
        }
        // All are compared, even if the first is wrong, so that the time tells nothing.
        let (is_user, is_viewer) = (is(name, Some(&hash(&self.user))), is(name, Some(&hash(VIEWER))));
        let (acts, looks) = (
            is(basic.password(), self.password.as_ref()),
            is(basic.password(), self.viewer_password.as_ref()),
        );
        if is_user & acts {
            let remember = self.cookies.as_ref().map(Cookies::remember);
            return Some(Ok(Who { remember, ..Who::person(self.user.clone()) }));
        }
        if (is_user | is_viewer) & looks {
            let why = "TENURE_SERVE_VIEWER_PASSWORD only allows looking. To act, sign in with TENURE_SERVE_PASSWORD.";
            // Guesses at the other user's password must not count for this browser alone.
            let remember = self.viewer_cookies.as_ref().filter(|_| !is_user).map(Cookies::remember);
            return Some(Ok(Who { remember, ..Who::viewer(VIEWER, why) }));
        }
        None
    }

    /// What a user of this name may do.
    fn listed(&self, name: &str) -> Result<Who, Refused> {
        let shown: String = name.chars().take(100).collect();
        let acts = self.actors.as_ref().map(|actors| actors.get(name));
        let looks = self.looks(name, acts.flatten()).ok_or_else(|| Refused::NotListed {
            who: shown.clone(),
            why: "TENURE_SERVE_VIEWERS lists the users who may look",
        })?;
        let who = match acts {
            // No user acts on what it may not see.
            None => Who { scope: looks.clone(), ..Who::person(shown) },
            Some(Some(scope)) => Who { scope: scope.clone(), ..Who::person(shown) },
            Some(None) => {
                let why = format!("{shown} may only look. TENURE_SERVE_ACTORS lists the users who may act.");
                Who::viewer(shown, why)
            }
        };
        Ok(Who { looks, ..who })
    }

    /// The queues that a user of this name may look at; `acts`: those that it may act on. `None`: it may look at none.
    fn looks(&self, name: &str, acts: Option<&Scope>) -> Option<Scope> {
        let Some(viewers) = &self.viewers else { return Some(Scope::default()) };
        match (viewers.get(name), acts) {
            (Some(looks), Some(acts)) => Some(looks.and(acts)),
            (looks, acts) => looks.or(acts).cloned(),
        }
    }

    fn named_by_proxy(&self, headers: &HeaderMap) -> Result<Who, Refused> {
        let names: Vec<_> = NAMED_BY_PROXIES
            .iter()
            .flat_map(|name| headers.get_all(*name))
            .filter(|value| !value.is_empty())
            .map(|value| value.to_str().ok())
            .collect();
        let first = names.iter().copied().flatten().next();
        let name: String = first.unwrap_or("behind the proxy").chars().take(100).collect();
        if self.actors.is_none() && self.viewers.is_none() {
            return Ok(Who::person(name));
        }
        // A proxy that lets its users' own headers through names two users, one of them invented.
        let is_forged = names.iter().any(|other| *other != first);
        let why = match first {
            _ if is_forged => "the proxy sends more than one user name, so this one may be forged",
            Some(first) => return self.listed(first),
            None if self.viewers.is_some() => {
                "the proxy sends no user name, and TENURE_SERVE_VIEWERS lists the users who may look"
            }
            None => "the proxy sends no user name, and TENURE_SERVE_ACTORS lists the users who may act",
        };
        if self.viewers.is_some() {
            return Err(Refused::NotListed { who: name, why });
        }
        Ok(Who::viewer(name, format!("{why}.")))
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
/// Two proofs, each enough against another site: the site that the browser names, and a token in the form and in a
/// cookie, which only our page could read.
pub(crate) fn is_own(
    headers: &HeaderMap,
    sent: Option<&str>,
    cookie: Option<&str>,
) -> Result<(), &'static str> {
    is_of_this_site(headers)?;
    match (sent, cookie) {
        (Some(sent), Some(cookie)) if bool::from(sent.as_bytes().ct_eq(cookie.as_bytes())) => Ok(()),
        (_, None) => Err("the page's cookie is missing; allow cookies for this site, and reload the page"),
        _ => Err("the page is too old; reload it"),
    }
}

/// Whether the browser says that a page of this site sent the request (Sec-Fetch-Site, or else Origin), or no browser
/// did; if not, why not.
pub(crate) fn is_of_this_site(headers: &HeaderMap) -> Result<(), &'static str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match (text("sec-fetch-site"), text("origin")) {
        // Old browsers and other programs send neither.
        (Some("same-origin"), _) | (None, None) => Ok(()),
        (Some(_), _) => Err("the request comes from another site"),
        (None, Some(origin)) => {
            let of = origin.parse::<Uri>().ok().and_then(|origin| origin.authority().cloned());
            if of.is_some() && of == host(headers) {
                return Ok(());
            }
            Err("the request comes from another site, or a proxy changes the Host header")
        }
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

    fn who(access: &Access, of: &[(&'static str, &str)]) -> Result<Who, Refused> {
        who_for(access, For::Pages, of)
    }

    fn who_for(access: &Access, what: For, of: &[(&'static str, &str)]) -> Result<Who, Refused> {
        access.who([127, 0, 0, 1].into(), &headers(of), what, |_| None)
    }

    fn basic(text: &str) -> String {
        format!("Basic {}", data_encoding::BASE64.encode(text.as_bytes()))
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
            let who = who(&access, &[("host", "localhost"), ("authorization", &sent)]);
            assert_eq!(who.is_ok(), is_right, "{sent}");
            assert!(who.err().is_none_or(|why| why == Refused::Wrong), "{sent}");
        }
        assert_eq!(who(&access, &[]).unwrap_err(), Refused::Unknown);
    }

    #[test]
    fn the_token_of_the_api_acts_there_alone_and_only_while_the_api_is_on() {
        let serve = Serve {
            has_api: true,
            has_actions: true,
            token: Some("reads-jobs".into()),
            api_token: Some("acts-on-jobs".into()),
            ..Serve::default()
        };
        let open: SocketAddr = ([0, 0, 0, 0], 9090).into();
        // Programs may act, even if no person may.
        let on = Access::new(&serve, open).unwrap();
        for (what, token, acts) in [
            (For::Api, "acts-on-jobs", true),
            (For::Pages, "acts-on-jobs", false),
            (For::Api, "reads-jobs", false),
            (For::Pages, "reads-jobs", false),
        ] {
            let who = who_for(&on, what, &[("authorization", &format!("Bearer {token}"))]).unwrap();
            assert_eq!(who.only_looks.is_none(), acts, "{what:?} {token}");
        }
        let off = Serve { has_api: false, ..serve.clone() };
        assert!(matches!(Access::new(&off, open).unwrap_err(), NotServed::NobodyMayAct));
        let alone = Serve { token: None, ..off };
        assert!(matches!(Access::new(&alone, open).unwrap_err(), NotServed::Open(_)));
        let same = Serve { token: serve.api_token.clone(), ..serve };
        assert!(matches!(Access::new(&same, open).unwrap_err(), NotServed::SameToken));
    }

    #[test]
    fn the_viewers_password_only_allows_looking() {
        let serve = Serve {
            password: Some("open sesame".into()),
            viewer_password: Some("only look".into()),
            has_actions: true,
            ..Serve::default()
        };
        let access = access(serve.clone());
        for (sent, acts) in [
            ("tenure:open sesame", Some(true)),
            ("viewer:only look", Some(false)),
            ("tenure:only look", Some(false)),
            ("viewer:open sesame", None),
            ("root:only look", None),
        ] {
            let who = who(&access, &[("authorization", &basic(sent))]);
            assert_eq!(who.ok().map(|who| who.only_looks.is_none()), acts, "{sent}");
        }
        // Its browser may guess its own password only.
        let viewer = who(&access, &[("authorization", &basic("viewer:only look"))]).unwrap();
        let remember = viewer.remember.unwrap();
        assert_eq!(Some(remember.name.as_str()), access.viewer_cookies.as_ref().map(Cookies::name));
        assert_eq!(who(&access, &[("authorization", &basic("tenure:only look"))]).unwrap().remember, None);
        for wrong in [
            Serve { viewer_password: serve.password.clone(), ..serve.clone() },
            Serve { password: None, ..serve.clone() },
            Serve { actors: Some(vec!["ada".into()]), is_behind_proxy: true, ..serve.clone() },
            Serve { actors: Some(vec!["ada".into()]), ..Serve::default() },
        ] {
            Access::new(&wrong, ([127, 0, 0, 1], 9090).into()).unwrap_err();
        }
    }

    #[test]
    fn of_a_proxys_users_those_listed_may_act() {
        let open = access(Serve { is_behind_proxy: true, ..Serve::default() });
        let actors = Some(vec!["ada".into(), "grace".into()]);
        let listed = access(Serve { is_behind_proxy: true, actors, ..Serve::default() });
        for (of, acts) in [
            (&[("x-forwarded-user", "ada")][..], true),
            (&[("x-webauth-user", "grace")], true),
            (&[("x-forwarded-user", "ada"), ("x-auth-request-user", "ada")], true),
            (&[("x-forwarded-user", "Ada")], false),
            (&[("x-forwarded-user", "eve")], false),
            (&[("x-forwarded-user", "ada"), ("remote-user", "eve")], false),
            (&[("x-forwarded-user", "")], false),
            (&[], false),
        ] {
            assert_eq!(who(&listed, of).unwrap().only_looks.is_none(), acts, "{of:?}");
            assert_eq!(who(&open, of).unwrap().only_looks, None, "{of:?}");
        }
    }

    #[test]
    fn of_a_proxys_users_those_listed_may_look_and_so_may_those_who_act() {
        let listed = |text: &str| Some(text.split(',').map(str::to_owned).collect());
        let of = |viewers, actors: Option<&str>| {
            let (viewers, actors) = (listed(viewers), actors.and_then(listed));
            access(Serve { is_behind_proxy: true, viewers, actors, ..Serve::default() })
        };
        let queues =
            |scope: &Scope| scope.queues().map(|all| all.iter().cloned().collect::<Vec<_>>().join("+"));
        let all = || (None, None);
        let own = |looks: &str, acts: &str| (Some(looks.to_owned()), Some(acts.to_owned()));
        for (actors, user, expected) in [
            // Without a list of actors, a user acts on what it sees.
            (None, "ada", Some((all(), true))),
            (None, "grace", Some((own("billing+mail", "billing+mail"), true))),
            (None, "eve", None),
            (None, "Ada", None),
            // With one, its queues are seen, too.
            (Some("grace=chat,bob=mail,ken"), "grace", Some((own("billing+chat+mail", "chat"), true))),
            (Some("grace=chat,bob=mail,ken"), "bob", Some((own("mail", "mail"), true))),
            (Some("grace=chat,bob=mail,ken"), "ken", Some((all(), true))),
            (Some("grace=chat,bob=mail,ken"), "ada", Some((all(), false))),
            (Some("grace"), "grace", Some((all(), true))),
            (Some("ken"), "eve", None),
        ] {
            let access = of("ada,grace=mail+billing", actors);
            let who = who(&access, &[("x-forwarded-user", user)]).ok();
            let is = who.map(|who| ((queues(&who.looks), queues(&who.scope)), who.only_looks.is_none()));
            assert_eq!(is, expected, "{actors:?} {user}");
        }
        let access = of("ada", None);
        for (sent, why) in [
            (&[("x-forwarded-user", "eve")][..], "eve may not look: TENURE_SERVE_VIEWERS lists"),
            (&[("x-forwarded-user", "ada"), ("remote-user", "eve")], "may be forged"),
            (&[], "the proxy sends no user name, and TENURE_SERVE_VIEWERS"),
        ] {
            let refused = who(&access, sent).unwrap_err();
            assert!(matches!(refused, Refused::NotListed { .. }), "{refused:?}");
            assert!(refused.text().contains(why), "{}", refused.text());
        }
        let viewers = listed("ada");
        for wrong in [
            Serve { viewers: viewers.clone(), ..Serve::default() },
            Serve { viewers: viewers.clone(), password: Some("open sesame".into()), ..Serve::default() },
            Serve {
                viewers,
                is_behind_proxy: true,
                token: Some("a-token-of-mine".into()),
                ..Serve::default()
            },
        ] {
            let refused = Access::new(&wrong, ([127, 0, 0, 1], 9090).into()).unwrap_err();
            assert!(matches!(refused, NotServed::ViewersWithoutUsers), "{refused}");
        }
    }

    #[test]
    fn only_a_trusted_proxy_names_the_client() {
        let peer: IpAddr = [10, 0, 0, 1].into();
        let direct = access(Serve::default());
        let proxied = access(Serve { is_behind_proxy: true, ..Serve::default() });
        for (sent, client) in [
            ("192.0.2.7", "192.0.2.7"),
            ("198.51.100.1, 192.0.2.7", "192.0.2.7"),
            ("192.0.2.7:4711", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]:4711", "2001:db8::7"),
            ("unknown", "10.0.0.1"),
        ] {
            let headers = headers(&[("x-forwarded-for", sent)]);
            assert_eq!(proxied.client(peer, &headers).to_string(), client, "{sent}");
            assert_eq!(direct.client(peer, &headers), peer, "{sent}");
        }
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
            assert_eq!(who(&access, &[("host", host)]).is_ok(), is_fine, "{host}");
        }
        assert_eq!(who(&access, &[]).unwrap_err(), Refused::OtherHost);
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
