-- A part of the scripts in this folder: checks that the source let go of what tenure has, says what was moved and what
-- was left, and ends the transaction.

DO $$
DECLARE
    enqueued bigint := (SELECT count(*) FROM import_jobs WHERE job_id IS NOT NULL);
    gone     bigint := (SELECT count(*) FROM import_gone);
BEGIN
    IF enqueued <> gone THEN
        RAISE EXCEPTION 'tenure has % jobs, but only % of them could be taken from the source', enqueued, gone
            USING DETAIL = 'Nothing was moved.',
                  HINT = 'A trigger, a rule or row-level security keeps them: run the script as the source''s owner.';
    END IF;
END $$;

\echo Moved:
SELECT source_queue AS "from queue", source_kind AS "its kind", state, queue AS "to queue", kind, count(*) AS jobs
  FROM import_jobs
 WHERE job_id IS NOT NULL
 GROUP BY source_queue, source_kind, state, queue, kind
 ORDER BY source_queue, source_kind, state;

\echo Left:
SELECT queue, kind, why, jobs, "for example", "what to do"
  FROM (SELECT source_queue AS queue, source_kind AS kind, why, count(*) AS jobs, min(source_id) AS "for example",
               advice AS "what to do"
          FROM import_jobs
         WHERE job_id IS NULL
         GROUP BY source_queue, source_kind, why, advice
         UNION ALL
        SELECT source_queue, source_kind, why, count(*), min(source_id), advice
          FROM import_left
         GROUP BY source_queue, source_kind, why, advice) AS stays
 ORDER BY queue, kind, jobs DESC
 LIMIT 100;

SELECT count(*) FILTER (WHERE has_meta) > 0 AND :'meta' = '' AS has_meta FROM import_jobs WHERE job_id IS NOT NULL \gset
\if :has_meta
    \echo Some of these jobs have metadata or tags, which their payloads do not hold: -v meta=FIELD puts them there.
\endif
\if :dry_run
    ROLLBACK;
    \echo This was a dry run: nothing was moved.
\else
    COMMIT;
\endif
