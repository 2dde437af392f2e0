-- Notes how those jobs of a redrive have ended that are out, and returns how many in which way. `waiting`: the job is
-- to start later, so that the redrive does not wait for it.
--
-- A job counts as failed once an attempt has failed: with retries it takes long to die again, and others would follow
-- it. Called by `tend_redrive` alone, with its rights and its settings; the redrive's row is locked.
CREATE OR REPLACE FUNCTION tenure.note_redriven_ends(of uuid)
RETURNS TABLE (completed bigint, failed bigint, cancelled bigint, waiting bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH ends AS (
        SELECT o.place,
               CASE WHEN j.id IS NOT NULL THEN
                         CASE WHEN j.attempt > CASE j.status WHEN 'processing' THEN 1 ELSE 0 END THEN 'failed'
                              WHEN j.status = 'queued' AND j.scheduled_at > clock_timestamp()
                                   AND NOT EXISTS (SELECT FROM tenure.lane_jobs l WHERE l.job_id = j.id)
                              THEN 'waiting' END
                    WHEN EXISTS (SELECT FROM tenure.dead_letter_jobs d WHERE d.id = o.job_id) THEN 'failed'
                    -- Without a row, its kind keeps no history of what completes.
                    ELSE coalesce((SELECT CASE WHEN h.status = 'cancelled' THEN 'cancelled'
                                               WHEN h.attempt > 1 THEN 'failed' ELSE 'completed' END
                                     FROM tenure.job_history h WHERE h.id = o.job_id), 'completed') END AS outcome
          FROM tenure.redrive_jobs o
          LEFT JOIN tenure.jobs j ON j.id = o.job_id
         WHERE o.redrive_id = of AND o.redriven_at IS NOT NULL AND o.ended_at IS NULL
    ), noted AS (
        UPDATE tenure.redrive_jobs o SET outcome = e.outcome, ended_at = clock_timestamp()
          FROM ends e
         WHERE o.redrive_id = of AND o.place = e.place AND e.outcome IS NOT NULL
        RETURNING o.outcome
    )
    SELECT count(*) FILTER (WHERE n.outcome = 'completed'), count(*) FILTER (WHERE n.outcome = 'failed'),
           count(*) FILTER (WHERE n.outcome = 'cancelled'), count(*) FILTER (WHERE n.outcome = 'waiting')
      FROM noted n;
END $$;

REVOKE ALL ON FUNCTION tenure.note_redriven_ends(uuid) FROM PUBLIC;
