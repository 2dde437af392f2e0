-- held_keys: the job that holds each key.
--
--   $1 scopes  $2 keys  $3 ordinals
SELECT u.ord, k.job_id
  FROM unnest($1::text[], $2::text[], $3::int[]) AS u(scope, key, ord)
  JOIN tenure.job_keys k ON k.scope = u.scope AND k.key = u.key
