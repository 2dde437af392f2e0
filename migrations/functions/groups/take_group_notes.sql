-- Locks the oldest notes, at most `most`, without those that rest or that another call has locked, and returns what
-- they say.
--
--   ids: the notes; NULL without any   has_ends: some say that a job has ended whose edges may be open
--   followers: jobs whose edges other transactions have settled   steps: the same as [job, step], for jobs of a step
--   failed_followers: jobs before which one has not completed
--   hopeless_followers: those of them for which it never will
--
-- Part of `release_followers`, with its rights and settings. The notes stay locked until that call commits.
CREATE OR REPLACE FUNCTION tenure.take_group_notes(most int, OUT ids bigint[], OUT has_ends boolean,
    OUT followers uuid[], OUT failed_followers uuid[], OUT hopeless_followers uuid[], OUT steps jsonb)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    first_id CONSTANT bigint := tenure.first_note();
BEGIN
    SELECT array_agg(e.id), bool_or(e.ended_as <> 'settled'),
           array_agg(DISTINCT e.job_id) FILTER (WHERE e.ended_as = 'settled' AND e.step IS NULL),
           array_agg(DISTINCT e.job_id) FILTER (WHERE e.lacks IS NOT NULL),
           array_agg(DISTINCT e.job_id) FILTER (WHERE e.lacks IN ('cancelled', 'purged')),
           jsonb_agg(DISTINCT jsonb_build_array(e.job_id, e.step))
               FILTER (WHERE e.ended_as = 'settled' AND e.step IS NOT NULL)
      INTO ids, has_ends, followers, failed_followers, hopeless_followers, steps
      FROM (SELECT g.* FROM tenure.group_ends g
             WHERE g.id >= first_id AND (g.rests_until > clock_timestamp()) IS NOT TRUE
             ORDER BY g.id LIMIT most FOR UPDATE SKIP LOCKED) e;
END $$;

REVOKE ALL ON FUNCTION tenure.take_group_notes(int) FROM PUBLIC;
