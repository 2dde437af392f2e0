-- checkpoint_size: the size of a job's checkpoint as JSON, in bytes. No row: the job has none, or needs it no more.
--
--   $1 id
SELECT octet_length(checkpoint::text) AS bytes FROM tenure.jobs WHERE id = $1 AND checkpoint IS NOT NULL
 UNION ALL
SELECT octet_length(checkpoint::text) FROM tenure.dead_letter_jobs WHERE id = $1 AND checkpoint IS NOT NULL
