-- job_texts: a job's payload, output, checkpoint and trace context, as text for people, in any status. Numbers keep
-- their digits.
--
--   $1 id  $2 how many characters of each text, at most
--
-- Also for how long a running job has been silent, by the database's clock.
SELECT left(jsonb_pretty(payload), $2) AS payload, left(jsonb_pretty(output), $2) AS output,
       left(jsonb_pretty(checkpoint), $2) AS checkpoint, trace_context, cancel_requested_at,
       extract(epoch FROM stale_after)::float8 AS stale_after_s,
       extract(epoch FROM statement_timestamp() - silent_since)::float8 AS silence_s
  FROM (SELECT payload, NULL::jsonb AS output, checkpoint, trace_context, cancel_requested_at,
               stale_after, CASE WHEN claim_id IS NOT NULL THEN last_activity_at END AS silent_since
          FROM tenure.jobs WHERE id = $1
         UNION ALL
        SELECT payload, output, NULL, trace_context, NULL, NULL, NULL FROM tenure.job_history WHERE id = $1
         UNION ALL
        SELECT payload, NULL, checkpoint, trace_context, NULL, NULL, NULL
          FROM tenure.dead_letter_jobs WHERE id = $1) j
