//! Postgres: the server, whoever holds it up, the schema, and what this role may do.

use std::time::Duration;

use super::{Checked, clock, skip, skip_by, some_of, span, span_of, text};
use crate::{
    client::Tenure,
    config::masked,
    store::{Holder, NEEDS, PostgresSeen, RightsSeen, Schema, StoreError},
};

/// Everything that is not looked at when Postgres is not reached.
const REST: [&str; 12] = [
    "primary",
    "durability",
    "connections",
    "clock",
    "autovacuum",
    "dead_rows",
    "old_transactions",
    "idle_transactions",
    "prepared_transactions",
    "replication_slots",
    "schema",
    "rights",
];
const HOLDERS: [&str; 4] =
    ["old_transactions", "idle_transactions", "prepared_transactions", "replication_slots"];

/// The oldest version whose statements tenure's are, and the oldest that its tests run on.
const OLDEST: i32 = 13;
const TESTED: i32 = 15;

/// So many dead rows are more than a vacuum, which begins at 20,000, leaves to the next.
const DEAD_ROWS: i64 = 100_000;

/// Looks at Postgres. Then also says whether the jobs can be looked at, and if not, why.
pub(super) async fn look(tenure: &Tenure, old_after: Duration) -> (Vec<Checked>, Result<(), String>) {
    let (store, url) = (tenure.store(), masked(&tenure.config().database_url));
    let server = match Box::pin(store.doctor_server()).await {
        Ok(server) => server,
        Err(error) => {
            let mut checks = vec![unreachable(&url, &error)];
            let why = "Postgres was not reached";
            checks.extend(skip(&REST, why));
            return (checks, Err(why.into()));
        }
    };
    let mut checks = about_server(&server, &url);
    checks.push(clock("clock", server.answered_at, server.asked_at, server.took));
    match store.doctor_holders(old_after).await {
        Ok(holders) => checks.extend(about_holders(&holders, &server, old_after)),
        Err(error) => checks.extend(skip_by(&HOLDERS, &error)),
    }
    let (schema, is_fit) = schema(store.schema().await, NEEDS);
    checks.push(schema);
    match &is_fit {
        Ok(()) => match store.doctor_rights().await {
            Ok(seen) => checks.push(rights(&seen, &server.role)),
            Err(error) => checks.extend(skip_by(&["rights"], &error)),
        },
        Err(why) => checks.extend(skip(&["rights"], why)),
    }
    (checks, is_fit)
}

fn unreachable(url: &str, error: &StoreError) -> Checked {
    Checked::wrong("postgres", format!("{url} was not reached: {}", text(error))).advise(
        "check DATABASE_URL, the network and the server; one that refuses a user, a password or a database says so",
    )
}

/// What the server tells of itself.
fn about_server(server: &PostgresSeen, url: &str) -> Vec<Checked> {
    let round_trip = server.round_trip.as_secs_f64() * 1e3;
    let found = format!("{} at {url}, as {}, {round_trip:.1} ms there and back", server.version, server.role);
    let postgres = match server.version_number / 10_000 {
        version if version < OLDEST => Checked::wrong("postgres", found).advise(format!(
            "upgrade Postgres: tenure needs {OLDEST}, and is tested with {TESTED} and later"
        )),
        version if version < TESTED => Checked::warning("postgres", found)
            .advise(format!("upgrade Postgres: tenure is tested with {TESTED} and later")),
        _ => Checked::ok("postgres", found),
    };
    let primary = if server.is_read_only {
        Checked::wrong("primary", "this server is a standby, or is set to read-only: it writes nothing")
            .advise("let DATABASE_URL lead to the primary")
    } else {
        Checked::ok("primary", "it writes")
    };
    let durability = if server.unsafe_settings.is_empty() {
        Checked::ok("durability", "what is committed is on disk")
    } else {
        Checked::warning("durability", format!("off: {}", server.unsafe_settings.join(", "))).advise(
            "switch them on: otherwise a power cut may lose jobs that were accepted, or the whole database",
        )
    };
    let found = format!("{} of {}", server.connections, server.connections_max);
    let connections = if server.connections * 10 >= server.connections_max * 8 {
        Checked::warning("connections", found).advise(
            "raise max_connections, lower TENURE_HANDLER_CONNECTIONS, or put PgBouncer in between: with none left, \
             enqueues fail and workers wait",
        )
    } else {
        Checked::ok("connections", found)
    };
    let autovacuum = if server.is_vacuumed {
        Checked::ok("autovacuum", "it looks after the live jobs")
    } else {
        Checked::warning("autovacuum", "it does not look after tenure.jobs").advise(
            "switch it on (autovacuum, track_counts, and autovacuum_enabled of the table): dead rows make every \
             claim slower",
        )
    };
    let dead_rows = match server.rows {
        None => Checked::skipped("dead_rows", "there is no table of jobs"),
        Some((live, dead)) => {
            let found = format!("{dead} dead rows beside {live} live ones in tenure.jobs");
            if dead >= DEAD_ROWS && dead > live {
                Checked::warning("dead_rows", found).advise(
                    "look for what holds vacuum back: the transactions and slots listed here; then VACUUM \
                     tenure.jobs",
                )
            } else {
                Checked::ok("dead_rows", found)
            }
        }
    };
    vec![postgres, primary, durability, connections, autovacuum, dead_rows]
}

