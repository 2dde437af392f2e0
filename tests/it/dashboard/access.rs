//! The dashboard's users: guesses of passwords are slowed, and viewers may not act.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use futures::StreamExt;
use serde_json::{Value, json};
use tenure::{JobRequest, redrives::CalmRedrive, rows::DeadFilter, schedules::Schedule};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
};

use super::{Dashboard, PAGES, calm, enqueue};

const TOO_MANY: &str = "too many wrong passwords or tokens; this client's were refused without a comparison";

pub(super) fn basic(text: &str) -> String {
    format!("Basic {}", data_encoding::BASE64.encode(text.as_bytes()))
}

/// Sends a request from this address of the host. Returns the status and the whole answer.
async fn from(source: IpAddr, to: SocketAddr, headers: &str) -> (u16, String) {
    page_from(source, to, "/queues", headers).await
}

async fn page_from(source: IpAddr, to: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

/// Guesses in parallel, one for each of these headers. Returns the count of each status.
async fn guesses(to: SocketAddr, headers: impl Iterator<Item = String>) -> BTreeMap<u16, usize> {
    let all = headers.map(|headers| async move { from([127, 0, 0, 1].into(), to, &headers).await.0 });
    // Fewer than the connections that the listener keeps open.
    let mut all = futures::stream::iter(all).buffer_unordered(200);
    let mut counts = BTreeMap::new();
    while let Some(status) = all.next().await {
        *counts.entry(status).or_default() += 1;
    }
    counts
}

/// The lines of the log with this message.
pub(super) fn lines(dashboard: &Dashboard, message: &str) -> Vec<Value> {
    let log = dashboard.serve.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_of_a_password_are_slowed_and_logged_and_keep_no_other_user_out() {
    let bench = calm().await;
    let variables = [("TENURE_SERVE_PASSWORD", "correct horse"), ("TENURE_SERVE_TOKEN", "a-token-of-mine")];
    let dashboard = Dashboard::start(&bench, &[], &variables).await;
    let (address, here, elsewhere) = (dashboard.address, [127, 0, 0, 1].into(), [127, 0, 0, 2].into());
    let right = format!("Authorization: {}\r\n", basic("tenure:correct horse"));
    let (status, signed_in) = from(here, address, &right).await;
    assert_eq!(status, 200);
    let set = signed_in.lines().find(|line| line.contains("tenure_known_")).unwrap();
    assert!(set.contains("; Max-Age=7776000"), "{set}");
    let (name, cookie) = set.split(": ").nth(1).unwrap().split(';').next().unwrap().split_once('=').unwrap();

    // A client's own header does not make it another client.
    let wrong = |n: usize| {
        let by = if n.is_multiple_of(2) { basic(&format!("tenure:{n}")) } else { format!("Bearer {n}") };
        format!("Authorization: {by}\r\nX-Forwarded-For: 192.0.2.{}\r\n", n % 250)
    };
    let began_at = Instant::now();
    let counts = guesses(address, (0..300).map(wrong)).await;
    let allowed = 10 + usize::try_from(began_at.elapsed().as_secs()).unwrap();
    let compared = counts[&401];
    assert!((10..=allowed).contains(&compared) && compared + counts[&429] == 300, "{counts:?}");

    // Not even a right password is compared; other clients, a browser that has signed in and probes are not slowed.
    let (status, refused) = from(here, address, &right).await;
    assert!(
        status == 429 && refused.contains("retry-after: ") && refused.contains("try again in"),
        "{refused}"
    );
    let with_cookie = format!("{right}Cookie: {name}={cookie}\r\n");
    let last = if cookie.ends_with('0') { '1' } else { '0' };
    let forged = format!("{right}Cookie: {name}={}{last}\r\n", &cookie[..63]);
    let began_at = Instant::now();
    assert_eq!(from(elsewhere, address, &right).await.0, 200);
    assert_eq!(from(here, address, &with_cookie).await.0, 200);
    assert_eq!(dashboard.get("/livez").await.status, 200);
    assert!(began_at.elapsed() < Duration::from_secs(2), "{:?}", began_at.elapsed());
    assert_eq!(from(here, address, &forged).await.0, 429);

    let refused = lines(&dashboard, "a wrong password or token was refused");
    assert!((1..=5).contains(&refused.len()), "{refused:?}");
    assert!(
        refused.iter().all(|line| line["client"] == "127.0.0.1" && line["path"] == "/queues"),
        "{refused:?}"
    );
    let unheard = lines(&dashboard, TOO_MANY);
    assert!((1..=5).contains(&unheard.len()), "{unheard:?}");
    assert!(unheard[0]["client"] == "127.0.0.1" && unheard[0]["limit"] == "client", "{unheard:?}");
    // A replica takes the cookie; a dashboard with another password has a cookie of another name.
    let replica = Dashboard::start(&bench, &[], &variables).await;
    let (status, answer) = from(here, replica.address, &with_cookie).await;
    assert!(status == 200 && !answer.contains("tenure_known_"), "{answer}");
    let other = Dashboard::start(&bench, &[], &[("TENURE_SERVE_PASSWORD", "other horse")]).await;
    let right_there = format!("Authorization: {}\r\n", basic("tenure:other horse"));
    let (_, answer) = from(here, other.address, &right_there).await;
    assert!(answer.contains("tenure_known_") && !answer.contains(name), "{answer}");
    // The client may try again in time, and the next line counts those that were left out.
    tokio::time::sleep(Duration::from_secs(3)).await;
    from(here, address, &wrong(0)).await;
    let refused = lines(&dashboard, "a wrong password or token was refused");
    let left_out: u64 = refused.iter().filter_map(|line| line["left_out"].as_u64()).sum();
    assert!(left_out >= 5, "{refused:?}");
    assert!(!dashboard.serve.log().contains("horse"), "a password is in the log");
}

/// Behind a proxy, a client is the address that the proxy names. Many addresses together have a limit, too, which locks
/// out neither a network that has signed in nor a long token.
#[tokio::test(flavor = "multi_thread")]
async fn guesses_behind_a_proxy_are_those_of_the_proxys_clients() {
    let bench = calm().await;
    let token = "a-token-of-mine-that-is-too-long-to-guess";
    let variables = [
        ("TENURE_SERVE_PASSWORD", "correct horse"),
        ("TENURE_SERVE_TOKEN", token),
        ("TENURE_SERVE_AUTH", "proxy"),
    ];
    let dashboard = Dashboard::start(&bench, &[], &variables).await;
    let (address, proxy) = (dashboard.address, [127, 0, 0, 1].into());
    let sent = |password: &str, client: &str| {
        let by = basic(&format!("tenure:{password}"));
        // The client itself sent the first address.
        format!("Authorization: {by}\r\nX-Forwarded-For: 203.0.113.9, {client}\r\n")
    };
    let one = guesses(address, (0..40).map(|n| sent(&n.to_string(), "192.0.2.1"))).await;
    assert!(one[&401] >= 10 && one[&429] > 20, "{one:?}");
    assert_eq!(from(proxy, address, &sent("correct horse", "192.0.2.2")).await.0, 200);
    let refused = lines(&dashboard, "a wrong password or token was refused");
    assert!(
        refused.iter().all(|line| line["client"] == "192.0.2.1" && line["proxy"] == "127.0.0.1"),
        "{refused:?}"
    );
    let began_at = Instant::now();
    let all = guesses(address, (0..200).map(|n| sent("no", &format!("198.51.100.{n}")))).await;
    let allowed = 50 + 5 * usize::try_from(began_at.elapsed().as_secs() + 1).unwrap();
    assert!(all[&401] <= allowed && all[&429] > 100, "{all:?}");
    let flood = guesses(address, (0..200).map(|n| sent("no", &format!("203.0.113.{n}")))).await;
    assert!(flood[&429] > 100, "{flood:?}");
    assert_eq!(from(proxy, address, &sent("correct horse", "192.0.2.2")).await.0, 200);
    let scraper = |token: &str| format!("Authorization: Bearer {token}\r\nX-Forwarded-For: 192.0.2.3\r\n");
    assert_eq!(from(proxy, address, &scraper(token)).await.0, 200);
    let refused = lines(&dashboard, TOO_MANY);
    assert!(refused.iter().any(|line| line["limit"] == "all clients"), "{refused:?}");
}

/// Asserts whether a user of these headers finds forms and may post them.
async fn acts(dashboard: &Dashboard, who: &[(&str, &str)], may: Result<(), &str>) {
    for (path, _) in PAGES {
        let page = dashboard.ask("GET", path, who, "").await;
        assert_eq!(page.status, 200, "{who:?} {path}");
        let has_forms = page.body.contains("method=\"post\"") || page.body.contains("formaction=");
        if path == "/jobs" {
            assert_eq!(has_forms, may.is_ok(), "{who:?} {path}");
        }
        assert!(may.is_ok() || !has_forms, "{who:?} {path}");
        assert_eq!(page.body.contains(" · you may only look"), may.is_err(), "{who:?} {path}");
    }
    for path in ["/enqueue", "/schedule"] {
        let form = dashboard.ask("GET", path, who, "").await;
        match may {
            Ok(()) => assert_eq!(form.status, 200, "{who:?} {path}"),
            // Not that the dashboard allows no actions: it does.
            Err(why) => assert!(
                form.status == 403
                    && form.body.to_lowercase().contains(&why.to_lowercase())
                    && form.body.contains("<h1>You may only look</h1>")
                    && !form.body.contains("read-only"),
                "{who:?} {path}: {}",
                form.body
            ),
        }
    }
    let headers = [who, &[("Cookie", "tenure_csrf=abc"), ("Sec-Fetch-Site", "same-origin")][..]].concat();
    for path in ["/queues/q/pause", "/queues/q/resume", "/jobs/cancel", "/dead/purge", "/nowhere"] {
        let done = dashboard.ask("POST", path, &headers, "csrf=abc&back=%2F").await;
        match may {
            Ok(()) => assert_ne!(done.status, 403, "{who:?} {path}"),
            Err(why) => {
                assert!(
                    done.status == 403 && done.body.contains(why),
                    "{who:?} {path}: {} {}",
                    done.status,
                    done.body
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_see_no_forms_and_change_nothing() {
    let bench = calm().await;
    enqueue(&bench, serde_json::json!(1)).await;
    let variables =
        [("TENURE_SERVE_PASSWORD", "correct horse"), ("TENURE_SERVE_VIEWER_PASSWORD", "only looking")];
    let dashboard = Dashboard::start(&bench, &["--actions"], &variables).await;
    let (actor, viewer) = (basic("tenure:correct horse"), basic("viewer:only looking"));
    acts(&dashboard, &[("Authorization", &actor)], Ok(())).await;
    bench.execute("DELETE FROM tenure.queues").await;
    acts(&dashboard, &[("Authorization", &viewer)], Err("TENURE_SERVE_VIEWER_PASSWORD only allows looking"))
        .await;
    assert_eq!(bench.count("tenure.queues").await, 0, "a viewer changed a queue");
    let swapped = basic("viewer:correct horse");
    assert_eq!(dashboard.ask("GET", "/", &[("Authorization", &swapped)], "").await.status, 401);
    assert_eq!(lines(&dashboard, "an action was refused: this user may only look")[0]["who"], "viewer");
    drop(dashboard);

    let variables = [("TENURE_SERVE_AUTH", "proxy"), ("TENURE_SERVE_ACTORS", "ada, grace")];
    let dashboard = Dashboard::start(&bench, &["--actions"], &variables).await;
    acts(&dashboard, &[("X-Forwarded-User", "grace")], Ok(())).await;
    acts(&dashboard, &[("X-Forwarded-User", "eve")], Err("eve may only look. TENURE_SERVE_ACTORS")).await;
    acts(&dashboard, &[("X-Forwarded-User", "ada"), ("Remote-User", "eve")], Err("may be forged")).await;
    drop(dashboard);

    // Settings that would let every user act, or none.
    for (variables, told) in [
        (&[("TENURE_SERVE_ACTORS", "ada")][..], "TENURE_SERVE_AUTH=proxy"),
        (&[("TENURE_SERVE_VIEWER_PASSWORD", "only looking")], "set TENURE_SERVE_PASSWORD, too"),
        (
            &[("TENURE_SERVE_PASSWORD", "correct horse"), ("TENURE_SERVE_VIEWER_PASSWORD", "correct horse")],
            "are the same",
        ),
    ] {
        let mut serve = bench.program(&["serve", "--actions", "--listen", "127.0.0.1:0"]);
        let output = serve.envs(variables.iter().copied()).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains(told), "{text}");
    }
}

/// Each of two hundred guesses a second comes from another address, and bcrypt takes a good part of a second for one.
#[tokio::test(flavor = "multi_thread")]
async fn guesses_from_many_addresses_hold_up_no_page_of_a_user_who_has_signed_in() {
    let bench = calm().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    std::fs::write(&path, format!("ada:{}\n", bcrypt::hash("one", 12).unwrap())).unwrap();
    let dashboard = Dashboard::start(&bench, &[], &[("TENURE_SERVE_USERS", path.to_str().unwrap())]).await;
    let address = dashboard.address;
    let right = format!("Authorization: {}\r\n", basic("ada:one"));
    assert_eq!(from([127, 0, 0, 1].into(), address, &right).await.0, 200);
    let guessing = tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(5));
        let mut asked = tokio::task::JoinSet::new();
        for n in 0..1_200_u32 {
            every.tick().await;
            let source = [127, 0, 1, u8::try_from(n % 200).unwrap()].into();
            let wrong = format!("Authorization: {}\r\n", basic(&format!("ada:{n}")));
            asked.spawn(async move { from(source, address, &wrong).await.0 });
        }
        asked.join_all().await
    });
    let mut waits = Vec::new();
    while !guessing.is_finished() {
        let began_at = Instant::now();
        // 503: a busy machine has ended a statement of the page.
        let came = from([127, 0, 0, 1].into(), address, &right).await.0 == 200;
        waits.push(if came { began_at.elapsed() } else { Duration::MAX });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let statuses = guessing.await.unwrap();
    let compared = statuses.iter().filter(|status| **status == 401).count();
    waits.sort();
    eprintln!(
        "{} pages, median {:?}, slowest {:?}; {compared} compared",
        waits.len(),
        waits[waits.len() / 2],
        waits.last()
    );
    assert!(statuses.iter().all(|status| [401, 429].contains(status)) && (1..200).contains(&compared));
    // A busy machine may hold up one page of a hundred; a page that waited for a comparison would not be alone.
    assert!(waits[waits.len() * 97 / 100] < Duration::from_secs(1), "{waits:?}");
}

/// Four searches of one client wait for a lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_too_many_searches_keeps_no_other_from_searching() {
    let bench = calm().await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let address = dashboard.address;
    let search =
        move |source: [u8; 4]| async move { page_from(source.into(), address, "/jobs?q=a", "").await.0 };
    let mut locked = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.jobs").execute(&mut *locked).await.unwrap();
    let waiting = "pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let mut searches: Vec<_> = (0..4).map(|_| tokio::spawn(search([127, 0, 0, 1]))).collect();
    bench.until(&format!("(SELECT count(*) FROM {waiting}) >= 4")).await;
    assert_eq!(search([127, 0, 0, 1]).await, 429);
    searches.push(tokio::spawn(search([127, 0, 0, 2])));
    bench.until(&format!("(SELECT count(*) FROM {waiting}) >= 5")).await;
    locked.rollback().await.unwrap();
    for search in searches {
        // 503: on a busy machine, a statement may have waited for too long.
        assert!([200, 503].contains(&search.await.unwrap()));
    }
    assert_eq!(search([127, 0, 0, 1]).await, 200);
}

/// Users of a file: each signs in with a password of their own, and acts as the list says.
#[tokio::test(flavor = "multi_thread")]
async fn users_of_a_file_sign_in_each_with_a_password_of_their_own() {
    let bench = calm().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    let hashed = |password: &str| bcrypt::hash(password, 4).unwrap();
    std::fs::write(
        &path,
        format!("ada:{}\ngrace:{}\neve:{}\n", hashed("one"), hashed("two"), hashed("three")),
    )
    .unwrap();
    let users = path.to_str().unwrap();
    let variables = [
        ("TENURE_SERVE_USERS", users),
        ("TENURE_SERVE_ACTORS", "ada, grace=mail"),
        ("TENURE_SERVE_TOKEN", "a-token-of-mine"),
    ];
    let dashboard = Dashboard::start(&bench, &["--actions"], &variables).await;
    for (who, right) in
        [("ada:one", 200), ("grace:two", 200), ("eve:three", 200), ("eve:one", 401), ("bob:one", 401)]
    {
        let answer = dashboard.ask("GET", "/queues", &[("Authorization", &basic(who))], "").await;
        assert_eq!(answer.status, right, "{who}");
        assert_eq!(
            answer.all("set-cookie").iter().any(|of| of.starts_with("tenure_known_")),
            right == 200,
            "{who}"
        );
    }
    let unknown = dashboard.get("/queues").await;
    assert!(unknown.status == 401 && unknown.header("www-authenticate").unwrap().starts_with("Basic "));
    let pause = async |who: &str, queue: &str| {
        let authorization = basic(who);
        let headers = [
            ("Cookie", "tenure_csrf=abc"),
            ("Sec-Fetch-Site", "same-origin"),
            ("Authorization", authorization.as_str()),
        ];
        dashboard.ask("POST", &format!("/queues/{queue}/pause"), &headers, "csrf=abc&back=%2Fqueues").await
    };
    bench.tenure.setup(&["mail".into(), "billing".into()]).await.unwrap();
    enqueue(&bench, json!(1)).await;
    for queue in ["mail", "billing"] {
        bench.tenure.limit_queue(queue, tenure::queues::QueueLimits::new().max_running(9)).await.unwrap();
    }
    assert_eq!(pause("eve:three", "mail").await.status, 403);
    assert_eq!(pause("grace:two", "billing").await.status, 403);
    assert_eq!(pause("grace:two", "mail").await.status, 303);
    assert_eq!(pause("ada:one", "billing").await.status, 303);
    let acts = bench.tenure.audit(&tenure::audit::AuditFilter::new().act("pause_queue"), 9).await.unwrap();
    let who: Vec<_> = acts.iter().rev().map(|of| of.actor.as_deref().unwrap_or_default()).collect();
    assert_eq!(who, ["grace", "ada"]);
    drop(dashboard);

    let empty = folder.path().join("empty");
    std::fs::write(&empty, "ada:plain").unwrap();
    for (variables, told) in [
        (&[("TENURE_SERVE_USERS", "/nowhere/users")][..], "/nowhere/users cannot be read"),
        (&[("TENURE_SERVE_USERS", empty.to_str().unwrap())], "line 1 of"),
        (&[("TENURE_SERVE_USERS", users), ("TENURE_SERVE_PASSWORD", "correct horse")], "remove the others"),
        (&[("TENURE_SERVE_USERS", users), ("TENURE_SERVE_AUTH", "proxy")], "remove the others"),
    ] {
        let mut serve = bench.program(&["serve", "--actions", "--listen", "127.0.0.1:0"]);
        let output = serve.envs(variables.iter().copied()).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains(told), "{text}");
    }
}

/// Users behind a proxy, each with some queues alone, at the pages and at the API.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one form after the other")]
async fn a_user_of_some_queues_acts_on_these_alone() {
    let bench = calm().await;
    let tenure = &bench.tenure;
    let job = |queue: &str| JobRequest::new(queue, "k", json!(1)).delay(Duration::from_secs(3_600));
    let (own, other) =
        (tenure.enqueue(job("mail")).await.unwrap().id, tenure.enqueue(job("billing")).await.unwrap().id);
    for (name, queue) in [("own", "mail"), ("other", "billing")] {
        tenure
            .put_schedule(Schedule::new(name, "0 3 * * *", JobRequest::new(queue, "k", json!(1))))
            .await
            .unwrap();
    }
    for queue in ["mail", "billing"] {
        bench
            .execute(&format!(
                "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
                        losses, created_at, scheduled_at, died_at, last_error, category, execution_history)
                 VALUES (gen_random_uuid(), '{queue}', 'k', '1', 0, 1, 0, 0, now(), now(), now(), 'no', 'permanent', '[]')"
            ))
            .await;
    }
    let dead = async |queue: &str| {
        bench
            .value::<String>(&format!("SELECT id::text FROM tenure.dead_letter_jobs WHERE queue = '{queue}'"))
            .await
    };
    let (own_dead, other_dead) = (dead("mail").await, dead("billing").await);
    let redrive = |queue: &str| DeadFilter::new().queue(queue);
    let calm_of = async |queue: &str| {
        tenure.redrive_calmly(&redrive(queue), CalmRedrive::new()).await.unwrap().unwrap().id
    };
    let (own_redrive, other_redrive) = (calm_of("mail").await, calm_of("billing").await);

    let variables = [
        ("TENURE_SERVE_AUTH", "proxy"),
        ("TENURE_SERVE_ACTORS", "ada, grace=mail+chat"),
        ("TENURE_SERVE_API", "true"),
    ];
    let dashboard = Dashboard::start(&bench, &["--actions"], &variables).await;
    let post = async |path: &str, fields: &str, user: &str| {
        let headers =
            [("Cookie", "tenure_csrf=abc"), ("Sec-Fetch-Site", "same-origin"), ("X-Forwarded-User", user)];
        dashboard.ask("POST", path, &headers, &format!("csrf=abc&back=%2Fjobs&{fields}")).await
    };
    let shown = "shown=9000000000000000";
    let schedule = |name: &str, queue: &str| {
        format!(
            "name={name}&cron=0+4+*+*+*&time_zone=UTC&queue={queue}&kind=k&payload=1&max_attempts=5&missed=once&overlap=allow"
        )
    };
    // Each refused first: nothing has changed when the one that is allowed comes.
    for (path, fields) in [
        (format!("/jobs/{other}/cancel"), String::new()),
        (format!("/jobs/{other}/retry"), String::new()),
        (format!("/jobs/{other}/again"), String::new()),
        (format!("/jobs/{other}/signal"), "event=e&payload=1".into()),
        ("/jobs/cancel".into(), format!("id={own}&id={other}")),
        ("/jobs/retry".into(), format!("id={other}")),
        ("/jobs/cancel".into(), "all=1&selection=x".into()),
        ("/jobs/cancel".into(), "all=1&selection=x&queue=billing".into()),
        ("/dead/redrive".into(), format!("id={other_dead}")),
        ("/dead/redrive".into(), format!("all=1&{shown}")),
        ("/dead/redrive".into(), format!("all=1&queue=billing&{shown}")),
        ("/dead/purge".into(), format!("id={own_dead}&id={other_dead}")),
        ("/dead/purge".into(), format!("all=1&queue=billing&{shown}")),
        ("/dead/calm".into(), format!("queue=billing&canary=1&{shown}")),
        ("/dead/calm".into(), format!("canary=1&{shown}")),
        (format!("/dead/redrives/{other_redrive}/stop"), String::new()),
        ("/queues/billing/pause".into(), String::new()),
        ("/queues/billing/resume".into(), String::new()),
        ("/queues/billing/limit".into(), "max_running=1".into()),
        ("/workers/any/drain".into(), String::new()),
        ("/enqueue".into(), "queue=billing&kind=k&payload=1&max_attempts=5".into()),
        ("/schedule".into(), schedule("new", "billing")),
        // A schedule of another queue cannot be taken.
        ("/schedule".into(), schedule("other", "mail")),
        ("/schedules/other/run".into(), String::new()),
        ("/schedules/other/pause".into(), String::new()),
    ] {
        let refused = post(&path, &fields, "grace").await;
        assert_eq!(refused.status, 403, "{path} {fields}: {}", refused.body);
        assert!(refused.body.contains("lets grace act on chat, mail"), "{path}: {}", refused.body);
    }
    assert_eq!(bench.count("tenure.audit WHERE via = 'dashboard'").await, 0, "nothing was done");
    assert_eq!(bench.count("tenure.jobs").await, 2);
    assert_eq!(lines(&dashboard, "an action was refused")[0]["who"], "grace");
    for (path, fields) in [
        (format!("/dead/redrives/{own_redrive}/stop"), String::new()),
        ("/dead/redrive".into(), format!("id={own_dead}")),
        ("/queues/mail/pause".into(), String::new()),
        ("/schedules/own/pause".into(), String::new()),
        ("/schedules/own/run".into(), "once=a".into()),
        ("/enqueue".into(), "queue=chat&kind=k&payload=1&max_attempts=5&once=b".into()),
        (format!("/jobs/{own}/cancel"), String::new()),
    ] {
        let done = post(&path, &fields, "grace").await;
        assert_eq!(done.status, 303, "{path} {fields}: {}", done.body);
    }
    let acts = bench
        .value::<String>("SELECT string_agg(act || ' ' || queue, ', ' ORDER BY id) FROM tenure.audit WHERE via = 'dashboard'")
        .await;
    assert_eq!(acts, "stop_redrive mail, redrive mail, pause_queue mail, pause_schedule mail, cancel mail");
    assert_eq!(post(&format!("/jobs/{other}/cancel"), "", "ada").await.status, 303);

    let api = async |path: &str, body: &str| {
        let headers = [("X-Forwarded-User", "grace"), ("Content-Type", "application/json")];
        dashboard.ask("POST", &format!("/api/v1/{path}"), &headers, body).await
    };
    let more = tenure.enqueue(job("billing")).await.unwrap().id;
    for (path, body) in [
        (format!("jobs/{more}/cancel"), ""),
        (format!("jobs/{more}/retry"), ""),
        ("jobs".into(), r#"{"queue": "billing", "kind": "k", "payload": 1}"#),
    ] {
        let refused = api(&path, body).await;
        assert!(refused.status == 403 && refused.body.contains("other_queue"), "{path}: {}", refused.body);
    }
    assert_eq!(api("jobs", r#"{"queue": "mail", "kind": "k", "payload": 1}"#).await.status, 201);
    drop(dashboard);

    let mut serve = bench.program(&["serve", "--actions", "--listen", "127.0.0.1:0"]);
    let variables = [("TENURE_SERVE_AUTH", "proxy"), ("TENURE_SERVE_ACTORS", "ada=two words")];
    let output = serve.envs(variables).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("ada=mail+billing"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cookies_are_for_tls_alone_where_the_browser_came_by_tls() {
    let bench = calm().await;
    let variables = [("TENURE_SERVE_PASSWORD", "correct horse")];
    let dashboard = Dashboard::start(&bench, &["--actions"], &variables).await;
    let user = basic("tenure:correct horse");
    for (proto, is_secure) in [
        (None, false),
        (Some("http"), false),
        (Some("https"), true),
        (Some("http, https"), true),
        (Some("https,http"), false),
    ] {
        let mut headers = vec![("Authorization", user.as_str())];
        headers.extend(proto.map(|proto| ("X-Forwarded-Proto", proto)));
        let page = dashboard.ask("GET", "/jobs", &headers, "").await;
        let cookies = page.all("set-cookie");
        // Of the sign-in, and of the forms.
        assert_eq!(cookies.len(), 2, "{cookies:?}");
        for cookie in cookies {
            assert_eq!(cookie.ends_with("; Secure"), is_secure, "{proto:?} {cookie}");
        }
        headers.extend([("Cookie", "tenure_csrf=abc"), ("Sec-Fetch-Site", "same-origin")]);
        let done = dashboard.ask("POST", "/queues/q/pause", &headers, "csrf=abc&back=%2Fjobs").await;
        let said = done.all("set-cookie").into_iter().find(|of| of.starts_with("tenure_said=")).unwrap();
        assert_eq!(said.contains("; Secure"), is_secure, "{proto:?} {said}");
    }
}
