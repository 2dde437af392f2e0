-- Held jobs among the figures of the fleet. held: all of a queue; held_due: those whose time has come, which wait for
-- their lane; lanes_waiting: the lanes that have any of these.
ALTER TABLE tenure.queue_stats
    ADD COLUMN held          bigint NOT NULL DEFAULT 0,
    ADD COLUMN held_due      bigint NOT NULL DEFAULT 0,
    ADD COLUMN lanes_waiting bigint NOT NULL DEFAULT 0;
