-- complete_locked: locks the jobs that are ours, in order of id under every plan.
WITH mine AS MATERIALIZED (
    SELECT u.id, u.output
      FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::uuid[], $4::text[])
           AS u(id, token, claim_id, output)
      JOIN tenure.jobs j ON j.id = u.id
     WHERE j.id = ANY ((SELECT $1::uuid[])::uuid[])
       AND j.fencing_token = u.token
       AND j.claim_id = u.claim_id
       AND j.status = 'processing'
     ORDER BY j.id
