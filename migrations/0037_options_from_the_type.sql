-- Lets a queue with lanes take no job that names none, and gives the jobs of a schedule a lane and other options.
ALTER TABLE tenure.lane_settings
    ADD COLUMN required boolean NOT NULL DEFAULT false;     -- a new job that names no lane is refused
ALTER TABLE tenure.schedules
    ADD COLUMN options jsonb;                               -- of its jobs: lane, priority, tags, expires_in_s,
                                                            -- expires_as and spread_s; NULL: none
