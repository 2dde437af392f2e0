//! Groups: whether Postgres refuses to write jobs that follow others.

use crate::{
    doctor::{Check, skip_by, some_of},
    store::Store,
};

pub(crate) const CHECK: &str = "groups";

/// The most jobs that a finding names.
const SHOWN: i64 = 20;

/// Looks for ended jobs whose followers stay.
pub(crate) async fn look(store: &Store) -> Vec<Check> {
    let resting = match store.resting_notes(SHOWN).await {
        Ok(resting) => resting,
        Err(error) => return skip_by(&[CHECK], &error),
    };
    if resting.is_empty() {
        return vec![Check::ok(CHECK, "Postgres has refused no job that follows others")];
    }
    let jobs: Vec<_> = resting.iter().map(ToString::to_string).collect();
    let found = format!("Postgres refuses to write these jobs, or jobs that follow them: {}", some_of(&jobs));
    vec![Check::wrong(CHECK, found).advise(
        "the workers' log says why (\"refuses to write a job that follows\", WARN): drop the trigger or the constraint \
         on tenure's tables, or repair the page. The jobs then start within ten seconds",
    )]
}
