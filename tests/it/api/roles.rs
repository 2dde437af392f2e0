//! Who may look at the API, and who may act.

use serde_json::json;

use super::{Api, JSON};
use crate::{
    dashboard::Dashboard,
    harness::{Bench, bench},
};

fn basic(text: &str) -> String {
    format!("Basic {}", data_encoding::BASE64.encode(text.as_bytes()))
}

/// Tries every address: each look, and each act, of which none changes the job.
async fn looks_and_acts(api: &Api, job: &str, headers: &[(&str, &str)]) -> (Vec<u16>, Vec<u16>, String) {
    let (mut looks, mut acts, mut said) = (Vec::new(), Vec::new(), String::new());
    for path in [
        "/jobs".to_owned(),
        format!("/jobs/{job}"),
        format!("/jobs/{job}/wait?timeout=1ms"),
        "/openapi.json".into(),
    ] {
        looks.push(api.ask("GET", &path, headers, "").await.status());
    }
    let body = json!({ "queue": "q", "kind": "k", "payload": 1, "unique_key": "key" }).to_string();
    for (path, body) in [("/jobs".to_owned(), body.as_str()), (format!("/jobs/{job}/retry"), "{}")] {
        let reply = api.ask("POST", &path, &[headers, &[JSON]].concat(), body).await;
        acts.push(reply.status());
        if reply.status() >= 400 {
            said = format!("{}: {}", reply.code(), reply.said());
        }
    }
    (looks, acts, said)
}

async fn a_job(bench: &Bench) -> String {
    let request = tenure::JobRequest::new("q", "k", json!("secret")).unique_key("key");
    bench.tenure.enqueue(request).await.unwrap().id.to_string()
}

const LOOKS: [u16; 4] = [200, 200, 202, 200];

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_may_look_and_a_page_of_another_site_may_do_nothing() {
    let bench = bench().await;
    let job = a_job(&bench).await;
    let variables = [
        ("TENURE_SERVE_PASSWORD", "correct horse"),
        ("TENURE_SERVE_VIEWER_PASSWORD", "only looking"),
        ("TENURE_SERVE_TOKEN", "a-token-that-reads"),
        ("TENURE_SERVE_API_TOKEN", "a-token-that-acts"),
    ];
    let api = Api::start(&bench, &["--actions"], &variables).await;
    let (actor, viewer) = (basic("tenure:correct horse"), basic("viewer:only looking"));
    let (reads, acts) = ("Bearer a-token-that-reads", "Bearer a-token-that-acts");
    for (credentials, may_act, part) in [
        (actor.as_str(), true, ""),
        (acts, true, ""),
        (&viewer, false, "may_only_look: TENURE_SERVE_VIEWER_PASSWORD only allows looking"),
        (reads, false, "may_only_look: TENURE_SERVE_TOKEN only allows reading"),
    ] {
        let (looked, acted, said) = looks_and_acts(&api, &job, &[("Authorization", credentials)]).await;
        let expected = if may_act { [200, 200] } else { [403, 403] };
        assert_eq!((looked.as_slice(), acted.as_slice()), (&LOOKS[..], &expected[..]), "{credentials}");
        assert!(said.starts_with(part), "{credentials}: {said}");
    }
    // The token of the API opens no forms of the dashboard.
    let page = api.dashboard.ask("GET", "/jobs", &[("Authorization", acts)], "").await;
    assert!(page.status == 200 && !page.body.contains("formaction="), "{}", page.status);
    // Six wrong ones: ten are allowed at once.
    for credentials in
        [None, Some(basic("tenure:wrong horse")), Some("Bearer a-token".into()), Some("Digest x".into())]
    {
        let headers: Vec<_> = credentials.iter().map(|of| ("Authorization", of.as_str())).collect();
        for (method, path) in [("GET", "/jobs"), ("POST", "/jobs")] {
            let refused = api.ask(method, path, &headers, "").await;
            assert_eq!((refused.status(), refused.code()), (401, "unauthenticated"), "{credentials:?}");
            assert!(refused.said().contains("send a bearer token"), "{}", refused.said());
        }
    }

    // Another site: it makes the browser of a user who has signed in send a form or a script's request.
    let host = api.dashboard.address.to_string();
    let own = format!("http://{host}");
    let path = format!("/jobs/{job}/cancel");
    for (headers, status, code) in [
        (
            vec![("Authorization", actor.as_str()), JSON, ("Origin", "https://evil.example")],
            403,
            "other_site",
        ),
        (vec![("Authorization", actor.as_str()), JSON, ("Origin", "null")], 403, "other_site"),
        (vec![("Authorization", actor.as_str()), JSON, ("Sec-Fetch-Site", "cross-site")], 403, "other_site"),
        (
            vec![("Authorization", actor.as_str()), JSON, ("Sec-Fetch-Site", "same-site"), ("Origin", &own)],
            403,
            "other_site",
        ),
        (vec![("Authorization", acts), JSON, ("Origin", "https://evil.example")], 403, "other_site"),
        // An old browser, which does not name the site: it sends only what a form can send.
        (vec![("Authorization", actor.as_str())], 415, "unsupported_media_type"),
        (
            vec![("Authorization", actor.as_str()), ("Content-Type", "text/plain")],
            415,
            "unsupported_media_type",
        ),
    ] {
        let refused = api.ask("POST", &path, &headers, "").await;
        assert_eq!(
            (refused.status(), refused.code()),
            (status, code),
            "{headers:?}: {}",
            refused.answer.body
        );
    }
    // It gets no leave to ask first, either.
    let preflight = [
        ("Origin", "https://evil.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Authorization", acts),
    ];
    let asked = api.ask("OPTIONS", "/jobs", &preflight, "").await;
    assert!(
        asked.status() == 405 && !asked.answer.headers().any(|(name, _)| name.starts_with("access-control"))
    );
    assert_eq!(
        bench.count("tenure.jobs WHERE status = 'queued'").await,
        1,
        "a request of another site acted"
    );
    // A page of our own, and a program with a token that sends no body.
    let page = [("Authorization", actor.as_str()), JSON, ("Origin", &own), ("Sec-Fetch-Site", "same-origin")];
    assert_eq!(api.ask("POST", &format!("/jobs/{job}/retry"), &page, "").await.status(), 200);
    assert_eq!(api.ask("POST", &path, &[("Authorization", acts)], "").await.status(), 200);
    let log = api.dashboard.serve.log();
    assert!(log.contains("an action of the API was refused") && log.contains("\"who\":\"viewer\""), "{log}");
    assert!(!log.contains("a-token-that") && !log.contains("horse"), "a secret is in the log");
    api.is_as_documented().await;
}