/// Who keeps dead rows from being removed, each by name.
fn about_holders(holders: &[Holder], server: &PostgresSeen, old_after: Duration) -> Vec<Checked> {
    let found = |kinds: &[&str]| -> Vec<String> {
        holders.iter().filter(|holder| kinds.contains(&holder.what.as_str())).map(describe).collect()
    };
    let old = span(old_after);
    let of_sessions = |check: &'static str, kinds: &[&str], to_do: &str| {
        let found = found(kinds);
        if !found.is_empty() {
            Checked::warning(check, some_of(&found)).advise(to_do)
        } else if server.sees_all_sessions {
            Checked::ok(check, format!("none for {old}"))
        } else {
            Checked::skipped(check, format!("{} sees of no other role's session how old it is", server.role))
                .advise(format!("GRANT pg_read_all_stats TO {}", server.role))
        }
    };
    let of_others = |check: &'static str, kinds: &[&str], none: &str, to_do: &str| {
        let found = found(kinds);
        if found.is_empty() {
            Checked::ok(check, none)
        } else {
            Checked::warning(check, some_of(&found)).advise(to_do)
        }
    };
    vec![
        of_sessions(
            "old_transactions",
            &["transaction", "replica"],
            "find out what it is for; pg_terminate_backend(PID) ends it. While it is open no row that it may still \
             see is removed, and every claim gets slower. idle_in_transaction_session_timeout ends forgotten ones; \
             long reports belong on a replica without hot_standby_feedback",
        ),
        of_sessions(
            "idle_transactions",
            &["idle"],
            "find out who forgot to commit; pg_terminate_backend(PID) ends it. It keeps its locks and a connection, \
             and may hold up jobs. idle_in_transaction_session_timeout ends such by themselves",
        ),
        of_others(
            "prepared_transactions",
            &["prepared"],
            &format!("none for {old}"),
            "COMMIT PREPARED or ROLLBACK PREPARED it: whoever prepared it has forgotten it. It keeps its locks, and \
             dead rows from being removed, also across restarts",
        ),
        of_others(
            "replication_slots",
            &["slot"],
            "none keeps old rows",
            "have its replica connect again, or remove it with pg_drop_replication_slot(NAME): it keeps dead rows \
             from being removed, and the log from being recycled",
        ),
    ]
}

fn describe(holder: &Holder) -> String {
    let name = holder.name.as_deref().filter(|name| !name.is_empty()).unwrap_or("unnamed");
    let pid = holder.pid.map(|pid| format!("pid {pid}")).unwrap_or_default();
    let role = holder.role.as_deref().unwrap_or("?");
    let state = holder.state.as_deref().unwrap_or("?");
    let (age, back) = (span_of(holder.age), holder.transactions.unwrap_or_default());
    match holder.what.as_str() {
        "transaction" => format!("{pid} ({name}, role {role}), open for {age}, {state}"),
        "idle" => format!("{pid} ({name}, role {role}), {state} for {age}"),
        "replica" => format!("{pid}, the replica {name}, which sees rows of {back} transactions ago"),
        "prepared" => format!("{name} (role {role}), prepared {age} ago"),
        _ => format!("{name}, {state}, which keeps rows of {back} transactions ago"),
    }
}

/// Whether the schema is what this program needs; and whether the jobs can be looked at.
fn schema(schema: Result<Schema, StoreError>, needs: i64) -> (Checked, Result<(), String>) {
    let unfit = Err("the schema is missing or too old".into());
    match schema.map(|schema| (schema.version, schema.breaks_before)) {
        Ok((is, breaks_before)) if breaks_before > needs => {
            let found = format!(
                "version {is}, which no program of before version {breaks_before} works with; this one knows {needs}"
            );
            let unfit = Err("the schema is too new for this program".into());
            (Checked::wrong("schema", found).advise("update this program"), unfit)
        }
        Ok((is, _)) if is < needs => {
            let found = format!("version {is}, but this program needs {needs}");
            (Checked::wrong("schema", found).advise("run `tenure migrate`"), unfit)
        }
        Ok((is, _)) if is > needs => {
            let found = format!("version {is}, and this program knows {needs}: a newer tenure has migrated");
            (
                Checked::warning("schema", found)
                    .advise("update this program; until then it goes on working"),
                Ok(()),
            )
        }
        Ok((is, _)) => (Checked::ok("schema", format!("version {is}")), Ok(())),
        Err(StoreError::NotMigrated(_)) => {
            let checked = Checked::wrong("schema", "there is no schema of tenure in this database")
                .advise("run `tenure migrate`, or name the right database in DATABASE_URL");
            (checked, unfit)
        }
        // What it may do is said by the next check, which goes by the catalog.
        Err(error) if error.is_denied() => (Checked::skipped("schema", text(&error)), Ok(())),
        Err(error) => (Checked::skipped("schema", text(&error)), Err(text(&error))),
    }
}

