-- Roles for tenure, as groups that cannot log in: grant each to the login roles of your programs.
--
--   psql "$DATABASE_URL" -f postgres/roles.sql      once, after `tenure migrate`, as the owner of the schema
--   CREATE ROLE web LOGIN PASSWORD '…' IN ROLE tenure_producer;
--
--   tenure_producer  enqueues; reads no payload and no job, changes and deletes none
--   tenure_worker    runs and recovers jobs, and so deletes live ones and writes dead letters; changes no payload of a
--                    live job, deletes no history and no dead letter
--   tenure_operator  a worker that also cancels, redrives, purges, pauses, limits and schedules: the command line of
--                    the person on call; changes and deletes nothing in the audit
--   tenure_viewer    reads everything, writes nothing: dashboards
--
-- `tenure migrate` itself runs as the owner of the schema. Where these roles exist, it executes this file again whenever it
-- changes the schema.

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['tenure_producer', 'tenure_worker', 'tenure_operator', 'tenure_viewer'] LOOP
        -- An owner who may create no roles can run this once somebody else has created them.
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
        -- Earlier grants end here; the statements below grant what this version needs.
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM %I', role);
        EXECUTE format('GRANT USAGE ON SCHEMA tenure TO %I', role);
        EXECUTE format('GRANT SELECT ON tenure.migrations TO %I', role);
    END LOOP;
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM PUBLIC;
REVOKE ALL ON FUNCTION tenure.create_history_partitions(int), tenure.purge_day(interval, interval),
       tenure.purge_rows(interval, interval, uuid, int), tenure.purge_cancelled(interval, int),
       tenure.purge_dead(interval, int), tenure.purge_traces(uuid, int),
       tenure.purge_keys(interval, bigint, uuid, int), tenure.purge_events(interval, int),
       tenure.keep_last_executions(uuid), tenure.forget_traces(uuid), tenure.purge_audit(interval, int) FROM PUBLIC;

-- Producers. A job that they insert is queued and has no owner. An INSERT reads the row that it made, and a duplicate
-- reads the holder of its key.
GRANT INSERT (id, queue, kind, payload, max_attempts, scheduled_at, trace_context, dispatch, publish_at, published_at,
              lane, priority, not_after, expires_as, group_id),
      SELECT (id, queue, publish_at, published_at, dispatch, fencing_token, status)
    ON tenure.jobs TO tenure_producer;
GRANT INSERT (at, job_id) ON tenure.job_expiries TO tenure_producer;
GRANT INSERT (job_id, tag) ON tenure.job_tags TO tenure_producer;
-- These run with the rights of the schema's owner. Groups: which new job waits for which, and how many may share a message.
-- A signal writes an event of a live job, once for each name, and wakes that job; as a person's it is noted in the audit, by
-- the name that the program says. A producer can so
-- approve any job that waits: it may read the ids of all live jobs.
-- `unpublished` hands a job to the relay when NATS did not take its message. By it a producer can have any queued job
-- published again, which is harmless, or an hour later.
GRANT EXECUTE ON FUNCTION tenure.link_jobs(uuid[], uuid[], uuid), tenure.add_followers(uuid[], text[], uuid),
      tenure.signal(uuid, text, jsonb), tenure.signal_by(uuid, text, jsonb, text, text),
      tenure.unpublished(uuid[], int[], float8), tenure.jobs_per_message(text[]) TO tenure_producer, tenure_worker;
GRANT INSERT (scope, key, job_id, stream_seq, stream_published_at), SELECT (scope, key, job_id)
    ON tenure.job_keys TO tenure_producer;
GRANT SELECT (queue, max_queued) ON tenure.queues TO tenure_producer;
-- To count submissions towards max_queued. Without it, only jobs count.
GRANT SELECT (queue, standing, standing_deliveries, standing_of, standing_until) ON tenure.queue_stats TO tenure_producer;

-- The functions of docs/sql.md, and the parts that both of them call; they run with the caller's rights.
GRANT EXECUTE ON FUNCTION tenure.enqueue(text, text, jsonb, text, timestamptz, interval, int, text, text, int, timestamptz,
                                         text, text, interval, text, text, text[]),
      tenure.enqueue_many(jsonb),
      tenure.create_jobs(text[], text[], jsonb[], text[], timestamptz[], int[], text[], jsonb[])
    TO tenure_producer, tenure_worker;
