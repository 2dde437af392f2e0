//! The account of a run: which jobs were accepted, how each ended, and whether anything forbidden happened.
//!
//! The account reads the tables, the effects of the handlers and the producer's journal. Of tenure's own code it uses
//! only `verify`.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgPool};
use tenure::Tenure;

use crate::{
    graphs::PENDING,
    nemesis::Nemesis,
    process::{Death, Journal},
};

async fn one<T>(pool: &PgPool, sql: &str) -> T
where
    T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(pool)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Waits until every job has ended and every message is gone. Returns how long that took; `None` if it took too long.
pub async fn everything_ended(pool: &PgPool, nemesis: &Nemesis, within: Duration) -> Option<Duration> {
    let began = Instant::now();
    while began.elapsed() < within {
        let sql = format!("SELECT (SELECT count(*) FROM tenure.jobs) + {PENDING}");
        let live: Result<i64, _> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await;
        if live.is_ok_and(|live| live == 0) && nemesis.messages().await == Some(0) {
            return Some(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let left: Option<String> =
        one(pool, "SELECT string_agg(t::text, E'\\n') FROM (SELECT * FROM tenure.jobs LIMIT 5) t").await;
    println!("NOT ENDED within {within:?}; messages: {:?}; live: {left:?}", nemesis.messages().await);
    None
}

/// Something that must never happen.
struct Never {
    what: &'static str,
    /// Lists each occurrence.
    found: &'static str,
    /// Makes it happen in the tables of the account: a check that does not see it is blind.
    breaks: &'static str,
}

const NEVER: &[Never] = &[
    Never {
        what: "accepted jobs that do not exist",
        found: "SELECT n FROM chaos.journal WHERE accepted AND key IS NULL
            AND NOT EXISTS (SELECT FROM chaos.found f WHERE f.n = journal.n)",
        breaks: "DELETE FROM chaos.found WHERE n = (SELECT n FROM chaos.journal WHERE accepted AND key IS NULL LIMIT 1)",
    },
    Never {
        what: "debounced keys whose last payload did not run",
        found: "SELECT key, max(j.seq), max(f.seq) FROM chaos.journal j LEFT JOIN chaos.found f USING (key)
          WHERE j.accepted AND key IS NOT NULL GROUP BY key HAVING max(j.seq) > coalesce(max(f.seq), 0)",
        breaks: "UPDATE chaos.found SET seq = seq - 1",
    },
    Never {
        what: "lanes that ran more jobs at once than their limit",
        found: "SELECT lane, max(n) FROM chaos.at_once GROUP BY lane HAVING max(n) > (SELECT running FROM chaos.limits)",
        breaks: "UPDATE chaos.attempts SET started_at = (SELECT min(started_at) FROM chaos.attempts)",
    },
    Never {
        what: "lanes that started more jobs in a second than their rate allows",
        found: "SELECT lane, max(n) FROM chaos.in_a_second GROUP BY lane HAVING max(n) > (SELECT starts FROM chaos.limits)",
        breaks: "UPDATE chaos.attempts SET started_at = (SELECT min(started_at) FROM chaos.attempts)",
    },
    Never {
        what: "committed transactions whose job does not exist",
        found: "SELECT n FROM chaos.orders WHERE NOT EXISTS (SELECT FROM chaos.found f WHERE f.n = orders.n)",
        breaks: "DELETE FROM chaos.found WHERE n = (SELECT n FROM chaos.orders LIMIT 1)",
    },
    Never {
        what: "jobs of transactions that were rolled back",
        found: "SELECT f.n FROM chaos.found f JOIN chaos.journal j USING (n)
          WHERE j.way = 'transaction' AND NOT EXISTS (SELECT FROM chaos.orders o WHERE o.n = f.n)",
        breaks: "DELETE FROM chaos.orders WHERE n = (SELECT n FROM chaos.orders JOIN chaos.found USING (n) LIMIT 1)",
    },
    Never {
        what: "jobs that the producer never tried to enqueue",
        found: "SELECT id FROM chaos.found f WHERE NOT EXISTS (SELECT FROM chaos.journal j WHERE j.n = f.n)",
        breaks: "DELETE FROM chaos.journal WHERE n = (SELECT n FROM chaos.found LIMIT 1)",
    },
    Never {
        what: "jobs that exist twice",
        found: "SELECT n FROM chaos.found GROUP BY n HAVING count(*) > 1",
        breaks: "INSERT INTO chaos.found SELECT * FROM chaos.found LIMIT 1",
    },
    Never {
        what: "ticks that made two jobs, or none",
        found: "SELECT at FROM (SELECT at, at - lag(at) OVER (ORDER BY at) AS gap FROM chaos.ticks) t
          WHERE gap <> interval '5 s'",
        breaks: "INSERT INTO chaos.ticks SELECT * FROM chaos.ticks LIMIT 1",
    },
    Never {
        what: "ticks whose job did not complete",
        found: "SELECT at FROM chaos.ticks WHERE status <> 'completed'",
        breaks: "UPDATE chaos.ticks SET status = 'failed'",
    },
    Never {
        what: "jobs that a server can read although they are sealed",
        found: "SELECT id FROM chaos.found WHERE kind = 'hidden' AND NOT is_sealed",
        breaks: "UPDATE chaos.found SET is_sealed = false WHERE kind = 'hidden'",
    },
    Never {
        what: "jobs that heard another answer than the one that was delivered, or none",
        found: "SELECT n FROM chaos.heard h WHERE answer IS DISTINCT FROM (SELECT min(a.answer::text)::uuid FROM chaos.answers a WHERE a.n = h.n)
          UNION ALL SELECT f.n FROM chaos.found f JOIN chaos.answers a USING (n)
          WHERE f.is_foreign AND f.status = 'completed' AND f.output->>'answer' IS DISTINCT FROM a.answer::text
          UNION ALL SELECT f.n FROM chaos.found f WHERE f.status = 'completed' AND f.act = 'asks' AND f.kind = 'task'
            AND NOT EXISTS (SELECT FROM chaos.answers a WHERE a.n = f.n)",
        breaks: "UPDATE chaos.heard SET answer = gen_random_uuid()",
    },
    Never {
        what: "answers that were delivered twice",
        found: "SELECT n FROM chaos.answers GROUP BY n HAVING count(*) > 1",
        breaks: "INSERT INTO chaos.answers SELECT n, gen_random_uuid() FROM chaos.answers",
    },
    Never {
        what: "waits that ended in two ways for two attempts",
        found: "SELECT n FROM chaos.heard GROUP BY n HAVING count(DISTINCT coalesce(hurried, n)) > 1",
        breaks: "INSERT INTO chaos.heard SELECT n, gen_random_uuid(), answer FROM chaos.heard",
    },
    Never {
        what: "steps in another language whose result is not the recorded one",
        found: "SELECT f.n FROM chaos.found f WHERE f.is_foreign AND f.status = 'completed' AND f.act = 'steps'
            AND f.output->'drawn' IS DISTINCT FROM (SELECT e.result FROM chaos.records e WHERE e.job_id = f.id AND e.key = 'draw')",
        breaks: "UPDATE chaos.records SET result = '0'",
    },
    Never {
        what: "jobs of jobs that were cut off from the job that waited for them",
        found: "SELECT c.n FROM chaos.children c JOIN chaos.found p ON p.n = c.parent
          WHERE p.status = 'completed' AND NOT EXISTS (SELECT FROM chaos.found f WHERE f.n = c.n AND f.status = 'completed')",
        breaks: "UPDATE chaos.found SET status = 'failed' WHERE n IN (SELECT n FROM chaos.children)",
    },
    Never {
        what: "recorded steps of which two attempts saw different results",
        found: "SELECT n FROM chaos.steps GROUP BY n HAVING count(DISTINCT drawn) > 1",
        breaks: "INSERT INTO chaos.steps SELECT n, gen_random_uuid() FROM chaos.steps LIMIT 1",
    },
    Never {
        what: "logs with a line of another attempt",
        found: "SELECT job_id FROM chaos.logs WHERE text !~ format(E'^(token %s\\n)+$', fencing_token)",
        breaks: "UPDATE chaos.logs SET fencing_token = fencing_token + 1",
    },
    // A job whose payload is replaced keeps the tags of its first enqueue.
    Never {
        what: "jobs that lost their tag, or have one that they were not given",
        found: "SELECT id FROM chaos.found WHERE key IS NULL AND tagged <> has_tag",
        breaks: "UPDATE chaos.found SET has_tag = NOT has_tag WHERE id = (SELECT id FROM chaos.found WHERE key IS NULL LIMIT 1)",
    },
    Never {
        what: "jobs without an end",
        found: "SELECT id FROM chaos.found WHERE status NOT IN ('completed', 'cancelled', 'failed')",
        breaks: "UPDATE chaos.found SET status = 'processing' WHERE id = (SELECT id FROM chaos.found LIMIT 1)",
    },
    Never {
        what: "jobs that completed twice",
        found: "SELECT job_id FROM chaos.attempts WHERE outcome = 'completed' GROUP BY job_id HAVING count(*) > 1",
        breaks: "INSERT INTO chaos.attempts SELECT * FROM chaos.attempts WHERE outcome = 'completed' LIMIT 1",
    },
    Never {
        what: "completed jobs whose last attempt did not complete",
        found: "SELECT f.id FROM chaos.found f
          WHERE status = 'completed' AND 'completed' IS DISTINCT FROM (SELECT outcome FROM chaos.attempts a
                WHERE a.job_id = f.id ORDER BY fencing_token DESC LIMIT 1)",
        breaks: "UPDATE chaos.attempts SET outcome = 'lost' WHERE outcome = 'completed'",
    },
    Never {
        what: "dead letters that had attempts left",
        found: "SELECT f.id FROM chaos.found f WHERE status = 'failed' AND attempt < max_attempts
            AND NOT (act IN ('never', 'panics') AND category = 'permanent')",
        breaks: "UPDATE chaos.found SET status = 'failed' WHERE id = (SELECT id FROM chaos.found WHERE act = 'once' LIMIT 1)",
    },
    Never {
        what: "jobs that were reported as cancelled and are not",
        found: "SELECT f.id FROM chaos.found f JOIN chaos.journal j USING (n) WHERE j.cancelled AND f.status <> 'cancelled'",
        breaks: "UPDATE chaos.journal SET cancelled = true WHERE n = (SELECT n FROM chaos.found WHERE status = 'completed' LIMIT 1)",
    },
    Never {
        what: "effects of `once` or `complete_in` that are doubled",
        found: "SELECT way, n FROM chaos.effects WHERE way IN ('once', 'together') GROUP BY way, n HAVING count(*) > 1",
        breaks: "INSERT INTO chaos.effects SELECT * FROM chaos.effects WHERE way = 'once' LIMIT 1",
    },
    Never {
        what: "completed jobs without their effect",
        found: "SELECT f.id FROM chaos.found f WHERE status = 'completed' AND NOT is_foreign AND NOT EXISTS (SELECT FROM chaos.effects e
            WHERE e.n = f.n AND e.way = CASE WHEN f.act = 'together' AND f.kind = 'task' THEN 'together' ELSE 'once' END)",
        breaks: "DELETE FROM chaos.effects WHERE n = (SELECT n FROM chaos.found WHERE status = 'completed' AND NOT is_foreign LIMIT 1)",
    },
    Never {
        what: "jobs completed in another language whose row an earlier attempt wrote",
        found: "SELECT f.id FROM chaos.found f JOIN chaos.attempts a ON a.job_id = f.id AND a.outcome = 'completed'
          WHERE is_foreign AND (f.output->>'token' IS DISTINCT FROM a.fencing_token::text
                                OR f.message <> 'token ' || a.fencing_token)",
        breaks: "UPDATE chaos.found SET message = 'token 0' WHERE is_foreign AND message IS NOT NULL",
    },
    Never {
        what: "effects of `complete_in` whose job did not complete under that token",
        found: "SELECT e.n FROM chaos.effects e JOIN chaos.found f USING (n)
          WHERE e.way = 'together' AND NOT EXISTS (SELECT FROM chaos.attempts a
                WHERE a.job_id = f.id AND a.fencing_token = e.token AND a.outcome = 'completed')",
        breaks: "UPDATE chaos.effects SET token = token + 1 WHERE way = 'together'",
    },
    Never {
        what: "effects written twice by one attempt",
        found: "SELECT n FROM chaos.effects WHERE way = 'fenced' GROUP BY n, token HAVING count(*) > 1",
        breaks: "INSERT INTO chaos.effects SELECT * FROM chaos.effects WHERE way = 'fenced' LIMIT 1",
    },
    Never {
        what: "writes accepted under a superseded token",
        found: "SELECT e.n, e.token FROM chaos.effects e JOIN chaos.found f USING (n) JOIN chaos.attempts a
             ON a.job_id = f.id AND a.fencing_token > e.token AND a.started_at <= e.at",
        breaks: "UPDATE chaos.effects SET token = token - 1",
    },
    Never {
        what: "writes committed when the next attempt had begun",
        found: "SELECT e.n, e.token FROM chaos.effects e JOIN chaos.found f USING (n) JOIN chaos.attempts a
             ON a.job_id = f.id AND a.fencing_token > e.token AND a.started_at <= e.committed_at",
        breaks: "INSERT INTO chaos.effects (way, n, token, at, committed_at)
                 SELECT 'fenced', f.n, a.fencing_token, a.started_at, now() FROM chaos.found f JOIN chaos.attempts a ON a.job_id = f.id
                  WHERE EXISTS (SELECT FROM chaos.attempts b WHERE b.job_id = f.id AND b.fencing_token > a.fencing_token)",
    },
    Never {
        what: "writes under a token that no attempt had",
        found: "SELECT e.n, e.token FROM chaos.effects e JOIN chaos.found f USING (n)
          WHERE NOT EXISTS (SELECT FROM chaos.attempts a WHERE a.job_id = f.id AND a.fencing_token = e.token
                               AND a.started_at <= e.at AND e.at <= a.finished_at)",
        breaks: "UPDATE chaos.effects SET at = at + interval '1 h'",
    },
    Never {
        what: "followers that started before a job that they follow had ended",
        found: "SELECT f.id FROM chaos.found m JOIN chaos.found f ON f.n = m.before
          WHERE EXISTS (SELECT FROM chaos.attempts a JOIN chaos.attempts b ON b.job_id = m.id
                         WHERE a.job_id = f.id AND a.started_at < b.finished_at)
            -- One that runs in any case has run when the dead letter before it was redriven.
            AND NOT (f.on_failure = 'run' AND (m.act = 'dies at first' OR m.on_failure IS NOT NULL))",
        breaks: "UPDATE chaos.attempts SET started_at = '2000-01-01'",
    },
    Never {
        what: "followers that completed though a job was to cancel them",
        found: "SELECT f.id FROM chaos.found m JOIN chaos.found f ON f.n = m.before
          WHERE f.on_failure <> 'run' AND f.status = 'completed' AND m.status <> 'completed'",
        breaks: "UPDATE chaos.found SET status = CASE WHEN before IS NULL THEN 'completed' ELSE 'failed' END",
    },
    Never {
        what: "followers that were cancelled for nothing",
        found: "SELECT f.id FROM chaos.found f
          WHERE f.on_failure IS NOT NULL AND f.status = 'cancelled'
            AND (f.on_failure = 'run' OR NOT EXISTS (SELECT FROM chaos.found m WHERE m.before = f.n
                    AND CASE f.on_failure WHEN 'hold' THEN m.status = 'cancelled' ELSE m.status <> 'completed' END))",
        breaks: "UPDATE chaos.found SET status = CASE WHEN before IS NULL THEN 'cancelled' ELSE 'completed' END",
    },
    Never {
        what: "jobs with two owners at a time",
        found: "SELECT a.job_id FROM chaos.attempts a JOIN chaos.attempts b
             ON a.job_id = b.job_id AND a.fencing_token < b.fencing_token AND b.started_at < a.finished_at",
        breaks: "INSERT INTO chaos.attempts SELECT (jsonb_populate_record(a, jsonb_build_object('fencing_token', fencing_token + 1))).*
           FROM chaos.attempts a",
    },
];

/// What is counted: that it happened at all.
const COUNTED: &[(&str, &str)] = &[
    ("jobs tried", "SELECT count(*) FROM chaos.journal"),
    ("accepted", "SELECT count(*) FROM chaos.journal WHERE accepted"),
    ("  by `enqueue`", "SELECT count(*) FROM chaos.journal WHERE accepted AND way = 'enqueue'"),
    (
        "  in the user's transaction",
        "SELECT count(*) FROM chaos.journal WHERE accepted AND way = 'transaction'",
    ),
    ("  as a message", "SELECT count(*) FROM chaos.journal WHERE accepted AND way = 'submission'"),
    ("  debounced", "SELECT count(*) FROM chaos.journal WHERE accepted AND key IS NOT NULL"),
    ("jobs that follow others", "SELECT count(*) FROM chaos.found WHERE on_failure IS NOT NULL"),
    (
        "  of which a failure cancelled",
        "SELECT count(*) FROM chaos.found WHERE on_failure IS NOT NULL AND status = 'cancelled'",
    ),
    (
        "  that come after such a one",
        "SELECT count(*) FROM chaos.found WHERE on_failure IS NOT NULL AND before IS NOT NULL",
    ),
    ("jobs that wait for an answer", "SELECT count(DISTINCT n) FROM chaos.heard"),
    (
        "  whose wait with an end was answered in time",
        "SELECT count(DISTINCT n) FROM chaos.heard WHERE hurried IS NOT NULL",
    ),
    ("jobs that other jobs enqueued", "SELECT count(*) FROM chaos.children JOIN chaos.found USING (n)"),
    (
        "dead letters redriven one by one, and completed",
        "SELECT count(*) FROM chaos.found f WHERE act = 'dies at first' AND status = 'completed'
                AND EXISTS (SELECT FROM chaos.attempts a WHERE a.job_id = f.id AND a.outcome = 'failed')",
    ),
    ("jobs called in batches", "SELECT count(*) FROM chaos.found WHERE kind = 'batched'"),
    (
        "  lost",
        "SELECT count(*) FROM chaos.attempts a JOIN chaos.found f ON f.id = a.job_id
             WHERE f.kind = 'batched' AND a.outcome = 'lost'",
    ),
    ("  calm redrives of dead ones", "SELECT count(*) FROM tenure.redrives"),
    ("sealed jobs", "SELECT count(*) FROM chaos.found WHERE kind = 'hidden'"),
    ("jobs with steps and a pause", "SELECT count(DISTINCT n) FROM chaos.steps"),
    ("logs of attempts", "SELECT count(*) FROM chaos.logs"),
    ("ticks of a schedule", "SELECT count(*) FROM chaos.ticks"),
    ("jobs in lanes", "SELECT count(*) FROM chaos.found WHERE lane IS NOT NULL"),
    ("  at most at once in one", "SELECT coalesce(max(n), 0)::bigint FROM chaos.at_once"),
    ("  at most started in a second in one", "SELECT coalesce(max(n), 0) FROM chaos.in_a_second"),
    ("jobs made of debounced ones", "SELECT count(*) FROM chaos.found WHERE key IS NOT NULL"),
    (
        "of unknown outcome, and done",
        "SELECT count(*) FROM chaos.journal j JOIN chaos.found USING (n) WHERE NOT accepted AND j.key IS NULL",
    ),
    ("jobs for workers in other languages", "SELECT count(*) FROM chaos.found WHERE is_foreign"),
    ("completed", "SELECT count(*) FROM chaos.found WHERE status = 'completed'"),
    (
        "  by workers in other languages",
        "SELECT count(*) FROM chaos.found WHERE status = 'completed' AND is_foreign",
    ),
    ("cancelled", "SELECT count(*) FROM chaos.found WHERE status = 'cancelled'"),
    ("dead letters", "SELECT count(*) FROM chaos.found WHERE status = 'failed'"),
    ("attempts", "SELECT count(*) FROM chaos.attempts"),
    ("  lost", "SELECT count(*) FROM chaos.attempts WHERE outcome = 'lost'"),
    ("  released", "SELECT count(*) FROM chaos.attempts WHERE outcome = 'released'"),
    ("stale writes refused", "SELECT count(*) FROM tenure.recovery_events WHERE event = 'refused_write'"),
];

/// Prints the account. Returns whether nothing is wrong.
pub async fn account(
    pool: &PgPool,
    tenure: &Tenure,
    journal: &Arc<Mutex<Journal>>,
    deaths: &[Death],
    ended: Option<Duration>,
) -> bool {
    load(pool, journal).await;
    let mut fine = ended.is_some();
    println!();
    for (what, sql) in COUNTED {
        println!("{:>9}  {what}", one::<i64>(pool, sql).await);
    }
    let paths: Option<String> = one(
        pool,
        "SELECT string_agg(path || ' ' || n, ', ' ORDER BY path) FROM (SELECT path, count(*) AS n
           FROM tenure.recovery_events GROUP BY path) t",
    )
    .await;
    println!("           recovered by: {}", paths.unwrap_or_default());
    println!("\nmust never happen (each check is tried on tables in which it did):");
    for Never { what, found: sql, .. } in NEVER {
        let found: i64 = one(pool, &format!("SELECT count(*) FROM ({sql}) t")).await;
        println!("{found:>9}  {what}");
        if found > 0 {
            fine = false;
            let which: Option<String> = one(
                pool,
                &format!("SELECT string_agg(t::text, ' ') FROM (SELECT * FROM ({sql}) t LIMIT 5) t"),
            )
            .await;
            println!("           for example {}", which.unwrap_or_default());
        }
    }
    for blind in blind(pool).await {
        fine = false;
        println!("this check does not see what it looks for: {blind}");
    }
    for rule in tenure.verify().await.unwrap() {
        if rule.jobs > 0 {
            fine = false;
            println!("verify: {rule:?}");
        }
    }
    println!();
    match ended {
        Some(after) => {
            println!("all jobs and messages gone {:.1} s after the last fault", after.as_secs_f64());
        }
        None => println!("NOT ALL JOBS ENDED"),
    }
    longest_wait(pool, deaths).await;
    fine
}

/// The checks that would not see it if it had happened.
async fn blind(pool: &PgPool) -> Vec<&'static str> {
    let mut blind = Vec::new();
    for Never { what, found, breaks } in NEVER {
        let mut tx = pool.begin().await.unwrap();
        sqlx::query(*breaks).execute(&mut *tx).await.unwrap();
        let sql = format!("SELECT count(*) FROM ({found}) t");
        let seen: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *tx).await.unwrap();
        if seen == 0 {
            blind.push(*what);
        }
        tx.rollback().await.unwrap();
    }
    blind
}

