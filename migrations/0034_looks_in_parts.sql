-- Has a look for lost ends go through the edges of a follower of many by parts: the follower remembers the last one.
ALTER TABLE tenure.followers
    ADD COLUMN mended_to bigint NOT NULL DEFAULT 0;         -- the edge (its n) after which the next look of mend_groups
                                                            -- goes on; 0: at the first one