/// Guesses at the pages and at the API count together, and a long token is never slowed.
#[tokio::test(flavor = "multi_thread")]
async fn guesses_at_the_api_are_slowed_like_those_at_the_pages() {
    let bench = bench().await;
    let long = "a-token-of-mine-that-is-too-long-to-guess";
    let variables = [("TENURE_SERVE_PASSWORD", "correct horse"), ("TENURE_SERVE_API_TOKEN", long)];
    let api = Api::start(&bench, &["--actions"], &variables).await;
    let (mut compared, mut refused) = (0, 0);
    for n in 0..40 {
        let guess = format!("Bearer {n}");
        let headers = [("Authorization", guess.as_str())];
        let status = if n % 2 == 0 {
            api.dashboard.ask("GET", "/jobs", &headers, "").await.status
        } else {
            let reply = api.ask("POST", "/jobs", &headers, "").await;
            if reply.status() == 429 {
                assert_eq!(reply.code(), "too_many_guesses");
                assert!(reply.answer.header("retry-after").is_some());
            }
            reply.status()
        };
        match status {
            401 => compared += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!((10..25).contains(&compared) && compared + refused == 40, "{compared} {refused}");
    let right = basic("tenure:correct horse");
    assert_eq!(api.ask("GET", "/jobs", &[("Authorization", &right)], "").await.status(), 429);
    assert_eq!(
        api.ask("GET", "/jobs", &[("Authorization", &format!("Bearer {long}"))], "").await.status(),
        200
    );
    api.is_as_documented().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_is_off_until_asked_for_and_reads_until_it_may_act() {
    let bench = bench().await;
    let job = a_job(&bench).await;
    let off = Api::of(Dashboard::start(&bench, &["--actions"], &[]).await);
    for (method, path) in
        [("GET", "/jobs"), ("POST", "/jobs"), ("GET", "/openapi.json"), ("GET", "/api"), ("PUT", "/jobs")]
    {
        let reply = off.ask(method, path, &[JSON], "").await;
        assert_eq!((reply.status(), reply.code()), (404, "api_off"), "{method} {path}");
        assert!(
            reply.said().contains("--api") && reply.said().contains("TENURE_SERVE_API=true"),
            "{}",
            reply.said()
        );
    }
    assert_eq!(off.dashboard.get("/jobs").await.status, 200);
    assert!(!off.dashboard.serve.log().contains("the API at"));
    off.is_as_documented().await;
    drop(off);

    // By a variable. It only reads, hides what it shall hide, and answers this host alone.
    let variables = [("TENURE_SERVE_API", "true"), ("TENURE_SERVE_PAYLOADS", "false")];
    let api = Api::of(Dashboard::start(&bench, &[], &variables).await);
    assert!(api.dashboard.serve.log().contains("the API at /api/v1"));
    let (looked, acted, said) = looks_and_acts(&api, &job, &[]).await;
    assert_eq!((looked.as_slice(), acted), (&LOOKS[..], vec![403, 403]));
    assert!(said.starts_with("read_only") && said.contains("--actions"), "{said}");
    bench.execute(&format!("UPDATE tenure.jobs SET last_error = 'visible' WHERE id = '{job}'")).await;
    for path in [
        "/jobs".to_owned(),
        "/jobs?payloads=true".into(),
        format!("/jobs/{job}"),
        format!("/jobs/{job}/wait?timeout=1ms"),
    ] {
        let reply = api.get(&path).await;
        let shown = if reply.json.is_array() { &reply.json[0] } else { &reply.json };
        assert!(shown["payload"].is_null() && shown["last_error"] == "visible", "{path}: {shown}");
        assert!(!reply.answer.body.contains("secret"), "{path}");
    }
    let led = api.ask("GET", "/jobs", &[("Host", "evil.example")], "").await;
    assert_eq!((led.status(), led.code()), (403, "other_host"));
    api.is_as_documented().await;
    drop(api);

    // Settings that would let every reader act.
    let mut serve = bench.program(&["serve", "--api", "--actions", "--listen", "127.0.0.1:0"]);
    let tokens = [("TENURE_SERVE_TOKEN", "one-token"), ("TENURE_SERVE_API_TOKEN", "one-token")];
    let output = serve.envs(tokens).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("are the same"), "{text}");
}
