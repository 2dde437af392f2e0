-- The stored times, each once: how far ahead of the database's clock it may lie, and whether a test's time passes for
-- it.
--
--   ahead   beyond that, `follow_clock` lets it count as now; NULL: it decides nothing, a caller chose it, or `rule`
--           says who keeps it
--   passes  false: of the clock of NATS, or of live workers, who would have written it anew; `advance` in tests leaves
--           it alone
--
-- `follow_clock` calls it, and so does src/store/testing.rs. A test holds that every column with a time stands here.
CREATE OR REPLACE FUNCTION tenure.stored_times()
    RETURNS TABLE (relation text, name text, ahead interval, passes boolean, rule text)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT t.relation, unnest(t.names), t.ahead, t.passes, t.rule
  FROM (VALUES
       ('activity', '{minute}'::text[], NULL::interval, false, 'shown'),
       ('audit', '{at}', NULL, true, 'shown; retention'),
       ('dead_letter_jobs', '{created_at,scheduled_at,started_at,last_activity_at}', NULL, true, 'shown'),
       ('dead_letter_jobs', '{died_at}', NULL, true, 'shown; retention'),
       ('effects', '{created_at}', '0', true, 'what came ahead of the clock came now'),
       ('effects', '{began_at,wakes_at}', NULL, true, 'follow_clock: a pause keeps its length'),
       ('followers', '{cut_at}', NULL, true, 'shown'),
       ('followers', '{not_after}', NULL, true, 'a caller chose it'),
       ('group_ends', '{rests_until}', '10 seconds', true, 'a note rests for less'),
       ('job_edges', '{ended_at}', '0', true, 'what came ahead of the clock came now'),
       ('job_executions', '{started_at}', NULL, true, 'shown'),
       ('job_executions', '{finished_at}', NULL, true, 'the beginning of a pause, for follow_clock'),
       ('job_expiries', '{at}', NULL, true, 'a caller chose it'),
       ('job_history', '{created_at,scheduled_at,started_at,last_activity_at}', NULL, true, 'shown'),
       ('job_history', '{finished_at}', NULL, true, 'shown; retention'),
       ('job_keys', '{created_at,ended_at}', NULL, true, 'retention'),
       ('job_keys', '{stream_published_at}', NULL, false, 'retention'),
       ('job_logs', '{written_at}', NULL, true, 'shown'),
       ('jobs', '{last_activity_at}', '0', true, 'an owner gets stale_after from now'),
       ('jobs', '{scheduled_at}', NULL, true, 'a caller chose it; after an attempt as effects.wakes_at'),
       ('jobs', '{started_at,created_at,cancel_requested_at}', NULL, true, 'shown'),
       ('jobs', '{publish_at}', NULL, true, 'as scheduled_at; follow_clock: now, if that is past'),
       ('jobs', '{published_at}', '20 minutes', false, 'a message is put off for less'),
       ('jobs', '{put_off_since}', '0', true, 'it waits from now'),
       ('jobs', '{not_after}', NULL, true, 'a caller chose it'),
       ('lane_jobs', '{due_at}', NULL, true, 'as jobs.scheduled_at'),
       ('lane_settings', '{refilled_at}', '0', true, 'its tokens count from now'),
       ('lane_settings', '{changed_at}', NULL, false, 'names a version'),
       ('lane_settings', '{removed_at}', NULL, true, 'shown'),
       ('lane_wakes', '{at}', NULL, true, 'follow_clock: a look too many finds nothing'),
       ('lanes', '{refilled_at}', '0', true, 'its tokens count from now'),
       ('lanes', '{next_at}', '0', true, 'a look too many writes the right time'),
       ('looks_from', '{at}', '0', true, 'look_from trusts none that lies ahead'),
       ('quarantine_counts', '{at}', NULL, true, 'tend_quarantines.sql counts none that lies ahead'),
       ('quarantines', '{began_at,removed_at}', NULL, true, 'shown'),
       ('quarantines', '{counted_from}', '0', true, 'it counts from now'),
       ('quarantines', '{next_probe_at}', '0', true, 'a probe comes sooner'),
       ('quarantines', '{called_at}', '0', true, 'it was called now'),
       ('queue_stats', '{oldest_due_at,oldest_submitted_at}', NULL, false, 'shown'),
       ('queue_stats', '{submitted_until,standing_until}', '10 minutes', false, 'a figure gets old'),
       ('queues', '{paused_at}', NULL, true, 'shown'),
       ('queues', '{arrives_since}', NULL, false, 'shown'),
       ('recovery_events', '{at}', NULL, true, 'shown; retention'),
       ('redrive_jobs', '{redriven_at}', NULL, true, 'shown'),
       ('redrive_jobs', '{ended_at}', '0', true, 'it ended now'),
       ('redrives', '{started_at,ended_at}', NULL, true, 'shown'),
       ('redrives', '{paced_from}', '0', true, 'the rate counts from now'),
       ('relay_marks', '{marked_at}', NULL, false, 'passed_mark.sql trusts none that lies ahead'),
       ('scanner_state', '{last_scan_at}', NULL, false, 'scan_gate.sql takes one that lies ahead for a gap'),
       ('scanner_state', '{server_started_at}', NULL, false, 'compared for equality'),
       ('scanner_state', '{grace_until}', NULL, true, 'scan_gate.sql: at most stale_after from now'),
       ('scanner_state', '{breaker_since}', NULL, true, 'scan_gate.sql: now at the latest'),
       ('scanner_state', '{measured_at,stream_measured_at}', '0', false, 'a figure gets old'),
       ('scanner_state', '{relay_due_at}', NULL, false, 'shown'),
       ('scanner_state', '{purged_at}', '0', true, 'the next sweep counts from now'),
       ('scanner_state', '{swept_at}', NULL, true, 'shown'),
       ('scanner_state', '{purged_until}', NULL, false, 'purge_gate.sql: an hour from now at the latest'),
       ('scanner_state', '{stream_until,unserved_until,findings_until}', '10 minutes', false, 'a figure gets old'),
       ('scanner_state', '{measuring_until}', '10 minutes', false, 'a measurement takes less'),
       ('schedules', '{paused_at,created_at}', NULL, true, 'shown'),
       ('schedules', '{next_at}', NULL, true, 'schedules::recover'),
       ('schedules', '{last_tick_at}', NULL, true, 'schedules::recover'),
       ('schedules', '{changed_at}', NULL, false, 'names a version'),
       ('turns', '{until}', '10 minutes', false, 'a turn is shorter'),
       ('workers', '{started_at,draining_at}', NULL, false, 'shown'),
       ('workers', '{last_seen_at}', '0', false, 'it gave a sign of life now'),
       ('workers', '{suspected_at}', '0', false, 'it is suspected from now'),
       ('workers', '{probed_at}', '0', false, 'it was probed now')) AS t (relation, names, ahead, passes, rule)
$$;

REVOKE ALL ON FUNCTION tenure.stored_times() FROM PUBLIC;
