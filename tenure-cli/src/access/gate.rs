//! Gate: lets requests in, and logs those that it refuses.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::http::HeaderMap;
use axum_extra::extract::cookie::CookieJar;

use super::{Access, For, NotServed, Refused, Who};
use tenure::internals::{Repeats, Serve, http::network};

/// The most characters of a refused request's path in the log.
const LOGGED_PATH_MAX: usize = 200;

/// The rules of access, and the refusals that were logged. The dashboard and the API share one: a client's guesses at
/// both count together.
#[derive(Debug)]
pub(crate) struct Gate {
    access: Access,
    refusals: Repeats,
}

impl Gate {
    /// # Errors
    ///
    /// Every client that reaches the address could see what is served, or no user could act.
    pub(crate) fn new(serve: &Serve, address: SocketAddr) -> Result<Self, NotServed> {
        Ok(Self { access: Access::new(serve, address)?, refusals: Repeats::default() })
    }

    /// Returns the user or program that sent a request.
    ///
    /// # Errors
    ///
    /// It may not look. The log has a line for it, if it sent a wrong password or token.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        peer: IpAddr,
        headers: HeaderMap,
        path: String,
        what: For,
    ) -> Result<Who, Refused> {
        if !self.access.takes_long() {
            return self.enter_now(peer, &headers, &path, what);
        }
        // The one thread of the server answers the probes, too.
        let gate = self.clone();
        let compare = move || gate.enter_now(peer, &headers, &path, what);
        tokio::task::spawn_blocking(compare).await.unwrap_or(Err(Refused::Unknown))
    }

    fn enter_now(&self, peer: IpAddr, headers: &HeaderMap, path: &str, what: For) -> Result<Who, Refused> {
        let client = self.access.client(peer, headers);
        let jar = CookieJar::from_headers(headers);
        let sent = |name: &str| jar.get(name).map(|is| is.value().to_owned());
        let who = self.access.who(client, headers, what, sent);
        let who = who.inspect_err(|why| self.log(why, client, peer, path))?;
        Ok(Who { client: format!("{} {}", who.name, network(client)), ..who })
    }

    /// The challenge for a browser or a program without credentials.
    pub(crate) fn challenge(&self) -> &'static str {
        self.access.challenge()
    }

    /// Logs a wrong password or token and a user who may not look, repeated ones less and less often.
    fn log(&self, why: &Refused, client: IpAddr, peer: IpAddr, path: &str) {
        let proxy = (client != peer.to_canonical()).then(|| tracing::field::display(peer));
        let path = path.chars().take(LOGGED_PATH_MAX).collect::<String>();
        match why {
            Refused::Wrong => {
                if let Some(left_out) = self.refusals.tell(&client.to_string()) {
                    tracing::warn!(%client, proxy, path, left_out, "a wrong password or token was refused");
                }
            }
            Refused::TooMany(_, met) => {
                let limit = met.as_str();
                if let Some(left_out) = self.refusals.tell(&format!("too many: {limit}")) {
                    tracing::warn!(%client, proxy, path, limit, left_out, "too many wrong passwords or tokens; this \
                         client's were refused without a comparison");
                }
            }
            Refused::NotListed { who, why } => {
                if let Some(left_out) = self.refusals.tell(&format!("not listed: {who}")) {
                    tracing::warn!(%client, proxy, who, path, why, left_out, "a look was refused");
                }
            }
            Refused::Unknown | Refused::OtherHost => {}
        }
    }
}
