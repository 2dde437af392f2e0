-- advance: make every time in this database longer ago, or less far ahead, for tests.
--
--   $1 seconds
--
-- Postgres's clock cannot be moved, so the stored times move: jobs and schedules come nearer, a running job looks
-- silent for `$1` longer, and past events are `$1` older.
-- Left alone: ids, by which the history is partitioned; the times of messages (published_at, relay_marks), because
-- NATS's clock does not move; and the workers' rows, because live workers would have renewed them. Live workers would
-- also have scanned: without a last scan there is no gap after which owners get time to write.
-- Rows are locked in order of id, as claims lock them.
WITH span AS (
    SELECT $1::float8 * interval '1 second' AS passed
), live AS MATERIALIZED (
    SELECT id FROM tenure.jobs ORDER BY id FOR NO KEY UPDATE
), jobs AS (
    UPDATE tenure.jobs j
       SET created_at       = j.created_at - passed,
           scheduled_at     = j.scheduled_at - passed,
           publish_at       = j.publish_at - passed,
           put_off_since    = j.put_off_since - passed,
           started_at       = j.started_at - passed,
           last_activity_at = j.last_activity_at - passed
      FROM live, span
     WHERE j.id = live.id
), executions AS (
    UPDATE tenure.job_executions
       SET started_at = started_at - passed, finished_at = finished_at - passed
      FROM span
), history AS (
    UPDATE tenure.job_history
       SET created_at       = created_at - passed,
           scheduled_at     = scheduled_at - passed,
           started_at       = started_at - passed,
           last_activity_at = last_activity_at - passed,
           finished_at      = finished_at - passed
      FROM span
), dead AS (
    UPDATE tenure.dead_letter_jobs
       SET created_at       = created_at - passed,
           scheduled_at     = scheduled_at - passed,
           started_at       = started_at - passed,
           last_activity_at = last_activity_at - passed,
           died_at          = died_at - passed
      FROM span
), schedules AS (
    UPDATE tenure.schedules
       SET next_at = next_at - passed, last_tick_at = last_tick_at - passed
      FROM span
)
UPDATE tenure.scanner_state
   SET last_scan_at = NULL, grace_until = grace_until - passed, breaker_since = breaker_since - passed
  FROM span
