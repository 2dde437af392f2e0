-- verify: jobs that break an invariant. One statement has one snapshot: jobs that run meanwhile look whole.
--
-- One row a rule: its name, how many jobs break it, and the first ten of them. Reads every table as a whole.
WITH attempts AS MATERIALIZED (
    SELECT job_id, fencing_token, started_at, finished_at, outcome,
           lead(fencing_token) OVER of_job AS next_token, lead(started_at) OVER of_job AS next_started_at
      FROM tenure.job_executions_all
    WINDOW of_job AS (PARTITION BY job_id ORDER BY fencing_token)
), standing AS MATERIALIZED (
    SELECT id, fencing_token FROM tenure.jobs
     UNION ALL
    SELECT id, fencing_token FROM tenure.job_history
     UNION ALL
    SELECT id, fencing_token FROM tenure.dead_letter_jobs
), broken (rule, job_id) AS (
    SELECT 'stands_in_one_place', id FROM standing GROUP BY id HAVING count(*) > 1
     UNION ALL
    -- Only a job that existed can have attempts or effects, or hold a key.
    SELECT 'is_not_lost', job_id
      FROM (SELECT job_id FROM tenure.job_executions
             -- An event that a job did not wait for may outlive it, until a sweep.
             UNION SELECT job_id FROM tenure.effects WHERE step_kind IS DISTINCT FROM 'event'
             -- A key that knows when its job ended may outlive it: the job kept no history, or retention removed it.
             UNION SELECT job_id FROM tenure.job_keys WHERE stream_seq IS NULL AND ended_at IS NULL) known
     WHERE NOT EXISTS (SELECT FROM standing WHERE standing.id = known.job_id)
       -- Retention removes the job first, and its traces afterwards.
       AND known.job_id >= (SELECT tenure.id_of_time(coalesce(purged_until, 'epoch')) FROM tenure.scanner_state)
     UNION ALL
    SELECT 'is_owned_while_processing', id FROM tenure.jobs
     WHERE status NOT IN ('queued', 'processing')
        OR num_nonnulls(claim_id, worker_id, worker_host, stale_after, last_activity_at, started_at)
           <> CASE status WHEN 'processing' THEN 6 ELSE 0 END
     UNION ALL
    SELECT 'waits_for_its_message_or_the_relay', id FROM tenure.jobs
     WHERE status = 'queued' AND num_nonnulls(publish_at, published_at) <> 1
     UNION ALL
    SELECT 'keeps_its_bounds', id FROM tenure.jobs
     WHERE NOT (attempt BETWEEN 0 AND max_attempts AND max_attempts >= 1 AND attempt <= fencing_token)
        OR NOT progress BETWEEN 0 AND 100
     UNION ALL
    SELECT 'completes_once', job_id FROM attempts
     WHERE outcome = 'completed'
     GROUP BY job_id HAVING count(*) > 1
     UNION ALL
    -- Every claim raises the token by one, and leaves a record; the last hundred records are kept.
    SELECT 'has_a_record_of_every_token', standing.id
      FROM standing
      LEFT JOIN (SELECT job_id, count(*) AS claims, min(fencing_token) AS lowest, max(fencing_token) AS highest
                   FROM attempts GROUP BY job_id) known ON known.job_id = standing.id
     WHERE CASE WHEN known.claims IS NULL THEN standing.fencing_token <> 0
                ELSE known.highest <> standing.fencing_token
                  OR known.highest - known.lowest + 1 <> known.claims
                  OR known.lowest > 1 AND known.claims < 100 END
     UNION ALL
    SELECT 'ends_each_attempt_before_the_next', job_id FROM attempts
     WHERE next_token IS NOT NULL AND (outcome IS NULL OR finished_at > next_started_at)
     UNION ALL
    SELECT 'has_effects_of_its_own_attempts', e.job_id
      FROM tenure.effects e
     -- An event may come before the first attempt.
     WHERE e.step_kind IS DISTINCT FROM 'event'
       AND NOT EXISTS (SELECT FROM attempts a WHERE a.job_id = e.job_id AND a.fencing_token = e.fencing_token)
       AND NOT EXISTS (SELECT FROM attempts a WHERE a.job_id = e.job_id
                       GROUP BY a.job_id HAVING min(a.fencing_token) > e.fencing_token AND count(*) >= 100)
     UNION ALL
    -- Jobs that ran before the limit was changed go on.
    SELECT 'runs_within_the_limit_of_its_lane', j.id
      FROM (SELECT j.id, count(*) OVER (PARTITION BY j.queue, j.lane) AS running,
                   CASE WHEN s.ordered THEN 1 ELSE coalesce(l.running, s.running) END AS most
              FROM tenure.jobs j
              JOIN tenure.lane_settings s ON s.queue = j.queue AND j.started_at > s.changed_at
              LEFT JOIN tenure.lanes l ON l.queue = j.queue AND l.lane = j.lane
             WHERE j.status = 'processing' AND j.lane IS NOT NULL) j
     WHERE j.running > j.most
     UNION ALL
    -- Without a place in its lane or a wake for its time, and without a job or an event to wait for, nothing would ever
    -- release it.
    SELECT 'has_a_place_while_held', j.id
      FROM tenure.jobs j
      LEFT JOIN tenure.lane_jobs w ON w.job_id = j.id
     WHERE j.publish_at >= '9998-01-01 00:00:00+00'
       AND (w.job_id IS NULL
            OR w.place IS NULL AND NOT EXISTS (SELECT FROM tenure.lane_wakes k WHERE k.job_id = j.id
                                                AND k.at <= greatest(w.due_at, statement_timestamp() + interval '2 s')))
       AND NOT EXISTS (SELECT FROM tenure.job_edges e WHERE e.after = j.id AND (e.state IS NULL OR e.state <> 'completed'))
       AND NOT EXISTS (SELECT FROM tenure.effects e WHERE e.job_id = j.id AND e.step_kind = 'awaited')
       AND NOT EXISTS (SELECT FROM tenure.group_ends g WHERE g.job_id = j.id)
     UNION ALL
    -- The transaction that settles its last edge releases it, or notes it.
    SELECT 'follows_jobs_that_have_not_ended', j.id
      FROM tenure.jobs j
      JOIN tenure.followers f ON f.job_id = j.id
     WHERE j.publish_at = '9999-01-01 00:00:00+00' AND j.fencing_token = 0
       AND NOT EXISTS (SELECT FROM tenure.job_edges e WHERE e.after = j.id AND e.state IS NULL)
       AND (f.on_failure = 'run'
            OR NOT EXISTS (SELECT FROM tenure.job_edges e WHERE e.after = j.id AND e.state <> 'completed'))
       AND NOT EXISTS (SELECT FROM tenure.group_ends g WHERE g.job_id = j.id)
       -- It is released, and waits for its lane.
       AND NOT EXISTS (SELECT FROM tenure.lane_jobs l
                        WHERE l.job_id = j.id AND l.due_at < '9999-01-01 00:00:00+00')
     UNION ALL
    SELECT 'waits_only_for_jobs_that_are_live', e.after
      FROM tenure.job_edges e
      JOIN tenure.jobs j ON j.id = e.after
     WHERE e.state IS NULL
       AND NOT EXISTS (SELECT FROM tenure.jobs b WHERE b.id = e.before)
       AND NOT EXISTS (SELECT FROM tenure.group_ends g WHERE g.job_id = e.before)
     UNION ALL
    -- The caller looks twice, some seconds apart: a slot that has just become free is no fault.
    SELECT 'leaves_no_lane_free', head.job_id
      FROM tenure.lanes l
      JOIN tenure.lane_settings s ON s.queue = l.queue AND NOT s.turns AND s.queue_rate IS NULL
     CROSS JOIN LATERAL (
           SELECT w.job_id, w.due_at FROM tenure.lane_jobs w
            WHERE w.queue = l.queue AND w.lane = l.lane AND w.place IS NOT NULL
            ORDER BY w.priority, w.place, w.arrival LIMIT 1) head
     WHERE head.due_at < statement_timestamp() - interval '2 seconds'
       AND NOT EXISTS (SELECT FROM tenure.queues q WHERE q.queue = l.queue AND q.paused_at IS NOT NULL)
       AND EXISTS (SELECT FROM tenure.workers w WHERE w.last_seen_at > statement_timestamp() - 1.4 * w.renew_every)
       AND coalesce(CASE WHEN s.ordered THEN 1 ELSE coalesce(l.running, s.running) END
                    > (SELECT count(*) FROM tenure.lane_slots sl
                         JOIN tenure.jobs j ON j.id = sl.job_id AND j.publish_at IS DISTINCT FROM '9999-01-01 00:00:00+00'
                        WHERE sl.queue = l.queue AND sl.lane = l.lane), true)
       AND coalesce(l.tokens + s.rate * greatest(0, extract(epoch FROM statement_timestamp() - l.refilled_at)) >= 1, true)
)
SELECT rule.name AS rule, count(DISTINCT broken.job_id) AS jobs,
       (array_agg(DISTINCT broken.job_id) FILTER (WHERE broken.job_id IS NOT NULL))[:10] AS examples
  FROM unnest(ARRAY['stands_in_one_place', 'is_not_lost', 'is_owned_while_processing',
                    'waits_for_its_message_or_the_relay', 'keeps_its_bounds', 'completes_once',
                    'has_a_record_of_every_token', 'ends_each_attempt_before_the_next',
                    'has_effects_of_its_own_attempts', 'runs_within_the_limit_of_its_lane',
                    'has_a_place_while_held', 'follows_jobs_that_have_not_ended',
                    'waits_only_for_jobs_that_are_live', 'leaves_no_lane_free']) WITH ORDINALITY AS rule (name, ord)
  LEFT JOIN broken ON broken.rule = rule.name
 GROUP BY rule.ord, rule.name
 ORDER BY rule.ord
