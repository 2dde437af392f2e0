//! Edges that the completion itself settles: what two transactions see of each other, and what is too much for one.

use sqlx::{PgConnection, PgPool};

use super::*;

/// Claims these jobs of one kind, as a worker does. Returns their tokens and claims.
async fn claimed(pool: &PgPool, jobs: &[JobId], kind: &str) -> (Vec<i64>, Vec<uuid::Uuid>) {
    let claim = sqlx::query(statement("claim")).bind(jobs).bind("q").bind(kind).bind(300.0_f64).bind("retry");
    let mut rows = claim.bind("w").bind("h").fetch_all(pool).await.unwrap();
    rows.sort_by_key(|row| row.get::<JobId, _>("id"));
    assert_eq!(rows.len(), jobs.len());
    rows.iter().map(|row| (row.get::<i64, _>("fencing_token"), row.get::<uuid::Uuid, _>("claim_id"))).unzip()
}

/// Completes jobs of groups by the statement of workers, each with its place as its output. `jobs` are sorted.
async fn complete(connection: &mut PgConnection, jobs: &[JobId], of: &(Vec<i64>, Vec<uuid::Uuid>)) {
    let outputs: Vec<_> = (0..jobs.len()).map(|n| Some(n.to_string())).collect();
    let complete =
        sqlx::query(statement("complete_grouped")).bind(jobs).bind(&of.0).bind(&of.1).bind(outputs);
    let rows = complete.fetch_all(connection).await.unwrap();
    assert_eq!(rows.len(), jobs.len());
}

/// A group of jobs of the kind `part`, all of them claimed. Returns its members, the follower and the claims.
async fn running(bench: &Bench, members: usize) -> (Vec<JobId>, JobId, (Vec<i64>, Vec<uuid::Uuid>)) {
    let parts = (0..members).map(|n| job("part", json!({ "n": n })));
    let group = bench.tenure.group(parts).then(job("merge", json!({}))).await.unwrap();
    let mut members = group.jobs[..members].to_vec();
    members.sort();
    let claims = claimed(&bench.pool, &members, "part").await;
    (members, group.id, claims)
}

/// Neither completion sees the other's edge. The look after the first sees one that is open, and the look after the
/// second sees none.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_completions_that_do_not_see_each_other_the_later_commit_releases_the_follower() {
    let bench = bench().await;
    let (members, follower, (tokens, claims)) = running(&bench, 2).await;
    let of = |n: usize| (vec![tokens[n]], vec![claims[n]]);
    let mut first = bench.pool.begin().await.unwrap();
    complete(&mut first, &members[..1], &of(0)).await;
    let mut second = bench.pool.acquire().await.unwrap();
    complete(&mut second, &members[1..], &of(1)).await;
    assert_eq!(release(&bench).await, 0);
    bench.until_count("tenure.group_ends", 0).await;
    first.commit().await.unwrap();
    assert_eq!(bench.count("tenure.group_ends").await, 1, "one note of the follower, and none of the job");
    assert_eq!(release(&bench).await, 1);
    assert_eq!(release(&bench).await, 0);
    assert!(!is_held(&bench, follower).await);
    let edges = "SELECT string_agg(state || ' ' || output::text, ', ' ORDER BY n) FROM tenure.job_edges";
    assert_eq!(bench.value::<String>(edges).await, "completed 0, completed 0");
}

/// A call that settles an edge by itself, and a completion: the call does not see the completion's edge, and the look
/// after the completion does not see the call's.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_settles_an_edge_has_the_follower_looked_at_again() {
    let bench = bench().await;
    let (members, follower, (tokens, claims)) = running(&bench, 2).await;
    // As an older program: the trigger notes the end.
    bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{}'", members[0])).await;
    let mut call = bench.pool.begin().await.unwrap();
    sqlx::query(statement("release_followers")).bind(1_000).fetch_all(&mut *call).await.unwrap();
    let mut completes = bench.pool.acquire().await.unwrap();
    complete(&mut completes, &members[1..], &(vec![tokens[1]], vec![claims[1]])).await;
    assert_eq!(release(&bench).await, 0);
    call.commit().await.unwrap();
    assert_eq!(release(&bench).await, 1);
    assert!(!is_held(&bench, follower).await);
}

