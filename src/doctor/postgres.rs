//! Postgres: the server, the sessions and slots that hold it up, the schema, and this role's rights.

use std::time::Duration;

use super::{
    Check, clock, skip, skip_by, some_of, span_of,
    store::{Holder, PostgresSeen, RightsSeen},
    text,
};
use crate::{
    client::Tenure,
    config::masked,
    job::duration::measured,
    store::{NEEDS, Schema, StoreError},
};

/// The checks that are skipped when Postgres is not reached.
const REST: [&str; 14] = [
    "primary",
    "writes",
    "durability",
    "isolation",
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
/// The name of the check that tries a write.
pub(crate) const WRITES: &str = "writes";
const HOLDERS: [&str; 4] =
    ["old_transactions", "idle_transactions", "prepared_transactions", "replication_slots"];

/// The oldest version that runs tenure's statements, and the oldest that its tests run on.
const OLDEST: i32 = 13;
const TESTED: i32 = 15;

/// More dead rows than one vacuum, which begins at 20,000, leaves to the next.
const DEAD_ROWS: i64 = 100_000;

/// Checks Postgres. Also returns whether the jobs can be checked, and if not, why.
pub(crate) async fn look(tenure: &Tenure, old_after: Duration) -> (Vec<Check>, Result<(), String>) {
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
    checks.push(match &is_fit {
        Ok(()) if server.is_read_only => Check::skipped(WRITES, "not tried: the server is read-only"),
        Ok(()) => writes(store.doctor_write().await, &server.role),
        Err(why) => Check::skipped(WRITES, why),
    });
    match &is_fit {
        Ok(()) => match store.doctor_rights().await {
            Ok(seen) => checks.push(rights(&seen, &server.role)),
            Err(error) => checks.extend(skip_by(&["rights"], &error)),
        },
        Err(why) => checks.extend(skip(&["rights"], why)),
    }
    (checks, is_fit)
}

/// Judges the answer to a write that was rolled back.
fn writes(answer: Result<(), StoreError>, role: &str) -> Check {
    match answer {
        Ok(()) => Check::ok(WRITES, "Postgres took a write, which was rolled back"),
        Err(error) if error.is_denied() => {
            Check::skipped(WRITES, format!("not tried: {role} may not write jobs"))
        }
        Err(error) => Check::wrong(WRITES, format!("Postgres did not take a write: {}", text(&error))).advise(
            "if the disk is full, make room for the data and the WAL; until Postgres takes writes again, workers start \
             no jobs and cannot show that they are alive, and enqueues fail",
        ),
    }
}

fn unreachable(url: &str, error: &StoreError) -> Check {
    Check::wrong("postgres", format!("{url} was not reached: {}", text(error))).advise(
        "check DATABASE_URL, the network and the server; a server that refuses the user, password or database says so",
    )
}

/// Judges what the server reports of itself.
fn about_server(server: &PostgresSeen, url: &str) -> Vec<Check> {
    let round_trip = server.round_trip.as_secs_f64() * 1e3;
    let found = format!("{} at {url}, as {}, {round_trip:.1} ms round trip", server.version, server.role);
    let postgres = match server.version_number / 10_000 {
        version if version < OLDEST => Check::wrong("postgres", found).advise(format!(
            "upgrade Postgres: tenure needs {OLDEST}, and is tested with {TESTED} and later"
        )),
        version if version < TESTED => Check::warning("postgres", found)
            .advise(format!("upgrade Postgres: tenure is tested with {TESTED} and later")),
        _ => Check::ok("postgres", found),
    };
    let primary = if server.is_read_only {
        Check::wrong("primary", "this server is a standby, or is set to read-only: it refuses writes")
            .advise("point DATABASE_URL at the primary")
    } else {
        Check::ok("primary", "the server accepts writes")
    };
    let durability = if server.unsafe_settings.is_empty() {
        Check::ok("durability", "commits are on disk")
    } else {
        Check::warning("durability", format!("off: {}", server.unsafe_settings.join(", ")))
            .advise("switch them on: otherwise a power cut may lose accepted jobs, or the whole database")
    };
    let isolation = if server.isolation == "read committed" {
        Check::ok("isolation", "transactions are READ COMMITTED unless they say otherwise")
    } else {
        let found = format!("default_transaction_isolation is {:?}", server.isolation);
        Check::wrong("isolation", found).advise(format!(
            "ALTER ROLE {} SET default_transaction_isolation = 'read committed', and restart: otherwise Postgres \
             refuses statements that meet others (40001), and workers take that for an outage",
            server.role
        ))
    };
    let found = format!("{} of {}", server.connections, server.connections_max);
    let connections = if server.connections * 10 >= server.connections_max * 8 {
        Check::warning("connections", found).advise(
            "raise max_connections, lower TENURE_HANDLER_CONNECTIONS, or put PgBouncer in between: without a free one, \
             enqueues fail and workers wait",
        )
    } else {
        Check::ok("connections", found)
    };
    let autovacuum = if server.is_vacuumed {
        Check::ok("autovacuum", "autovacuum is on for tenure.jobs")
    } else {
        Check::warning("autovacuum", "autovacuum is off for tenure.jobs").advise(
            "switch it on (autovacuum, track_counts, and autovacuum_enabled of the table): dead rows make every \
             claim slower",
        )
    };
    let dead_rows = match server.rows {
        None => Check::skipped("dead_rows", "the table tenure.jobs does not exist"),
        Some((live, dead)) => {
            let found = format!("{dead} dead rows beside {live} live ones in tenure.jobs");
            if dead >= DEAD_ROWS && dead > live {
                Check::warning("dead_rows", found).advise(
                    "end what holds vacuum back, the transactions and slots listed here; then VACUUM tenure.jobs",
                )
            } else {
                Check::ok("dead_rows", found)
            }
        }
    };
    vec![postgres, primary, durability, isolation, connections, autovacuum, dead_rows]
}

/// Names each session, prepared transaction and slot that keeps dead rows from being removed.
fn about_holders(holders: &[Holder], server: &PostgresSeen, old_after: Duration) -> Vec<Check> {
    let found = |kinds: &[&str]| -> Vec<String> {
        holders.iter().filter(|holder| kinds.contains(&holder.what.as_str())).map(describe).collect()
    };
    let old = measured(old_after);
    let of_sessions = |check: &'static str, kinds: &[&str], to_do: &str| {
        let found = found(kinds);
        if !found.is_empty() {
            Check::warning(check, some_of(&found)).advise(to_do)
        } else if server.sees_all_sessions {
            Check::ok(check, format!("none older than {old}"))
        } else {
            Check::skipped(check, format!("{} cannot see how old other roles' sessions are", server.role))
                .advise(format!("GRANT pg_read_all_stats TO {}", server.role))
        }
    };
    let of_others = |check: &'static str, kinds: &[&str], none: &str, to_do: &str| {
        let found = found(kinds);
        if found.is_empty() {
            Check::ok(check, none)
        } else {
            Check::warning(check, some_of(&found)).advise(to_do)
        }
    };
    vec![
        of_sessions(
            "old_transactions",
            &["transaction", "replica"],
            "find out what it is for; pg_terminate_backend(PID) ends it. While it is open, vacuum removes no row that \
             it may still see, and every claim gets slower. idle_in_transaction_session_timeout ends forgotten ones; \
             long reports belong on a replica without hot_standby_feedback",
        ),
        of_sessions(
            "idle_transactions",
            &["idle"],
            "find the program that did not commit; pg_terminate_backend(PID) ends its session. The session keeps its \
             locks and a connection, and may hold up jobs. idle_in_transaction_session_timeout ends such sessions",
        ),
        of_others(
            "prepared_transactions",
            &["prepared"],
            &format!("none older than {old}"),
            "COMMIT PREPARED or ROLLBACK PREPARED this forgotten transaction: it keeps its locks, and dead rows from \
             being removed, also across restarts",
        ),
        of_others(
            "replication_slots",
            &["slot"],
            "no slot keeps old rows",
            "reconnect its replica, or remove the slot with pg_drop_replication_slot(NAME): it keeps dead rows from \
             being removed, and the WAL from being recycled",
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

/// Checks that this program can use the schema. Also returns whether the jobs can be checked.
fn schema(schema: Result<Schema, StoreError>, needs: i64) -> (Check, Result<(), String>) {
    let unfit = Err("the schema is missing or too old".into());
    let lacks = schema.as_ref().map(|schema| schema.lacks.join(", ")).unwrap_or_default();
    match schema.map(|schema| (schema.version, schema.breaks_before)) {
        Ok((is, breaks_before)) if breaks_before > needs => {
            let found = format!(
                "version {is}, which needs a program that knows version {breaks_before}; this one knows {needs}"
            );
            let unfit = Err("the schema is too new for this program".into());
            (Check::wrong("schema", found).advise("update this program"), unfit)
        }
        Ok((is, _)) if is < needs => {
            let found = format!("version {is}, but this program needs {needs}");
            (Check::wrong("schema", found).advise("run `tenure migrate`"), unfit)
        }
        Ok((is, _)) if !lacks.is_empty() => {
            let found = format!("version {is}, which lacks functions that this program calls: {lacks}");
            (Check::wrong("schema", found).advise("run `tenure migrate`"), unfit)
        }
        Ok((is, _)) if is > needs => {
            let found = format!("version {is}, and this program knows {needs}: a newer tenure has migrated");
            (Check::warning("schema", found).advise("update this program; it works on until then"), Ok(()))
        }
        Ok((is, _)) => (Check::ok("schema", format!("version {is}")), Ok(())),
        Err(StoreError::NotMigrated(_)) => {
            let checked = Check::wrong("schema", "this database has no schema of tenure")
                .advise("run `tenure migrate`, or name the right database in DATABASE_URL");
            (checked, unfit)
        }
        // The next check reports the role's rights: it reads the catalog.
        Err(error) if error.is_denied() => (Check::skipped("schema", text(&error)), Ok(())),
        Err(error) => (Check::skipped("schema", text(&error)), Err(text(&error))),
    }
}

/// Compares this role's rights with those of `seen`: the roles of `postgres/roles.sql`, the most powerful first.
fn rights(seen: &[RightsSeen], role: &str) -> Check {
    let lacks = |of: &str| {
        let lacks = seen.iter().find(|seen| seen.role == of).map(|seen| some_of(&seen.lacks));
        lacks.unwrap_or_default()
    };
    let whole: Vec<_> = seen.iter().filter(|of| of.lacks.is_empty()).map(|of| of.role.as_str()).collect();
    // An operator and a worker have the rights of the roles after them.
    let equal_to = match whole.first() {
        Some(&first @ ("operator" | "worker")) => format!("tenure_{first}"),
        _ => whole.iter().map(|of| format!("tenure_{of}")).collect::<Vec<_>>().join(" and "),
    };
    let meant = seen.iter().find(|of| of.is_member);
    if let Some(meant) = meant.filter(|of| !of.lacks.is_empty()) {
        let found = format!("{role} is in tenure_{}, but lacks {}", meant.role, some_of(&meant.lacks));
        return Check::wrong("rights", found).advise(format!(
            "run postgres/roles.sql as the owner of the schema, as `tenure migrate` does with each change of it; and \
             let {role} inherit"
        ));
    }
    if equal_to.is_empty() {
        let found = format!(
            "{role} has the rights of no role of tenure; of a worker's rights it lacks {}",
            lacks("worker")
        );
        return Check::wrong("rights", found)
            .advise(format!("GRANT tenure_worker TO {role}, or another role of postgres/roles.sql"));
    }
    let found = format!("{role} has the rights of {equal_to}");
    let runs_jobs = whole.contains(&"worker");
    if runs_jobs || meant.is_some() {
        return Check::ok("rights", found);
    }
    let found = format!("{found}; of a worker's rights it lacks {}", lacks("worker"));
    Check::warning("rights", found).advise(format!("if {role} is to run jobs: GRANT tenure_worker TO {role}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chrono::DateTime;

    use super::*;
    use crate::doctor::CheckState;

    fn server() -> PostgresSeen {
        PostgresSeen {
            version: "15.4".into(),
            version_number: 150_004,
            role: "me".into(),
            is_read_only: false,
            sees_all_sessions: true,
            unsafe_settings: Vec::new(),
            isolation: "read committed".into(),
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

    /// The checks that are not ok.
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
        assert_eq!(
            wrong(|server| server.isolation = "serializable".into()),
            [("isolation", CheckState::Wrong)]
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
    fn each_holder_of_dead_rows_is_named_under_its_own_check() {
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
        let is = |version, breaks_before| Ok(Schema { version, breaks_before, lacks: Vec::new() });
        assert_eq!(state(is(4, 0)), (CheckState::Ok, true));
        assert_eq!(state(is(3, 0)), (CheckState::Wrong, false));
        assert_eq!(state(is(5, 0)), (CheckState::Warning, true));
        assert_eq!(state(is(5, 4)), (CheckState::Warning, true));
        assert_eq!(state(is(6, 5)), (CheckState::Wrong, false));
        let lacks = Schema { version: 4, breaks_before: 0, lacks: vec!["admit".into()] };
        assert_eq!(state(Ok(lacks)), (CheckState::Wrong, false));
        let missing = StoreError::NotMigrated(Arc::new(sqlx::Error::RowNotFound));
        assert_eq!(state(Err(missing)), (CheckState::Wrong, false));
        let away = StoreError::Unavailable(Arc::new(sqlx::Error::PoolTimedOut));
        assert_eq!(state(Err(away)), (CheckState::Skipped, false));
    }

    #[test]
    fn a_write_that_postgres_does_not_take_is_wrong() {
        assert_eq!(writes(Ok(()), "me").state, CheckState::Ok);
        let away = StoreError::Unavailable(Arc::new(sqlx::Error::PoolTimedOut));
        assert_eq!(writes(Err(away), "me").state, CheckState::Wrong);
    }

    /// Checks a role that is in `member_of`, and has the rights of the roles in `has`.
    fn role(member_of: &str, has: &[&str]) -> Check {
        let seen = ["operator", "worker", "producer", "viewer"].map(|role| RightsSeen {
            role: role.into(),
            is_member: role == member_of,
            lacks: if has.contains(&role) { Vec::new() } else { vec![format!("the rights of a {role}")] },
        });
        rights(&seen, "me")
    }

    #[test]
    fn a_role_is_compared_with_the_roles_of_tenure() {
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
        // The schema was migrated, and roles.sql did not run after it.
        let late = role("worker", &["producer", "viewer"]);
        assert_eq!(late.state, CheckState::Wrong);
        assert!(
            late.found.contains("is in tenure_worker, but lacks the rights of a worker"),
            "{}",
            late.found
        );
        let powerless = role("", &[]);
        assert_eq!(powerless.state, CheckState::Wrong);
        assert!(powerless.found.contains("of no role"), "{}", powerless.found);
    }
}
