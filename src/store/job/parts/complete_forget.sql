-- complete_forget: nothing stays of the jobs in `done`. $4: the ids of those that may have earlier attempts or effects.
--
-- A key stays for its retention, and knows when its job ended: until its message has left the stream, a submission's
-- identity refuses it. The traces of a completed job help nothing: no claim can find it, so no attempt reads them.
, ended AS (
    UPDATE tenure.job_keys k SET ended_at = clock_timestamp() WHERE k.job_id = ANY (ARRAY(SELECT id FROM done))
)
SELECT id, claim_id, CASE WHEN id = ANY ($4::uuid[]) THEN tenure.forget_traces(id) IS NULL END AS forgotten FROM done
