-- tags_of: the tags of jobs whose key, or which themselves, are among these.
--
--   $1 ids  $2 keys, and tags without a value
SELECT job_id, tag
  FROM tenure.job_tags
 WHERE job_id = ANY ($1::uuid[])
   AND split_part(tag, '=', 1) = ANY ($2::text[])