/// What this role amounts to. `seen`: the roles of `postgres/roles.sql`, the one that may most first.
fn rights(seen: &[RightsSeen], role: &str) -> Checked {
    let lacks = |of: &str| {
        let lacks = seen.iter().find(|seen| seen.role == of).map(|seen| some_of(&seen.lacks));
        lacks.unwrap_or_default()
    };
    let whole: Vec<_> = seen.iter().filter(|of| of.lacks.is_empty()).map(|of| of.role.as_str()).collect();
    // Who may most may what the others may.
    let amounts = match whole.first() {
        Some(&first @ ("operator" | "worker")) => format!("tenure_{first}"),
        _ => whole.iter().map(|of| format!("tenure_{of}")).collect::<Vec<_>>().join(" and "),
    };
    let meant = seen.iter().find(|of| of.is_member);
    if let Some(meant) = meant.filter(|of| !of.lacks.is_empty()) {
        let found = format!("{role} is in tenure_{}, but lacks {}", meant.role, some_of(&meant.lacks));
        return Checked::wrong("rights", found).advise(format!(
            "run postgres/roles.sql again, as the owner of the schema, after each `tenure migrate`; and let {role} \
             inherit"
        ));
    }
    if amounts.is_empty() {
        let found = format!(
            "{role} has the rights of no role of tenure's; of a worker's it lacks {}",
            lacks("worker")
        );
        return Checked::wrong("rights", found)
            .advise(format!("GRANT tenure_worker TO {role}, or another role of postgres/roles.sql"));
    }
    let found = format!("{role} has the rights of {amounts}");
    let runs_jobs = whole.contains(&"worker");
    if runs_jobs || meant.is_some() {
        return Checked::ok("rights", found);
    }
    let found = format!("{found}; of a worker's it lacks {}", lacks("worker"));
    Checked::warning("rights", found)
        .advise(format!("if {role} is to run jobs: GRANT tenure_worker TO {role}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chrono::DateTime;

    use super::*;
    use crate::client::doctor::CheckState;

    fn server() -> PostgresSeen {
        PostgresSeen {
            version: "15.4".into(),
            version_number: 150_004,
            role: "me".into(),
            is_read_only: false,
            sees_all_sessions: true,
            unsafe_settings: Vec::new(),
            connections: 10,
            connections_max: 97,
            is_vacuumed: true,
            rows: Some((0, 0)),
            round_trip: Duration::from_micros(400),
            answered_at: DateTime::UNIX_EPOCH,
            asked_at: DateTime::UNIX_EPOCH,
            took: Duration::ZERO,
        }
    }

    /// What is not as it should be.
    fn findings(server: &PostgresSeen) -> Vec<(&'static str, CheckState)> {
        let checks = about_server(server, "postgres://***@db/jobs");
        let findings = checks.iter().filter(|checked| checked.state != CheckState::Ok);
        findings.map(|checked| (checked.check, checked.state)).collect()
    }

    #[test]
    fn each_thing_that_is_wrong_with_the_server_is_one_finding() {
        assert!(findings(&server()).is_empty());
        let wrong = |change: fn(&mut PostgresSeen)| {
            let mut server = server();
            change(&mut server);
            findings(&server)
        };
        assert_eq!(wrong(|server| server.version_number = 120_020), [("postgres", CheckState::Wrong)]);
        assert_eq!(wrong(|server| server.version_number = 140_001), [("postgres", CheckState::Warning)]);
        assert!(wrong(|server| server.version_number = 180_000).is_empty());
        assert_eq!(wrong(|server| server.is_read_only = true), [("primary", CheckState::Wrong)]);
        assert_eq!(
            wrong(|server| server.unsafe_settings = vec!["fsync".into()]),
            [("durability", CheckState::Warning)]
        );
        assert!(wrong(|server| server.connections = 77).is_empty());
        assert_eq!(wrong(|server| server.connections = 78), [("connections", CheckState::Warning)]);
        assert_eq!(wrong(|server| server.is_vacuumed = false), [("autovacuum", CheckState::Warning)]);
        assert!(wrong(|server| server.rows = Some((200_000, 150_000))).is_empty());
        assert!(wrong(|server| server.rows = Some((1_000, 50_000))).is_empty());
        assert_eq!(
            wrong(|server| server.rows = Some((1_000, 150_000))),
            [("dead_rows", CheckState::Warning)]
        );
        assert_eq!(wrong(|server| server.rows = None), [("dead_rows", CheckState::Skipped)]);
    }

    fn holder(what: &str) -> Holder {
        Holder {
            what: what.into(),
            pid: Some(7),
            name: Some("psql".into()),
            role: Some("me".into()),
            state: Some("idle in transaction".into()),
            age: Some(Duration::from_secs(720)),
            transactions: Some(9),
        }
    }

    #[test]
    fn whoever_holds_vacuum_back_is_named_under_what_it_is() {
        let minutes = Duration::from_secs(600);
        let states = |holders: &[Holder], sees_all| {
            let server = PostgresSeen { sees_all_sessions: sees_all, ..server() };
            about_holders(holders, &server, minutes).iter().map(|checked| checked.state).collect::<Vec<_>>()
        };
        let (ok, warning, skipped) = (CheckState::Ok, CheckState::Warning, CheckState::Skipped);
        assert_eq!(states(&[], true), [ok, ok, ok, ok]);
        assert_eq!(states(&[], false), [skipped, skipped, ok, ok]);
        assert_eq!(states(&[holder("transaction")], false), [warning, skipped, ok, ok]);
        assert_eq!(states(&[holder("replica")], true), [warning, ok, ok, ok]);
        assert_eq!(states(&[holder("idle")], true), [ok, warning, ok, ok]);
        assert_eq!(states(&[holder("prepared")], true), [ok, ok, warning, ok]);
        assert_eq!(states(&[holder("slot")], true), [ok, ok, ok, warning]);
        assert_eq!(
            describe(&holder("transaction")),
            "pid 7 (psql, role me), open for 12m, idle in transaction"
        );
    }

    #[test]
    fn a_schema_that_is_older_missing_or_newer_says_what_to_do() {
        let state = |version| {
            let (checked, is_fit) = schema(version, 4);
            (checked.state, is_fit.is_ok())
        };
        let is = |version, breaks_before| Ok(Schema { version, breaks_before });
        assert_eq!(state(is(4, 0)), (CheckState::Ok, true));
        assert_eq!(state(is(3, 0)), (CheckState::Wrong, false));
        assert_eq!(state(is(5, 0)), (CheckState::Warning, true));
        assert_eq!(state(is(5, 4)), (CheckState::Warning, true));
        assert_eq!(state(is(6, 5)), (CheckState::Wrong, false));
        let missing = StoreError::NotMigrated(Arc::new(sqlx::Error::RowNotFound));
        assert_eq!(state(Err(missing)), (CheckState::Wrong, false));
        let away = StoreError::Unavailable(Arc::new(sqlx::Error::PoolTimedOut));
        assert_eq!(state(Err(away)), (CheckState::Skipped, false));
    }

    /// A role that is in one of the four, or in none, and has the rights of these.
    fn role(member_of: &str, has: &[&str]) -> Checked {
        let seen = ["operator", "worker", "producer", "viewer"].map(|role| RightsSeen {
            role: role.into(),
            is_member: role == member_of,
            lacks: if has.contains(&role) { Vec::new() } else { vec![format!("what a {role} may")] },
        });
        rights(&seen, "me")
    }

    #[test]
    fn a_role_is_told_what_it_amounts_to() {
        let whole = role("", &["operator", "worker", "producer", "viewer"]);
        assert_eq!(
            (whole.state, whole.found.as_str()),
            (CheckState::Ok, "me has the rights of tenure_operator")
        );
        assert_eq!(role("worker", &["worker", "producer", "viewer"]).state, CheckState::Ok);
        assert_eq!(role("producer", &["producer"]).state, CheckState::Ok);
        let reader = role("", &["producer", "viewer"]);
        assert_eq!(reader.state, CheckState::Warning);
        assert!(reader.found.contains("tenure_producer and tenure_viewer"), "{}", reader.found);
        // Migrated, and the roles were not.
        let late = role("worker", &["producer", "viewer"]);
        assert_eq!(late.state, CheckState::Wrong);
        assert!(late.found.contains("is in tenure_worker, but lacks what a worker may"), "{}", late.found);
        let nobody = role("", &[]);
        assert_eq!(nobody.state, CheckState::Wrong);
        assert!(nobody.found.contains("of no role"), "{}", nobody.found);
    }
}
