//! Following the ends of jobs by a cursor: none lost, none repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Stdio,
    time::Duration,
};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, Row};
use tenure::{
    JobContext, JobError, JobId, JobRequest, KindOptions, Outcome, Status, Worker,
    jobs::{Cursor, CursorError, EndsError, EndsFilter},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::harness::{Bench, Running, bench, statement};

const SOON: Duration = Duration::from_secs(20);

fn job(n: u64) -> JobRequest {
    JobRequest::new("q", "k", json!(n)).max_attempts(1)
}

/// A worker that fails every fifth job.
fn worker(bench: &Bench) -> Running {
    let handler = |n: Value, _: JobContext| async move {
        let n = n.as_u64().unwrap();
        if n.is_multiple_of(5) { Err(JobError::msg("a fifth")) } else { Ok(Outcome::done(n)?) }
    };
    let worker = Worker::builder(&bench.tenure).handle_kind("k", KindOptions::new(), handler);
    Running::start(worker.concurrency("q", 8))
}

/// Reads pages until there is no more. The cursor passes through its text.
async fn read(bench: &Bench, cursor: &mut Cursor, limit: u32) -> Vec<(JobId, Status)> {
    let mut all = vec![];
    loop {
        let page = bench.tenure.ends_since(cursor, &EndsFilter::new(), limit).await.unwrap();
        assert!(page.ends.len() <= limit as usize);
        assert!(page.ends.is_sorted_by_key(|(end, _)| (end.finished_at, end.id)));
        all.extend(page.ends.iter().map(|(end, _)| (end.id, end.status)));
        *cursor = page.next.to_string().parse().unwrap();
        if !page.has_more {
            return all;
        }
    }
}

/// A cursor of this server that is far ahead.
async fn ahead(bench: &Bench) -> String {
    let now = bench.tenure.ends_from_now().await.unwrap().to_string();
    let snapshot = now.split('.').nth(1).unwrap();
    let times: Vec<_> = snapshot.rsplitn(3, ':').take(2).collect();
    format!("1.900000000000:900000000000::{}:{}.0.-.-", times[1], times[0])
}

/// Claims jobs by the production statement.
pub async fn claim(bench: &Bench, jobs: &[JobId]) -> BTreeMap<Uuid, (Uuid, i64)> {
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.0).collect();
    let claim = sqlx::query(statement("claim")).bind(ids).bind("q").bind("k").bind(300.0_f64).bind("retry");
    let rows = claim.bind("w").bind("h").fetch_all(&bench.pool).await.unwrap();
    rows.iter().map(|row| (row.get("id"), (row.get("claim_id"), row.get("fencing_token")))).collect()
}