/// Two calls find the same follower ready. The second meets the first one's lock and leaves a note; the look that the note
/// asks for finds the follower released.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_calls_that_find_a_follower_ready_one_releases_it() {
    let bench = bench().await;
    let (members, follower, of) = running(&bench, 3).await;
    let mut completes = bench.pool.acquire().await.unwrap();
    complete(&mut completes, &members, &of).await;
    let note = format!("INSERT INTO tenure.group_ends (job_id, ended_as) VALUES ('{follower}', 'settled')");
    let mut first = bench.pool.begin().await.unwrap();
    let released = sqlx::query(statement("release_followers")).bind(1).fetch_all(&mut *first).await.unwrap();
    assert_eq!(released.iter().filter(|row| row.get::<Option<JobId>, _>("id").is_some()).count(), 1);
    bench.execute(&note).await;
    // It does not wait for long, and leaves the follower for later.
    assert_eq!(release(&bench).await, 0);
    first.commit().await.unwrap();
    bench.execute(&note).await;
    assert_eq!(release(&bench).await, 0);
    assert_eq!(bench.count("tenure.group_ends").await, 0);
    let dispatch: i32 =
        bench.value(&format!("SELECT dispatch FROM tenure.jobs WHERE id = '{follower}'")).await;
    assert_eq!(dispatch, 1);
}

/// A job with many followers is noted itself, and `release_followers` goes through them by parts.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_many_followers_does_not_settle_them_all_in_its_completion() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let first = graph.add(job("part", json!({"n": 1})));
    for n in 0..11 {
        drop(graph.add(job("merge", json!({ "n": n }))).after([&first]));
    }
    let few = graph.add(job("part", json!({"n": 2})));
    for n in 0..10 {
        drop(graph.add(job("merge", json!({ "n": n }))).after([&few]));
    }
    let mut firsts = [first.id(), few.id()];
    firsts.sort();
    graph.await.unwrap();
    let of = claimed(&bench.pool, &firsts, "part").await;
    let mut completes = bench.pool.acquire().await.unwrap();
    complete(&mut completes, &firsts, &of).await;
    let settled = |of: JobId| format!("tenure.job_edges WHERE state = 'completed' AND before = '{of}'");
    assert_eq!(bench.count(&settled(first.id())).await, 0);
    assert_eq!(bench.count(&settled(few.id())).await, 10);
    assert_eq!(bench.count("tenure.group_ends WHERE ended_as = 'completed'").await, 1);
    assert_eq!(bench.count("tenure.group_ends WHERE ended_as = 'settled'").await, 10);
    assert_eq!(release(&bench).await, 21);
    assert_eq!(bench.count("tenure.job_edges WHERE output IS NULL").await, 0);
    bench.every_job_is_as_it_must_be().await;
}

/// A call releases the followers of a job that has completed without a look at each, if they wait for this one alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_waits_for_one_more_job_is_looked_at() {
    let bench = bench().await;
    for waiting_for_more in [0, 1, 12] {
        let graph = bench.tenure.graph();
        let [first, slow] = [0, 1].map(|n| graph.add(job("part", json!({ "n": n }))));
        let followers: Vec<_> = (0..12)
            .map(|n| {
                let follower = graph.add(job("merge", json!({ "n": n })));
                if n < waiting_for_more { follower.after([&first, &slow]) } else { follower.after([&first]) }
            })
            .collect();
        let mut jobs = [first.id(), slow.id()];
        jobs.sort();
        graph.await.unwrap();
        let (tokens, claims) = claimed(&bench.pool, &jobs, "part").await;
        let mut completes = bench.pool.acquire().await.unwrap();
        for (ends, n_of_released) in [(first.id(), 12 - waiting_for_more), (slow.id(), waiting_for_more)] {
            let place = jobs.iter().position(|job| *job == ends).unwrap();
            complete(&mut completes, &[ends], &(vec![tokens[place]], vec![claims[place]])).await;
            assert_eq!(release_all(&bench).await, n_of_released, "{waiting_for_more} wait for more");
        }
        for follower in followers {
            assert!(!is_held(&bench, follower.id()).await);
        }
        bench.every_job_is_as_it_must_be().await;
    }
}

