//! Layers around handlers: what they see, what they change, and what becomes of the attempt.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::{
    Job, JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Worker, WorkerBuilder,
    handlers::CancelReason,
    layers::{Call, Next},
    testing::TestTenure,
};
use tokio::sync::Notify;

#[derive(Debug, Serialize, Deserialize)]
struct Typed {
    number: i64,
}

impl Job for Typed {
    const KIND: &'static str = "typed";
    const QUEUE: &'static str = "q";
}

async fn double(job: Typed, _: JobContext) -> Result<i64, JobError> {
    Ok(job.number * 2)
}

/// Notes, in order, what the layers and the handler say.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// A layer that says when it is entered and left.
    fn layer<S: Send + Sync + 'static>(
        &self,
        name: &'static str,
    ) -> impl Fn(Call<S>, Next<S>) -> futures::future::BoxFuture<'static, Result<Outcome, JobError>> + use<S>
    {
        let notes = self.clone();
        move |call, next| {
            let notes = notes.clone();
            Box::pin(async move {
                notes.note(format!("> {name}"));
                let outcome = next.run(call).await;
                notes.note(format!("< {name}"));
                outcome
            })
        }
    }
}

#[tokio::test]
async fn the_first_layer_is_the_outermost_and_all_kinds_have_them() {
    let test = TestTenure::start().await;
    let notes = Notes::default();
    let worker = || {
        let (typed, raw, any) = (notes.clone(), notes.clone(), notes.clone());
        Worker::builder(&test)
            .layer(notes.layer("first"))
            .handle_with(
                KindOptions::new().layer(notes.layer("of the kind")),
                move |_: Typed, _: JobContext| {
                    typed.note("typed");
                    async {}
                },
            )
            .state("the state".to_owned())
            .layer(notes.layer("second"))
            .handle_kind("raw", KindOptions::new(), move |_: Value, ctx: JobContext<String>| {
                raw.note(ctx.state());
                async {}
            })
            .handle_any(KindOptions::new(), move |_: Value, ctx: JobContext<String>| {
                any.note(ctx.kind());
                async {}
            })
            .concurrency("q", 1)
    };
    test.run(worker(), Typed { number: 1 }).await;
    fn around<'n>(own: &[&'n str]) -> Vec<&'n str> {
        [&["> first", "> second"], own, &["< second", "< first"]].concat()
    }
    assert_eq!(notes.take(), around(&["> of the kind", "typed", "< of the kind"]));
    test.run(worker(), JobRequest::new("q", "raw", Value::Null)).await;
    assert_eq!(notes.take(), around(&["the state"]));
    test.run(worker(), JobRequest::new("q", "other", Value::Null)).await;
    assert_eq!(notes.take(), around(&["other"]));
}

/// A toy cipher: the bytes, turned by a key.
fn seal(text: &str, key: u8) -> Value {
    json!({ "sealed": text.bytes().map(|byte| byte ^ key).collect::<Vec<_>>() })
}

fn open(sealed: &Value, key: u8) -> Result<String, JobError> {
    #[derive(Deserialize)]
    struct Sealed {
        sealed: Vec<u8>,
    }
    let Sealed { sealed } = Sealed::deserialize(sealed).map_err(|_| JobError::permanent("not sealed"))?;
    String::from_utf8(sealed.into_iter().map(|byte| byte ^ key).collect()).map_err(JobError::permanent)
}

/// Opens the payload, and seals the output.
async fn sealed(mut call: Call, next: Next) -> Result<Outcome, JobError> {
    let payload = open(&call.read()?, 7)?;
    call.set_payload(payload);
    match next.run(call).await? {
        Outcome::Done(Some(output)) => Ok(Outcome::Done(Some(seal(&output.to_string(), 7)))),
        Outcome::DoneJson(output) => Ok(Outcome::Done(Some(seal(&output, 7)))),
        other => Ok(other),
    }
}