pub async fn complete(connection: &mut PgConnection, job: JobId, (claim, token): (Uuid, i64)) {
    let done = sqlx::query(statement("complete_in"))
        .bind(vec![job.0])
        .bind(vec![token])
        .bind(vec![claim])
        .bind(vec![None::<String>])
        .fetch_all(connection)
        .await
        .unwrap();
    assert_eq!(done.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_commits_late_is_read_although_later_ends_were() {
    let bench = bench().await;
    let mut cursor = bench.tenure.ends_from_now().await.unwrap();
    let ids: Vec<_> = bench.tenure.enqueue_many((1..4).map(job)).await.unwrap();
    let [late, nested, prompt] = [0, 1, 2].map(|i: usize| ids[i].id);
    let claims = claim(&bench, &[late, nested, prompt]).await;
    let mut slow = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut slow = slow.begin().await.unwrap();
    complete(&mut slow, late, claims[&late.0]).await;
    // In a savepoint, as an ORM's nested transaction has it: its row has another transaction's number.
    let mut savepoint = slow.begin().await.unwrap();
    complete(&mut savepoint, nested, claims[&nested.0]).await;
    savepoint.commit().await.unwrap();
    let mut quick = PgConnection::connect(&bench.config.database_url).await.unwrap();
    complete(&mut quick, prompt, claims[&prompt.0]).await;
    // The open transaction holds up nothing; its ends come when they are there.
    let done = |id| (id, Status::Completed);
    assert_eq!(read(&bench, &mut cursor, 10).await, [done(prompt)]);
    assert_eq!(read(&bench, &mut cursor, 10).await, []);
    slow.commit().await.unwrap();
    assert_eq!(read(&bench, &mut cursor, 1).await, [done(late), done(nested)]);
    assert_eq!(read(&bench, &mut cursor, 10).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_are_read_by_page_filter_and_time() {
    let bench = bench().await;
    let mut from_now = bench.tenure.ends_from_now().await.unwrap();
    let worker = worker(&bench);
    let jobs = bench.tenure.enqueue_many((0..50).map(job)).await.unwrap();
    let other = bench.tenure.enqueue(JobRequest::new("other", "x.y", json!(1))).await.unwrap().id;
    bench.tenure.cancel(other).await.unwrap();
    bench.until_count("tenure.jobs", 0).await;
    let mut expected: BTreeSet<_> = jobs.iter().map(|job| job.id).collect();
    expected.insert(other);
    for (mut cursor, limit) in [(Cursor::beginning(), 7), (Cursor::beginning(), 10_000)] {
        let ends = read(&bench, &mut cursor, limit).await;
        assert_eq!(ends.len(), 51);
        assert_eq!(ends.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>(), expected);
        let of = |status| ends.iter().filter(|(_, of)| *of == status).count();
        let counts = [Status::Completed, Status::Failed, Status::Cancelled].map(of);
        assert_eq!(counts, [40, 10, 1]);
        assert_eq!(read(&bench, &mut cursor, limit).await, []);
    }
    assert_eq!(read(&bench, &mut from_now, 7).await.len(), 51);
    // A page knows the cursor after each of its ends.
    let page = bench.tenure.ends_since(&Cursor::beginning(), &EndsFilter::new(), 20).await.unwrap();
    let (middle, after) = page.ends[9].clone();
    let rest = bench.tenure.ends_since(&after, &EndsFilter::new(), 100).await.unwrap();
    let ids =
        |ends: &[(tenure::rows::JobEnd, Cursor)]| ends.iter().map(|(end, _)| end.id).collect::<Vec<_>>();
    assert_eq!(ids(&rest.ends)[..10], ids(&page.ends)[10..]);
    assert_ne!(rest.ends[0].0.id, middle.id);
    // Filters, and what an end tells.
    let filter = EndsFilter::new().queue("other").kind("x.y");
    let of_other = bench.tenure.ends_since(&Cursor::beginning(), &filter, 100).await.unwrap();
    let [(end, _)] = of_other.ends.as_slice() else { panic!("{of_other:?}") };
    assert_eq!((end.id, end.kind.as_str(), end.status), (other, "x.y", Status::Cancelled));
    let none = EndsFilter::new().kind("z");
    assert!(bench.tenure.ends_since(&Cursor::beginning(), &none, 9).await.unwrap().ends.is_empty());
    // A time in the future, and one in the past.
    let at = |minutes| Cursor::at(chrono::Utc::now() + chrono::TimeDelta::minutes(minutes));
    assert_eq!(read(&bench, &mut at(10), 100).await, []);
    assert_eq!(read(&bench, &mut at(-10), 100).await.len(), 51);
    // A job that is redriven ends again.
    // They may all have ended after the first twenty.
    let dead = page.ends.iter().chain(&rest.ends).find(|(end, _)| end.status == Status::Failed).unwrap().0.id;
    bench.tenure.redrive(&[dead]).await.unwrap();
    bench.until_count("tenure.jobs", 0).await;
    assert_eq!(read(&bench, &mut from_now, 7).await, [(dead, Status::Failed)]);
    // A row of before the migration has no number: it is read from the beginning or a time, and by no later window.
    bench.execute("UPDATE tenure.job_history SET ended_xid = NULL WHERE queue = 'other'").await;
    assert_eq!(read(&bench, &mut Cursor::beginning(), 100).await.len(), 51);
    assert_eq!(read(&bench, &mut from_now, 7).await, []);
    // Neither has a row of another server, from a dump: this server has not reached its number.
    bench.execute("UPDATE tenure.job_history SET ended_xid = '900000000000' WHERE queue = 'other'").await;
    assert_eq!(read(&bench, &mut Cursor::beginning(), 100).await.len(), 51);
    assert_eq!(read(&bench, &mut from_now, 7).await, []);
    // A server that has started anew may give a number again: what ended after the cursor's time is read.
    let (text, reused) = (from_now.to_string(), "1.900000000000:900000000000::");
    let snapshot = text.split('.').nth(1).unwrap();
    let at: i64 = snapshot.rsplit(':').nth(1).unwrap().parse().unwrap();
    let mut crashed: Cursor = format!("{reused}{}:1.0.-.-", at - 3_600_000_000).parse().unwrap();
    assert_eq!(read(&bench, &mut crashed, 7).await.len(), 50, "the row without a number was read before");
    assert_eq!(read(&bench, &mut crashed, 7).await, []);
    let mut later: Cursor = format!("{reused}{}:1.0.-.-", at + 3_600_000_000).parse().unwrap();
    assert_eq!(read(&bench, &mut later, 7).await, []);
    // A cursor of another database.
    let ahead: Cursor = ahead(&bench).await.parse().unwrap();
    let refused = bench.tenure.ends_since(&ahead, &EndsFilter::new(), 1).await.unwrap_err();
    assert!(matches!(refused, EndsError::Cursor(CursorError::Ahead)), "{refused}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_killed_again_and_again_reads_each_end_once() {
    let bench = bench().await;
    let worker = worker(&bench);
    let tenure = bench.tenure.clone();
    let producer = tokio::spawn(async move {
        let mut all = BTreeSet::new();
        for n in 0..30 {
            let some = tenure.enqueue_many((0..20).map(|i| job(n * 20 + i))).await.unwrap();
            all.extend(some.into_iter().map(|job| job.id));
            sleep(Duration::from_millis(40)).await;
        }
        all
    });
    let (mut since, mut read, mut restarts) = ("beginning".to_owned(), Vec::new(), 0);
    while read.len() < 600 {
        let mut follow = bench.program(&["jobs", "follow", "--output", "json", "--since", &since]);
        let mut child = follow.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // It dies after a number of lines that the run decides, perhaps in the middle of a page.
        for _ in 0..(7 + restarts * 31 % 90) {
            let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
            let line: Value = serde_json::from_str(&line).unwrap();
            since = line["cursor"].as_str().unwrap().to_owned();
            read.push(line["id"].as_str().unwrap().parse::<JobId>().unwrap());
            if read.len() == 600 {
                break;
            }
        }
        child.kill().await.unwrap();
        restarts += 1;
    }
    let expected = producer.await.unwrap();
    assert_eq!(read.iter().copied().collect::<BTreeSet<_>>(), expected);
    assert_eq!(read.len(), expected.len(), "no end was read twice");
    assert!(restarts >= 10, "{restarts}");
    // Nothing is left.
    let once = bench.program(&["jobs", "follow", "--once", "--since", &since]).output().await.unwrap();
    assert!(once.status.success());
    assert_eq!(String::from_utf8_lossy(&once.stdout), "");
    let all = bench.program(&["jobs", "follow", "--once", "--since", "beginning"]).output().await.unwrap();
    let text = String::from_utf8_lossy(&all.stdout).into_owned();
    assert_eq!(text.lines().count(), 600);
    assert!(text.lines().any(|line| line.contains("failed · attempt 1 · a fifth")), "{text}");
    let ahead = ahead(&bench).await;
    for (arguments, says) in [
        (["--since", "yesterday"], "is no cursor and no time"),
        (["--since", &ahead], "ahead of this database"),
        (["--queue", "no queue"], "use 1 to 64 of"),
    ] {
        let refused = bench.program(&["jobs", "follow", "--once"]).args(arguments).output().await.unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && error.contains(says), "{error}");
    }
    worker.stop().await;
}

/// A program that has read no end keeps a cursor, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_killed_before_its_first_end_goes_on_from_a_line_with_a_cursor() {
    let bench = bench().await;
    let worker = worker(&bench);
    let follow = ["jobs", "follow", "--output", "json", "--cursors", "--since"];
    let mut child = bench.program(&[&follow[..], &["now"]].concat());
    let mut child = child.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), ["cursor"]);
    child.kill().await.unwrap();
    let id = bench.tenure.enqueue(job(1)).await.unwrap().id;
    bench.until_finished(id).await;
    let mut again = bench.program(&[&follow[..], &[line["cursor"].as_str().unwrap(), "--once"]].concat());
    let text = String::from_utf8(again.output().await.unwrap().stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter_map(|line| line["id"].as_str()).collect::<Vec<_>>(), [id.to_string()]);
    worker.stop().await;
}

/// The index of a partition that a `migrate` left unfinished, and those that an earlier release has made without.
#[tokio::test(flavor = "multi_thread")]
async fn migrate_builds_the_missing_indexes_of_ends_and_an_unfinished_one_anew() {
    let bench = bench().await;
    bench.execute("DROP INDEX tenure.job_history_by_end").await;
    bench
        .execute("CREATE INDEX job_history_by_end ON ONLY tenure.job_history USING brin (finished_at)")
        .await;
    // Built, and not attached: the program died in between.
    bench
        .execute(
            "CREATE INDEX job_history_default_by_end ON tenure.job_history_default USING brin (finished_at)",
        )
        .await;
    assert!(bench.tenure.migrate().await.unwrap().is_empty());
    let is_valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'tenure.job_history_by_end'::regclass";
    assert!(bench.value::<bool>(is_valid).await, "a partition has no index");
    assert!(bench.tenure.migrate().await.unwrap().is_empty());
}

/// A page of a large history reads the ranges of the index by time, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_ends_reads_the_latest_part_of_a_large_history() {
    let bench = bench().await;
    bench
        .execute(
            "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                    created_at, scheduled_at, started_at, last_activity_at, finished_at)
             SELECT (lpad(to_hex(extract(epoch FROM now() - (200000 - n) * interval '100 ms')::bigint * 1000), 12, '0')
                     || lpad(to_hex(n), 20, '0'))::uuid,
                    'q', 'k', '{}', 'completed', 1, 1, 1, now(), now(), now(), now(),
                    now() - (200000 - n) * interval '100 ms'
               FROM generate_series(1, 200000) n",
        )
        .await;
    bench.execute("ANALYZE tenure.job_history").await;
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'tenure.job_history'::regclass";
    let indexed = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'tenure.job_history_by_end'::regclass";
    let counts: (i64, i64) = (bench.value(partitions).await, bench.value(indexed).await);
    assert_eq!(counts.0, counts.1, "each partition has the index");
    let plan: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
        "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {}",
        statement("ends")
    )))
    .bind("5:5:")
    .bind("900000000000:900000000000:")
    .bind(chrono::Utc::now() - chrono::TimeDelta::seconds(20))
    .bind(Uuid::nil())
    .bind(None::<chrono::DateTime<chrono::Utc>>)
    .bind(1_000_i64)
    .bind(None::<String>)
    .bind(None::<String>)
    .bind(None::<chrono::DateTime<chrono::Utc>>)
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    let plan = plan.join("\n");
    assert!(plan.contains("Bitmap Index Scan on job_history"), "{plan}");
}