/// The row of a follower is locked when a job before it fails: it is cancelled later, and keeps back no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_follower_is_cancelled_once_it_is_free_though_others_before_it_are_open() {
    let bench = bench().await;
    let later = || job("part", json!({"n": 1})).delay(Duration::from_secs(3_600));
    let group = async || {
        bench
            .tenure
            .group([job("part", json!({"n": 13})), later()])
            .then(job("merge", json!({})))
            .await
            .unwrap()
    };
    let (locked, free) = (group().await, group().await);
    let mut holds = bench.pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE").bind(locked.id);
    lock.execute(&mut *holds).await.unwrap();
    let running = worker(&bench.tenure);
    until_status(&bench, free.id, "cancelled").await;
    until_status(&bench, locked.jobs[0], "failed").await;
    bench.until_count("tenure.group_ends WHERE lacks = 'failed'", 1).await;
    assert!(is_held(&bench, locked.id).await);
    holds.rollback().await.unwrap();
    until_status(&bench, locked.id, "cancelled").await;
    bench.until_count("tenure.group_ends", 0).await;
    running.stop().await;
}

/// A note that is lost, as by a person's DELETE: the look of the worker with the turn finds the follower.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_no_look_has_found_is_noted_again() {
    let bench = bench().await;
    let (members, follower, of) = running(&bench, 2).await;
    let mut completes = bench.pool.acquire().await.unwrap();
    complete(&mut completes, &members, &of).await;
    bench.execute("DELETE FROM tenure.group_ends").await;
    assert_eq!(release(&bench).await, 0);
    let mend = "SELECT tenure.mend_groups('00000000-0000-0000-0000-000000000000', 10)";
    bench.execute(mend).await;
    assert_eq!(release(&bench).await, 1);
    bench.execute(mend).await;
    assert_eq!(bench.count("tenure.group_ends").await, 0, "it is looked for once");
    assert!(!is_held(&bench, follower).await);
}

/// An index has the time that never comes. `wake_jobs` reads the jobs that it wakes, and no other that is held.
#[tokio::test(flavor = "multi_thread")]
async fn to_wake_one_job_reads_no_other_that_is_held() {
    let bench = bench().await;
    let parts = (0..4_000).map(|n| job("part", json!({ "n": n })));
    let graph = bench.tenure.graph();
    let first = graph.add(job("part", json!({})));
    for part in parts {
        drop(graph.add(part).after([&first]));
    }
    let jobs = graph.await.unwrap().jobs;
    let held = *jobs.last().unwrap();
    let read = "SELECT coalesce(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes
                 WHERE indexrelname LIKE 'jobs_unpublished%'";
    let mut connection = bench.pool.acquire().await.unwrap();
    let before: i64 = sqlx::query_scalar(read).fetch_one(&mut *connection).await.unwrap();
    for _ in 0..8 {
        // More often than a plan is made for one call alone.
        let wake = sqlx::query("SELECT tenure.wake_jobs(ARRAY[$1])").bind(held);
        wake.execute(&mut *connection).await.unwrap();
    }
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(&mut *connection).await.unwrap();
    let after: i64 = sqlx::query_scalar(read).fetch_one(&mut *connection).await.unwrap();
    assert!(after - before < 1_000, "{} entries were read", after - before);
    assert!(!is_held(&bench, held).await);
}

/// Ends a job as one that has failed for good, as any program may.
async fn dies(bench: &Bench, job: JobId) {
    let death = "WITH gone AS (DELETE FROM tenure.jobs WHERE id = $1 RETURNING *)
        INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token, created_at,
               scheduled_at, died_at, last_error, category, execution_history)
        SELECT id, queue, kind, payload, 1, max_attempts, fencing_token, created_at, now(), now(), 'x', 'permanent', '[]'
          FROM gone";
    assert_eq!(sqlx::query(death).bind(job).execute(&bench.pool).await.unwrap().rows_affected(), 1);
}

async fn redrive(connection: &mut PgConnection, job: JobId) {
    sqlx::query("SELECT tenure.redrive(ARRAY[$1])").bind(job).execute(connection).await.unwrap();
}

/// Works off notes until none is left, at most twenty times. Returns how many jobs that released.
async fn release_all(bench: &Bench) -> usize {
    let mut released = 0;
    for _ in 0..20 {
        released += release(bench).await;
    }
    released
}

