//! Graphs, jobs of jobs, and events: what the producer enqueues of them, and what their handlers check.

use std::time::Duration;

use sqlx::PgPool;
use tenure::{JobContext, JobError, JobId, Tenure, groups::OnFailure};
use uuid::Uuid;

use crate::roles::{Form, Task, note, plain_task, request, task};

/// Acts of jobs that complete in the end, if they are redriven.
const MENDABLE: [&str; 6] = ["once", "fenced", "steps", "asks", "fails at first", "dies at first"];
/// What a follower does when a job before it fails.
const ON_FAILURE: [(&str, OnFailure); 3] =
    [("cancel", OnFailure::Cancel), ("run", OnFailure::Run), ("hold", OnFailure::Hold)];

/// The jobs that a job of this act enqueues: their numbers.
pub fn children(act: &str) -> Vec<Uuid> {
    let many = if matches!(act, "all" | "adds") { rand::random_range(1..4) } else { 0 };
    (0..many).map(|_| Uuid::new_v4()).collect()
}

/// A job that another one enqueues. It completes.
fn child(n: Uuid, before: Option<Uuid>) -> Task {
    Task {
        n,
        before,
        act: "once".into(),
        lasts_ms: 50,
        form: Form::Plain,
        foreign: false,
        children: vec![],
        ..task()
    }
}

/// Waits for jobs of its own, and checks that each has left its number, in order.
pub async fn all(of: &Task, ctx: &JobContext<PgPool>) -> Result<(), JobError> {
    let jobs = of.children.iter().map(|n| request(child(*n, None)));
    let outputs: Vec<Uuid> = ctx.all("children", jobs).await?;
    if outputs == of.children {
        return Ok(());
    }
    Err(JobError::permanent(format!("its jobs {:?} have left {outputs:?}", of.children)))
}

/// Adds members to its group.
pub async fn add(of: &Task, ctx: &JobContext<PgPool>) -> Result<(), JobError> {
    if of.before.is_some() {
        ctx.add_to_group("children", of.children.iter().map(|n| request(child(*n, of.before)))).await?;
    }
    Ok(())
}

/// Waits for an answer, after a wait that ends by itself. Each attempt must see the same of both.
pub async fn ask(of: &Task, ctx: &JobContext<PgPool>) -> Result<(), JobError> {
    let hurried: Option<Uuid> = ctx.event_within("hurried", Duration::from_millis(400)).await?;
    let answer: Uuid = ctx.event("answer").await?;
    ctx.fenced_tx(async |tx| {
        let sql = "INSERT INTO chaos.heard (n, hurried, answer) VALUES ($1, $2, $3)";
        sqlx::query(sql).bind(of.n).bind(hurried).bind(answer).execute(tx).await?;
        Ok(())
    })
    .await
}

/// Checks what a job sees of those that it follows: each of them, once, in order, and all that one of them has added.
pub async fn look_back(task: &Task, ctx: &JobContext<PgPool>) -> Result<(), JobError> {
    let outputs: Vec<Uuid> = ctx.outputs().await?;
    let failed = ctx.failed_before().await?.len();
    let (added, own): (Vec<Uuid>, Vec<Uuid>) = outputs.iter().partition(|n| task.added.contains(n));
    let mut members = task.members.iter();
    let are_in_order = own.iter().all(|output| members.any(|member| member == output));
    let may_run = failed == 0 || task.on_failure.as_deref() == Some("run");
    let has_added = task.adder.is_some_and(|adder| own.contains(&adder));
    let added_are_whole = added == task.added || added.is_empty() && !has_added;
    if are_in_order && may_run && own.len() + failed == task.members.len() && added_are_whole {
        return Ok(());
    }
    Err(JobError::permanent(format!("it sees {outputs:?} and {failed} failures of {task:?}")))
}

