-- signal_by: tell a job of an event, as a person.
--
--   $1 job id  $2 the event's name  $3 its payload (JSON text)  $4 who acts: by what, and the name
--
-- As signal.sql. A program's own signals are no acts: they are the course of its jobs.
WITH signalled AS MATERIALIZED (
    SELECT tenure.signal($1, $2, $3::jsonb) AS answer
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, queue, subject, jobs, details)
    SELECT ($4::text[])[1], ($4::text[])[2], 'signal', (SELECT queue FROM tenure.jobs WHERE id = $1), $1::uuid::text, 1,
           jsonb_build_object('event', $2::text)
      FROM signalled
     WHERE answer = 'signalled'
)
SELECT answer FROM signalled