/// An end that is noted as failed, and one of the same job as completed, in two calls: the second finds edges that the
/// first has changed, and an update by their places passes over them.
#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_another_call_has_changed_meanwhile_is_not_lost() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let part = graph.add(job("part", json!({"n": 1})));
    for n in 0..20 {
        drop(graph.add(job("merge", json!({ "n": n }))).after([&part]).on_failure(OnFailure::Hold));
    }
    let part = part.id();
    graph.await.unwrap();
    dies(&bench, part).await;
    let mut first = bench.pool.begin().await.unwrap();
    sqlx::query(statement("release_followers")).bind(1_000).fetch_all(&mut *first).await.unwrap();
    // Its edges are failed, and that is not committed: a redrive waits for it. An older program's does not, which leaves the
    // edges as they are.
    let older = "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, published_at, group_id)
        SELECT id, queue, kind, payload, max_attempts, now(), now(),
               (SELECT group_id FROM tenure.job_edges WHERE before = $1 LIMIT 1)
          FROM tenure.dead_letter_jobs WHERE id = $1";
    sqlx::query(older).bind(part).execute(&bench.pool).await.unwrap();
    let of = claimed(&bench.pool, &[part], "part").await;
    let mut completes = bench.pool.acquire().await.unwrap();
    complete(&mut completes, &[part], &of).await;
    let second = async { release(&bench).await };
    let commit = async {
        bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%release_followers%')").await;
        first.commit().await.unwrap();
    };
    let (released, ()) = tokio::join!(second, commit);
    assert_eq!(released + release_all(&bench).await, 20);
    assert_eq!(bench.count("tenure.job_edges WHERE state = 'completed'").await, 20);
}

/// A dead follower is redriven while the job before it is cancelled: the redrive sees an open edge and holds it, and the
/// call that settles the edge sees no follower.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_redriven_while_the_job_before_it_is_cancelled_is_not_held_for_ever() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let part = graph.add(job("part", json!({"n": 1})));
    let merge = graph.add(job("merge", json!({}))).after([&part]).on_failure(OnFailure::Hold);
    let (part, merge) = (part.id(), merge.id());
    graph.await.unwrap();
    dies(&bench, merge).await;
    release_all(&bench).await;
    let mut redrives = bench.pool.begin().await.unwrap();
    redrive(&mut redrives, merge).await;
    bench.tenure.cancel(part).await.unwrap();
    release_all(&bench).await;
    assert_eq!(bench.count("tenure.group_ends").await, 1);
    redrives.commit().await.unwrap();
    assert!(is_held(&bench, merge).await);
    release_all(&bench).await;
    assert_eq!(status(&bench, merge).await, "cancelled");
    // What any look may miss, `mend_groups` finds.
    bench.execute("UPDATE tenure.followers SET cut_at = NULL").await;
    let held = "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at, group_id)
        SELECT id, queue, kind, payload, 1, '9999-01-01Z', '9999-01-01Z', (SELECT group_id FROM tenure.followers)
          FROM tenure.job_history WHERE id = $1";
    sqlx::query(held).bind(merge).execute(&bench.pool).await.unwrap();
    sqlx::query("DELETE FROM tenure.job_history WHERE id = $1")
        .bind(merge)
        .execute(&bench.pool)
        .await
        .unwrap();
    assert_eq!(release(&bench).await, 0);
    assert!(is_held(&bench, merge).await);
    bench.execute("SELECT tenure.mend_groups('00000000-0000-0000-0000-000000000000', 10)").await;
    release_all(&bench).await;
    assert_eq!(status(&bench, merge).await, "cancelled");
}

/// Another transaction changes an edge after a completion has found it: it has another place then.
#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_changes_while_a_completion_settles_it_is_not_lost() {
    let bench = bench().await;
    let group =
        bench.tenure.group([job("part", json!({"n": 1}))]).then(job("merge", json!({}))).await.unwrap();
    let settled = format!("tenure.job_edges WHERE before = '{}' AND state = 'completed'", group.jobs[0]);
    let mut changes = bench.pool.begin().await.unwrap();
    let (pool, member) = (bench.pool.clone(), group.jobs[0]);
    let change = sqlx::query("UPDATE tenure.job_edges SET ended_at = now() WHERE before = $1").bind(member);
    change.execute(&mut *changes).await.unwrap();
    let settles = tokio::spawn(async move {
        let settle = sqlx::query("SELECT tenure.settle_edges(ARRAY[$1], NULL)").bind(member);
        settle.execute(&pool).await.unwrap();
    });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
    changes.commit().await.unwrap();
    settles.await.unwrap();
    assert_eq!(bench.count(&settled).await, 1);
    assert_eq!(release(&bench).await, 1);
}

