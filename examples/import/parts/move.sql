-- A part of the scripts in this folder: enqueues the jobs of `import_jobs` into tenure. Each gets a `job_id`, or says
-- in `why` that it stays where it is.

ALTER TABLE import_jobs
    ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY,
    ADD COLUMN queue text, ADD COLUMN kind text, ADD COLUMN unique_key text,
    ADD COLUMN job_id uuid, ADD COLUMN why text, ADD COLUMN advice text;

UPDATE import_jobs j
   SET queue = coalesce(s.into_queue, s.queues ->> j.source_queue, j.source_queue),
       kind = coalesce(s.kinds ->> j.source_kind, j.source_kind),
       unique_key = s.prefix || '-' || j.source_id
  FROM import_settings s;

-- A key of the source, if it can be one of tenure: the first job that has it keeps it, as two jobs of a queue cannot.
UPDATE import_jobs j
   SET unique_key = j.source_key
  FROM (SELECT DISTINCT ON (i.queue, i.source_key) i.n
          FROM import_jobs i, import_settings s
         WHERE s.keys = 'source' AND octet_length(i.source_key) BETWEEN 1 AND 512 AND i.source_key !~ '[[:cntrl:]]'
         ORDER BY i.queue, i.source_key, i.n) first
 WHERE j.n = first.n;

UPDATE import_jobs j
   SET why = 'a job of tenure has its unique key already',
       advice = 'It was moved before, or enqueued twice: remove it here, or pass another -v prefix=… or -v keys=own.'
  FROM tenure.job_keys k
 WHERE k.scope = j.queue AND k.key = j.unique_key;

-- A key of one job may look like the id of another.
UPDATE import_jobs j
   SET why = 'another job of this move has its unique key', advice = 'Pass another -v prefix=…, or -v keys=own.'
  FROM (SELECT i.n, row_number() OVER (PARTITION BY i.queue, i.unique_key ORDER BY i.n) AS place
          FROM import_jobs i WHERE i.why IS NULL) twice
 WHERE twice.n = j.n AND twice.place > 1;

UPDATE import_jobs j
   SET payload = CASE WHEN jsonb_typeof(j.payload) = 'object' AND NOT j.payload ? s.meta
                      THEN j.payload || jsonb_build_object(s.meta, j.meta) ELSE j.payload END,
       why = CASE WHEN jsonb_typeof(j.payload) IS DISTINCT FROM 'object'
                  THEN 'its payload is no object, so -v meta=… has no place in it'
                  WHEN j.payload ? s.meta THEN 'its payload has a field of the name that -v meta=… says'
                  ELSE j.why END,
       advice = CASE WHEN jsonb_typeof(j.payload) IS DISTINCT FROM 'object' OR j.payload ? s.meta
                     THEN 'Leave -v meta=… out, or pass another name.' ELSE j.advice END
  FROM import_settings s
 WHERE s.meta IS NOT NULL AND j.why IS NULL;

CREATE INDEX ON import_jobs (n);
ANALYZE import_jobs;

-- A batch that tenure refuses is tried again job by job: the others of it are moved.
DO $$
DECLARE
    batch int := 1000;
    most  bigint := (SELECT max(n) FROM import_jobs);
    one   import_jobs;
    taken           CONSTANT text := 'a job of tenure has its unique key already';
    advice_of_taken CONSTANT text := 'A producer enqueued it meanwhile: remove it here, or pass another -v prefix=… or '
                                     '-v keys=own.';
BEGIN
    FOR start IN 1..coalesce(most, 0) BY batch LOOP
        BEGIN
            WITH part AS (
                SELECT j.n, row_number() OVER (ORDER BY j.n) AS place,
                       jsonb_build_object('queue', j.queue, 'kind', j.kind, 'payload', j.payload, 'run_at', j.run_at,
                                          'unique_key', j.unique_key,
                                          'max_attempts', least(1000, j.attempts_left)) AS job
                  FROM import_jobs j
                 WHERE j.n >= start AND j.n < start + batch AND j.why IS NULL
            ), made AS MATERIALIZED (
                SELECT e.id, e.place
                  FROM tenure.enqueue_many((SELECT coalesce(jsonb_agg(p.job ORDER BY p.place), '[]') FROM part p))
                       WITH ORDINALITY AS e(id, place)
            )
            UPDATE import_jobs j SET job_id = made.id
              FROM part JOIN made USING (place)
             WHERE j.n = part.n;
            -- A producer may have taken a key since: then the id is that of its job, and the source's job stays.
            UPDATE import_jobs j SET job_id = NULL, why = taken, advice = advice_of_taken
             WHERE j.n >= start AND j.n < start + batch
               AND j.job_id::text = ANY (string_to_array(current_setting('tenure.held', true), ' '));
        EXCEPTION WHEN SQLSTATE 'TN003' OR SQLSTATE 'TN004' THEN
            FOR one IN SELECT * FROM import_jobs j WHERE j.n >= start AND j.n < start + batch ORDER BY j.n LOOP
                DECLARE
                    advice_is text;
                BEGIN
                    -- The job before it may have found its queue full.
                    UPDATE import_jobs j
                       SET job_id = tenure.enqueue(j.queue, j.kind, j.payload, j.unique_key, j.run_at,
                                                   max_attempts => least(1000, j.attempts_left)::int)
                     WHERE j.n = one.n AND j.why IS NULL;
                    UPDATE import_jobs j SET job_id = NULL, why = taken, advice = advice_of_taken
                     WHERE j.n = one.n AND j.job_id::text = current_setting('tenure.held', true);
                EXCEPTION WHEN SQLSTATE 'TN003' OR SQLSTATE 'TN004' THEN
                    GET STACKED DIAGNOSTICS advice_is = PG_EXCEPTION_HINT;
                    UPDATE import_jobs j
                       SET why = SQLERRM,
                           advice = CASE WHEN SQLERRM LIKE '% is not a valid name:%'
                                         THEN 'Give it another with -v queues=…, -v kinds=… or -v into=….'
                                         ELSE advice_is END
                     WHERE j.n = one.n
                        OR SQLSTATE <> 'TN003' AND j.queue = one.queue AND j.job_id IS NULL AND j.why IS NULL;
                END;
            END LOOP;
        END;
    END LOOP;
END $$;
