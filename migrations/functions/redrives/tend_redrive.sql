-- Goes on with one redrive: notes how its jobs have ended, stops it if too many have failed, and redrives the next
-- ones, at most `most`.
--
-- The first `canary` jobs go alone. How many are out at once after them is bounded by what has completed: what breaks
-- meanwhile costs the canary and a share of that.
-- Called by `tend_redrives` alone, with its rights and its settings; it has locked the redrive's row.
CREATE OR REPLACE FUNCTION tenure.tend_redrive(of uuid, most int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    r           tenure.redrives;
    ends        record;
    next        record;
    canary_jobs bigint;
    failure     text;
    out_now     bigint;
    room        bigint;
BEGIN
    SELECT * INTO r FROM tenure.redrives t WHERE t.id = of;
    canary_jobs := least(r.canary, r.jobs);
    SELECT * INTO ends FROM tenure.note_redriven_ends(of);
    r.completed := r.completed + ends.completed;
    r.failed := r.failed + ends.failed;
    r.cancelled := r.cancelled + ends.cancelled;
    r.waiting := r.waiting + ends.waiting;
    out_now := r.redriven - r.completed - r.failed - r.cancelled - r.waiting;
    failure := tenure.redrive_failure(of, canary_jobs, r.stop_at);
    IF failure IS NOT NULL THEN
        r.state := 'stopped';
        r.reason := failure;
    ELSE
        IF r.state = 'canary' AND out_now = 0
           AND (r.redriven >= canary_jobs OR r.redriven + r.missing >= r.jobs) THEN
            r.state := 'running';
            r.paced_from := clock_timestamp();
        END IF;
        IF r.state = 'canary' THEN
            room := canary_jobs - r.redriven;
        ELSE
            room := r.canary + floor(r.stop_at * r.completed)::bigint - out_now;
            IF r.rate IS NOT NULL THEN
                -- What a gap has left out does not come all at once. A time ahead is of a clock that has stepped back.
                r.paced_from := greatest(least(r.paced_from, clock_timestamp()),
                                         clock_timestamp() - greatest(5, 1 / r.rate) * interval '1 second');
                room := least(room,
                              floor(r.rate * extract(epoch FROM clock_timestamp() - r.paced_from)::float8)::bigint);
            END IF;
        END IF;
        SELECT * INTO next FROM tenure.redrive_next(of, r.redriven + r.missing, greatest(least(room, most), 0));
        r.redriven := r.redriven + next.redriven;
        r.missing := r.missing + next.missing;
        IF r.rate IS NOT NULL THEN
            r.paced_from := r.paced_from + next.redriven / r.rate * interval '1 second';
        END IF;
        IF next.redriven + next.missing = 0 AND out_now = 0 AND r.redriven + r.missing >= r.jobs THEN
            r.state := 'done';
        END IF;
    END IF;
    IF r.state IN ('done', 'stopped') THEN
        r.ended_at := clock_timestamp();
        DELETE FROM tenure.redrive_jobs o WHERE o.redrive_id = of;
    END IF;
    UPDATE tenure.redrives t
       SET redriven = r.redriven, completed = r.completed, failed = r.failed, cancelled = r.cancelled,
           waiting = r.waiting, missing = r.missing, state = r.state, reason = r.reason, paced_from = r.paced_from,
           ended_at = r.ended_at
     WHERE t.id = of;
END $$;

REVOKE ALL ON FUNCTION tenure.tend_redrive(uuid, int) FROM PUBLIC;