/// The lock ends the statement that releases all of them, after it has changed eleven rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_meets_a_lock_returns_each_released_follower_once() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let first = graph.add(job("part", json!({"n": 1})));
    let followers: Vec<_> =
        (0..12).map(|n| graph.add(job("merge", json!({ "n": n }))).after([&first])).collect();
    let last = followers.iter().map(tenure::groups::Node::id).max().unwrap();
    graph.await.unwrap();
    let of = claimed(&bench.pool, &[first.id()], "part").await;
    let mut completes = bench.pool.acquire().await.unwrap();
    complete(&mut completes, &[first.id()], &of).await;
    let mut holds = bench.pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE").bind(last);
    lock.execute(&mut *holds).await.unwrap();
    assert_eq!(release(&bench).await, 11);
    holds.rollback().await.unwrap();
    assert_eq!(release_all(&bench).await, 1);
    bench.every_job_is_as_it_must_be().await;
}

/// Of two followers of one call the row of one is locked, and the other is being redriven: neither is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_follower_does_not_make_a_call_forget_one_that_is_being_redriven() {
    let bench = bench().await;
    let group = async || {
        bench.tenure.group([job("part", json!({"n": 1}))]).then(job("merge", json!({}))).await.unwrap()
    };
    let (one, two) = (group().await, group().await);
    dies(&bench, two.id).await;
    release_all(&bench).await;
    let mut redrives = bench.pool.begin().await.unwrap();
    redrive(&mut redrives, two.id).await;
    let mut holds = bench.pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE").bind(one.id);
    lock.execute(&mut *holds).await.unwrap();
    let mut members = [one.jobs[0], two.jobs[0]];
    members.sort();
    let of = claimed(&bench.pool, &members, "part").await;
    let mut completes = bench.pool.acquire().await.unwrap();
    complete(&mut completes, &members, &of).await;
    assert_eq!(release(&bench).await, 0);
    assert_eq!(bench.count("tenure.group_ends").await, 2);
    redrives.commit().await.unwrap();
    holds.rollback().await.unwrap();
    assert_eq!(release_all(&bench).await, 2);
    bench.every_job_is_as_it_must_be().await;
}

/// A person's transaction holds a follower that stands in a lane, or a redrive its dead letter: other groups go on.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_holds_up_no_other_group() {
    let bench = bench().await;
    bench.tenure.put_lanes("laned", Lanes::new().running(2)).await.unwrap();
    let group = async |queue: &str| {
        let follower = JobRequest::new(queue, "merge", json!({}));
        bench.tenure.group([job("part", json!({"n": 1}))]).then(follower).await.unwrap()
    };
    let (laned, dead, plain) = (group("laned").await, group("q").await, group("q").await);
    let mut cancels = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT tenure.cancel($1)").bind(laned.id).execute(&mut *cancels).await.unwrap();
    dies(&bench, dead.jobs[0]).await;
    let mut redrives = bench.pool.begin().await.unwrap();
    redrive(&mut redrives, dead.jobs[0]).await;
    let mut members = [laned.jobs[0], plain.jobs[0]];
    members.sort();
    let of = claimed(&bench.pool, &members, "part").await;
    let mut completes = bench.pool.acquire().await.unwrap();
    complete(&mut completes, &members, &of).await;
    let began = std::time::Instant::now();
    assert_eq!(release(&bench).await, 1);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(!is_held(&bench, plain.id).await);
    cancels.rollback().await.unwrap();
    redrives.rollback().await.unwrap();
    release_all(&bench).await;
    assert_eq!(status(&bench, dead.id).await, "cancelled");
    assert_eq!(bench.count("tenure.lane_jobs WHERE due_at <= now()").await, 1);
    assert_eq!(bench.count("tenure.group_ends").await, 0);
}