/// Enqueues graphs: some jobs, one that follows them, and at times another one that follows that one. Or one job, many
/// that follow it, whose messages name several of them, and one that follows these.
pub async fn producer(tenure: &Tenure) {
    loop {
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..4_000))).await;
        let (word, does) = ON_FAILURE[rand::random_range(0..3)];
        let mut last = Task { act: "once".into(), lasts_ms: 50, children: vec![], ..plain_task() };
        last.on_failure = Some(word.into());
        let is_wide = rand::random_range(0..6) == 0;
        let has_middle = is_wide || rand::random_range(0..3) == 0;
        let many = if is_wide { rand::random_range(16..48) } else { usize::from(has_middle) };
        let middle = |_| Task { n: Uuid::new_v4(), before: Some(last.n), ..last.clone() };
        let mut middles: Vec<_> = (0..many).map(middle).collect();
        last.members = middles.iter().map(|middle| middle.n).collect();
        let member = |_| {
            let follower = middles.first().unwrap_or(&last).n;
            let mut member = Task { before: Some(follower), ..plain_task() };
            // One that stays dead would hold its follower for ever.
            if word == "hold" || is_wide {
                member.act = MENDABLE[rand::random_range(0..MENDABLE.len())].into();
                member.children = vec![];
            }
            member
        };
        let count = if is_wide { 1 } else { rand::random_range(1..6) };
        let mut members: Vec<_> = (0..count).map(member).collect();
        let followers = if has_middle { &mut middles[..] } else { std::slice::from_mut(&mut last) };
        if !is_wide && rand::random_range(0..3) == 0 {
            let adder = &mut members[0];
            adder.act = "adds".into();
            adder.children = children("adds");
            (followers[0].adder, followers[0].added) = (Some(adder.n), adder.children.clone());
        }
        for follower in followers {
            follower.members = members.iter().map(|member| member.n).collect();
        }
        for of in members.iter().chain(&middles).chain([&last]) {
            note_tried("group", of);
        }
        for _ in 0..5 {
            let graph = tenure.graph();
            let mut before: Vec<_> =
                members.iter().map(|member| graph.add(request(member.clone()))).collect();
            if has_middle {
                let middle = |of: &Task| graph.add(request(of.clone())).after(&before).on_failure(does);
                before = middles.iter().map(middle).collect();
            }
            let key = last.n.to_string();
            drop(graph.add(request(last.clone()).unique_key(key)).after(&before).on_failure(does));
            match graph.await {
                Ok(group) => {
                    // Only members are cancelled, so that a follower is for a reason that its account finds.
                    let ids = if group.jobs.is_empty() || is_wide {
                        vec![]
                    } else {
                        group.jobs[..members.len()].to_vec()
                    };
                    let id = |place: usize| ids.get(place).map_or(String::new(), ToString::to_string);
                    for (place, of) in members.iter().enumerate() {
                        note("accepted", "group", of.n, &id(place));
                    }
                    for of in middles.iter().chain([&last]) {
                        note("accepted", "group", of.n, "");
                    }
                    break;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }
}

/// Notes that a job is about to be enqueued, and with it those that it may enqueue.
pub fn note_tried(way: &str, of: &Task) {
    note("tried", way, of.n, "");
    for n in &of.children {
        note("tried", "child", *n, "");
    }
}

/// Answers the jobs that ask, at times twice, and redrives the dead ones that complete then. Ends with its task.
pub async fn person(tenure: Tenure, pool: PgPool) {
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        // A Postgres that is away answers later.
        answer(&tenure, &pool).await.ok();
        redrive(&tenure, &pool).await.ok();
    }
}

async fn answer(tenure: &Tenure, pool: &PgPool) -> anyhow::Result<()> {
    let asking: Vec<(JobId, Uuid)> = sqlx::query_as(
        "SELECT j.id, (j.payload->>'n')::uuid
           FROM tenure.jobs j LEFT JOIN chaos.answers a ON a.n = (j.payload->>'n')::uuid
          WHERE j.payload->>'act' = 'asks' AND (a.n IS NULL OR random() < 0.1) LIMIT 50",
    )
    .fetch_all(pool)
    .await?;
    for (job, n) in asking {
        if rand::random_range(0..4) == 0 {
            let _ = tenure.signal(job, "hurried", &Uuid::new_v4()).await?;
        }
        // One transaction: an answer that is delivered is noted, although the reply is lost.
        let mut tx = pool.begin().await?;
        let says = Uuid::new_v4();
        let told = tenure.signal_in(&mut tx, job, "answer", &says).await?;
        if told == tenure::groups::Signalled::Delivered {
            let sql = "INSERT INTO chaos.answers (n, answer) VALUES ($1, $2)";
            sqlx::query(sql).bind(n).bind(says).execute(&mut *tx).await?;
        }
        tx.commit().await?;
    }
    Ok(())
}

/// What the account waits for besides live jobs: dead letters that will be redriven, and followers that come back.
pub const PENDING: &str =
    "(SELECT count(*) FROM tenure.dead_letter_jobs WHERE payload->>'act' = 'dies at first')
                         + (SELECT count(*) FROM tenure.group_ends)";

async fn redrive(tenure: &Tenure, pool: &PgPool) -> anyhow::Result<()> {
    let sql = "SELECT id FROM tenure.dead_letter_jobs WHERE payload->>'act' = 'dies at first' LIMIT 50";
    let dead: Vec<JobId> = sqlx::query_scalar(sql).fetch_all(pool).await?;
    if !dead.is_empty() {
        tenure.redrive(&dead).await?;
    }
    Ok(())
}