-- These two run with the rights of the schema's owner. `take_key` gives a new payload to a queued job that was itself
-- enqueued with that key, and to no other. `admit` releases held jobs, as their lanes allow, for the caller to publish:
-- never one above a limit or a rate. By it a producer learns the ids, kinds and traces of what it releases; it can leave
-- those jobs without a message until the relay finds that, and while its transaction is open, their lanes wait.
GRANT EXECUTE ON FUNCTION tenure.take_key(text, text, text, uuid, jsonb, timestamptz, interval),
      tenure.admit(text, text[], uuid[], int)
    TO tenure_producer, tenure_worker;

-- Workers. They change the columns of a job that running it changes: not its payload, name or limits.
GRANT SELECT, INSERT, DELETE ON tenure.jobs TO tenure_worker;
GRANT UPDATE (status, attempt, fencing_token, claim_id, worker_id, worker_host, stale_after, on_crash, losses,
              last_activity_at, started_at, scheduled_at, stage, progress, message, checkpoint, cancel_requested_at,
              last_error, dispatch, publish_at, published_at, clear_reason, put_off_since, group_id)
    ON tenure.jobs TO tenure_worker;
GRANT SELECT, INSERT ON tenure.job_history, tenure.job_keys, tenure.job_executions, tenure.recovery_events
    TO tenure_worker;
-- UPDATE: a key outlives a job that keeps no history, and knows when that job ended.
GRANT UPDATE (ended_at) ON tenure.job_keys TO tenure_worker;
-- UPDATE: a job that dies replaces the refusal of its own message by a worker with other limits.
GRANT SELECT, INSERT, UPDATE ON tenure.dead_letter_jobs TO tenure_worker;
GRANT SELECT, INSERT ON tenure.effects, tenure.job_tags TO tenure_worker;
GRANT UPDATE (result, fencing_token, step_kind) ON tenure.effects TO tenure_worker;
-- What an attempt has printed: of a job, the last three stay.
GRANT SELECT, INSERT, DELETE ON tenure.job_logs TO tenure_worker;
GRANT UPDATE (text, is_cut, written_at) ON tenure.job_logs TO tenure_worker;
GRANT SELECT, INSERT ON tenure.followers, tenure.job_edges TO tenure_worker;
-- For `doctor`.
GRANT SELECT (id, job_id, rests_until) ON tenure.group_ends TO tenure_worker;
-- `settle_edges` says of jobs that they have completed, to those that follow them; `release_followers` releases, cancels and
-- restores these, and `rest_group_note` has what Postgres refuses wait; `mend_groups` notes ends, and `sweep_groups` deletes
-- what is known of jobs that are gone.
GRANT EXECUTE ON FUNCTION tenure.release_followers(int), tenure.rest_group_note(),
      tenure.mend_groups(uuid, int), tenure.sweep_groups(uuid, int),
      tenure.settle_edges(uuid[], jsonb[]), tenure.reopen_edges(uuid[]), tenure.redriven_at(uuid, bigint),
      tenure.await_event(uuid, bigint, uuid, text, interval), tenure.keep_cancelled(uuid[]),
      tenure.suspended_for(uuid, text, float8, timestamptz) TO tenure_worker;
-- A worker goes on with the redrive that an operator has begun.
GRANT EXECUTE ON FUNCTION tenure.tend_redrives(int) TO tenure_worker;
-- Quarantines of kinds: a worker counts attempts, and begins and ends a quarantine. The rules are an operator's.
GRANT SELECT ON tenure.quarantines TO tenure_worker;
GRANT UPDATE (began_at, ended, failed, counted_from, probe_job, probe_token, probe_keeps_nothing, probes, last_probe, next_probe_at, called_at)
    ON tenure.quarantines TO tenure_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.quarantine_counts TO tenure_worker;
GRANT SELECT, INSERT, DELETE ON tenure.quarantined_jobs TO tenure_worker;
-- An act is noted by the statement that acts. The role and the address of the connection are not the program's to choose.
GRANT INSERT (via, actor, act, queue, subject, jobs, details) ON tenure.audit TO tenure_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.workers TO tenure_worker;
GRANT SELECT, UPDATE ON tenure.scanner_state, tenure.turns TO tenure_worker;
GRANT SELECT ON tenure.gateway_keys TO tenure_worker;
GRANT SELECT, INSERT, DELETE ON tenure.relay_marks TO tenure_worker;
GRANT SELECT ON tenure.queues, tenure.queue_slots, tenure.schedules, tenure.all_jobs, tenure.job_executions_all
    TO tenure_worker;
