-- keys_of_queue: the unique keys of a queue, a page at a time.
--
--   $1 queue  $2 of jobs after this id  $3 of jobs with ids of this time or later, or NULL  $4 row limit
--
-- By the id of the job, which is time: so the keys that came after a moment are read without the others.
SELECT key, job_id
  FROM tenure.job_keys
 WHERE scope = $1 AND job_id > greatest($2::uuid, tenure.id_of_time($3))
 ORDER BY job_id
 LIMIT $4
