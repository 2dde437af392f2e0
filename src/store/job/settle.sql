-- settle: end attempts that did not complete (retry, snooze, release, fail, cancel), under their claim.
--
--   $1 ids  $2 tokens  $3 claim ids  $4 verdicts  $5 errors  $6 categories  $7 delays in seconds
--   $8 recovery reasons (a release; else NULL)  $9 ordinals  $10 worker id
--   $11 how many releases a job may have before its outages are charged: RELEASES_MAX
--   $12 the reason of a release for an outage: Reason::Outage
--
-- One row an ended attempt, with the route of its job. For a job without a row, ask settled_as.sql.
-- Locks the rows in order of id, then routes each by its values *after* the lock.
-- Gives the ids once more as an array: see progress.sql.
-- A job that was released $11 times may itself cause the outages: from then on, a release for an outage is a retry.
-- SKIP LOCKED: a handler's transaction may hold its row for long, and must not hold up the ends of all other
-- attempts. The worker tries the skipped one again: settled_as.sql says that its claim has not ended.
-- Made of parts: `scripts/statement settle` prints it whole.
WITH locked AS MATERIALIZED (
-- include job/parts/ended_attempts.sql
)
-- include job/parts/end_attempt.sql
