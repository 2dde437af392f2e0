-- Deletes the notes that the call has worked off. The end of a job that has edges left stays noted, with the last
-- follower whose edge is settled: the next call goes on from there. So do all ends where another transaction has
-- changed edges meanwhile.
--
--   the arguments: as `settle_noted_edges` returns them
--
-- Part of `release_followers`, with its rights and settings, which has locked the notes.
CREATE OR REPLACE FUNCTION tenure.forget_settled_notes(notes bigint[], deferred_jobs uuid[], last_edge uuid[],
    has_more boolean, are_settled boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF are_settled AND NOT has_more THEN
        DELETE FROM tenure.group_ends g WHERE g.id = ANY (notes);
        RETURN;
    END IF;
    DELETE FROM tenure.group_ends g
     WHERE g.id = ANY (notes)
       AND (g.ended_as = 'settled' OR (g.job_id IN (SELECT unnest(deferred_jobs))) IS TRUE
            OR are_settled AND g.job_id < last_edge[1]);
    UPDATE tenure.group_ends g SET settled_to = last_edge[2]
     WHERE g.id = ANY (notes) AND g.job_id = last_edge[1] AND g.ended_as <> 'settled' AND are_settled;
END $$;

REVOKE ALL ON FUNCTION tenure.forget_settled_notes(bigint[], uuid[], uuid[], boolean, boolean) FROM PUBLIC;
