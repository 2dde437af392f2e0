-- expire: ends queued jobs that must not start any more: as dead letters, or cancelled, as their producer chose.
--
--   $1 ids: those that a claim has refused; NULL: those whose time has come  $2 row limit
--   $3 ids: jobs to pass over, as Postgres refuses to write them  $4 ids: of the notes, no others; NULL: any
--
-- One row an ended job. A job that runs is left alone: if it comes back to the queue, its claim is refused. Its note is
-- put off by a minute at a time: a job that is suspended then may have no claim. The note of a job that another session
-- has locked stays for the next look.
-- Made of parts: `scripts/statement expire` prints it whole.
WITH noted_down AS MATERIALIZED (
    SELECT e.ctid AS place, e.job_id FROM tenure.job_expiries e
     WHERE $1::uuid[] IS NULL AND e.at <= statement_timestamp()
       AND e.at >= (SELECT tenure.look_from('job_expiries'))
       AND e.job_id <> ALL ($3::uuid[]) AND ($4::uuid[] IS NULL OR e.job_id = ANY ($4::uuid[]))
     ORDER BY e.at, e.job_id LIMIT $2
       FOR UPDATE SKIP LOCKED
), locked AS MATERIALIZED (
    SELECT 0 AS ord, CASE WHEN j.expires_as = 'cancelled' THEN 'cancelled' ELSE 'failed' END AS verdict,
           'expired: not started by ' || to_char(j.not_after AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS error,
           'expired' AS category, 0::float8 AS delay_s, NULL::text AS path, NULL::text AS reason,
           NULL::text AS recovered_by, NULL::interval AS silence,
-- include job/parts/locked_job.sql
      FROM tenure.jobs j
     WHERE j.id = ANY (coalesce($1::uuid[], ARRAY(SELECT job_id FROM noted_down)))
       AND j.status = 'queued' AND j.not_after <= statement_timestamp()
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
), done AS (
    -- By place: a join may go through the whole table, also where nothing has expired.
    DELETE FROM tenure.job_expiries e
     WHERE e.ctid = ANY (ARRAY(
           SELECT n.place FROM noted_down n
            WHERE n.job_id IN (SELECT id FROM locked)
               OR (SELECT true FROM tenure.jobs j
                    WHERE j.id = n.job_id AND j.not_after <= statement_timestamp()) IS NULL))
), put_off AS (
    UPDATE tenure.job_expiries e
       SET at = statement_timestamp() + interval '1 minute'
     WHERE e.ctid = ANY (ARRAY(
           SELECT n.place FROM noted_down n
            WHERE (SELECT j.status = 'processing' AND j.not_after <= statement_timestamp()
                     FROM tenure.jobs j WHERE j.id = n.job_id)))
)
-- include job/parts/end_attempt.sql