/// A follower that is to be cancelled, and whose row is locked: a call leaves its note, and does not ask for another.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_can_do_nothing_does_not_ask_for_another() {
    let bench = bench().await;
    let parts = [job("part", json!({"n": 1})), job("part", json!({"n": 2}))];
    let group = bench.tenure.group(parts).then(job("merge", json!({}))).await.unwrap();
    let mut holds = bench.pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE").bind(group.id);
    lock.execute(&mut *holds).await.unwrap();
    dies(&bench, group.jobs[0]).await;
    for _ in 0..3 {
        let call = sqlx::query(statement("release_followers")).bind(1_000).fetch_all(&bench.pool);
        assert!(call.await.unwrap().is_empty(), "there is nothing more to do");
        assert_eq!(bench.count("tenure.group_ends WHERE lacks = 'failed'").await, 1);
        assert_eq!(bench.count("tenure.group_ends").await, 1);
    }
    holds.rollback().await.unwrap();
    release_all(&bench).await;
    assert_eq!(status(&bench, group.id).await, "cancelled");
}

/// The completion's word to the trigger counts for the jobs that it has completed.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_of_a_group_does_not_speak_for_the_next_end_of_its_transaction() {
    let bench = bench().await;
    let (members, follower, (tokens, claims)) = running(&bench, 1).await;
    let other = bench.tenure.group([job("part", json!({}))]).then(job("merge", json!({}))).await.unwrap();
    let mut both = bench.pool.begin().await.unwrap();
    complete(&mut both, &members, &(tokens, claims)).await;
    sqlx::query("SELECT tenure.cancel($1)").bind(other.jobs[0]).execute(&mut *both).await.unwrap();
    both.commit().await.unwrap();
    assert_eq!(release_all(&bench).await, 1);
    assert!(!is_held(&bench, follower).await);
    assert_eq!(status(&bench, other.id).await, "cancelled");
}

