-- take_turns: take the turns that are free, or keep those that this worker has. One worker at a time does the work that
-- the fleet shares.
--
--   $1 turns  $2 worker id  $3 length of a turn in seconds
--
-- One row. No leader: any worker may take a turn that its worker has let run out. A turn protects nothing, it only
-- spares statements: two workers may do the same work at once without harm.
-- A turn that another worker has is passed over without a lock. Only a worker with a turn looks for work.
WITH taken AS (
    UPDATE tenure.turns t
       SET worker_id = $2, until = clock_timestamp() + $3::float8 * interval '1 second'
     WHERE t.turn = ANY ($1::text[])
       -- The clock may have been ahead when its worker took it.
       AND (t.worker_id = $2 OR t.until < statement_timestamp()
            OR t.until > statement_timestamp() + 2 * $3::float8 * interval '1 second')
    RETURNING t.turn
), mine AS (
    SELECT coalesce(array_agg(turn), '{}') AS turns, count(*) > 0 AS some FROM taken
)
SELECT mine.turns AS taken,
       -- Those behind gateways take no turns.
       (SELECT count(*) FROM tenure.workers
         WHERE language IS NULL AND last_seen_at > statement_timestamp() - 3 * renew_every) AS workers,
       CASE WHEN mine.some THEN (
            SELECT extract(epoch FROM min(next_at) - clock_timestamp()) FROM tenure.schedules s WHERE paused_at IS NULL
               AND NOT (s.overlap = 'queue' AND EXISTS (SELECT FROM tenure.jobs j WHERE j.id = s.last_job_id)))
       END::float8 AS next_tick_s,
       EXISTS (SELECT FROM tenure.lane_settings) AS has_lanes,
       EXISTS (SELECT FROM tenure.followers) AS has_groups,
       mine.some AND tenure.has_redrives() AS has_redrives,
       tenure.has_quarantines() AS has_quarantines,
       mine.some AND EXISTS (SELECT FROM tenure.job_expiries
                              WHERE at >= (SELECT tenure.look_from('job_expiries'))) AS has_expiries,
       mine.some AND EXISTS (
            SELECT FROM tenure.workers
             WHERE probe_subject IS NOT NULL AND worker_id <> $2
               AND last_seen_at < statement_timestamp() - 1.4 * renew_every) AS has_silent,
       CASE WHEN mine.some THEN (
            SELECT md5(string_agg(queue || (paused_at IS NULL)::text || coalesce(max_running::text, ''), ',' ORDER BY queue))
              FROM tenure.queues)
       END AS settings
  FROM mine
