-- Notes where looks at three tables begin whose rows come and go. An open transaction keeps their dead rows, and a look
-- from the start passes all of them.
CREATE TABLE tenure.looks_from (
    relation     text        PRIMARY KEY CHECK (relation IN ('lane_wakes', 'job_expiries', 'group_ends')),
    -- Of lane_wakes and job_expiries: no row has an earlier `at`, except those that transactions of more than a minute
    -- bring. Of group_ends: when next_id was noted.
    at           timestamptz NOT NULL DEFAULT '-infinity',
    id           bigint      NOT NULL DEFAULT 0,            -- of group_ends: the same by its id
    next_id      bigint      NOT NULL DEFAULT 0             -- of group_ends: the last id that was given until `at`
) WITH (fillfactor = 10);
INSERT INTO tenure.looks_from (relation) VALUES ('lane_wakes'), ('job_expiries'), ('group_ends');
