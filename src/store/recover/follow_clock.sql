-- follow_clock: let no time of before decide; the clock has stepped back.
--
-- See migrations/functions/clock/follow_clock.sql.
SELECT tenure.follow_clock()