/// A job waits for its own jobs and for an event. The event begins an attempt while the end of the last of these jobs is not
/// committed: the attempt does not see it, and goes on waiting. The end was noted before the attempt began, by its time.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_an_attempt_of_several_waits_did_not_see_wakes_the_job() {
    let bench = bench().await;
    let (waits, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let handler = {
        let (waits, go) = (waits.clone(), go.clone());
        move |_: Value, ctx: JobContext| {
            let (waits, go) = (waits.clone(), go.clone());
            async move {
                let came = ctx.event::<Value>("first").await.is_ok();
                let all = ctx.all::<Value, _>("parts", [JobRequest::new("other", "part", json!({}))]).await;
                if all.is_ok() {
                    return all.map(|outputs| json!(outputs));
                }
                let never = ctx.event::<Value>("never").await;
                if came {
                    waits.notify_one();
                    go.notified().await;
                }
                never
            }
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_kind("asks", KindOptions::new().keepalive(), handler);
    let running = Running::start(worker.concurrency("q", 1));
    let parent = bench.tenure.enqueue(job("asks", json!({}))).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE kind = 'asks' AND status = 'queued' AND fencing_token > 0", 1).await;
    let part: JobId = bench.value("SELECT id FROM tenure.jobs WHERE kind = 'part'").await;
    let claim = sqlx::query(statement("claim")).bind(vec![part]).bind("other").bind("part").bind(300.0_f64);
    let row = claim.bind("retry").bind("w").bind("h").fetch_one(&bench.pool).await.unwrap();
    let of = (vec![row.get::<i64, _>("fencing_token")], vec![row.get::<uuid::Uuid, _>("claim_id")]);
    let mut ends = bench.pool.begin().await.unwrap();
    complete(&mut ends, &[part], &of).await;
    assert_eq!(
        bench.tenure.signal(parent, "first", &()).await.unwrap(),
        tenure::groups::Signalled::Delivered
    );
    waits.notified().await;
    ends.commit().await.unwrap();
    bench.until_count("tenure.group_ends", 0).await;
    go.notify_one();
    assert_eq!(bench.until_finished(parent).await.output, Some(json!([0])));
    running.stop().await;
}

/// Each follower keeps a copy of what the job before it has left: a call writes no more of them than it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_output_is_copied_to_many_followers_part_by_part() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let first = graph.add(job("part", json!({})));
    let followers = 200;
    for _ in 0..followers {
        drop(graph.add(job("merge", json!({}))).after([&first]));
    }
    let first = first.id();
    graph.await.unwrap();
    // Others have many followers, too, and leave nothing: they need not wait for the large one.
    let others = bench.tenure.graph();
    for _ in 0..30 {
        let before = others.add(job("other", json!({})));
        for _ in 0..12 {
            drop(others.add(job("merge", json!({}))).after([&before]));
        }
    }
    others.await.unwrap();
    bench.execute("DELETE FROM tenure.jobs WHERE kind = 'other'").await;
    let of = claimed(&bench.pool, &[first], "part").await;
    // It cannot be compressed.
    let text: String =
        bench.value("SELECT string_agg(md5(n::text), '') FROM generate_series(1, 7000) n").await;
    let complete = sqlx::query(statement("complete_grouped")).bind(vec![first]).bind(&of.0).bind(&of.1);
    complete.bind(vec![Some(json!(text).to_string())]).execute(&bench.pool).await.unwrap();
    let (mut calls, mut released) = (0, 0);
    while bench.count("tenure.group_ends").await > 0 {
        let size = "SELECT pg_total_relation_size('tenure.job_edges')";
        let before: i64 = bench.value(size).await;
        released += release(&bench).await;
        calls += 1;
        let written = bench.value::<i64>(size).await - before;
        // 16 MiB, and what Postgres stores with them.
        assert!(written < 24 << 20, "{written} bytes by one call");
    }
    assert_eq!(released, followers + 30 * 12);
    assert!((3..=5).contains(&calls), "{calls} calls");
    let same: i64 = bench
        .count("tenure.job_edges e JOIN tenure.job_history h ON h.id = e.before AND h.output = e.output")
        .await;
    assert_eq!(same, i64::try_from(followers).unwrap());
}

/// A transaction holds an edge that a call is to settle, as one that replaces a job of steps does. The call goes on without it.
#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_is_locked_holds_up_no_other_group() {
    let bench = bench().await;
    let group =
        async || bench.tenure.group([job("part", json!({}))]).then(job("merge", json!({}))).await.unwrap();
    let (locked, other) = (group().await, group().await);
    let mut holds = bench.pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM tenure.job_edges WHERE after = $1 FOR UPDATE").bind(locked.id);
    lock.execute(&mut *holds).await.unwrap();
    // As older programs do.
    bench.execute("DELETE FROM tenure.jobs WHERE kind = 'part'").await;
    assert_eq!(release(&bench).await, 1);
    assert!(is_held(&bench, locked.id).await && !is_held(&bench, other.id).await);
    assert_eq!(
        bench.text("SELECT job_id, ended_as FROM tenure.group_ends").await,
        format!("({},completed)", locked.jobs[0])
    );
    holds.rollback().await.unwrap();
    assert_eq!(release(&bench).await, 1);
    assert!(!is_held(&bench, locked.id).await);
    bench.until_count("tenure.group_ends", 0).await;
}

/// The attempt of a job whose own jobs have ended is told of it; an edge that is locked meanwhile is noted anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_attempt_is_told_of_an_end_once_its_edge_is_free() {
    let bench = bench().await;
    let parent = bench.tenure.enqueue(job("asks", json!({}))).await.unwrap().id;
    claimed(&bench.pool, &[parent], "asks").await;
    for sql in [
        "INSERT INTO tenure.followers (job_id, group_id, on_failure) VALUES ('{}', '{}', 'run')",
        "INSERT INTO tenure.job_edges (before, after, group_id, step, state, ended_at)
         VALUES (gen_random_uuid(), '{}', '{}', 'parts', 'completed', now() - interval '1 h')",
        "INSERT INTO tenure.group_ends (job_id, ended_as, step) VALUES ('{}', 'settled', 'parts')",
    ] {
        bench.execute(&sql.replace("{}", &parent.to_string())).await;
    }
    let told = "tenure.job_edges WHERE ended_at > now() - interval '1 minute'";
    let mut holds = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.job_edges FOR UPDATE").execute(&mut *holds).await.unwrap();
    assert_eq!(release(&bench).await, 0);
    assert_eq!((bench.count("tenure.group_ends").await, bench.count(told).await), (1, 0));
    holds.rollback().await.unwrap();
    assert_eq!(release(&bench).await, 0);
    assert_eq!((bench.count("tenure.group_ends").await, bench.count(told).await), (0, 1));
}