GRANT UPDATE (job_id, fencing_token) ON tenure.queue_slots TO tenure_worker;
GRANT UPDATE (next_at, paused_at, last_tick_at, last_job_id) ON tenure.schedules TO tenure_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.queue_stats, tenure.activity TO tenure_worker;
-- A job that is to be retried, or waits again, goes back to its lane. Limits, rates and weights are an operator's.
GRANT SELECT ON tenure.lane_settings, tenure.lanes, tenure.lane_slots TO tenure_worker;
GRANT SELECT, INSERT, DELETE ON tenure.lane_jobs TO tenure_worker;
GRANT UPDATE (place, due_at) ON tenure.lane_jobs TO tenure_worker;
GRANT SELECT, INSERT ON tenure.lane_wakes TO tenure_worker;
-- UPDATE: to lock a row, so that two workers do not end the same jobs.
GRANT SELECT, INSERT, DELETE ON tenure.job_expiries TO tenure_worker;
GRANT UPDATE (at) ON tenure.job_expiries TO tenure_worker;
-- `sweep_lanes` deletes rows of lanes without a job or a setting.
GRANT EXECUTE ON FUNCTION tenure.tend_lanes(int, boolean), tenure.sweep_lanes(bigint), tenure.follow_clock()
   TO tenure_worker;
GRANT EXECUTE ON FUNCTION tenure.create_history_partitions(int) TO tenure_worker;
-- These functions delete rows that are old enough, and none younger than an hour.
GRANT EXECUTE ON FUNCTION tenure.purge_day(interval, interval), tenure.purge_rows(interval, interval, uuid, int),
      tenure.purge_cancelled(interval, int), tenure.purge_dead(interval, int), tenure.purge_traces(uuid, int),
      tenure.purge_keys(interval, bigint, uuid, int), tenure.purge_events(interval, int) TO tenure_worker;
-- This one deletes no act that is younger than 30 days.
GRANT EXECUTE ON FUNCTION tenure.purge_audit(interval, int) TO tenure_worker;
-- These delete all attempts of a job but its last hundred, and the attempts and effects of a job that is gone.
GRANT EXECUTE ON FUNCTION tenure.keep_last_executions(uuid), tenure.forget_traces(uuid) TO tenure_worker;
-- For programs that run jobs: docs/sql.md. The last one says why an attempt was refused.
GRANT EXECUTE ON FUNCTION tenure.fence(uuid, bigint, uuid), tenure.hold(uuid, bigint, uuid),
      tenure.once(uuid, bigint, uuid, text), tenure.once_store(uuid, bigint, uuid, text, jsonb),
      tenure.once_result(uuid, text), tenure.complete(uuid, bigint, uuid, jsonb),
      tenure.progress(uuid, bigint, uuid, text, double precision, text, jsonb),
      tenure.raise_lost(uuid, bigint, uuid) TO tenure_worker;

-- Operators. They redrive dead letters, or purge them with all their traces.
DO $$ BEGIN
    IF NOT pg_has_role('tenure_operator', 'tenure_worker', 'MEMBER') THEN
        GRANT tenure_worker TO tenure_operator;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'tenure_operator is no member of tenure_worker: GRANT tenure_worker TO tenure_operator as a role that may';
END $$;
GRANT SELECT ON tenure.audit TO tenure_operator;
GRANT INSERT, UPDATE, DELETE ON tenure.queues, tenure.queue_slots, tenure.schedules TO tenure_operator;
GRANT EXECUTE ON FUNCTION tenure.cancel(uuid), tenure.end_queued(uuid) TO tenure_operator;
-- Lanes: these functions create and drop a trigger of tenure.jobs, and write the settings of a queue.
GRANT EXECUTE ON FUNCTION tenure.put_lanes(text, int, float8, float8, float8, float8, boolean, boolean, text),
      tenure.adopt_jobs(text, int), tenure.remove_lanes(text), tenure.forget_lanes(text),
      tenure.require_lanes(text, boolean) TO tenure_operator;
GRANT INSERT, UPDATE ON tenure.lanes TO tenure_operator;
GRANT UPDATE (changed_at) ON tenure.lane_settings TO tenure_operator;
-- A calm redrive: it is listed here, and workers go on with it.
GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.redrives TO tenure_operator;
GRANT SELECT, INSERT, DELETE ON tenure.redrive_jobs TO tenure_operator;
GRANT INSERT, UPDATE, DELETE ON tenure.quarantines TO tenure_operator;
GRANT DELETE ON tenure.dead_letter_jobs, tenure.job_keys, tenure.job_executions, tenure.effects, tenure.job_tags
    TO tenure_operator;

GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO tenure_viewer;
-- With the key, a receipt could be made up.
REVOKE ALL ON tenure.gateway_keys FROM tenure_viewer;
ALTER DEFAULT PRIVILEGES IN SCHEMA tenure GRANT SELECT ON TABLES TO tenure_viewer;
