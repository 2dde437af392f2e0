-- Judges followers by their edges. A failure decides at once. One that still waits only remembers the edge for which it
-- does, in `open_n`: the next look begins there. Whether no edge is open is decided by a look at all of them.
--
--   failed_followers, hopeless_followers: as `take_group_notes` says; they may have more than `followers`
--   ready: may start: no edge is open, and no job before it has failed, or it runs in any case
--   doomed: is to be cancelled for a failure
--   cancelled: a failure has cancelled it before; it may also be ready, to come back
--
-- Part of `release_followers`, with its rights and settings. It waits for no lock: one that is locked remembers
-- nothing.
CREATE OR REPLACE FUNCTION tenure.judge_followers(followers uuid[], failed_followers uuid[], hopeless_followers uuid[],
    OUT ready uuid[], OUT doomed uuid[], OUT cancelled uuid[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    waiting uuid[];
    open_ns bigint[];
BEGIN
    IF followers IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(v.job_id) FILTER (WHERE NOT v.is_cut AND NOT v.is_open AND (v.on_failure = 'run' OR NOT v.lacks)),
           array_agg(v.job_id) FILTER (WHERE v.is_cut
                                          OR NOT v.is_open AND (v.on_failure = 'cancel' AND v.lacks
                                                                OR v.on_failure = 'hold' AND v.is_beyond_redrive)),
           array_agg(v.job_id) FILTER (WHERE v.was_cut),
           array_agg(v.job_id) FILTER (WHERE v.is_open), array_agg(coalesce(v.next_n, 0)) FILTER (WHERE v.is_open)
      INTO ready, doomed, cancelled, waiting, open_ns
      FROM (SELECT f.job_id, f.on_failure, f.cut_at IS NOT NULL AS was_cut, c.is_cut,
                   o.n AS next_n, o.n IS NOT NULL OR e.waits AS is_open,
                   e.lacks, e.is_beyond_redrive
              FROM tenure.followers f
             CROSS JOIN LATERAL (
                   SELECT f.cut_at IS NULL
                      AND CASE f.on_failure WHEN 'cancel' THEN (f.job_id IN (SELECT unnest(failed_followers))) IS TRUE
                                            -- What cannot be redriven will not come.
                                            WHEN 'hold' THEN (f.job_id IN (SELECT unnest(hopeless_followers))) IS TRUE
                                            ELSE false END AS is_cut
                    OFFSET 0) c
              LEFT JOIN LATERAL (
                   SELECT d.n, d.state FROM tenure.job_edges d
                    WHERE NOT c.is_cut AND d.after = f.job_id AND d.n >= f.open_n AND d.step IS NULL
                      AND (d.state IS NULL OR d.state <> 'completed')
                    ORDER BY d.n LIMIT 1) l ON true
             CROSS JOIN LATERAL (
                   SELECT CASE WHEN l.state IS NULL THEN l.n
                               ELSE (SELECT d.n FROM tenure.job_edges d
                                      WHERE d.after = f.job_id AND d.n > l.n AND d.state IS NULL AND d.step IS NULL
                                      ORDER BY d.n LIMIT 1) END AS n OFFSET 0) o
             CROSS JOIN LATERAL (
                   -- One before `open_n` may be open again: its job was redriven.
                   SELECT coalesce(bool_or(d.state IS NULL), false) AS waits,
                          coalesce(bool_or(d.state <> 'completed'), false) AS lacks,
                          coalesce(bool_or(d.state IN ('cancelled', 'purged')), false) AS is_beyond_redrive
                     FROM tenure.job_edges d
                    WHERE NOT c.is_cut AND o.n IS NULL AND (l.n IS NOT NULL OR f.open_n > 0)
                      AND d.after = f.job_id AND d.step IS NULL) e
             WHERE f.job_id = ANY (followers)) v;
    IF waiting IS NOT NULL THEN
        UPDATE tenure.followers f SET open_n = w.n
          FROM unnest(waiting, open_ns) AS w(id, n)
         WHERE f.job_id = w.id AND f.open_n <> w.n
           AND f.job_id IN (SELECT o.job_id FROM tenure.followers o WHERE o.job_id = ANY (waiting) ORDER BY o.job_id
                               FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
END $$;

REVOKE ALL ON FUNCTION tenure.judge_followers(uuid[], uuid[], uuid[]) FROM PUBLIC;
