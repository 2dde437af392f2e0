-- checkpoint_size: how many bytes a job's checkpoint has, as JSON. No row: there is none, or the job needs it no more.
--
--   $1 id
SELECT octet_length(checkpoint::text) AS bytes FROM tenure.jobs WHERE id = $1 AND checkpoint IS NOT NULL
 UNION ALL
SELECT octet_length(checkpoint::text) FROM tenure.dead_letter_jobs WHERE id = $1 AND checkpoint IS NOT NULL