#[tokio::test]
async fn payload_and_output_are_sealed_in_the_database_and_open_in_the_handler() {
    let test = TestTenure::start().await;
    let seen = Notes::default();
    let worker = || {
        let seen = seen.clone();
        Worker::builder(&test).layer(sealed).handle(move |job: Typed, ctx: JobContext| {
            seen.note(ctx.raw_payload());
            double(job, ctx)
        })
    };
    let request = |payload| JobRequest::new("q", "typed", payload);
    let job = test.run(worker(), request(seal(r#"{"number": 21}"#, 7))).await;
    assert_eq!(job.status, Status::Completed, "{job:?}");
    assert_eq!(open(&job.output.unwrap(), 7).unwrap(), "42");
    assert!(!job.payload.unwrap().to_string().contains("number"));
    assert!(seen.take()[0].contains("sealed"), "the context keeps what was enqueued");
    // The layer's own error, and a payload that the handler cannot read.
    let job = test.run(worker(), request(json!({ "number": 21 }))).await;
    assert_eq!((job.status, job.last_error.as_deref()), (Status::Failed, Some("not sealed")));
    let job = test.run(worker(), request(seal("[]", 7)).max_attempts(1)).await;
    let letter = test.tenure().dead_letter(job.id).await.unwrap().unwrap();
    assert_eq!((letter.category.as_str(), job.status), ("invalid_payload", Status::Failed));
}

#[tokio::test]
async fn a_layer_ends_the_attempt_without_the_handler() {
    let test = TestTenure::start().await;
    let worker = |verdict: fn() -> Result<Outcome, JobError>| {
        Worker::builder(&test)
            .layer(move |_: Call, _: Next| async move { verdict() })
            .handle(|_: Typed, _: JobContext| async { Outcome::Cancel("the handler has run".into()) })
    };
    let job = |attempts| JobRequest::from(Typed { number: 1 }).max_attempts(attempts);
    let done = test.run(worker(|| Outcome::done("cached")), job(1)).await;
    assert_eq!((done.status, done.output), (Status::Completed, Some("cached".into())));
    let cancelled = test.run(worker(|| Ok(Outcome::Cancel("no such tenant".into()))), job(1)).await;
    let why = Some("no such tenant");
    assert_eq!((cancelled.status, cancelled.last_error.as_deref()), (Status::Cancelled, why));
    let failed = test.run(worker(|| Err(JobError::permanent("no such tenant"))), job(5)).await;
    assert_eq!((failed.status, failed.attempt, failed.last_error.as_deref()), (Status::Failed, 1, why));
}

#[tokio::test]
async fn a_panic_in_a_layer_fails_the_attempt_and_the_next_one_runs() {
    let test = TestTenure::start().await;
    for point in ["at the call", "before the handler", "after the handler"] {
        let worker = Worker::builder(&test)
            .layer(move |call: Call, next: Next| {
                let is_first = call.context().attempt() == 1;
                let panics = move |here| assert!(!is_first || here != point, "{here}");
                panics("at the call");
                async move {
                    panics("before the handler");
                    let outcome = next.run(call).await;
                    panics("after the handler");
                    outcome
                }
            })
            .handle(double);
        let job = test.run(worker, Typed { number: 4 }).await;
        assert_eq!((job.status, job.attempt, job.output), (Status::Completed, 2, Some(8.into())), "{point}");
        let first = &test.executions(job.id).await.unwrap()[0];
        let error = first.error.as_deref().unwrap();
        assert_eq!(error, format!("the handler panicked: {point}"));
    }
}

#[tokio::test]
async fn a_layers_time_limit_drops_the_handler_and_fails_the_attempt() {
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let test = TestTenure::start().await;
    let dropped = Arc::new(AtomicU32::new(0));
    let guard = dropped.clone();
    let limited = |call: Call, next: Next| async move {
        let limit = Duration::from_millis(50);
        tokio::time::timeout(limit, next.run(call)).await.map_err(|_| JobError::msg("too slow"))?
    };
    let worker = Worker::builder(&test).layer(limited).handle(move |_: Typed, ctx: JobContext| {
        let guard = Dropped(guard.clone());
        async move {
            if ctx.attempt() == 1 {
                std::future::pending::<()>().await;
            }
            drop(guard);
        }
    });
    let job = test.run(worker, Typed { number: 1 }).await;
    assert_eq!((job.status, job.attempt), (Status::Completed, 2));
    assert_eq!(test.executions(job.id).await.unwrap()[0].error.as_deref(), Some("too slow"));
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}

/// The layer has the context: progress, a fenced transaction, cancellation; and hands its transaction's result down.
#[tokio::test]
async fn a_layer_writes_in_a_fenced_transaction_and_hears_a_cancellation() {
    tokio::task_local! {
        static TENANT: i64;
    }
    let test = TestTenure::start().await;
    sqlx::query("CREATE TABLE visits (job uuid)").execute(test.pool()).await.unwrap();
    let audited = |call: Call<&'static str>, next: Next<&'static str>| async move {
        let ctx = call.context().clone();
        ctx.progress("auditing", 10.0, ctx.state()).await?;
        let id = ctx.id();
        let insert = async |tx: &mut sqlx::PgConnection| {
            sqlx::query("INSERT INTO visits VALUES ($1)").bind(id).execute(&mut *tx).await?;
            Ok::<_, JobError>(sqlx::query_scalar("SELECT count(*) FROM visits").fetch_one(tx).await?)
        };
        let visits: i64 = ctx.fenced_tx(insert).await?;
        tokio::select! {
            outcome = TENANT.scope(visits, next.run(call)) => outcome,
            reason = ctx.cancelled() => Ok(Outcome::Cancel(format!("by the layer: {reason:?}"))),
        }
    };
    let started = Arc::new(Notify::new());
    let waits = started.clone();
    let worker = || {
        let waits = waits.clone();
        Worker::builder(&test).state("tenants").layer(audited).handle(move |job: Typed, _| {
            let waits = waits.clone();
            async move {
                if job.number == 0 {
                    waits.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok::<_, JobError>(TENANT.get())
            }
        })
    };
    let done = test.run(worker(), Typed { number: 1 }).await;
    assert_eq!(
        (done.output, done.stage.as_deref()),
        (Some(1.into()), Some("auditing")),
        "{:?}",
        done.last_error
    );
    let id = test.enqueue(Typed { number: 0 }).await.unwrap().id;
    let cancel = async {
        started.notified().await;
        test.cancel(id).await.unwrap();
    };
    let (cancelled, ()) = tokio::join!(test.finish(worker(), id), cancel);
    assert_eq!(cancelled.status, Status::Cancelled);
    let said = format!("by the layer: {:?}", CancelReason::User);
    assert_eq!(cancelled.last_error.as_deref(), Some(said.as_str()));
}

#[tokio::test]
async fn a_stale_attempts_layer_commits_nothing() {
    let test = TestTenure::start().await;
    sqlx::query("CREATE TABLE visits (attempt int)").execute(test.pool()).await.unwrap();
    let of_layer = test.clone();
    let audited = move |call: Call, next: Next| {
        let test = of_layer.clone();
        async move {
            let (ctx, attempt) = (call.context().clone(), i64::from(call.context().attempt()));
            if attempt == 1 {
                // Recovery resets the job while the layer runs.
                test.lose(ctx.id()).await;
            }
            let insert = async |tx: &mut sqlx::PgConnection| {
                sqlx::query("INSERT INTO visits VALUES ($1)").bind(attempt).execute(tx).await?;
                Ok::<_, JobError>(())
            };
            ctx.fenced_tx(insert).await?;
            next.run(call).await
        }
    };
    let job = test.run(Worker::builder(&test).layer(audited).handle(double), Typed { number: 3 }).await;
    assert_eq!((job.status, job.fencing_token.0), (Status::Completed, 2), "{job:?}");
    let visits: Vec<i32> =
        sqlx::query_scalar("SELECT attempt FROM visits").fetch_all(test.pool()).await.unwrap();
    assert_eq!(visits, [2]);
}

/// A stack that is built once holds for all jobs: tower's own limit of time, and of concurrency.
#[tokio::test]
async fn a_stack_of_towers_layers_is_a_layer() {
    use tower::{ServiceBuilder, ServiceExt};
    let test = TestTenure::start().await;
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let seen = most.clone();
    let worker: WorkerBuilder = {
        // ANCHOR: tower
        let stack = ServiceBuilder::new()
            .concurrency_limit(2)
            .timeout(Duration::from_millis(100))
            .service_fn(|(call, next): (Call, Next)| async move {
                next.run(call).await.map_err(JobError::into_error)
            });
        Worker::builder(&test)
            .layer(move |call, next| {
                let answer = stack.clone().oneshot((call, next));
                async move { answer.await.map_err(JobError::from) }
            })
            // ANCHOR_END: tower
            .handle(move |job: Typed, ctx: JobContext| {
                let (running, most) = (running.clone(), most.clone());
                async move {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let long = job.number == 0 && ctx.attempt() == 1;
                    tokio::time::sleep(Duration::from_millis(if long { 10_000 } else { 20 })).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                }
            })
            .concurrency("q", 8)
    };
    for number in 1..=8 {
        test.enqueue(Typed { number }).await.unwrap();
    }
    let slow = test.enqueue(Typed { number: 0 }).await.unwrap().id;
    let ended = test.drain(worker).await;
    assert_eq!(ended.iter().filter(|job| job.status == Status::Completed).count(), 8);
    assert!((1..=3).contains(&seen.load(Ordering::SeqCst)), "{seen:?}");
    let slow = test.executions(slow).await.unwrap();
    assert_eq!(slow[0].error.as_deref(), Some("request timed out"));
}
