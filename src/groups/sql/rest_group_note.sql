-- rest_group_note: pass over the oldest note for a while, since Postgres refuses what it asks for.
--
-- One row, unless there is no note. See migrations/functions/groups/rest_group_note.sql.
SELECT job_id, queue FROM tenure.rest_group_note()