/// Copies everything to tables of the account, so that each check is cheap.
async fn load(pool: &PgPool, journal: &Arc<Mutex<Journal>>) {
    let (mut n, mut way, mut accepted, mut cancelled) = (vec![], vec![], vec![], vec![]);
    for (number, entry) in journal.lock().unwrap().entries() {
        n.push(*number);
        way.push(entry.way.clone());
        accepted.push(entry.accepted);
        cancelled.push(entry.cancelled);
    }
    // A temporary table belongs to its session.
    let mut session = pool.acquire().await.unwrap();
    let insert = "INSERT INTO chaos.journal (n, way, accepted, cancelled)
                  SELECT * FROM unnest($1::uuid[], $2::text[], $3::bool[], $4::bool[])";
    sqlx::query(insert)
        .bind(n)
        .bind(way)
        .bind(accepted)
        .bind(cancelled)
        .execute(&mut *session)
        .await
        .unwrap();
    for sql in [
        // The way of a debounced job: debounce/key/seq.
        "ALTER TABLE chaos.journal ADD COLUMN key text, ADD COLUMN seq int",
        "UPDATE chaos.journal SET key = split_part(way, '/', 2), seq = split_part(way, '/', 3)::int, way = 'debounce'
          WHERE starts_with(way, 'debounce/')",
        "CREATE TABLE chaos.ticks AS SELECT (payload->>'at')::timestamptz AS at, status FROM tenure.all_jobs WHERE kind = 'tick'",
        "CREATE TABLE chaos.records AS SELECT job_id, key, result FROM tenure.effects WHERE step_kind = 'step'",
        "CREATE TABLE chaos.children AS SELECT c.n::uuid AS n, (payload->>'n')::uuid AS parent
           FROM tenure.all_jobs, jsonb_array_elements_text(payload->'children') AS c(n) WHERE kind = 'task'",
        "CREATE TABLE chaos.logs AS SELECT job_id, fencing_token, text FROM tenure.job_logs",
        "CREATE TABLE chaos.found AS SELECT id, kind, status, attempt, max_attempts,
                CASE kind WHEN 'hidden'
                     THEN (SELECT substring(k.key FROM '[0-9a-f-]{36}$')::uuid FROM tenure.job_keys k WHERE k.job_id = all_jobs.id LIMIT 1)
                     ELSE (payload->>'n')::uuid END AS n,
                payload ? 'tenure.sealed' AND coalesce(output ? 'tenure.sealed', true) AS is_sealed,
                payload->>'act' AS act, payload->>'lane' AS lane, payload->>'debounce' AS key,
                (payload->>'before')::uuid AS before, payload->>'on_failure' AS on_failure, (payload->>'seq')::int AS seq,
                queue = 'chaos-foreign' AS is_foreign, output, message,
                coalesce((payload->>'tagged')::bool, false) AS tagged,
                EXISTS (SELECT FROM tenure.job_tags t WHERE t.job_id = all_jobs.id AND t.tag = 'chaos') AS has_tag,
                (SELECT category FROM tenure.dead_letter_jobs d WHERE d.id = all_jobs.id) AS category
           FROM tenure.all_jobs WHERE kind <> 'tick'",
        "CREATE TABLE chaos.attempts AS SELECT * FROM tenure.job_executions_all",
        // The fence is checked right before the commit, and so the time of the statement is not enough.
        "ALTER TABLE chaos.effects ADD COLUMN committed_at timestamptz",
        "CREATE TEMP TABLE commits AS SELECT ctid AS at, pg_xact_commit_timestamp(xmin) AS committed_at FROM chaos.effects",
        "UPDATE chaos.effects e SET committed_at = c.committed_at FROM commits c WHERE c.at = e.ctid",
        // An end at the moment of a start comes before it.
        "CREATE VIEW chaos.at_once AS
         SELECT lane, at, sum(step) OVER (PARTITION BY lane ORDER BY at, step ROWS UNBOUNDED PRECEDING) AS n
           FROM chaos.attempts a JOIN chaos.found f ON f.id = a.job_id,
                LATERAL (VALUES (started_at, 1), (finished_at, -1)) e (at, step)
          WHERE lane IS NOT NULL",
        "CREATE VIEW chaos.in_a_second AS
         SELECT lane, started_at AS since, count(*) OVER (PARTITION BY lane ORDER BY started_at
                    RANGE BETWEEN CURRENT ROW AND interval '999.999 ms' FOLLOWING) AS n
           FROM chaos.attempts a JOIN chaos.found f ON f.id = a.job_id
          WHERE lane IS NOT NULL",
        "CREATE INDEX ON chaos.found (n)",
        "CREATE INDEX ON chaos.attempts (job_id, fencing_token)",
        "CREATE INDEX ON chaos.effects (n)",
        "ANALYZE chaos.found, chaos.attempts, chaos.effects, chaos.journal, chaos.orders",
    ] {
        sqlx::query(sql).execute(&mut *session).await.unwrap();
    }
}

