-- Drops the forms of tenure.enqueue with fewer arguments, and the part that served them: no program calls them any more.
-- Takes back a right of all roles, to add to the audit: postgres/roles.sql gives it to those that act.
DROP FUNCTION IF EXISTS tenure.enqueue_8(text, text, jsonb, text, timestamptz, interval, int, text);
DROP FUNCTION IF EXISTS tenure.enqueue_16(text, text, jsonb, text, timestamptz, interval, int, text, text, int,
                                          timestamptz, text, text, interval, text, text);
DROP FUNCTION IF EXISTS tenure.insert_jobs(text[], text[], jsonb[], text[], timestamptz[], int[], text[]);
REVOKE INSERT (via, actor, act, queue, subject, jobs, details) ON tenure.audit FROM PUBLIC;
