//! The model of the protocol (`tests/model`) is the oracle of the real statements: both do random lists of its steps,
//! and after each the row must be as the model says.
//!
//! A list that fails is shortened and kept in `proptest-regressions`.

use proptest::{
    prelude::*,
    test_runner::{Config as Proptest, FileFailurePersistence, TestCaseError, TestRunner},
};
use sqlx::{AssertSqlSafe, PgPool, Row as _};
use uuid::Uuid;

#[path = "../model/protocol.rs"]
#[allow(dead_code, reason = "the model's own test uses the rest")]
mod protocol;

use protocol::{Action, End, Life, Protocol, State, Step};

use crate::{
    cancel::BY_NOBODY,
    explore::Model as _,
    harness::{bench, statement},
};

fn name(life: Life) -> String {
    format!("w{}-{}", life.worker, life.life)
}

/// The job in a real database.
struct Real {
    pool: PgPool,
    job: Uuid,
    /// The claim id of each token.
    claims: Vec<Uuid>,
    /// Chooses among the forms of a statement, as different loads do.
    turn: usize,
}

impl Real {
    async fn execute(&self, sql: &str) {
        sqlx::query(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// An empty database with the job, unless the job arrives as a submission.
    async fn first(pool: &PgPool, protocol: &Protocol, choices: usize) -> Self {
        let real = Self { pool: pool.clone(), job: Uuid::new_v4(), claims: Vec::new(), turn: choices };
        for table in
            ["jobs", "job_history", "dead_letter_jobs", "job_keys", "job_executions", "recovery_events"]
        {
            real.execute(&format!("DELETE FROM tenure.{table}")).await;
        }
        if !protocol.submission {
            real.execute(&format!(
                "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, dispatch, published_at)
                 VALUES ('{}', 'q', 'k', '1', {}, now(), 1, now())",
                real.job, protocol.attempts_max
            ))
            .await;
        }
        real
    }

    /// Makes the submission's row. Returns whether it was made.
    async fn make_row(&self, protocol: &Protocol) -> bool {
        let made = sqlx::query(statement("enqueue"))
            .bind(vec![self.job])
            .bind(vec!["q"])
            .bind(vec!["k"])
            .bind(vec!["1"])
            .bind(vec![i32::from(protocol.attempts_max)])
            .bind(vec![None::<chrono::DateTime<chrono::Utc>>])
            .bind(vec![None::<f64>])
            .bind(vec![None::<&str>])
            .bind(vec![""])
            .bind(vec!["stream:1"])
            .bind(vec![Some(1_i64)])
            .bind(vec![Some(chrono::Utc::now())])
            .bind(vec!["message"])
            .bind(None::<&str>)
            .bind(None::<Vec<String>>);
        !made.fetch_all(&self.pool).await.unwrap().is_empty()
    }

    async fn claim(&mut self, life: Life) -> Option<u8> {
        self.turn += 1;
        let claim = match self.turn % 3 {
            0 => sqlx::query(statement("claim_one")).bind(self.job),
            1 => sqlx::query(statement("claim")).bind(vec![self.job]),
            _ => sqlx::query(statement("claim_skip")).bind(vec![self.job]),
        };
        let row = claim
            .bind("q")
            .bind("k")
            .bind(60.0_f64)
            .bind("retry")
            .bind(name(life))
            .bind(format!("h{}", life.worker))
            .fetch_optional(&self.pool)
            .await
            .unwrap()?;
        let token: i64 = row.get("fencing_token");
        assert_eq!(usize::try_from(token).unwrap(), self.claims.len() + 1, "tokens grow by one");
        self.claims.push(row.get("claim_id"));
        Some(u8::try_from(token).unwrap())
    }

    fn claim_of(&self, token: u8) -> (i64, Uuid) {
        (token.into(), self.claims[usize::from(token) - 1])
    }

    /// Returns `None` if the write was refused, and otherwise whether a cancellation was requested.
    async fn progress(&self, token: u8) -> Option<bool> {
        let (token, claim) = self.claim_of(token);
        let row = sqlx::query(statement("progress"))
            .bind(vec![self.job])
            .bind(vec![token])
            .bind(vec![claim])
            .bind(vec![r#"{"stage": "s"}"#]);
        row.fetch_optional(&self.pool).await.unwrap().map(|row| row.get(1))
    }

    async fn fence(&mut self, token: u8) -> bool {
        let (token, claim) = self.claim_of(token);
        self.turn += 1;
        let fence = sqlx::query(statement(if self.turn.is_multiple_of(2) { "fence" } else { "lock_job" }))
            .bind(self.job)
            .bind(token)
            .bind(claim);
        fence.fetch_optional(&self.pool).await.unwrap().is_some()
    }

    async fn end(&self, token: u8, verdict: &str, delay: f64) -> bool {
        let (token, claim) = self.claim_of(token);
        let ended = sqlx::query(statement("settle"))
            .bind(vec![self.job])
            .bind(vec![token])
            .bind(vec![claim])
            .bind(vec![verdict])
            .bind(vec![Some("an error")])
            .bind(vec![None::<&str>])
            .bind(vec![delay])
            .bind(vec![None::<&str>])
            .bind(vec![0_i32])
            .bind("w")
            .bind(20_i64)
            .bind("an outage");
        !ended.fetch_all(&self.pool).await.unwrap().is_empty()
    }

    async fn complete(&mut self, token: u8) -> bool {
        let (token, claim) = self.claim_of(token);
        self.turn += 1;
        let many = |names| {
            let query =
                sqlx::query(statement(names)).bind(vec![self.job]).bind(vec![token]).bind(vec![claim]);
            query.bind(vec![None::<&str>])
        };
        let done = match self.turn % 4 {
            0 => sqlx::query(statement("complete_one"))
                .bind(self.job)
                .bind(token)
                .bind(claim)
                .bind(None::<&str>),
            1 => many("complete"),
            2 => many("complete_skip"),
            _ => many("complete_in"),
        };
        !done.fetch_all(&self.pool).await.unwrap().is_empty()
    }

    /// The outcome of this claim, if it has ended.
    async fn settled_as(&self, token: u8) -> Option<String> {
        let (token, claim) = self.claim_of(token);
        let row = sqlx::query(statement("settled_as"))
            .bind(vec![self.job])
            .bind(vec![token])
            .bind(vec![claim])
            .bind(vec![0_i32]);
        let row = row.fetch_optional(&self.pool).await.unwrap();
        row.and_then(|row| row.get("outcome"))
    }

    async fn reset(&self, owners: Vec<String>, worker: usize) {
        let reset = sqlx::query(statement("reset_workers")).bind(owners).bind(format!("h{worker}"));
        reset.bind("w").fetch_all(&self.pool).await.unwrap();
    }

    /// Repeats the model's action. Returns the worker's next step, if the database's answer decides it.
    #[expect(clippy::too_many_lines, reason = "an arm for each action")]
    async fn act(
        &mut self,
        protocol: &Protocol,
        before: &State,
        after: &State,
        action: Action,
    ) -> Option<Step> {
        let life = |worker: usize| Life { worker, life: before.workers[worker].life };
        let step = |worker: usize| before.workers[worker].step;
        match action {
            Action::MakeRow { .. } => assert!(self.make_row(protocol).await, "its row is made"),
            Action::Claim { worker } | Action::ClaimUnanswered { worker } => {
                if protocol.submission && before.key {
                    assert!(!self.make_row(protocol).await, "its row is made once");
                }
                let won = self.claim(life(worker)).await;
                if let (Action::Claim { .. }, Step::Got { dispatch }) = (action, step(worker)) {
                    return Some(won.map_or(Step::Asking { dispatch }, |token| Step::Running { token }));
                }
            }
            Action::Ask { worker } => {
                let orphan = before.row.and_then(|row| row.owned).filter(|owned| owned.owner == life(worker));
                if let Some(owned) = orphan.filter(|_| after.row != before.row) {
                    assert!(self.end(owned.token, "released", 0.0).await);
                }
            }
            Action::TakeOver { worker } => {
                let taken = sqlx::query(statement("take_over")).bind(self.job).bind(name(life(worker)));
                taken.bind(30.0_f64).bind(0.0_f64).fetch_all(&self.pool).await.unwrap();
            }
            Action::Progress { worker } => {
                let Step::Running { token } = step(worker) else { panic!("{action:?}") };
                match self.progress(token).await {
                    None => return Some(Step::Lost),
                    Some(false) => return Some(step(worker)),
                    Some(true) => {
                        let ended = self.end(token, "cancelled", 0.0).await;
                        return Some(if ended { Step::Acking } else { Step::Lost });
                    }
                }
            }
            Action::Effect { worker } => {
                let Step::Running { token } = step(worker) else { panic!("{action:?}") };
                return Some(if self.fence(token).await { step(worker) } else { Step::Lost });
            }
            Action::Settle { worker, failed } | Action::SettleUnanswered { worker, failed } => {
                let (Step::Running { token } | Step::Settling { token, .. }) = step(worker) else {
                    panic!("{action:?}")
                };
                let written = if failed {
                    self.end(token, "retried", 3_600.0).await
                } else {
                    self.complete(token).await
                };
                if matches!(action, Action::Settle { .. }) {
                    let settled = match self.settled_as(token).await.as_deref() {
                        _ if written => true,
                        // Ended by its own worker or by recovery: the test need not distinguish them.
                        Some("cancelled") if failed => return Some(after.workers[worker].step),
                        Some("completed") => !failed,
                        Some(outcome) => failed && outcome != "lost",
                        None => false,
                    };
                    return Some(if settled { Step::Acking } else { Step::Lost });
                }
            }
            Action::Restart { worker } => {
                let lives = (0..=before.workers[worker].life).map(|life| name(Life { worker, life }));
                self.reset(lives.collect(), worker).await;
            }
            Action::Vanished => {
                if let Some(owned) = before.row.and_then(|row| row.owned) {
                    self.reset(vec![name(owned.owner)], owned.owner.worker).await;
                }
            }
            Action::Scan => {
                let reset = sqlx::query(statement("reset_stale")).bind(vec![self.job]).bind("w");
                reset.fetch_all(&self.pool).await.unwrap();
            }
            Action::Due => {
                sqlx::query(statement("run_now"))
                    .bind(vec![self.job])
                    .bind(BY_NOBODY)
                    .fetch_all(&self.pool)
                    .await
                    .unwrap();
            }
            Action::Relay => {
                let due = sqlx::query(statement("take_due"))
                    .bind(500_i64)
                    .bind(Vec::<uuid::Uuid>::new())
                    .bind(None::<Vec<uuid::Uuid>>);
                assert_eq!(due.fetch_all(&self.pool).await.unwrap().len(), 1, "the relay finds it");
            }
            Action::PublishUnanswered { .. } => {
                let publication = before.publication.expect("what was published");
                let unpublished = sqlx::query(statement("unpublished"))
                    .bind(vec![self.job])
                    .bind(vec![i32::from(publication.dispatch)])
                    .bind(0.0_f64);
                unpublished.fetch_all(&self.pool).await.unwrap();
            }
            Action::Reclaim => {
                let committed: String = sqlx::query_scalar("SELECT pg_current_snapshot()::text")
                    .fetch_one(&self.pool)
                    .await
                    .unwrap();
                let lost = sqlx::query(statement("reclaim_lost"))
                    .bind("q")
                    .bind(chrono::Utc::now() + chrono::TimeDelta::hours(1))
                    .bind(500_i64)
                    .bind("w")
                    .bind(committed)
                    .bind(Vec::<uuid::Uuid>::new())
                    .bind(None::<Vec<uuid::Uuid>>);
                assert_eq!(lost.fetch_all(&self.pool).await.unwrap().len(), 1, "its message is lost");
            }
            Action::Cancel => {
                let cancelled = sqlx::query(statement("cancel")).bind(vec![self.job]).bind(BY_NOBODY);
                cancelled.fetch_all(&self.pool).await.unwrap();
            }
            // Postgres does not take part in these.
            Action::Stale
            | Action::Publish
            | Action::PublisherDies
            | Action::Wipe
            | Action::Deliver { .. }
            | Action::Redeliver { .. }
            | Action::Ack { .. }
            | Action::GiveUp { .. }
            | Action::Crash { .. }
            | Action::FindLocked { .. }
            | Action::ResetFound => {}
        }
        None
    }

    /// Returns the real row as text, in the form of [`expected`], so that a difference is readable.
    async fn seen(&self) -> String {
        let row =
            "SELECT format('%s by %s, token %s, attempt %s, losses %s, cancel %s, dispatch %s%s', status,
                          coalesce(worker_id, 'no worker'), fencing_token, attempt, least(losses, 2),
                          cancel_requested_at IS NOT NULL, dispatch,
                          CASE WHEN status = 'queued' THEN format(', due %s, told %s',
                               scheduled_at <= clock_timestamp(), published_at IS NOT NULL) END)
                     FROM tenure.jobs
                   UNION ALL SELECT format('%s under %s', status, fencing_token) FROM tenure.job_history
                   UNION ALL SELECT format('dead under %s', fencing_token) FROM tenure.dead_letter_jobs";
        let rows: Vec<String> = sqlx::query_scalar(row).fetch_all(&self.pool).await.unwrap();
        rows.join("; ")
    }

    /// The model has no clock: a job looks stale exactly when the model says so.
    async fn let_time_pass(&self, state: &State) {
        if state.row.and_then(|row| row.owned).is_some_and(|owned| owned.stale) {
            self.execute("UPDATE tenure.jobs SET last_activity_at = now() - interval '1 h'").await;
        }
    }
}

fn expected(state: &State) -> String {
    let sql_bool = |value: bool| if value { "t" } else { "f" };
    match (state.row, state.end) {
        (Some(row), None) => {
            let (status, owner) = match row.owned {
                Some(owned) => ("processing", name(owned.owner)),
                None => ("queued", "no worker".into()),
            };
            let waits = match row.owned {
                Some(_) => String::new(),
                None => format!(", due {}, told {}", sql_bool(row.due), sql_bool(row.told)),
            };
            format!(
                "{status} by {owner}, token {}, attempt {}, losses {}, cancel {}, dispatch {}{waits}",
                row.token,
                row.attempt,
                row.losses,
                sql_bool(row.cancel),
                row.dispatch
            )
        }
        (None, Some((end, token))) => {
            let end = match end {
                End::Completed => "completed",
                End::Cancelled => "cancelled",
                End::Dead => "dead",
            };
            format!("{end} under {token}")
        }
        (None, None) => String::new(),
        (Some(_), Some(_)) => "an ended job exists again".into(),
    }
}

async fn agree(pool: &PgPool, protocol: &Protocol, choices: &[u16]) -> Result<(), TestCaseError> {
    let mut state = protocol.first();
    let mut real = Real::first(pool, protocol, choices.len()).await;
    let mut done = Vec::new();
    for choice in choices {
        let actions = protocol.actions(&state);
        if actions.is_empty() {
            break;
        }
        let action = actions[usize::from(*choice) % actions.len()];
        done.push(action);
        let after = protocol.after(&state, action);
        let step = real.act(protocol, &state, &after, action).await;
        let (is, should) = (real.seen().await, expected(&after));
        prop_assert_eq!(is, should, "after {:#?}", done);
        if let (
            Some(step),
            Action::Claim { worker }
            | Action::Progress { worker }
            | Action::Effect { worker }
            | Action::Settle { worker, .. },
        ) = (step, action)
        {
            prop_assert_eq!(step, after.workers[worker].step, "worker {} after {:#?}", worker, done);
        }
        real.let_time_pass(&after).await;
        state = after;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_statements_do_what_the_model_does() {
    let bench = bench().await;
    let runtime = tokio::runtime::Handle::current();
    for (submission, attempts_max, cancels) in [(false, 3, false), (false, 2, true), (true, 2, true)] {
        let protocol =
            Protocol { mutation: None, submission, faults: 6, attempts_max, alone: false, cancels };
        let cases = std::env::var("TENURE_CASES").map_or(40, |cases| cases.parse().unwrap());
        let persistence = FileFailurePersistence::Direct(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/it/properties.proptest-regressions"
        ));
        let config = Proptest {
            cases,
            failure_persistence: Some(Box::new(persistence)),
            max_shrink_iters: 2_000,
            ..Proptest::default()
        };
        let pool = bench.pool.clone();
        let lists = prop::collection::vec(any::<u16>(), 20..120);
        let outcome = tokio::task::block_in_place(|| {
            TestRunner::new(config).run(&lists, |choices| runtime.block_on(agree(&pool, &protocol, &choices)))
        });
        if let Err(failure) = outcome {
            panic!("{submission} {attempts_max} {cancels}: {failure}");
        }
    }
}
