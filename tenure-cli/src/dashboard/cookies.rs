//! Cookies: of a sign-in, of a form, of an outcome.

use std::borrow::Cow;

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use axum_extra::extract::cookie::{Cookie, SameSite};

/// The header in which proxies say how the browser has sent the request.
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Whether a proxy says that the browser has sent the request by TLS. A client that says so itself keeps its own
/// cookies from plain HTTP.
pub(super) fn arrived_by_tls(headers: &HeaderMap) -> bool {
    let last = headers.get_all(FORWARDED_PROTO).iter().next_back().and_then(|value| value.to_str().ok());
    let last = last.and_then(|value| value.rsplit(',').next());
    last.is_some_and(|scheme| scheme.trim().eq_ignore_ascii_case("https"))
}

/// Browsers then send the cookies of this response by TLS alone.
pub(super) fn keep_cookies_to_tls(response: &mut Response) {
    let secure = |value: &HeaderValue| {
        let text = value.to_str().ok()?;
        HeaderValue::try_from(format!("{text}; Secure")).ok()
    };
    let cookies: Vec<_> = response.headers().get_all(header::SET_COOKIE).iter().filter_map(secure).collect();
    response.headers_mut().remove(header::SET_COOKIE);
    for cookie in cookies {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

pub(super) fn set(response: &mut Response, cookie: &Cookie) {
    if let Ok(value) = cookie.to_string().parse() {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

pub(super) fn cookie(base: &str, name: impl Into<Cow<'static, str>>, value: String) -> Cookie<'static> {
    Cookie::build((name, value))
        // Without a trailing slash, because the address of the page may lack it.
        .path(if base.is_empty() { "/".to_owned() } else { base.to_owned() })
        .http_only(true)
        .same_site(SameSite::Strict)
        .build()
}
