-- write_logs: keep the end of what attempts have printed, each in the place of what was kept of it before.
--
--   one element an attempt: $1 ids  $2 tokens  $3 texts  $4 whether an earlier part is missing
--
-- An attempt that has lost its job writes nothing. One that has completed its job in a transaction of its own finds it in
-- the history. Of a job, the logs of its last three attempts stay.
WITH own AS MATERIALIZED (
    SELECT u.job_id, u.fencing_token, u.text, u.is_cut
      FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::boolean[]) AS u (job_id, fencing_token, text, is_cut)
     WHERE EXISTS (SELECT FROM tenure.jobs j
                    WHERE j.id = u.job_id AND j.fencing_token = u.fencing_token AND j.status = 'processing')
        OR EXISTS (SELECT FROM tenure.job_history h WHERE h.id = u.job_id AND h.fencing_token = u.fencing_token)
), gone AS (
    DELETE FROM tenure.job_logs l
     USING own
     WHERE l.job_id = own.job_id
       AND l.fencing_token <= (SELECT k.fencing_token FROM tenure.job_logs k
                                WHERE k.job_id = own.job_id AND k.fencing_token < own.fencing_token
                                ORDER BY k.fencing_token DESC LIMIT 1 OFFSET 2)
)
INSERT INTO tenure.job_logs (job_id, fencing_token, text, is_cut)
SELECT job_id, fencing_token, text, is_cut FROM own
    ON CONFLICT (job_id, fencing_token)
    DO UPDATE SET text = EXCLUDED.text, is_cut = EXCLUDED.is_cut, written_at = clock_timestamp()
