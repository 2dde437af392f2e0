-- Returns the id from which on a look at `group_ends` begins: only transactions that were open for more than a minute
-- have added notes before it. One call of a hundred sees all notes, finds those, and moves the mark to the oldest
-- one. In a table of up to 16 pages each look begins at the start, and nothing is written.
--
-- Part of `release_followers` and `mend_groups`, with their rights and settings. As `look_from`, but ids are given in
-- another order than they are committed: so the mark stays behind the last id of a minute ago.
CREATE OR REPLACE FUNCTION tenure.first_note() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    mark   tenure.looks_from;
    oldest bigint;
BEGIN
    IF pg_relation_size('tenure.group_ends') <= 16 * 8192 THEN
        RETURN 0;
    END IF;
    SELECT m.* INTO mark FROM tenure.looks_from m WHERE m.relation = 'group_ends';
    IF mark.id > 0 AND random() > 0.01 THEN
        RETURN mark.id;
    END IF;
    oldest := (SELECT min(g.id) FROM tenure.group_ends g);
    UPDATE tenure.looks_from m
       SET id = least(oldest, mark.next_id), at = moment,
           next_id = (SELECT s.last_value FROM tenure.group_ends_id_seq s)
     WHERE m.relation = 'group_ends'
       AND (oldest < m.id OR m.at NOT BETWEEN moment - interval '1 minute' AND moment)
       AND EXISTS (SELECT FROM tenure.looks_from o WHERE o.relation = 'group_ends' FOR NO KEY UPDATE SKIP LOCKED);
    RETURN coalesce(oldest, mark.id, 0);
END $$;

REVOKE ALL ON FUNCTION tenure.first_note() FROM PUBLIC;
