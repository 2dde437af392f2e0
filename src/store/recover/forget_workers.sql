-- forget_workers: delete the rows of processes that have been silent for long and own no job. A worker behind a gateway
-- that has said hello and nothing more is forgotten after ten minutes: anybody may say hello.
--
--   $1 worker ids, or NULL for all  $2 seconds of silence
--
-- One row a deleted process.
DELETE FROM tenure.workers w
 WHERE ($1::text[] IS NULL OR w.worker_id = ANY ($1::text[]))
   AND w.last_seen_at < statement_timestamp()
           - CASE WHEN w.language IS NOT NULL AND w.last_seen_at < w.started_at + interval '1 second'
                  THEN least($2::float8, 600) ELSE $2::float8 END * interval '1 second'
   AND NOT EXISTS (SELECT FROM tenure.jobs j WHERE j.worker_id = w.worker_id)
RETURNING w.worker_id
