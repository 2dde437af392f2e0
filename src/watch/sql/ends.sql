-- ends: the ends of jobs that snapshot $2 shows and snapshot $1 does not: the next of them, in order of their times.
--
--   $1 snapshot; NULL: none  $2 snapshot
--   $3 time and $4 id of the last end that was read  $5 before which time, or NULL  $6 how many
--   $7 queue or NULL  $8 kind or NULL
--   $9 the time of snapshot $1 if the server has started anew since, or NULL: a crash, or a failover, may give the number
--      of a transaction to another one, which ends later
--
-- A row without a number was written by a program that knew none, and a row of another server may have one that this server has not reached:
-- such rows are read without a snapshot $1 only.
-- Two scans by time, of the history and of the dead letters. A dead letter that is redriven, and a job that retention
-- has removed, are not found any more.
SELECT *
  FROM (SELECT h.id, h.queue, h.kind, h.status, h.attempt, h.max_attempts, h.finished_at, h.output::text AS output,
               h.last_error
          FROM tenure.job_history h
         WHERE h.finished_at >= $3 AND h.finished_at < coalesce($5::timestamptz, 'infinity')
           AND (h.finished_at, h.id) > ($3::timestamptz, $4::uuid)
           AND CASE WHEN h.ended_xid IS NULL OR h.ended_xid >= (SELECT pg_snapshot_xmax(pg_current_snapshot()))
                    THEN $1::text IS NULL
                    ELSE pg_visible_in_snapshot(h.ended_xid, (SELECT $2::text::pg_snapshot))
                     AND ($1::text IS NULL OR h.finished_at > $9::timestamptz
                          OR NOT pg_visible_in_snapshot(h.ended_xid, (SELECT $1::text::pg_snapshot))) END
           AND ($7::text IS NULL OR h.queue = $7) AND ($8::text IS NULL OR h.kind = $8)
        UNION ALL
        SELECT d.id, d.queue, d.kind, 'failed', d.attempt, d.max_attempts, d.died_at, NULL, d.last_error
          FROM tenure.dead_letter_jobs d
         WHERE d.died_at >= $3 AND d.died_at < coalesce($5::timestamptz, 'infinity')
           AND (d.died_at, d.id) > ($3::timestamptz, $4::uuid)
           AND CASE WHEN d.ended_xid IS NULL OR d.ended_xid >= (SELECT pg_snapshot_xmax(pg_current_snapshot()))
                    THEN $1::text IS NULL
                    ELSE pg_visible_in_snapshot(d.ended_xid, (SELECT $2::text::pg_snapshot))
                     AND ($1::text IS NULL OR d.died_at > $9::timestamptz
                          OR NOT pg_visible_in_snapshot(d.ended_xid, (SELECT $1::text::pg_snapshot))) END
           AND ($7::text IS NULL OR d.queue = $7) AND ($8::text IS NULL OR d.kind = $8)) e
 ORDER BY finished_at, id
 LIMIT $6
