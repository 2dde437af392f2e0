-- Counts how many jobs a queue may release now: at most `most`; of lanes that take turns, no more than keep the workers
-- busy; of a queue with a rate of its own, no more than it has tokens; of a paused queue none.
--
--   of: the queue   unused: tokens that come back   moment: the time of this call of `admit`
--
-- Called by `admit` alone, with its rights, its search_path and its settings for plans. It fills up the queue's
-- tokens; the caller has locked them, and `release_jobs` takes those of the released jobs.
CREATE OR REPLACE FUNCTION tenure.count_room(of text, most bigint, unused bigint, moment timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    s            tenure.lane_settings;
    room         bigint := most;
    worker_slots bigint;
    released     bigint;
    waiting      bigint;
BEGIN
    SELECT * INTO s FROM tenure.lane_settings l WHERE l.queue = of;
    IF EXISTS (SELECT FROM tenure.queues q WHERE q.queue = of AND q.paused_at IS NOT NULL) THEN
        room := 0;
    END IF;
    IF s.turns THEN
        worker_slots := (SELECT coalesce(sum(w.slots), 0) FROM tenure.workers w
                          WHERE of = ANY (w.queues) AND w.last_seen_at > statement_timestamp() - 3 * w.renew_every);
        released := CASE WHEN s.ordered THEN
                             -- A job that backs off keeps its lane's slot, and has no message.
                             (SELECT count(*) FROM tenure.lane_slots sl
                                JOIN tenure.jobs j ON j.id = sl.job_id
                                                  AND (j.status = 'processing' OR j.published_at IS NOT NULL)
                               WHERE sl.queue = of)
                         ELSE (SELECT count(*) FROM tenure.lane_slots sl WHERE sl.queue = of) END;
        room := least(room, greatest(16, 2 * worker_slots) - released);
    END IF;
    IF s.queue_rate IS NOT NULL THEN
        -- Messages that no worker has taken keep their tokens: after a pause they start at once.
        waiting := (SELECT count(*) FROM tenure.lane_slots sl
                      JOIN tenure.jobs j ON j.id = sl.job_id AND j.status = 'queued' AND j.published_at IS NOT NULL
                     WHERE sl.queue = of);
        s.tokens := coalesce(s.tokens + unused + s.queue_rate * greatest(0, extract(epoch FROM moment - s.refilled_at)),
                             s.queue_burst);
        s.tokens := least(greatest(0, s.queue_burst - waiting), s.tokens);
        UPDATE tenure.lane_settings l SET tokens = s.tokens, refilled_at = moment WHERE l.queue = of;
        room := least(room, floor(s.tokens));
    END IF;
    RETURN greatest(room, 0);
END $$;

REVOKE ALL ON FUNCTION tenure.count_room(text, bigint, bigint, timestamptz) FROM PUBLIC;
