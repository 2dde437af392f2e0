-- cancel_asked: the second half of the answer of cancel.sql.
UNION ALL
SELECT 0, id, queue, kind, fencing_token, worker_id, 'asked', NULL::float8, NULL::boolean FROM asked
