-- A part of the scripts in this folder: gives each variable its default, and begins the transaction.

\set ON_ERROR_STOP on
\set QUIET on
\pset footer off

\if :{?queue}
\else
    \set queue ''
\endif
\if :{?into}
\else
    \set into ''
\endif
\if :{?queues}
\else
    \set queues '{}'
\endif
\if :{?kinds}
\else
    \set kinds '{}'
\endif
\if :{?keys}
\else
    \set keys source
\endif
\if :{?meta}
\else
    \set meta ''
\endif
\if :{?dead}
\else
    \set dead off
\endif
\if :{?limit}
\else
    \set limit ''
\endif
\if :{?dry_run}
\else
    \set dry_run off
\endif

-- Each statement sees what is committed by then: a worker of the source may take a job until this transaction has it.
BEGIN ISOLATION LEVEL READ COMMITTED;

CREATE TEMP TABLE import_settings ON COMMIT DROP AS
SELECT :'prefix' AS prefix, nullif(:'into', '') AS into_queue, :'queues'::jsonb AS queues, :'kinds'::jsonb AS kinds,
       :'keys' AS keys, nullif(:'meta', '') AS meta, to_regclass(:'source') IS NOT NULL AS has_source,
       :'source' AS source;

DO $$
DECLARE
    given import_settings;
BEGIN
    SELECT * INTO given FROM import_settings;
    IF to_regprocedure('tenure.enqueue_many(jsonb)') IS NULL THEN
        RAISE EXCEPTION 'this database has no function tenure.enqueue_many'
            USING HINT = 'Run `tenure migrate` on it: the move is one transaction, so both queues are in one database.';
    ELSIF NOT given.has_source THEN
        RAISE EXCEPTION 'this database has no table %', given.source
            USING HINT = 'Name the schema of the queue to leave with -v schema=…, and its database with -d.';
    ELSIF jsonb_typeof(given.queues) <> 'object' OR jsonb_typeof(given.kinds) <> 'object'
          OR jsonb_path_exists(jsonb_build_array(given.queues, given.kinds), '$[*].* ? (@.type() != "string")') THEN
        RAISE EXCEPTION 'queues and kinds map names to names, but one of them does not'
            USING HINT = 'Write them as in -v kinds=''{"Billing::Charge": "billing.charge"}''.';
    ELSIF given.keys NOT IN ('source', 'own') THEN
        RAISE EXCEPTION 'keys is %, but must be source or own', to_json(given.keys)
            USING HINT = 'source keeps the unique keys of the queue to leave; own gives each job a key made of its id.';
    END IF;
END $$;
