-- doctor_write: a job that needs room on the disk, for a transaction that is rolled back: no other session sees it.
--
-- Its payload does not compress, and takes several pages.
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, published_at)
SELECT gen_random_uuid(), 'doctor', 'none', to_jsonb(string_agg(md5(random()::text), '')), 1, statement_timestamp(),
       statement_timestamp()
  FROM generate_series(1, 2000)
