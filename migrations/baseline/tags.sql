-- Tags: short words and key=value on a job, to find it by.

-- They stay beside the job and move with none of its rows: what claims, settles and recovers jobs does not know of
-- them. The statement that creates the job writes them; retention and purge_dead.sql delete them.
CREATE TABLE tenure.job_tags (
    job_id uuid NOT NULL,                                   -- as jobs.id; the job may have ended since
    tag    text NOT NULL,                                   -- 1 to 100 bytes, without spaces and commas
    PRIMARY KEY (job_id, tag)
);
-- tagged_jobs.sql: the newest jobs with a tag, as ids are time.
CREATE INDEX job_tags_by_tag ON tenure.job_tags (tag, job_id);
