-- complete_mine: requires that the job is still its worker's, under the claim at its id's place.
       AND j.id = ANY ($1::uuid[])
       AND j.fencing_token = ANY ($2::bigint[])
       AND j.claim_id = ($3::uuid[])[width_bucket(j.id, $1::uuid[])]
       AND j.status = 'processing'
