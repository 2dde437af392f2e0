-- put_quarantine: watch a kind, or change its rule. A quarantine that is under way goes on.
--
--   $1 kind  $2 share of failures  $3 attempts, at least  $4 seconds within which attempts count
--   $5 seconds between probes
--   $6 who acts: by what, and the name
--
-- One row: whether the rule is new or has changed. Forgets rules that were removed long ago.
WITH old AS (
    SELECT share, attempts, within, probe_every FROM tenure.quarantines WHERE kind = $1 AND removed_at IS NULL
), forgotten AS (
    DELETE FROM tenure.quarantines WHERE removed_at < statement_timestamp() - interval '1 day' AND kind <> $1
), put AS (
    INSERT INTO tenure.quarantines AS q (kind, share, attempts, within, probe_every)
    VALUES ($1, $2, $3, $4::float8 * interval '1 second', $5::float8 * interval '1 second')
        ON CONFLICT (kind) DO UPDATE
       SET share = excluded.share, attempts = excluded.attempts, within = excluded.within,
           probe_every = excluded.probe_every, removed_at = NULL,
           next_probe_at = least(q.next_probe_at, clock_timestamp() + excluded.probe_every)
    RETURNING share, attempts, within, probe_every
), changed AS (
    SELECT * FROM put EXCEPT SELECT * FROM old
), in_audit AS (
    INSERT INTO tenure.audit (via, actor, act, subject, details)
    SELECT ($6::text[])[1], ($6::text[])[2], 'put_quarantine', $1,
           jsonb_build_object('share', share, 'attempts', attempts, 'within', within, 'probe_every', probe_every)
      FROM changed
)
SELECT EXISTS (SELECT FROM changed) AS changed FROM put
