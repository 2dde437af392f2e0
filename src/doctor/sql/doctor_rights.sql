-- doctor_rights: the rights of each role in postgres/roles.sql that this role lacks.
--
-- One row a role, the most powerful first: whether this role is a member of it, and the rights that it lacks.
-- Reads the catalog, so that a role without any right gets an answer, too. Every right in roles.sql stands here, too: a
-- test revokes one after the other.
WITH needs (role, relation, privileges, columns) AS (VALUES
    ('producer', 'migrations', '{SELECT}'::text[], NULL::text[]),
    ('producer', 'jobs', '{INSERT}',
     '{id,queue,kind,payload,max_attempts,scheduled_at,trace_context,dispatch,publish_at,published_at,lane,priority,
       not_after,expires_as,group_id}'),
    ('producer', 'jobs', '{SELECT}', '{id,queue,publish_at,published_at,dispatch,fencing_token,status}'),
    ('producer', 'job_expiries', '{INSERT}', '{at,job_id}'),
    ('producer', 'job_tags', '{INSERT}', '{job_id,tag}'),
    ('producer', 'job_keys', '{INSERT}', '{scope,key,job_id,stream_seq,stream_published_at}'),
    ('producer', 'job_keys', '{SELECT}', '{scope,key,job_id}'),
    ('producer', 'queues', '{SELECT}', '{queue,max_queued}'),
    ('producer', 'queue_stats', '{SELECT}', '{queue,standing,standing_deliveries,standing_of,standing_until}'),
    ('worker', 'audit', '{INSERT}', '{via,actor,act,queue,subject,jobs,details}'),
    ('worker', 'migrations', '{SELECT}', NULL),
    ('worker', 'jobs', '{SELECT,INSERT,DELETE}', NULL),
    ('worker', 'jobs', '{UPDATE}',
     '{status,attempt,fencing_token,claim_id,worker_id,worker_host,stale_after,on_crash,losses,last_activity_at,
       started_at,scheduled_at,stage,progress,message,checkpoint,cancel_requested_at,last_error,dispatch,publish_at,
       published_at,clear_reason,put_off_since,group_id}'),
    ('worker', 'job_history', '{SELECT,INSERT}', NULL),
    ('worker', 'job_keys', '{SELECT,INSERT}', NULL),
    ('worker', 'job_keys', '{UPDATE}', '{ended_at}'),
    ('worker', 'job_executions', '{SELECT,INSERT}', NULL),
    ('worker', 'recovery_events', '{SELECT,INSERT}', NULL),
    ('worker', 'dead_letter_jobs', '{SELECT,INSERT,UPDATE}', NULL),
    ('worker', 'effects', '{SELECT,INSERT}', NULL),
    ('worker', 'job_tags', '{SELECT,INSERT}', NULL),
    ('worker', 'job_logs', '{SELECT,INSERT,DELETE}', NULL),
    ('worker', 'job_logs', '{UPDATE}', '{text,is_cut,written_at}'),
    ('worker', 'effects', '{UPDATE}', '{result,fencing_token,step_kind}'),
    ('worker', 'followers', '{SELECT,INSERT}', NULL),
    ('worker', 'job_edges', '{SELECT,INSERT}', NULL),
    ('worker', 'group_ends', '{SELECT}', '{id,job_id,rests_until}'),
    ('worker', 'workers', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
    ('worker', 'scanner_state', '{SELECT,UPDATE}', NULL),
    ('worker', 'turns', '{SELECT,UPDATE}', NULL),
    ('worker', 'gateway_keys', '{SELECT}', NULL),
    ('worker', 'relay_marks', '{SELECT,INSERT,DELETE}', NULL),
    ('worker', 'queues', '{SELECT}', NULL),
    ('worker', 'queue_slots', '{SELECT}', NULL),
    ('worker', 'queue_slots', '{UPDATE}', '{job_id,fencing_token}'),
    ('worker', 'queue_stats', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
    ('worker', 'activity', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
    ('worker', 'lane_settings', '{SELECT}', NULL),
    ('worker', 'lanes', '{SELECT}', NULL),
    ('worker', 'lane_slots', '{SELECT}', NULL),
    ('worker', 'lane_jobs', '{SELECT,INSERT,DELETE}', NULL),
    ('worker', 'lane_jobs', '{UPDATE}', '{place,due_at}'),
    ('worker', 'lane_wakes', '{SELECT,INSERT}', NULL),
    ('worker', 'job_expiries', '{SELECT,INSERT,DELETE}', NULL),
    ('worker', 'job_expiries', '{UPDATE}', '{at}'),
    ('worker', 'quarantines', '{SELECT}', NULL),
    ('worker', 'quarantines', '{UPDATE}',
     '{began_at,ended,failed,counted_from,probe_job,probe_token,probe_keeps_nothing,probes,last_probe,next_probe_at,called_at}'),
    ('worker', 'quarantine_counts', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
    ('worker', 'quarantined_jobs', '{SELECT,INSERT,DELETE}', NULL),
    ('worker', 'schedules', '{SELECT}', NULL),
    ('worker', 'schedules', '{UPDATE}', '{next_at,paused_at,last_tick_at,last_job_id}'),
    ('worker', 'all_jobs', '{SELECT}', NULL),
    ('worker', 'job_executions_all', '{SELECT}', NULL),
    ('operator', 'audit', '{SELECT}', NULL),
    ('operator', 'queues', '{INSERT,UPDATE,DELETE}', NULL),
    ('operator', 'queue_slots', '{INSERT,UPDATE,DELETE}', NULL),
    ('operator', 'schedules', '{INSERT,UPDATE,DELETE}', NULL),
    ('operator', 'lanes', '{INSERT,UPDATE}', NULL),
    ('operator', 'lane_settings', '{UPDATE}', '{changed_at}'),
    ('operator', 'redrives', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
    ('operator', 'redrive_jobs', '{SELECT,INSERT,DELETE}', NULL),
    ('operator', 'quarantines', '{INSERT,UPDATE,DELETE}', NULL),
    ('operator', 'dead_letter_jobs', '{DELETE}', NULL),
    ('operator', 'job_keys', '{DELETE}', NULL),
    ('operator', 'job_executions', '{DELETE}', NULL),
    ('operator', 'job_tags', '{DELETE}', NULL),
    ('operator', 'effects', '{DELETE}', NULL)
), house AS (
    SELECT oid FROM pg_namespace WHERE nspname = 'tenure'
), tables AS (
    SELECT c.oid, c.relname::text AS name, c.relispartition
      FROM pg_class c JOIN house ON house.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v')
), wanted (role, relation, privilege, columns) AS (
    SELECT role, relation, unnest(privileges), columns FROM needs
     UNION ALL
    -- An operator is a worker, too.
    SELECT 'operator', relation, unnest(privileges), columns FROM needs WHERE role = 'worker'
     UNION ALL
    SELECT 'viewer', name, 'SELECT', NULL FROM tables WHERE NOT relispartition AND name <> 'gateway_keys'
), lacking (role, what) AS (
    SELECT w.role, w.privilege || ' on ' || w.relation
      FROM wanted w
      LEFT JOIN tables t ON t.name = w.relation
     WHERE NOT coalesce(has_table_privilege(t.oid, w.privilege), false)
       AND (w.columns IS NULL
         OR EXISTS (SELECT FROM unnest(w.columns) AS need (name)
                      LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = need.name
                     WHERE NOT coalesce(has_column_privilege(t.oid, a.attnum, w.privilege), false)))
     UNION ALL
    SELECT role, 'USAGE on the schema'
      FROM unnest('{producer,worker,operator,viewer}'::text[]) AS role
     WHERE NOT coalesce((SELECT has_schema_privilege(house.oid, 'USAGE') FROM house), false)
     UNION ALL
    SELECT role, 'EXECUTE on ' || function.name
      FROM (SELECT role, name
              FROM unnest('{producer,worker,operator}'::text[]) AS role,
                   unnest('{enqueue,enqueue_many,create_jobs,take_key,admit,link_jobs,add_followers,
                           signal,signal_by,unpublished,jobs_per_message}'::text[]) AS name
             UNION ALL
            SELECT role, name
              FROM unnest('{worker,operator}'::text[]) AS role,
                   unnest('{create_history_partitions,purge_day,purge_rows,purge_cancelled,purge_dead,purge_traces,
                           purge_keys,purge_events,purge_audit,keep_last_executions,forget_traces,fence,hold,once,once_store,
                           once_result,complete,progress,raise_lost,tend_lanes,sweep_lanes,release_followers,mend_groups,
                           sweep_groups,rest_group_note,settle_edges,reopen_edges,redriven_at,await_event,suspended_for,
                           keep_cancelled,tend_redrives,follow_clock}'::text[]) AS name
             UNION ALL
            SELECT 'operator',
                   unnest('{cancel,end_queued,put_lanes,require_lanes,adopt_jobs,remove_lanes,forget_lanes}'::text[])) AS function
     WHERE NOT coalesce((SELECT bool_or(has_function_privilege(p.oid, 'EXECUTE'))
                           FROM pg_proc p JOIN house ON house.oid = p.pronamespace
                          WHERE p.proname = function.name), false)
)
SELECT r.role,
       coalesce((SELECT pg_has_role(g.oid, 'MEMBER') FROM pg_roles g WHERE g.rolname = 'tenure_' || r.role), false)
           AS is_member,
       coalesce(array_agg(DISTINCT l.what ORDER BY l.what) FILTER (WHERE l.what IS NOT NULL), '{}') AS lacks
  FROM unnest('{operator,worker,producer,viewer}'::text[]) WITH ORDINALITY AS r (role, ord)
  LEFT JOIN lacking l ON l.role = r.role
 GROUP BY r.ord, r.role
 ORDER BY r.ord
