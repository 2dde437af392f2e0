//! A code evolution analyzer, the use case that tenure was written for.
//!
//! It opens or clones a repository, walks its history from the first commit, and computes lines by language,
//! hottest files and churn by author: in one job for each repository, or as a graph of jobs that clone, analyze by
//! parts, merge, and publish the result once a person has approved it.
//! `cargo run --all-features --example code_evolution -- demo` runs the demo: private servers, three workers, one
//! killed and one frozen in the middle of the graph.
//!
//! ```text
//! code_evolution work              a worker, with the settings of the environment
//! code_evolution enqueue REPO…     jobs for these repositories: paths or URLs
//! code_evolution report REPO…      a graph of jobs for these repositories; prints the one that waits for
//!                                  `tenure jobs signal ID approved '{"by": "you"}'`
//! code_evolution demo              what `make demo` runs
//! ```

mod analyze;
mod demo;
mod report;
mod repositories;

use std::process::ExitCode;

use tenure::{Config, Tenure, Worker};
use tracing_subscriber::EnvFilter;

use analyze::{AnalyzeRepo, App};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The demo prints its own report; its workers log to files.
    let usual = if arguments == ["demo"] { "error" } else { "warn,tenure=info,async_nats=error" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["work"] => {
            let tenure = Tenure::connect(&Config::from_env()?).await?;
            let app = App::connect().await?;
            Worker::builder(&tenure)
                .state(app)
                .handle(analyze::analyze)
                .handle(analyze::clone)
                .handle(analyze::part)
                .handle(report::merge)
                .handle(report::publish)
                .concurrency("repos", 2)
                .run_until(tenure::shutdown_signal())
                .await?;
        }
        ["enqueue", repositories @ ..] if !repositories.is_empty() => {
            let tenure = Tenure::connect(&Config::from_env()?).await?;
            let jobs = repositories.iter().map(|repo| AnalyzeRepo { repo: (*repo).to_owned() });
            for enqueued in tenure.enqueue_many(jobs).await? {
                println!("{}", enqueued.id);
            }
            tenure.close().await;
        }
        ["report", repositories @ ..] if !repositories.is_empty() => {
            let tenure = Tenure::connect(&Config::from_env()?).await?;
            let repositories: Vec<_> =
                repositories.iter().map(|repo| ((*repo).to_owned(), (*repo).to_owned())).collect();
            println!("{}", report::enqueue(&tenure, &repositories).await?.publish);
            tenure.close().await;
        }
        ["demo"] => return demo::run().await,
        _ => {
            eprintln!("usage: code_evolution work | enqueue REPO… | report REPO… | demo");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}