/// How long the jobs of processes that died waited until they ran again.
async fn longest_wait(pool: &PgPool, deaths: &[Death]) {
    // Jobs that were lost for the first time, and the others, which wait longer each time.
    let mut waits: [Vec<f64>; 2] = Default::default();
    for death in deaths {
        // Process ids are reused: only attempts that had begun by then belong to this process.
        let sql = "SELECT EXISTS (SELECT FROM chaos.attempts p WHERE p.job_id = a.job_id AND p.outcome = 'lost'
                              AND p.fencing_token < a.fencing_token),
                          extract(epoch FROM (SELECT min(started_at) FROM chaos.attempts b
                              WHERE b.job_id = a.job_id AND b.fencing_token > a.fencing_token) - $2)::float8
                     FROM chaos.attempts a
                    WHERE starts_with(a.worker_id, $1) AND a.outcome = 'lost' AND a.started_at <= $2 AND a.finished_at > $2";
        let at: DateTime<Utc> = death.at.into();
        let of_this: Vec<(bool, Option<f64>)> = sqlx::query_as(sql)
            .bind(format!("{}-{}-", death.host, death.pid))
            .bind(at)
            .fetch_all(pool)
            .await
            .unwrap();
        for (again, wait) in of_this {
            waits[usize::from(again)].extend(wait);
        }
    }
    for (waits, of) in
        waits.iter_mut().zip(["lost for the first time", "lost again, which wait longer each time"])
    {
        waits.sort_by(f64::total_cmp);
        if let (Some(longest), Some(median)) = (waits.last(), waits.get(waits.len() / 2)) {
            let n = waits.len();
            println!(
                "from a death to the next run, {n} jobs {of}: median {median:.1} s, longest {longest:.1} s"
            );
        }
    }
}
